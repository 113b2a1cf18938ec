//! Parsers of single values on command lines, in configurations and in calls. Each error tells what is wrong and gives
//! an example.

use std::path::PathBuf;

use sheave_base::units::{self, fmt_bytes};
use sheave_vol::LowWater;

use crate::failure::Failure;

/// Longest path of a unix socket: `sun_path` has 108 bytes, of which the last is a NUL.
pub(crate) const MAX_SOCKET_PATH: usize = 107;

/// Parses a size in bytes: `512`, `4k`, `1M`, `10G`, `1T` (powers of 1024).
///
/// # Errors
///
/// The reason, as text.
pub fn size(text: &str) -> Result<u64, String> {
    match units::parse_size(text) {
        Ok(0) => Err("a size of 0 holds nothing; give for example 4k, 1M or 10G".into()),
        Ok(bytes) => Ok(bytes),
        Err(err) => Err(err.to_string()),
    }
}

/// Parses a low-water mark: `10%`, `5G`, `off`.
///
/// # Errors
///
/// The reason, as text.
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

/// Parses the mode of a socket: `0660`.
///
/// # Errors
///
/// The reason, as text.
pub fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o777 == 0);
    mode.ok_or_else(|| "a mode is written as three octal digits, such as 0660".into())
}

/// Parses the path of a vhost-user socket: `PATH` or `unix:PATH`.
///
/// # Errors
///
/// The reason, as text.
pub fn socket_path(text: &str) -> Result<PathBuf, String> {
    if text.starts_with("tcp:") {
        return Err("vhost-user passes memory of the guest, which needs a unix socket: write unix:PATH".into());
    }
    let path = text.strip_prefix("unix:").unwrap_or(text);
    if path.is_empty() || path.contains(char::is_control) {
        return Err("a socket is named by a path, such as /run/sheave/root.sock".into());
    }
    if path.len() > MAX_SOCKET_PATH {
        return Err(format!("{path} is too long for a socket: choose a path of at most {MAX_SOCKET_PATH} bytes"));
    }
    Ok(path.into())
}

/// Parses the address of the status page: `HOST:PORT`, or a port on the loopback address.
///
/// # Errors
///
/// The reason, as text.
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

/// Checks the name of a volume or snapshot: `NAME`, or `VOLUME@SNAPSHOT`.
///
/// # Errors
///
/// The reason, as text.
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

/// Checks a snapshot that is named beside its volume: its full name, or `@SNAPSHOT` ([`snapshot_of`]).
///
/// # Errors
///
/// The reason, as text.
pub fn snapshot_name(text: &str) -> Result<String, String> {
    match text.strip_prefix('@') {
        Some(own) => own_name(own).map(|own| format!("@{own}")),
        None => volume_name(text),
    }
}

/// Checks the name of a snapshot within its volume, with or without a leading `@`, which is removed.
///
/// # Errors
///
/// The reason, as text.
pub fn own_name(text: &str) -> Result<String, String> {
    let own = text.strip_prefix('@').unwrap_or(text);
    match own.contains('@') {
        true => Err(format!("'{text}' names a volume; give the part behind the '@' alone")),
        false => volume_name(own),
    }
}

/// Splits `VOLUME@SNAPSHOT` into the volume and the snapshot's own name.
pub fn split_snapshot(name: &str) -> Option<(&str, &str)> {
    name.split_once('@')
}

/// Returns the full name of a snapshot that was named beside its volume, or beside another snapshot of the volume.
pub fn snapshot_of(volume: &str, named: &str) -> String {
    let volume = split_snapshot(volume).map_or(volume, |(volume, _)| volume);
    match named.strip_prefix('@') {
        Some(own) => format!("{volume}@{own}"),
        None => named.into(),
    }
}

/// Checks the name of an export: within the limits of the protocol, and without control characters.
///
/// # Errors
///
/// The reason, as text.
pub fn export_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 4096 || text.chars().any(char::is_control) {
        return Err("the name of an export has 1 to 4096 bytes, and no control characters".into());
    }
    Ok(text.into())
}

/// Checks that a pool of this size is not below the mark from the start.
///
/// # Errors
///
/// The mark is all of the pool or more.
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
