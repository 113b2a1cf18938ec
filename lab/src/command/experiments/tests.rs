//! Tests of the command line that a report contains.

use super::measuring;

#[test]
fn a_report_has_the_command_without_the_files_that_it_is_written_to() {
    let of = |line: &str| measuring(line.split(' ').map(str::to_owned)).collect::<Vec<_>>().join(" ");
    assert_eq!(of("all --html /a/b.html --rounds 6 --markdown=x --save y --json"), "all --rounds 6 --json");
    assert_eq!(of("--save a bio-cache --sweep none --html=x"), "bio-cache --sweep none");
}
