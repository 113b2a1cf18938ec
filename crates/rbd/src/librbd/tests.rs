//! Tests with missing libraries.

use super::load;

#[test]
fn a_library_that_is_missing_is_named_with_its_package() {
    for (librados, librbd, name, package) in [
        ("libsheave-nowhere.so.2", "librbd.so.1", "libsheave-nowhere.so.2", "librados2"),
        // A library that every process has stands for librados, so that the search goes on to librbd.
        ("libc.so.6", "libsheave-nowhere.so.1", "libsheave-nowhere.so.1", "librbd1"),
        ("libc.so.6", "libc.so.6", "libc.so.6", "librbd1 librados2"),
    ] {
        let error = load(librados, librbd).expect_err("there is none").to_string();
        assert!(error.contains(name) && error.contains(&format!("apt-get install {package}`")), "{error}");
    }
}
