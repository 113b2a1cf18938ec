//! The process that has locked a file, for the error messages of opening and claiming.
//!
//! Owns the parsing of the kernel's list of locks (`/proc/locks`), which has the process; `/proc/PID/comm` has its
//! name. Takes no lock itself.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Describes a process by number and name.
pub(super) fn in_words(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(comm) => format!("process {pid} ({})", comm.trim_end()),
        Err(_) => format!("process {pid} (which cannot be seen from here)"),
    }
}

/// Describes the process that has locked the file at `path`, for errors of opening it.
pub(super) fn who_has(path: &Path) -> Option<String> {
    Some(in_words(holder_of(&File::open(path).ok()?)?))
}

/// Number of readings of the list of locks before the file counts as not locked.
const LOOKS: usize = 5;

/// Returns the process that holds the lock on this file, according to the kernel.
pub(super) fn holder_of(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let dev = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    look_for_holder(|| fs::read_to_string("/proc/locks").ok(), dev, meta.ino())
}

/// Finds the holder in several readings of the list. The kernel returns the list page by page and counts lines, so a
/// lock released between two pages makes a later lock disappear from a reading. A single reading without the lock
/// proves nothing.
pub(super) fn look_for_holder(read: impl FnMut() -> Option<String>, dev: (u32, u32), inode: u64) -> Option<u32> {
    std::iter::from_fn(read).take(LOOKS).find_map(|text| find_holder(&text, dev, inode))
}

/// Returns the process that holds the lock on this file. Lines have the form `1: FLOCK ADVISORY WRITE PID
/// MAJOR:MINOR:INODE 0 EOF`, with device numbers in hexadecimal; `->` marks a waiting lock. Some file systems (btrfs,
/// overlayfs) show another device there than in the metadata of files. In that case only the inode must match.
fn find_holder(text: &str, dev: (u32, u32), inode: u64) -> Option<u32> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        if words.next()? != "FLOCK" {
            return None;
        }
        let pid = words.nth(2)?.parse::<u32>().ok().filter(|pid| *pid != 0)?;
        let mut place = words.next()?.split(':');
        let major = u32::from_str_radix(place.next()?, 16).ok()?;
        let minor = u32::from_str_radix(place.next()?, 16).ok()?;
        let ino = place.next()?.parse::<u64>().ok()?;
        (ino == inode).then_some((pid, (major, minor) == dev))
    };
    let mut found: Vec<(u32, bool)> = text.lines().filter_map(parse).collect();
    found.sort_by_key(|(_, exact)| !exact);
    found.first().map(|(pid, _)| *pid)
}
