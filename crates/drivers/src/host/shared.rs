//! State shared by all rings that use one file or block device of the host.
//!
//! Owns the opened file, the way of zeroing ranges (which may turn out not to work), and the notices. Control path and
//! failures only: successful I/O uses nothing here except `zeroing` and flushes.
//!
//! - I1: `zeroing` only ever steps down: a way that failed is not tried again.
//! - I2: `has_shrunk` is never reset: the bytes that were cut off are lost, whatever size the file has later.
//!
//! Called by both engines.

use sheave_base::buf::Buf;
use sheave_base::status::{Errno, Status};
use sheave_base::sync::Mutex;
use sheave_base::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::OnceLock;

use super::open::HostFile;
use super::probe::FileKind;
use sheave_blk::bio::{Op, SECTOR_SHIFT};
use sheave_blk::limits::Capacity;
use sheave_blk::request::Request;

/// Size of the buffer of zeroes that are written where no better way works.
pub(super) const ZEROES_BYTES: usize = 64 << 10;
/// Alignment of the zeroes, enough for direct I/O on any device.
const ZEROES_ALIGN: usize = 4096;
/// Largest number of notices kept: later ones would add nothing new.
const MAX_NOTICES: usize = 32;

/// Way of zeroing a range, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Zeroing {
    /// `fallocate` keeps the space and marks it as zeroes (or the device or the kernel writes them).
    ZeroRange = 0,
    /// `fallocate` frees the space; a hole reads as zeroes.
    PunchHole = 1,
    /// Zeroes are written.
    Write = 2,
}

impl Zeroing {
    pub(super) fn from_u8(value: u8) -> Zeroing {
        match value {
            0 => Zeroing::ZeroRange,
            1 => Zeroing::PunchHole,
            _ => Zeroing::Write,
        }
    }
}

#[derive(Debug)]
pub(super) struct HostShared {
    pub(super) file: HostFile,
    zeroing: AtomicU8,
    zeroes: OnceLock<Option<Buf>>,
    /// True if the file was found shorter than the device at least once.
    has_shrunk: AtomicBool,
    notices: Mutex<Vec<String>>,
}

impl HostShared {
    pub(super) fn new(file: HostFile) -> HostShared {
        let caps = file.caps();
        let zeroing = match caps.kind {
            // The kernel writes the zeroes if the device has no command for it.
            FileKind::Block => Zeroing::ZeroRange,
            FileKind::Regular if caps.zero_range => Zeroing::ZeroRange,
            FileKind::Regular if caps.discard => Zeroing::PunchHole,
            FileKind::Regular => Zeroing::Write,
        };
        let notices = Mutex::new(file.notices().to_vec());
        let has_shrunk = AtomicBool::new(false);
        HostShared { file, zeroing: AtomicU8::new(zeroing as u8), zeroes: OnceLock::new(), has_shrunk, notices }
    }

    /// Returns the current way of zeroing a range.
    pub(super) fn zeroing(&self) -> Zeroing {
        // Relaxed: a hint; a late reader gets the same error from the file system once more.
        Zeroing::from_u8(self.zeroing.load(Ordering::Relaxed))
    }

    /// Records that `way` does not work here. Returns false if there is no other way.
    pub(super) fn zeroing_fails(&self, way: Zeroing) -> bool {
        if way == Zeroing::Write {
            return false;
        }
        // Relaxed: as in `zeroing`.
        self.zeroing.fetch_max(way as u8 + 1, Ordering::Relaxed);
        true
    }

    /// Returns zeroes to write; `None` if there is no memory for them.
    pub(super) fn zeroes(&self) -> Option<&Buf> {
        self.zeroes.get_or_init(|| Buf::zeroed(ZEROES_BYTES, ZEROES_ALIGN).ok()).as_ref()
    }

    /// Returns the messages for the user, each once.
    pub(super) fn notices(&self) -> Vec<String> {
        self.lock().clone()
    }

    pub(super) fn notice(&self, text: String) {
        let mut notices = self.lock();
        if notices.len() < MAX_NOTICES && !notices.contains(&text) {
            notices.push(text);
        }
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = Vec<String>> + '_ {
        self.notices.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Called when I/O met the end of the file before the end of the device, and after a flush. If the file has become
    /// shorter, lowers the capacity to its last whole block, so that I/O beyond is refused.
    pub(super) fn look_at_size(&self, capacity: &Capacity, block: u32) {
        let was = capacity.sectors() << SECTOR_SHIFT;
        let path = self.file.path().display();
        match self.file.current_size() {
            Ok(now) if now >= was => {}
            Ok(now) => {
                // Relaxed: it never goes back, and orders nothing.
                self.has_shrunk.store(true, Ordering::Relaxed);
                capacity.set_bytes(now - now % u64::from(block));
                self.notice(format!(
                    "{path}: it shrank to {now} bytes while in use (it had {was}): I/O beyond that fails; find out who \
                     cuts it off, then open it anew"
                ));
            }
            Err(error) => self.notice(format!("{path}: its size cannot be read any more: {error}; is it still there?")),
        }
    }

    /// Returns the status of a flush that the kernel reported as successful. Data behind the new end of a truncated
    /// file is not durable, so flushes fail for ever once the file was found shorter than the device (I2).
    pub(super) fn flushed(&self, capacity: &Capacity, block: u32) -> Status {
        self.look_at_size(capacity, block);
        if self.is_whole() { Status::Ok } else { Status::IoErr }
    }

    /// Returns true if the file was never found shorter than the device, and is not now.
    pub(super) fn is_whole(&self) -> bool {
        if self.file.current_size().is_ok_and(|now| now < self.file.size_bytes()) {
            self.has_shrunk.store(true, Ordering::Relaxed); // Relaxed, both: it never goes back, and orders nothing.
        }
        !self.has_shrunk.load(Ordering::Relaxed)
    }

    /// Returns true if the operation is refused because the file is read-only.
    pub(super) fn refuses(&self, op: Op) -> bool {
        self.file.is_readonly() && !matches!(op, Op::Read | Op::Flush)
    }

    /// Reports a system call for a request that has not returned within the timeout, and cannot be cancelled.
    #[cold]
    pub(super) fn still_waits(&self, rq: &Request) {
        let path = self.file.path().display();
        self.notice(format!(
            "{path}: {:?} of {} bytes at {} waits in the kernel for longer than the time limit, and cannot be called \
             back: see `dmesg` for what is wrong with the disk, or whether a server is away",
            rq.op,
            rq.bytes,
            rq.sector << SECTOR_SHIFT
        ));
    }

    /// Adds a notice for an error of the kernel that the user can do something about.
    #[cold]
    pub(super) fn explain(&self, errno: i32) {
        let path = self.file.path().display();
        let what = match errno {
            libc::ENOSPC => "its file system is full: writes where it has no space yet fail; free some space",
            libc::EDQUOT => "the quota is used up: writes where it has no space yet fail; free some space",
            libc::EFBIG => "a write went beyond the largest file allowed; raise the limit (ulimit -f)",
            libc::ENODEV | libc::ENXIO => "the device is gone; plug it in and open it anew",
            libc::EIO | libc::EREMOTEIO | libc::EILSEQ | libc::ENODATA => "the disk reports errors; see dmesg",
            _ => return,
        };
        self.notice(format!("{path}: {what} ({})", Errno(errno)));
    }
}
