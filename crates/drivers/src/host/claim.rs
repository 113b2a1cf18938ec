//! The lock on a file or block device that other processes see: flock, and on a block device also O_EXCL, which keeps
//! it from being mounted.
//!
//! The lock is on an open file of its own, so that it ends with the claim and not with the last ring, and so that a
//! second opening in the same process is refused like one in another. Who has it is found out by `holder`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::FlockOperation;

use super::holder::{holder_of, in_words};
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
    let passed = file.take_lock();
    let was_passed = passed.is_some();
    let lock = passed.map_or_else(|| open(0), Ok);
    let lock = lock.map_err(|error| failed("opening once more, to lock it,", error))?;
    let how = if alone { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    match rustix::fs::flock(&lock, how) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(claimed(file, &lock)),
        Err(error) => return Err(failed("locking", error.into())),
    }
    // One that was passed to this process was opened with O_EXCL by who could.
    if file.caps().kind != FileKind::Block || !alone || was_passed {
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
            // It may be somebody's database: how to end it is for those to know who run it.
            let fix = format!("Wait until it ends, or have it ended by who runs it: `ps -fp {pid}` tells more");
            (format!("{} has it open", in_words(pid)), fix)
        }
        None => (
            "another process has locked it".to_string(),
            format!("`fuser -v {what}` may tell which; on a network file system it may be on another machine"),
        ),
    };
    DeviceError::Claimed { what, who, fix }
}
