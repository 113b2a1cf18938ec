//! Units: conversions, and text forms both ways.

use proptest::prelude::*;

use super::*;

#[test]
fn sectors_and_bytes_convert() {
    assert_eq!(Sector(8).bytes(), Bytes(4096));
    assert_eq!(Sector(u64::MAX).checked_bytes(), None);
    assert_eq!(Bytes(4096).sectors(), Some(Sector(8)));
    assert_eq!(Bytes(4097).sectors(), None);
    assert_eq!(Bytes(4097).sectors_floor(), Sector(8));
    assert!(Bytes(8192).is_aligned(4096) && !Bytes(512).is_aligned(4096));
    assert_eq!(Sector(3) + Sector(4) - Sector(1), Sector(6));
    assert_eq!(Bytes(u64::MAX).checked_add(Bytes(1)), None);
    assert_eq!(Sector(1).checked_add(Sector(1)), Some(Sector(2)));
    assert_eq!((Sector(7).to_string(), Bytes(4096).to_string()), ("sector 7".into(), "4 KiB".into()));
}

#[test]
fn sizes_are_read() {
    let same = [("512", 512), ("4k", 4096), ("4K", 4096), ("1M", 1 << 20), ("10G", 10 << 30), ("1T", 1 << 40)];
    for (text, bytes) in same {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for text in ["4KiB", "4 kib", "4kB", " 4k "] {
        assert_eq!(parse_size(text), Ok(4096), "{text}");
    }
    for (text, bytes) in [("1.5G", 3 << 29), ("0.5k", 512), ("2.0M", 2 << 20), ("1.25 KiB", 1280), ("15.5E", 31 << 59)]
    {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    assert_eq!(parse_size("15E"), Ok(15 << 60));
    assert_eq!(parse_size("18446744073709551615"), Ok(u64::MAX));
}

#[test]
fn bad_sizes_name_cause_and_fix() {
    for (text, words) in [
        ("", "whole number"),
        ("k", "whole number"),
        ("-4k", "whole number"),
        ("4x", "unknown unit `x`"),
        ("1.", "whole number"),
        (".5G", "whole number"),
        ("1.5", "whole number of bytes"),
        ("0.1k", "whole number of bytes"),
        ("1.5.5G", "unknown unit"),
        ("1.5Q", "unknown unit `Q`"),
        ("15.99999999999999999999999999999999999999999E", "whole number of bytes"),
        ("16E", "too large"),
        ("99999999999999999999", "too large"),
    ] {
        let message = parse_size(text).expect_err(text).to_string();
        assert!(message.contains(words), "{text}: {message}");
    }
}

#[test]
fn durations_are_read() {
    for (text, ns) in [
        ("0", 0),
        ("100ns", 100),
        ("10us", 10_000),
        ("3ms", 3_000_000),
        ("5s", 5_000_000_000),
        ("2m", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        ("1.5s", 1_500_000_000),
        ("0.5 ms", 500_000),
        (" 2 min", 120_000_000_000),
        ("0.000000001s", 1),
    ] {
        assert_eq!(parse_duration(text), Ok(Duration::from_nanos(ns)), "{text}");
    }
    for (text, words) in [
        ("", "whole number"),
        ("1.s", "whole number"),
        ("0.1ns", "whole number"),
        ("5", "no unit: add"),
        ("0.5", "no unit"),
        ("5d", "unit `d`"),
        ("9999999h", "too long"),
    ] {
        let message = parse_duration(text).expect_err(text).to_string();
        assert!(message.contains(words), "{text}: {message}");
    }
}

#[test]
fn counts_are_read_in_powers_of_1000() {
    for (text, count) in
        [("0", 0), ("1000", 1000), ("50k", 50_000), ("50K", 50_000), ("1.5M", 1_500_000), ("2 g", 2_000_000_000)]
    {
        assert_eq!(parse_count(text), Ok(count), "{text}");
    }
    for text in ["", "k", "-1", "1.", ".5k", "1.5", "0.0001k", "1x", "1kB", "99999999999G", "1e3", "µ"] {
        let said = parse_count(text).expect_err(text).to_string();
        assert!(said.contains("write it like 1000, 50k or 1.5M"), "{said}");
    }
}

#[test]
fn values_are_written_for_people() {
    for (bytes, text) in [
        (0, "0 B"),
        (512, "512 B"),
        (4096, "4 KiB"),
        (1536, "1.5 KiB"),
        (1 << 30, "1 GiB"),
        ((1 << 20) - 1, "1023 KiB"),
        (u64::MAX, "15.9 EiB"),
    ] {
        assert_eq!(fmt_bytes(bytes), text);
    }
    for (count, text) in [(999, "999"), (1500, "1.5k"), (3_421_987, "3.42M"), (1_005_000, "1M"), (12_340_000, "12.3M")]
    {
        assert_eq!(fmt_count(count), text);
    }
    for (ns, text) in [(80, "80 ns"), (12_345, "12.3 us"), (4_000_000, "4 ms"), (7_200_000_000_000, "7200 s")] {
        assert_eq!(fmt_ns(ns), text);
    }
}

proptest! {
    #[test]
    fn whole_sizes_read_back(number in 1_u64..1024, power in 0_u32..6) {
        let bytes = number << (10 * power);
        prop_assert_eq!(parse_size(&fmt_bytes(bytes)), Ok(bytes));
    }

    #[test]
    fn no_text_panics(text in ".*", digits in "[0-9]{0,25}[a-zA-Zµ. ]{0,4}") {
        for text in [text, digits] {
            let _ = parse_size(&text);
            let _ = parse_duration(&text);
            let _ = parse_count(&text);
        }
    }

    #[test]
    fn written_values_are_short_and_never_above(value: u64) {
        for text in [fmt_bytes(value), fmt_count(value)] {
            prop_assert!(text.len() <= 9, "{}", text);
        }
    }
}
