//! Whether a run would overwrite what somebody needs: what its files hold, looked at before one is opened to write.
//!
//! Files that bench wrote itself may be written again: their blocks prove themselves ([`block::left`]). Anything else
//! in a file needs `--overwrite`. So does what a run of reads and writes that is not verified made of blocks larger
//! than its own: it writes parts of them elsewhere. Owns how much of a file is looked at, and the words.
//!
//! * C1. A file of up to [`WHOLE`] bytes is read from end to end. Of a larger one the first [`MAX_LEN`] bytes are, then
//!   a piece at each of up to [`PLACES`] places, evenly spread, where blocks of every usual length begin, and one where
//!   each of up to [`PLACES`] stretches of data begins in a file with holes.
//! * C2. What lies on a block device, or on another machine, is not looked at: it is never overwritten without being
//!   asked to, under whatever other devices it lies.

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

/// Read from end to end (C1).
const WHOLE: u64 = 256 << 20;
/// Most places in a larger file (C1).
const PLACES: u64 = 4096;
/// What is read at once, and at each place: more than the longest block.
const WINDOW: usize = 2 * MAX_LEN;
const PIECE: usize = 64 << 10;
/// Kinds of devices that hold nothing before a run, or whose files are looked at (C2); the last three hold what is
/// under them, and do not open without that.
const LOOKED_AT: [&str; 6] = ["null", "ram", "file", "fault", "partition", "linear"];

/// The file or block device of a spec `file:...`.
pub fn file_of(text: &str) -> Option<PathBuf> {
    split_file(text).map(|(path, _)| PathBuf::from(path))
}

/// Its path and its options.
pub fn split_file(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("file:")?;
    Some(match spec::take_quoted(rest) {
        Some((Some(path), options)) => (path, options),
        _ => rest.split_once(',').unwrap_or((rest, "")),
    })
}

/// The files and block devices that a spec names, also under other devices.
fn files_of(text: &str) -> Vec<PathBuf> {
    spec::leaves(text).into_iter().filter_map(file_of).collect()
}

/// Refuses to overwrite a file that holds anything that bench did not write, and all that it does not look at (C2).
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
        // One that cannot be read cannot be opened for the run either, which says why.
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

/// Whether a device that stands on no other keeps its bytes where they are not looked at. A spec of no kind that there
/// is does not open, which has the better words.
fn is_far(leaf: &str) -> bool {
    leaf.split_once(':').is_some_and(|(kind, _)| place::is_kind(kind) && !LOOKED_AT.contains(&kind))
}

fn refused(path: &Path, what: &str) -> Failure {
    Failure::usage(format!("this run would overwrite {}, which holds {what}", path.display()))
        .fix("add --overwrite if nothing in it is needed, or name a file that does not exist yet, with its size=")
}

/// What a file holds that bench did not write, in words.
fn look(file: &File) -> io::Result<Option<String>> {
    let len = file.metadata()?.len();
    let Some(at) = foreign(file, len)? else { return Ok(None) };
    let mut head = vec![0; signature::LOOK.min(len) as usize];
    file.read_exact_at(&mut head, 0)?;
    Ok(Some(signature::known(&head).unwrap_or_else(|| format!("data that bench did not write (at byte {at})"))))
}

/// Where something foreign is found first (C1).
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

/// Where stretches of data begin, behind the holes of a file; nowhere if its file system does not tell.
fn data_of(file: &File) -> impl Iterator<Item = u64> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let data = rustix::fs::seek(file, SeekFrom::Data(at)).ok()?;
        at = rustix::fs::seek(file, SeekFrom::Hole(data)).ok()?;
        Some(data)
    })
}

/// Has the kernel forget the first `range` bytes of a file that is read through its page cache, as far as they are not
/// to be written yet.
pub fn drop_pages(path: &Path, range: u64) -> Result<(), Failure> {
    let drop =
        || rustix::fs::fadvise(File::open(path)?, 0, NonZeroU64::new(range), Advice::DontNeed).map_err(Into::into);
    drop().map_err(|err: io::Error| {
        Failure::run(format!("{}: the page cache cannot be told to forget it: {err}", path.display()))
            .fix("add invalidate=0 to the job, which reads what is in the page cache from there")
    })
}

/// How many of the first `range` bytes of a file are data, as far as its file system tells of holes.
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

/// The first block with foreign content of those that begin at `from` or later and before `to`.
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
        // A block that the end of the file cuts is not one that a run has left.
        want = want.max(more);
        (start, window) = (pos, read(file, pos, want)?);
        if window.len() < more {
            return Ok((window.iter().any(|&byte| byte != 0)).then_some(pos));
        }
    }
    Ok(None)
}

/// Up to so many bytes; fewer at the end of the file.
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
