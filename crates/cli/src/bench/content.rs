//! Protection of data that a run would overwrite: checks the content of files before one is opened for writing.
//!
//! Files that bench wrote itself may be written again, because their blocks can be recognised ([`block::left`]). Any
//! other content requires `--overwrite`. So do blocks larger than its own that an unverified run of reads and writes
//! has partly overwritten. Owns the extent of the check, and the messages.
//!
//! * C1. A file of at most [`WHOLE`] bytes is read completely. Of a larger file, the first [`MAX_LEN`] bytes are read,
//!   then a piece at each of up to [`PLACES`] evenly spaced positions, at which blocks of every usual length begin, and
//!   one at the start of each of up to [`PLACES`] data extents if the file has holes.
//! * C2. Block devices and devices of servers are not checked: they are never overwritten without `--overwrite`,
//!   whatever devices are stacked on them.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, SeekFrom};
use sheave_daemon::failure::Failure;
use sheave_daemon::place;
use sheave_drivers::spec;
use sheave_load::verify::block::{self, Left, MAX_LEN, MIN_LEN};

use crate::pool::signature;

/// Maximum size of a file that is read completely (C1).
const WHOLE: u64 = 256 << 20;
/// Maximum number of positions in a larger file (C1).
const PLACES: u64 = 4096;
/// Length of a read, and of the piece at each position: more than the longest block.
const WINDOW: usize = 2 * MAX_LEN;
const PIECE: usize = 64 << 10;
/// Kinds of devices that are empty before a run, or whose files are checked (C2). The last three contain other devices,
/// which are checked.
const LOOKED_AT: [&str; 6] = ["null", "ram", "file", "fault", "partition", "linear"];

/// Returns the file or block device of a spec `file:...`.
pub fn file_of(text: &str) -> Option<PathBuf> {
    split_file(text).map(|(path, _)| PathBuf::from(path))
}

/// Splits a spec `file:...` into path and options.
pub fn split_file(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("file:")?;
    Some(match spec::take_quoted(rest) {
        Some((Some(path), options)) => (path, options),
        _ => rest.split_once(',').unwrap_or((rest, "")),
    })
}

/// Returns the files and block devices that a spec names at any depth.
fn files_of(text: &str) -> Vec<PathBuf> {
    spec::leaves(text).into_iter().filter_map(file_of).collect()
}

/// Fails if the run would overwrite a file with content that bench did not write, or a device that is not checked (C2).
pub fn refuse_to_overwrite(text: &str) -> Result<(), Failure> {
    if let Some(far) = spec::leaves(text).into_iter().find(|leaf| is_far(leaf)) {
        return Err(Failure::usage(format!("this run would overwrite what is stored at {}", spec::masked(far)))
            .fix("add --overwrite if nothing in it is needed; it is not looked at before"));
    }
    for path in files_of(text) {
        let found = std::fs::metadata(&path);
        if found.as_ref().is_ok_and(|meta| meta.file_type().is_block_device()) {
            return Err(Failure::usage(format!("this run would overwrite a block device, {}", path.display()))
                .fix("add --overwrite if nothing on the device is needed, or use a file"));
        }
        let is_file = found.is_ok_and(|meta| meta.is_file());
        // A file that cannot be read cannot be opened for the run either, and that failure explains why.
        let found = File::open(&path).ok().filter(|_| is_file).map(|file| look(&file)).transpose();
        let found = found.map_err(|err| {
            Failure::run(format!("cannot read {}, which this run would overwrite: {err}", path.display()))
                .fix("choose another file")
        })?;
        if let Some(what) = found.flatten() {
            return Err(refused(&path, &what));
        }
    }
    Ok(())
}

/// Returns true if a device without another under it stores its data where it is not checked. A spec of an unknown kind
/// is let through: it fails to open, with a better message.
fn is_far(leaf: &str) -> bool {
    leaf.split_once(':').is_some_and(|(kind, _)| place::is_kind(kind) && !LOOKED_AT.contains(&kind))
}

fn refused(path: &Path, what: &str) -> Failure {
    Failure::usage(format!("this run would overwrite {}, which holds {what}", path.display()))
        .fix("add --overwrite if nothing in it is needed, or name a file that does not exist yet, with its size=")
}

/// Describes the content of a file that bench did not write.
fn look(file: &File) -> io::Result<Option<String>> {
    let len = file.metadata()?.len();
    let Some(at) = foreign(file, len)? else { return Ok(None) };
    let mut head = vec![0; signature::LOOK.min(len) as usize];
    file.read_exact_at(&mut head, 0)?;
    Ok(Some(signature::known(&head).unwrap_or_else(|| format!("data that bench did not write (at byte {at})"))))
}

/// Returns the position of the first foreign content (C1).
fn foreign(file: &File, len: u64) -> io::Result<Option<u64>> {
    if len <= WHOLE {
        return foreign_within(file, 0, len);
    }
    let stride = (len / PLACES).next_multiple_of(MAX_LEN as u64);
    let places = (1..).map(|number| number * stride).take_while(|place| *place < len);
    let pieces = places.map(|place| (place, (place + PIECE as u64).min(len)));
    let begins = data_of(file).take(PLACES as usize).map(|place| (place, (place + PIECE as u64).min(len)));
    for (from, to) in std::iter::once((0, MAX_LEN as u64)).chain(begins).chain(pieces) {
        if let Some(at) = foreign_within(file, from, to)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Positions at which data extents of a file begin; empty if its file system does not report holes.
fn data_of(file: &File) -> impl Iterator<Item = u64> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let data = rustix::fs::seek(file, SeekFrom::Data(at)).ok()?;
        at = rustix::fs::seek(file, SeekFrom::Hole(data)).ok()?;
        Some(data)
    })
}

/// Drops the first `range` bytes of a file that is read through the page cache from it, except dirty pages.
pub fn drop_pages(path: &Path, range: u64) -> Result<(), Failure> {
    let drop =
        || rustix::fs::fadvise(File::open(path)?, 0, NonZeroU64::new(range), Advice::DontNeed).map_err(Into::into);
    drop().map_err(|err: io::Error| {
        Failure::run(format!("{}: the page cache cannot be told to forget it: {err}", path.display()))
            .fix("add invalidate=0 to the job, which reads what is in the page cache from there")
    })
}

/// Returns the number of data bytes among the first `range` bytes of a file, as far as its file system reports holes.
pub fn data_bytes(file: &File, range: u64) -> io::Result<u64> {
    let (mut at, mut bytes) = (0, 0);
    while at < range {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < range => data,
            Ok(_) | Err(rustix::io::Errno::NXIO) => break,
            Err(err) => return Err(err.into()),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(data))?;
        bytes += at.min(range) - data;
    }
    Ok(bytes)
}

/// Returns the first block with foreign content that begins at `from` or later, and before `to`.
fn foreign_within(file: &File, from: u64, to: u64) -> io::Result<Option<u64>> {
    let (mut pos, mut window, mut start) = (from, Vec::new(), from);
    let mut want = usize::try_from(to - from).unwrap_or(WINDOW).clamp(PIECE, WINDOW);
    while pos < to {
        let rest = window.get((pos - start) as usize..).unwrap_or_default();
        let more = match block::left(rest) {
            Left::Ours(bytes) => {
                pos += bytes as u64;
                continue;
            }
            Left::Foreign if rest.len() >= MIN_LEN => return Ok(Some(pos)),
            Left::Foreign => MIN_LEN,
            Left::More(bytes) => bytes,
        };
        // A block that is cut off by the end of the file cannot be one that a run has written.
        want = want.max(more);
        (start, window) = (pos, read(file, pos, want)?);
        if window.len() < more {
            return Ok((window.iter().any(|&byte| byte != 0)).then_some(pos));
        }
    }
    Ok(None)
}

/// Reads up to `len` bytes; fewer at the end of the file.
fn read(file: &File, pos: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut have = 0;
    while have < len {
        match file.read_at(&mut bytes[have..], pos + have as u64) {
            Ok(0) => break,
            Ok(more) => have += more,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    bytes.truncate(have);
    Ok(bytes)
}

#[cfg(test)]
mod tests;
