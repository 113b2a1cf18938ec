//! Sectors and bytes as types, and the text forms of sizes, times and counts.
//!
//! Owns the unit conversions and the text forms. Does not own limits: each device checks whether a size suits it.
//!
//! * I1: a sector is 512 bytes, always, whatever block size a device has.
//! * I2: size suffixes are binary (`1k` = 1024 bytes), count suffixes decimal (`1k` = 1000).
//! * I3: `parse_size` reads back every text of `fmt_bytes` that has no fraction.
//!
//! Called by every floor for the types, and by device specifications, the command line and reports for the text.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Bytes in a sector (I1).
pub const SECTOR_BYTES: u64 = 1 << SECTOR_SHIFT;
/// log2 of [`SECTOR_BYTES`].
pub const SECTOR_SHIFT: u32 = 9;

/// A position or a length in sectors of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Sector(pub u64);

/// A position or a length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Bytes(pub u64);

impl Sector {
    /// Converts to bytes; `None` from 2^64 on.
    #[inline]
    #[must_use]
    pub fn checked_bytes(self) -> Option<Bytes> {
        self.0.checked_mul(SECTOR_BYTES).map(Bytes)
    }

    /// Converts to bytes, for a sector that lies on a device (a device has less than 2^64 bytes).
    #[inline]
    #[must_use]
    pub fn bytes(self) -> Bytes {
        debug_assert!(self.0 <= u64::MAX >> SECTOR_SHIFT, "sector {} lies on no device", self.0);
        Bytes(self.0 << SECTOR_SHIFT)
    }

    /// Returns the sum; `None` from 2^64 on.
    #[inline]
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }
}

impl Bytes {
    /// Converts to sectors; `None` if it is not a whole number of them.
    #[inline]
    #[must_use]
    pub fn sectors(self) -> Option<Sector> {
        self.is_aligned(SECTOR_BYTES).then(|| self.sectors_floor())
    }

    /// Converts to whole sectors, rounding down.
    #[inline]
    #[must_use]
    pub fn sectors_floor(self) -> Sector {
        Sector(self.0 >> SECTOR_SHIFT)
    }

    /// Returns true for a multiple of `align`, a power of two.
    #[inline]
    #[must_use]
    pub fn is_aligned(self, align: u64) -> bool {
        debug_assert!(align.is_power_of_two(), "{align} is not a power of two");
        self.0 & (align - 1) == 0
    }

    /// Returns the sum; `None` from 2^64 on.
    #[inline]
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }
}

/// Plain arithmetic for values on one device, which cannot overflow; use `checked_add` for values from a peer.
macro_rules! arithmetic {
    ($unit:ident) => {
        impl Add for $unit {
            type Output = Self;
            #[inline]
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Sub for $unit {
            type Output = Self;
            #[inline]
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
    };
}
arithmetic!(Sector);
arithmetic!(Bytes);

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {}", self.0)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&fmt_bytes(self.0))
    }
}

/// Reason why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseSizeError {
    /// The text does not start with a whole number.
    #[error("size `{0}` does not start with a whole number: write it like 512, 4k, 1M, 10G or 1T")]
    Number(String),
    /// The unit is unknown.
    #[error("size `{text}` has the unknown unit `{unit}`: use k, M, G, T, P or E (powers of 1024), or none for bytes")]
    Unit {
        /// The whole text.
        text: String,
        /// The text behind the number.
        unit: String,
    },
    /// The fraction is not a whole number of bytes.
    #[error("size `{0}` is not a whole number of bytes: use fewer digits, or a smaller unit")]
    Fraction(String),
    /// The size is 2^64 bytes or more.
    #[error("size `{0}` is too large: the limit is 16E - 1 byte")]
    TooBig(String),
}

/// Reason why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// The text does not start with a number, or is no whole number of nanoseconds.
    #[error("duration `{0}` does not start with a whole number: write it like 100ns, 10us, 3ms, 1.5s or 2m")]
    Number(String),
    /// The unit is missing.
    #[error("duration `{0}` has no unit: add ns, us, ms, s, m or h")]
    NoUnit(String),
    /// The unit is unknown.
    #[error("duration `{text}` has the unit `{unit}`: use ns, us, ms, s, m or h")]
    Unit {
        /// The whole text.
        text: String,
        /// The text behind the number.
        unit: String,
    },
    /// The duration is 2^64 nanoseconds (584 years) or more.
    #[error("duration `{0}` is too long: the limit is 584 years")]
    TooLong(String),
}

/// Parses a size in bytes: a number and at most one of the units k, M, G, T, P, E, upper or lower case, also written
/// `KiB` or `kB` (I2: always powers of 1024). `B` or no unit means bytes.
///
/// ```
/// assert_eq!(sheave_base::units::parse_size("4k"), Ok(4096));
/// assert_eq!(sheave_base::units::parse_size("1.5G"), Ok(3 << 29));
/// assert_eq!(sheave_base::units::parse_size("1 GiB"), Ok(1 << 30));
/// ```
///
/// # Errors
/// [`ParseSizeError`].
pub fn parse_size(text: &str) -> Result<u64, ParseSizeError> {
    let (number, rest) = split_unit(text);
    let (fraction, unit) = rest.strip_prefix('.').map_or(("", rest), split_unit);
    if rest.starts_with('.') && fraction.is_empty() {
        return Err(ParseSizeError::Number(text.into()));
    }
    if number.is_empty() {
        return Err(ParseSizeError::Number(text.into()));
    }
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        "e" | "eb" | "eib" => 60,
        _ => {
            return Err(ParseSizeError::Unit { text: text.into(), unit: unit.into() });
        }
    };
    let number: Option<u64> = number.parse().ok();
    let whole = number.and_then(|n| n.checked_mul(1 << shift)).ok_or_else(|| ParseSizeError::TooBig(text.into()))?;
    let part = part_of(fraction, 1 << shift).ok_or_else(|| ParseSizeError::Fraction(text.into()))?;
    whole.checked_add(part).ok_or_else(|| ParseSizeError::TooBig(text.into()))
}

/// Returns the decimal fraction `0.fraction` of `unit`, for example half a GiB for `5`. Returns `None` if the result is
/// not a whole number.
fn part_of(fraction: &str, unit: u64) -> Option<u64> {
    let digits = fraction.trim_end_matches('0');
    let scale = 10u128.checked_pow(u32::try_from(digits.len()).ok()?)?;
    let parts = if digits.is_empty() { 0 } else { digits.parse::<u128>().ok()? }.checked_mul(u128::from(unit))?;
    parts.is_multiple_of(scale).then_some((parts / scale) as u64)
}

/// Parses a duration: a number and one of the units ns, us, ms, s, m, h. `0` needs no unit.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(sheave_base::units::parse_duration("10us"), Ok(Duration::from_micros(10)));
/// assert_eq!(sheave_base::units::parse_duration("1.5 s"), Ok(Duration::from_millis(1500)));
/// ```
///
/// # Errors
/// [`ParseDurationError`].
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let (number, rest) = split_unit(text);
    let (fraction, unit) = rest.strip_prefix('.').map_or(("", rest), split_unit);
    if number.is_empty() || rest.starts_with('.') && fraction.is_empty() {
        return Err(ParseDurationError::Number(text.into()));
    }
    let unit_ns: u64 = match unit {
        "" if fraction.is_empty() && number.bytes().all(|digit| digit == b'0') => 1,
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60 * 1_000_000_000,
        "h" => 3600 * 1_000_000_000,
        "" => return Err(ParseDurationError::NoUnit(text.into())),
        _ => {
            return Err(ParseDurationError::Unit { text: text.into(), unit: unit.into() });
        }
    };
    let part = part_of(fraction, unit_ns).ok_or_else(|| ParseDurationError::Number(text.into()))?;
    let ns = number.parse().ok().and_then(|n: u64| n.checked_mul(unit_ns)?.checked_add(part));
    ns.map(Duration::from_nanos).ok_or_else(|| ParseDurationError::TooLong(text.into()))
}

/// Error for a text that is not a count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("count `{0}` is not understood: write it like 1000, 50k or 1.5M (powers of 1000)")]
pub struct ParseCountError(String);

/// Parses a count: a number and at most one of the units k, M, G, upper or lower case. Unlike the units of sizes these
/// are powers of 1000; the result must be whole.
///
/// ```
/// assert_eq!(sheave_base::units::parse_count("50k"), Ok(50_000));
/// assert_eq!(sheave_base::units::parse_count("1.5M"), Ok(1_500_000));
/// ```
///
/// # Errors
/// [`ParseCountError`].
pub fn parse_count(text: &str) -> Result<u64, ParseCountError> {
    let wrong = || ParseCountError(text.into());
    let (number, rest) = split_unit(text);
    let (fraction, unit) = rest.strip_prefix('.').map_or(("", rest), split_unit);
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    if rest.starts_with('.') && fraction.is_empty() {
        return Err(wrong());
    }
    let whole = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)?;
    part_of(fraction, unit).and_then(|part| whole.checked_add(part)).ok_or_else(wrong)
}

/// Splits a text into the leading digits and the rest, both trimmed.
fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (&text[..digits], text[digits..].trim())
}

/// Formats a size in binary units: `512 B`, `4 KiB`, `1.5 GiB`.
#[must_use]
pub fn fmt_bytes(bytes: u64) -> String {
    scaled(bytes, 1024, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"])
}

/// Formats a count in decimal units: `999`, `1.5k`, `3.42M`.
#[must_use]
pub fn fmt_count(count: u64) -> String {
    scaled(count, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

/// Formats a time: `80 ns`, `12.3 us`, `4 ms`, `1.5 s`. Seconds are the largest unit.
#[must_use]
pub fn fmt_ns(ns: u64) -> String {
    scaled(ns, 1000, &[" ns", " us", " ms", " s"])
}

/// Formats `value` in the largest of `units` (each `step` times the one before) in which it is at least 1, with three
/// digits or with the whole integer part, and without trailing zeroes.
fn scaled(value: u64, step: u64, units: &[&str]) -> String {
    let mut unit = 0;
    let mut scale: u64 = 1;
    while unit + 1 < units.len() && value / scale >= step {
        scale *= step;
        unit += 1;
    }
    let whole = value / scale;
    let decimals = match whole {
        _ if value.is_multiple_of(scale) => 0,
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    // In integers, cut and not rounded: 1023.99 KiB must not become 1024 KiB.
    let power = 10_u64.pow(decimals);
    let fraction = (u128::from(value % scale) * u128::from(power) / u128::from(scale)) as u64;
    let mut text = whole.to_string();
    if fraction > 0 {
        let digits = format!("{fraction:0width$}", width = decimals as usize);
        text.push('.');
        text.push_str(digits.trim_end_matches('0'));
    }
    text.push_str(units[unit]);
    text
}

#[cfg(test)]
mod tests {
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
        for (text, bytes) in
            [("1.5G", 3 << 29), ("0.5k", 512), ("2.0M", 2 << 20), ("1.25 KiB", 1280), ("15.5E", 31 << 59)]
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
        for (count, text) in
            [(999, "999"), (1500, "1.5k"), (3_421_987, "3.42M"), (1_005_000, "1M"), (12_340_000, "12.3M")]
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
}
