//! Parts of the bar that do not need a terminal.

use super::*;

#[test]
fn the_template_is_as_wide_as_it_says() {
    new(1000);
    assert!(TEMPLATE.contains(&format!("{{bar:{BAR}}}")) && TEMPLATE.contains("{prefix:>9}"));
}

#[test]
fn words_fit_and_the_first_come_first() {
    let words: Vec<String> =
        ["IOPS=7.19M", "3s left", "BW=27.4 GiB/s", "p99=8.32 us", "p50=808 ns", "p99.9=16 us", "IOs/call=8/8"]
            .map(String::from)
            .into();
    let at = |columns: usize| fitting(&words, columns - FRONT - 1);
    assert_eq!(at(60), "IOPS=7.19M, 3s left, BW=27.4 GiB/s");
    assert_eq!(at(59), "IOPS=7.19M, 3s left");
    assert_eq!(at(80), "IOPS=7.19M, 3s left, BW=27.4 GiB/s, p99=8.32 us");
    assert_eq!(at(200), words.join(", "));
    for columns in 0..200 {
        assert!(fitting(&words, columns).chars().count() <= columns, "{columns}");
    }
}
