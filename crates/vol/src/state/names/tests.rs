//! Rules of names.

use super::*;

#[test]
fn names_are_held_to_the_rules() {
    for good in
        ["a", "0", "_x", "vm-1.disk_2", &"x".repeat(255), "vm1@monday", "_@0", &format!("v@{}", "x".repeat(253))]
    {
        assert!(check_name(good).is_ok(), "{good}");
    }
    for bad in [
        "",
        "-a",
        ".a",
        "a b",
        "a/b",
        "ä",
        "a\n",
        "a#b",
        &"x".repeat(256),
        "@",
        "v@",
        "@s",
        "v@-s",
        "v@.s",
        "v@s@t",
        "v@a b",
    ] {
        let error = check_name(bad).expect_err(bad).to_string();
        assert!(error.contains("letters, digits"), "{error}");
    }
}
