//! Reading what valgrind says.

use super::*;

#[test]
fn the_count_is_found_in_either_spelling() {
    assert_eq!(refs("==7== \n==7== I refs:        1,234,567\n"), Some(1_234_567));
    assert_eq!(refs("==7== I   refs:      12\n"), Some(12));
    assert_eq!(refs("==7== nothing of the kind\n"), None);
}

#[test]
fn an_arm_has_one_word_on_the_command_line() {
    let args = arguments("bio-cache", "shared pool", &Point::default(), 5);
    assert_eq!(args[2], "shared-pool");
    assert_eq!(args.len(), 7);
}
