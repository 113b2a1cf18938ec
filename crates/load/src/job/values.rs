//! Values of options in fio's grammar, as far as fio's manual and fio agree on it.
//!
//! Fio reads some malformed values as something else: `1.5k` is 1 byte, `2sec` are 2 microseconds, `4ki` are 4096 bytes
//! although the manual says 4000. All of these are refused here.

use std::time::Duration;

/// Parses a whole number within bounds.
pub(super) fn number(text: &str, low: u64, high: u64) -> Result<u64, String> {
    match digits(text) {
        Some((number, "")) if (low..=high).contains(&number) => Ok(number),
        _ => Err(format!("expected a whole number from {low} to {high}")),
    }
}

/// Parses a whole number from 1 to `most`.
pub(super) fn count(text: &str, most: u32) -> Result<u32, String> {
    number(text, 1, u64::from(most)).map(|number| number as u32)
}

/// Parses `1` as true and `0` as false.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("expected 1 or 0".into()),
    }
}

/// Accepts only the value `known`; `why` is the reason.
pub(super) fn only(text: &str, known: &str, why: &str) -> Result<(), String> {
    if text == known { Ok(()) } else { Err(format!("expected {known}: {why}")) }
}

/// Parses a number of bytes. Under fio's `kb_base=1024` a `k` is 1024 bytes, and a `kib` 1000.
pub(super) fn size(text: &str) -> Result<u64, String> {
    const HINT: &str = "expected whole bytes with k, m, g or t (powers of 1024), as 4k or 1G";
    let (number, unit) = digits(text).ok_or(HINT)?;
    let (base, power) = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => (1, 1),
        "k" | "kb" => (1024, 1),
        "m" | "mb" => (1024, 2),
        "g" | "gb" => (1024, 3),
        "t" | "tb" => (1024, 4),
        "kib" => (1000, 1),
        "mib" => (1000, 2),
        "gib" => (1000, 3),
        "tib" => (1000, 4),
        "%" => return Err(format!("fio takes a part of the file as it is then; {HINT}")),
        _ => return Err(HINT.into()),
    };
    match number.checked_mul(u64::pow(base, power)) {
        Some(0) => Err("0 leaves nothing to read or write".into()),
        Some(bytes) => Ok(bytes),
        None => Err(HINT.into()),
    }
}

/// Parses the size of one I/O in bytes.
pub(super) fn block_size(text: &str) -> Result<u32, String> {
    const MAX: u64 = 16 << 20;
    if text.contains([',', '/']) {
        return Err("a run has one size for reads and writes".into());
    }
    match size(text)? {
        bytes if bytes.is_multiple_of(512) && bytes <= MAX => Ok(bytes as u32),
        _ => Err("expected a multiple of 512 bytes up to 16M".into()),
    }
}

/// Parses a time; a bare number is seconds.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    const HINT: &str = "expected a whole number of seconds, or one with us, ms, s, m, h or d, as 10 or 500ms";
    let (number, unit) = digits(text).ok_or(HINT)?;
    let us = match unit.to_ascii_lowercase().as_str() {
        "us" | "usec" => 1,
        "ms" | "msec" => 1000,
        "" | "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(HINT.into()),
    };
    match number.checked_mul(us) {
        Some(0) => Err("0 is no limit for fio; leave it out".into()),
        Some(us) => Ok(Duration::from_micros(us)),
        None => Err(HINT.into()),
    }
}

/// Splits a text into its leading number and the rest.
fn digits(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}
