//! Tests of the size of the run's page in the repository.

use super::*;

#[test]
fn a_page_that_is_too_large_does_not_take_the_place_of_the_one_that_is_kept() {
    let dir = std::env::temp_dir().join(format!("sheave-xtask-lab-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("made");
    let (page, example) = (dir.join("page.html"), dir.join("example.html"));
    let most = vec![b'p'; 160 << 10];
    std::fs::write(&page, &most).expect("written");
    keep(&page, &example).expect("160 KiB are kept");
    std::fs::write(&page, vec![b'q'; most.len() + 1]).expect("written");
    let error = keep(&page, &example).expect_err("a byte more").to_string();
    assert!(error.contains("has 163841 bytes, and may have 163840"), "{error}");
    assert!(std::fs::read(&example).expect("read") == most, "the page that was kept is another");
    std::fs::remove_dir_all(&dir).expect("removed");
}

/// A page that was not written by `--write` has the same limit.
#[test]
fn the_page_that_the_repository_has_is_no_larger() {
    let example = workspace::root().join(EXAMPLE);
    if example.exists() {
        let bytes = std::fs::metadata(&example).expect("there").len();
        assert!(bytes <= MOST, "{EXAMPLE} has {bytes} bytes, and may have {MOST}");
    }
}
