//! Tests of the parts of the display that need no terminal.

use super::*;

#[test]
fn time_left_is_told_once_it_is_known() {
    assert_eq!(left(Duration::from_secs(1), 0.0), "");
    assert_eq!(left(Duration::from_secs(10), 0.5), ", 10 s left");
    assert_eq!(left(Duration::from_secs(60), 0.1), ", 9 min left");
}

#[test]
fn the_template_of_the_bar_is_one() {
    assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
}
