//! The lock on a file or block device that other processes see: flock, and on a block device also O_EXCL, which keeps
//! it from being mounted.
//!
//! Owns the words about who has it: the kernel's list of locks (`/proc/locks`) gives the process, `/proc/PID/comm` its
//! name. The lock is on an open file of its own, so that it ends with the claim and not with the last ring, and so that
//! a second opening in the same process is refused like one in another.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;

use super::open::HostFile;
use super::probe::FileKind;
use sheave_blk::claim::{Claim, Sharing, claimed_here};
use sheave_blk::error::DeviceError;

/// Takes the lock, without waiting for it.
pub(super) fn claim(file: &HostFile, sharing: Sharing) -> Result<Claim, DeviceError> {
    let alone = sharing == Sharing::Alone;
    let path = file.path().display();
    let failed = |what: &str, source: io::Error| DeviceError::Host {
        what: format!("{what} {path}"),
        fix: "Put it on a file system that has flock (ext4, XFS, tmpfs, NFS 4), and see that /proc is mounted".into(),
        source,
    };
    // The very file that is open, whatever its path leads to by now.
    let own = format!("/proc/self/fd/{}", file.file().as_raw_fd());
    let open = |flags: i32| OpenOptions::new().read(true).write(!file.is_readonly()).custom_flags(flags).open(&own);
    let lock = open(0).map_err(|error| failed("opening once more, to lock it,", error))?;
    let how = if alone { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    match rustix::fs::flock(&lock, how) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(claimed(file, &lock)),
        Err(error) => return Err(failed("locking", error.into())),
    }
    if file.caps().kind != FileKind::Block || !alone {
        return Ok(Claim::of(lock));
    }
    match open(libc::O_EXCL) {
        Ok(exclusive) => Ok(Claim::of([lock, exclusive])),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(DeviceError::Claimed {
            what: path.to_string(),
            who: "it is mounted, or claimed by something in the kernel".into(),
            fix: "`lsblk` shows what uses it".into(),
        }),
        Err(error) => Err(failed("opening exclusively", error)),
    }
}

fn claimed(file: &HostFile, lock: &File) -> DeviceError {
    let what = file.path().display().to_string();
    let (who, fix) = match holder_of(lock) {
        Some(pid) if pid == std::process::id() => return claimed_here(&what),
        Some(pid) => {
            (format!("{} has it open", in_words(pid)), format!("Wait until it ends, or stop it (`kill {pid}`)"))
        }
        None => (
            "another process has locked it".to_string(),
            format!("`fuser -v {what}` may tell which; on a network file system it may be on another machine"),
        ),
    };
    DeviceError::Claimed { what, who, fix }
}

/// A process, by number and name.
fn in_words(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(comm) => format!("process {pid} ({})", comm.trim_end()),
        Err(_) => format!("process {pid} (which cannot be seen from here)"),
    }
}

/// Who has locked what lies at a path, for the errors of opening it.
pub(super) fn who_has(path: &Path) -> Option<String> {
    Some(in_words(holder_of(&File::open(path).ok()?)?))
}

/// How often the list of locks is read before nobody is said to hold one.
const LOOKS: usize = 5;

/// The process that holds the lock on this file, as the kernel lists it.
fn holder_of(file: &File) -> Option<u32> {
    let meta = file.metadata().ok()?;
    let dev = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    look_for_holder(|| fs::read_to_string("/proc/locks").ok(), dev, meta.ino())
}

/// The kernel hands the list out page by page and counts lines, so that a lock that others give up between two pages
/// makes one after it disappear from a reading: one reading that lacks a lock proves nothing.
pub(super) fn look_for_holder(read: impl FnMut() -> Option<String>, dev: (u32, u32), inode: u64) -> Option<u32> {
    std::iter::from_fn(read).take(LOOKS).find_map(|text| find_holder(&text, dev, inode))
}

/// Lines are `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`, numbers of devices in hexadecimal; `->` marks one
/// that waits. Some file systems (btrfs, overlayfs) show another device there than in their files' metadata: then the
/// inode alone must do.
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
