//! Parsers of single values, as command lines, configurations and calls have them. Each error says what was wrong with
//! the value and what one looks like.

use sheave_base::units::{self, fmt_bytes};
use sheave_vol::LowWater;

use crate::failure::Failure;

/// A size in bytes: `512`, `4k`, `1M`, `10G`, `1T` (powers of 1024).
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn size(text: &str) -> Result<u64, String> {
    match units::parse_size(text) {
        Ok(0) => Err("a size of 0 holds nothing; give for example 4k, 1M or 10G".into()),
        Ok(bytes) => Ok(bytes),
        Err(err) => Err(err.to_string()),
    }
}

/// A low-water mark: `10%`, `5G`, `off`.
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn low_water(text: &str) -> Result<LowWater, String> {
    if text == "off" {
        return Ok(LowWater::Off);
    }
    let Some(percent) = text.strip_suffix('%') else {
        return match size(text)? {
            0 => Err("0 is no mark; write off for none".into()),
            bytes => Ok(LowWater::Bytes(bytes)),
        };
    };
    match percent.parse::<u32>() {
        Ok(percent @ 1..=99) => Ok(LowWater::Percent(percent)),
        _ => Err("expected 1% to 99%, bytes such as 5G, or off".into()),
    }
}

/// The mode of a socket: `0660`.
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o777 == 0);
    mode.ok_or_else(|| "a mode is written as three octal digits, such as 0660".into())
}

/// Where the status page is: `HOST:PORT`, or a port of this machine alone.
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn web_address(text: &str) -> Result<String, String> {
    let is_port = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let at = if is_port { format!("127.0.0.1:{text}") } else { text.to_owned() };
    match format!("tcp:{at}").parse::<sheave_serve::Address>() {
        Ok(_) => Ok(at),
        Err(_) => {
            Err("the status page is at a port, such as 9180, or at a host and port, such as 127.0.0.1:9180".into())
        }
    }
}

/// The name of a volume or snapshot: `NAME`, or `VOLUME@SNAPSHOT`.
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn volume_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 255 {
        return Err(format!("a name has 1 to 255 characters, this one {}", text.len()));
    }
    if let Some((pool, name)) = text.rsplit_once('#')
        && !pool.is_empty()
        && !name.is_empty()
    {
        return Err(format!("the pool is not named a second time: write '{name}' alone"));
    }
    let (volume, snapshot) = text.split_once('@').map_or((text, None), |(volume, own)| (volume, Some(own)));
    [Some(volume), snapshot].into_iter().flatten().try_for_each(|part| part_of_name(part, text))?;
    Ok(text.into())
}

fn part_of_name(part: &str, text: &str) -> Result<(), String> {
    if let Some(bad) = part.chars().find(|c| !c.is_ascii_alphanumeric() && !"._-".contains(*c)) {
        return Err(match bad {
            '@' => format!("'{text}' has two '@'; a snapshot of a volume is VOLUME@SNAPSHOT"),
            bad => format!("{bad:?} cannot be in a name; use A-Z a-z 0-9 . _ -"),
        });
    }
    if part.is_empty() {
        return Err("a snapshot of a volume is VOLUME@SNAPSHOT, with a name on both sides of the '@'".into());
    }
    if part.starts_with(['-', '.']) {
        return Err("a name begins with a letter, a digit or '_'".into());
    }
    Ok(())
}

/// A snapshot as it is named beside a volume: its whole name, or `@SNAPSHOT` of that volume ([`snapshot_of`]).
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn snapshot_name(text: &str) -> Result<String, String> {
    match text.strip_prefix('@') {
        Some(own) => own_name(own).map(|own| format!("@{own}")),
        None => volume_name(text),
    }
}

/// What a snapshot is called within its volume, with or without the `@` before it.
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn own_name(text: &str) -> Result<String, String> {
    let own = text.strip_prefix('@').unwrap_or(text);
    match own.contains('@') {
        true => Err(format!("'{text}' names a volume; give the part behind the '@' alone")),
        false => volume_name(own),
    }
}

/// The volume of a snapshot that has its name, and what the snapshot is called within it.
pub fn split_snapshot(name: &str) -> Option<(&str, &str)> {
    name.split_once('@')
}

/// The whole name of a snapshot that was named beside a volume, or beside another snapshot of that.
pub fn snapshot_of(volume: &str, named: &str) -> String {
    let volume = split_snapshot(volume).map_or(volume, |(volume, _)| volume);
    match named.strip_prefix('@') {
        Some(own) => format!("{volume}@{own}"),
        None => named.into(),
    }
}

/// The name of an export: what the protocol lets a name be, and a terminal does not obey.
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn export_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 4096 || text.chars().any(char::is_control) {
        return Err("the name of an export has 1 to 4096 bytes, and no control characters".into());
    }
    Ok(text.into())
}

/// Refuses a mark that a pool of this size is below from the start.
///
/// # Errors
///
/// Such a mark.
pub fn check_low_water(mark: Option<LowWater>, size_bytes: u64) -> Result<(), Failure> {
    match mark {
        Some(LowWater::Bytes(mark)) if mark >= size_bytes => {
            let (mark, size) = (fmt_bytes(mark), fmt_bytes(size_bytes));
            Err(Failure::usage(format!(
                "a low-water mark of {mark} is all of a pool of {size}, which would always be low"
            ))
            .fix("give less than the pool has, or a share of it such as 10%"))
        }
        _ => Ok(()),
    }
}
