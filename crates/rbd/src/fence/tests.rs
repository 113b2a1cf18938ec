//! Parsing of monitors' times, and of marks.

use super::{Before, MARKED_WATCHES, ends_soon, seconds};

#[test]
fn a_mark_names_its_client_and_its_image() {
    let before = |watches: Vec<u64>| Before { address: "[::1]:0/17".into(), watches };
    for watches in [vec![], vec![7], vec![7, u64::MAX]] {
        let mark = before(watches.clone()).mark("5e1f");
        assert_eq!(Before::marked(&mark, "5e1f"), Some(before(watches)), "{mark}");
        assert_eq!(Before::marked(&mark, "5e1"), None, "another image's, {mark}");
    }
    let many: Vec<u64> = (1 << 63..).take(1000).collect();
    let mark = before(many.clone()).mark("5e1f");
    assert!(mark.len() < 4000);
    assert_eq!(Before::marked(&mark, "5e1f"), Some(before(many[..MARKED_WATCHES].to_vec())));
    for mark in ["", "5e1f", " 5e1f "] {
        assert_eq!(Before::marked(mark, "5e1f"), None);
    }
}

#[test]
fn times_of_a_monitor_are_read() {
    for (text, is) in [
        ("1970-01-01T00:00:00.000000+0000", 0),
        ("2000-02-29T12:00:01.5+0000", 951_825_601),
        ("2026-11-27T17:50:55.123456+0000", 1_795_801_855),
        ("2026-11-27T19:50:55.123456+0200", 1_795_801_855),
        ("2026-11-27T12:20:55.123456-0530", 1_795_801_855),
        ("2026-11-27 17:50:55.123456", 1_795_801_855),
    ] {
        assert_eq!(seconds(text), Some(is), "{text}");
    }
    for text in ["", "some time", "2026-11-27", "2026-11-27T17:5", "2026-11-27T17:50:55+é"] {
        assert_eq!(seconds(text), None, "{text}");
    }
    assert!(ends_soon("2026-01-01T00:00:00.000000+0000") && !ends_soon("2999-01-01T00:00:00.000000+0000"));
    assert!(!ends_soon("some time"));
}
