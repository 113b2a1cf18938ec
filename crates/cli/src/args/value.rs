//! Parsers of single argument values. Each error names what is wrong and gives an example.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use sheave_base::units;
pub use sheave_daemon::value::{
    export_name, low_water, mode, own_name, size, snapshot_name, socket_path, volume_name, web_address,
};
use sheave_load::Rw;
pub use sheave_load::value::{CpuList, count, cpu_list, duration};

/// Returns a parser of access patterns.
pub fn rw() -> impl TypedValueParser<Value = Rw> {
    let names = Rw::ALL.map(|rw| PossibleValue::new(rw.name()).help(rw.what()));
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Rw>())
}

/// Parses a block size: a multiple of 512 up to 16 MiB.
pub fn block_size(text: &str) -> Result<u32, String> {
    const MAX: u64 = 16 << 20;
    let bytes = size(text)?;
    if bytes % 512 != 0 {
        return Err("not a multiple of 512 bytes, the smallest block a device reads or writes".into());
    }
    match u32::try_from(bytes) {
        Ok(fits) if bytes <= MAX => Ok(fits),
        _ => Err("more than 16M, the largest block a run uses".into()),
    }
}

/// Parses a size or position in bytes, which may be 0.
pub fn position(text: &str) -> Result<u64, String> {
    units::parse_size(text).map_err(|err| err.to_string())
}

/// Parses the allocation unit of a pool: a power of two from 4 KiB to 1 MiB.
pub fn unit_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        unit if unit.is_power_of_two() && (4 << 10..=1 << 20).contains(&unit) => Ok(unit),
        unit => Err(format!("{unit} bytes is no power of two from 4k to 1M; 64k suits most")),
    }
}

/// Parses the size of a volume: a multiple of 4 KiB.
pub fn volume_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes.is_multiple_of(4096) {
        return Ok(bytes);
    }
    Err(format!("{bytes} bytes is no multiple of 4096; the next one is {}", bytes.next_multiple_of(4096)))
}

/// Parses the size of a volume. `0` is allowed for a volume that grows.
pub fn volume_size_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { volume_size(text) }
}

/// A new size: absolute, or relative to the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    /// Set to this size.
    To(u64),
    /// Increase by this much.
    More(u64),
    /// Decrease by this much.
    Less(u64),
}

impl NewSize {
    /// Calculates the new size from the current one.
    pub fn of(self, now: u64) -> Result<u64, String> {
        match self {
            Self::To(bytes) => Ok(bytes),
            Self::More(bytes) => now.checked_add(bytes).ok_or_else(|| "that is beyond 16 EiB".into()),
            Self::Less(bytes) if bytes < now => Ok(now - bytes),
            Self::Less(bytes) => Err(format!("{bytes} bytes less than {now} leaves nothing")),
        }
    }
}

/// Parses a new size of a volume: `20G`, `+5G`, `-5G`.
pub fn new_size(text: &str) -> Result<NewSize, String> {
    match text.split_at_checked(1) {
        Some(("+", more)) => volume_size(more).map(NewSize::More),
        Some(("-", less)) => volume_size(less).map(NewSize::Less),
        _ => volume_size_or_none(text).map(NewSize::To),
    }
}

/// Parses a time, or `forever`.
pub fn patience(text: &str) -> Result<Duration, String> {
    if text == "forever" { Ok(Duration::MAX) } else { duration(text) }
}

/// Parses the maximum age of a timestamp: a time, `0` or `unbounded`.
pub fn stamp_age(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        "unbounded" => Ok(Duration::MAX),
        _ => duration(text),
    }
}
