//! Results that are not certain are `None`.

use super::*;

#[test]
fn a_file_system_that_makes_holes_and_a_file_that_is_not_there_are_not_told_of() {
    let file = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file");
    assert_eq!((takes_back(file.path()), takes_back(Path::new("/no/such/file"))), (None, None));
}
