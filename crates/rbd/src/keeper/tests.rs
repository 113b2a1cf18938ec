//! Changes of an image's size.

use super::sized;
use crate::desk::tests::desk;

#[test]
fn a_size_is_told_that_differs_from_the_one_that_the_device_was_opened_with() {
    let (desk, mut known) = (desk(), 16 << 20);
    sized(Ok(16 << 20), &mut known, &desk);
    assert!(desk.notices().is_empty(), "{:?}", desk.notices());
    for _ in 0..2 {
        sized(Ok(24 << 20), &mut known, &desk);
        assert_eq!(known, 24 << 20);
    }
    let told = desk.notices();
    assert!(told.len() == 1 && told[0].ends_with("resized from 16777216 to 25165824 bytes"), "{told:?}");
    sized(Err(libc::ENOENT), &mut known, &desk);
    sized(Ok(24 << 20), &mut known, &desk);
    assert_eq!(known, 24 << 20, "what could not be read says nothing of it");
    assert_eq!(desk.notices().len(), 2, "{:?}", desk.notices());
}
