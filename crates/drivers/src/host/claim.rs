//! Locks on a file or block device that other processes see: flock, and on a block device also O_EXCL, which prevents a
//! mount. They cover every other path to the same bytes that `overlap` finds.
//!
//! The locks are on open files of their own, so that they end with the claim and not with the last ring, and so that a
//! second opening in the same process is refused like one in another. `holder` finds the process that has a lock.
//! `inherit` has the locks of a process that this one replaces, which are used before any is opened.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FlockOperation;

use super::calls::{is_byte_locked, let_byte_go, loop_status, share_byte};
use super::holder::{holder_of, in_words};
use super::inherit::{self, InheritedKind};
use super::open::HostFile;
use super::overlap::{Found, Node, Overlaps, Sys, Way, overlaps};
use super::shared::HostShared;
use sheave_blk::claim::{Claim, Sharing, claimed_here};
use sheave_blk::error::DeviceError;

/// Takes the locks, without waiting for them.
pub(super) fn claim(shared: &HostShared, sharing: Sharing) -> Result<Claim, DeviceError> {
    let file = &shared.file;
    let own = file.file().metadata().map_err(|error| failed(file, "looking at", error))?;
    let around = overlaps(&this_machine(), Node::of(&own), file.path());
    tell_what_is_hidden(shared, sharing, &around)?;
    let mut held = Vec::new();
    for one in &around.found {
        held.extend(lock_one(shared, sharing, one)?);
    }
    Ok(Claim::of(held))
}

/// Returns the places where this machine's kernel shows its block devices.
pub(super) fn this_machine() -> Sys {
    Sys { root: "/sys".into(), dev: "/dev".into(), status: loop_status }
}

/// Reports overlaps that cannot be locked. An owner is refused, because it must exclude everybody who can change its
/// bytes; a reader gets a notice.
fn tell_what_is_hidden(shared: &HostShared, sharing: Sharing, around: &Overlaps) -> Result<(), DeviceError> {
    let path = shared.file.path().display();
    if around.is_blind {
        let what = "other ways to its bytes (loop devices, partitions) were not looked for, as /sys cannot be read";
        shared.notice(format!("{path}: {what}"));
    }
    match around.hidden.first() {
        Some(hidden) => undecided(shared, sharing, hidden, io::ErrorKind::NotFound.into()),
        None => Ok(()),
    }
}

/// Handles a node `other` that shares bytes with the device and cannot be locked, so that it may be in use: returns an
/// error for an owner, and adds a notice for a reader.
fn undecided(shared: &HostShared, sharing: Sharing, other: &str, source: io::Error) -> Result<(), DeviceError> {
    let path = shared.file.path().display();
    if sharing == Sharing::Alone {
        return Err(DeviceError::Host {
            what: format!("locking {path}, whose bytes are also those of {other}, which cannot be opened"),
            fix: format!(
                "Detach {other} if nobody needs it; or run as a user, and where, it can be opened (a daemon that has \
                 locked itself in opens what its configuration and `reach` name)"
            ),
            source,
        });
    }
    shared.notice(format!("{path}: its bytes are also those of {other}, which cannot be locked ({source})"));
    Ok(())
}

fn failed(file: &HostFile, what: &str, source: io::Error) -> DeviceError {
    DeviceError::Host {
        what: format!("{what} {}", file.path().display()),
        fix: "Put it on a file system that has flock (ext4, XFS, tmpfs, NFS 4)".into(),
        source,
    }
}

/// Locks one node, as strictly as its kind of overlap requires (O1 of `overlap`).
pub(super) fn lock_one(shared: &HostShared, sharing: Sharing, one: &Found) -> Result<Vec<Arc<File>>, DeviceError> {
    let file = &shared.file;
    let alone = sharing == Sharing::Alone;
    let passed = if one.way == Way::Itself { file.take_lock() } else { None };
    let was_passed = passed.is_some();
    let inherited = if was_passed { None } else { inherit::take_lock(InheritedKind::Lock, one.node).map(Arc::new) };
    let was_inherited = inherited.is_some();
    let lock = match (passed.or(inherited), one.way) {
        (Some(lock), _) => lock,
        (None, Way::Itself) => {
            open_again(file, 0).map_err(|error| failed(file, "opening once more, to lock it,", error))?.into()
        }
        (None, _) => match open_other(one, 0) {
            Ok(lock) => lock.into(),
            // The kernel itself keeps owners of such nodes apart (O2). Nodes that have gone meanwhile need no lock.
            Err(_) if !one.is_needed => return Ok(Vec::new()),
            Err(error) => {
                return undecided(shared, sharing, &one.path.display().to_string(), error).map(|()| Vec::new());
            }
        },
    };
    let strictly = alone && one.way != Way::Below;
    let how = if strictly { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    match rustix::fs::flock(&*lock, how) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            if was_inherited {
                // The refused conversion has ended the shared lock, which the process that is replaced still needs.
                let _ = rustix::fs::flock(&*lock, FlockOperation::NonBlockingLockShared);
            }
            return Err(claimed(file, one, &lock));
        }
        Err(error) => return Err(failed(file, "locking", error.into())),
    }
    if matches!(one.node, Node::File(..)) && one.way != Way::Below {
        share_with_qemu(file, one, (&lock, was_inherited), alone)?;
    }
    inherit::list(InheritedKind::Lock, &one.path, &lock);
    // A descriptor that was passed to this process was opened with O_EXCL already, if possible.
    if !strictly || !one.can_be_exclusive || was_passed {
        return Ok(vec![lock]);
    }
    let exclusive = match (inherit::take_lock(InheritedKind::Exclusive, one.node), one.way) {
        (Some(exclusive), _) => Ok(exclusive),
        (None, Way::Itself) => open_again(file, libc::O_EXCL),
        (None, _) => open_other(one, libc::O_EXCL),
    };
    match exclusive.map(Arc::new) {
        Ok(exclusive) => {
            inherit::list(InheritedKind::Exclusive, &one.path, &exclusive);
            Ok(vec![lock, exclusive])
        }
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(DeviceError::Claimed {
            what: file.path().display().to_string(),
            who: format!("{} is mounted, or claimed by something in the kernel", other_name(one, "it")),
            fix: "`lsblk` shows what uses it".into(),
        }),
        Err(error) => Err(failed(file, "opening exclusively", error)),
    }
}

/// Excludes QEMU, which ignores flock. QEMU locks one byte for each kind of access that it makes to an image, and one
/// byte for each kind that it forbids to others. This function takes the same locks, and checks the locks of others.
/// Skipped on network file systems, where the server treats this process's own flock as such a lock, and on file
/// systems without such locks. An inherited lock may have bytes of an owner, which a reader lets go.
fn share_with_qemu(
    file: &HostFile,
    one: &Found,
    (lock, was_inherited): (&File, bool),
    alone: bool,
) -> Result<(), DeviceError> {
    /// First byte of the locks for own accesses, and first byte of the locks for forbidden accesses.
    const DOES: i64 = 100;
    const FORBIDS: i64 = 200;
    /// Kinds of access: consistent reads, writes, writes of the same content, changes of the size.
    const ALL: [i64; 4] = [0, 1, 2, 3];
    /// Kinds of access that a reader makes, and kinds that it forbids. An owner makes and forbids all kinds.
    const READER: ([i64; 1], [i64; 2]) = ([0], [1, 3]);
    /// Numbers of remote file systems: NFS, and three kinds of SMB.
    const REMOTE: [u32; 4] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42];
    if rustix::fs::fstatfs(lock).is_ok_and(|found| REMOTE.contains(&(found.f_type as u32))) {
        return Ok(());
    }
    let (does, forbids): (&[i64], &[i64]) = if alone { (&ALL, &ALL) } else { (&READER.0, &READER.1) };
    let own: Vec<i64> = does.iter().map(|at| DOES + at).chain(forbids.iter().map(|at| FORBIDS + at)).collect();
    let others = does.iter().map(|at| FORBIDS + at).chain(forbids.iter().map(|at| DOES + at));
    // Own locks first, so that of two processes that begin at the same moment at least one sees the other.
    if own.iter().any(|byte| share_byte(lock, *byte).is_err()) {
        // On a file system without such locks QEMU has none either.
        return Ok(());
    }
    if was_inherited {
        let rest = ALL.iter().flat_map(|at| [DOES + at, FORBIDS + at]).filter(|byte| !own.contains(byte));
        // Works where the locks above could be taken.
        rest.for_each(|byte| _ = let_byte_go(lock, byte));
    }
    for byte in others {
        if is_byte_locked(lock, byte).unwrap_or(false) {
            return Err(DeviceError::Claimed {
                what: file.path().display().to_string(),
                who: format!("QEMU, or a program that locks images as it does, has {} open", other_name(one, "it")),
                fix: format!(
                    "End the virtual machine or tool that uses it: `fuser -v {}` tells which",
                    one.path.display()
                ),
            });
        }
    }
    Ok(())
}

/// Opens the same file again, even if its path leads to another one by now. Without /proc opens the path, and checks
/// that it is the same file.
fn open_again(file: &HostFile, flags: i32) -> io::Result<File> {
    let open = |path: &Path| OpenOptions::new().read(true).write(!file.is_readonly()).custom_flags(flags).open(path);
    match open(Path::new(&format!("/proc/self/fd/{}", file.file().as_raw_fd()))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let again = open(file.path())?;
            if Node::of(&again.metadata()?) == Node::of(&file.file().metadata()?) {
                return Ok(again);
            }
            Err(io::Error::other("another file has its name by now, and /proc, by which it is found, is not mounted"))
        }
        opened => opened,
    }
}

/// Opens another node that shares bytes, if the path still leads to it. NFS only locks files that are open for writing.
fn open_other(one: &Found, flags: i32) -> io::Result<File> {
    let flags = flags | libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    let open = |write: bool| OpenOptions::new().read(true).write(write).custom_flags(flags).open(&one.path);
    let opened = match one.node {
        // Not for writing: udev examines a block device when a writer closes it.
        Node::Block(_) => open(false)?,
        Node::File(..) => open(true).or_else(|_| open(false))?,
    };
    match Node::of(&opened.metadata()?) == one.node {
        true => Ok(opened),
        false => Err(io::Error::other("another file or device has its name by now")),
    }
}

/// Names a node in an error: `itself` if it is the device.
fn other_name(one: &Found, itself: &str) -> String {
    match one.way {
        Way::Itself => itself.to_owned(),
        Way::Same => format!("{}, which has the same bytes,", one.path.display()),
        Way::Above => format!("{}, which stands on it,", one.path.display()),
        Way::Below => format!("{}, of which it is a part,", one.path.display()),
    }
}

fn claimed(file: &HostFile, one: &Found, lock: &File) -> DeviceError {
    let what = file.path().display().to_string();
    let (who, fix) = match (holder_of(lock), one.way) {
        (Some(pid), Way::Itself) if pid == std::process::id() => return claimed_here(&what),
        (Some(pid), Way::Itself) => {
            // The other process may be someone's database, so the fix does not suggest to kill it.
            let fix = format!("Wait until it ends, or have it ended by who runs it: `ps -fp {pid}` tells more");
            (format!("{} has it open", in_words(pid)), fix)
        }
        (Some(pid), _) => {
            let fix = format!("One owner at a time: use what it has open; `ps -fp {pid}` tells more");
            (format!("{} has {} open", in_words(pid), other_name(one, "it")), fix)
        }
        (None, _) => (
            format!("another process has locked {}", other_name(one, "it")),
            format!(
                "`fuser -v {}` may tell which; on a network file system it may be on another machine",
                one.path.display()
            ),
        ),
    };
    DeviceError::Claimed { what, who, fix }
}
