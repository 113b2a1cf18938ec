//! Writes a trace: one ring, one file.
//!
//! Owns the entries that are not written yet. They are written in batches by system calls, and not through a mapping:
//! if the file is truncated, only the file suffers, while a store into a truncated mapping would kill the program
//! (SIGBUS).
//!
//! - W1: an entry waits until a batch is full, until another request ends [`LINGER_NS`] later, until its ring has slept
//!   for that long, or for the end of the trace. Entries that wait when the process dies are lost.
//! - W2: after a failed call nothing more is written, and [`TraceWriter::error`] returns the error.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, fallocate};

use super::{
    CAPACITY, Common, ENTRY_BYTES, HEAD_AT, HEADER_BYTES, MAGIC, MAX_RUN, NAME_BYTES, NAMES, NAMES_AT, VERSION,
};
use crate::clock::Clock;

/// Number of a device without a name in the file.
const NO_NUMBER: u8 = u8::MAX;
const _: () = assert!(NAMES <= 64 && NAMES < NO_NUMBER as usize);
/// Longest time that an entry waits for others, approximately.
const LINGER_NS: u64 = 10_000_000;

/// Writer of a trace. Dropping it writes the waiting entries and keeps the file.
#[derive(Debug)]
pub struct TraceWriter {
    file: File,
    /// Entries that wait.
    staged: Box<[[u8; ENTRY_BYTES]; MAX_RUN]>,
    /// Number of entries written together: those that are contiguous in the file.
    batch: usize,
    /// Time at which the first waiting request ended.
    since_ns: u64,
    /// Number of entries since the start. `written` is the number of those that are in the file.
    head: u64,
    written: u64,
    /// Capacity in entries less one: a power of two less one.
    mask: u64,
    /// Mask of the device slots of the ring whose devices have a number.
    named: u64,
    /// Number in the file of the device in each slot. No number is given twice: a slot is reused when its device has
    /// gone, but the file still has entries of the old device.
    numbers: [u8; NAMES],
    /// Count of numbers given so far.
    given: u8,
    /// Error after which nothing is written any more.
    error: Option<io::Error>,
}

impl TraceWriter {
    /// Creates a file for the ring number `ring`, with at most `bytes` bytes of entries. Replaces a file at `path`; a
    /// program that reads the old file is not disturbed.
    ///
    /// The newest entries, up to 127 of about ten milliseconds, wait in memory: a killed process loses them.
    ///
    /// # Errors
    ///
    /// Errors of the system calls.
    pub fn create(path: &Path, ring: u32, bytes: u64) -> io::Result<TraceWriter> {
        let entries = (bytes / ENTRY_BYTES as u64).clamp(*CAPACITY.start(), *CAPACITY.end());
        let capacity = 1 << entries.ilog2();
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let len = HEADER_BYTES as u64 + capacity * ENTRY_BYTES as u64;
        // All space is allocated now, so that a disk that fills up later does no harm.
        let made = write_header(&mut file, ring, capacity)
            .and_then(|()| Ok(fallocate(&file, FallocateFlags::empty(), 0, len)?));
        made.inspect_err(|_| _ = fs::remove_file(path))?;
        Ok(TraceWriter {
            file,
            staged: Box::new([[0; ENTRY_BYTES]; MAX_RUN]),
            batch: MAX_RUN,
            since_ns: 0,
            head: 0,
            written: 0,
            mask: capacity - 1,
            named: 0,
            numbers: [NO_NUMBER; NAMES],
            given: 0,
            error: None,
        })
    }

    /// Returns the error after which nothing is written any more, if there is one.
    #[must_use]
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Returns the number of entries that the file has room for; later ones replace the oldest.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the number that the trace file uses for the device in slot `place` of the ring. Calls `name` only if the
    /// device has no number yet, which is at its first request. Called by the block layer.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub fn number<'a>(&mut self, place: u8, name: impl FnOnce() -> &'a str) -> u8 {
        if usize::from(place) >= NAMES {
            return NO_NUMBER;
        }
        if self.named & 1 << place == 0 {
            self.give_number(place, name());
        }
        self.numbers[usize::from(place)]
    }

    /// Forgets the number of the device in slot `place` of the ring, because the device has gone; the slot may be
    /// reused. Called by the block layer.
    #[doc(hidden)]
    pub fn forget(&mut self, place: u8) {
        if usize::from(place) < NAMES {
            self.named &= !(1 << place);
        }
    }

    #[cold]
    fn give_number(&mut self, place: u8, name: &str) {
        self.named |= 1 << place;
        if usize::from(self.given) >= NAMES {
            // The file has had as many devices as it has room for names.
            self.numbers[usize::from(place)] = NO_NUMBER;
            return;
        }
        let device = self.given;
        self.numbers[usize::from(place)] = device;
        self.given += 1;
        let mut bytes = [0; NAME_BYTES];
        let many = name.len().min(NAME_BYTES);
        bytes[..many].copy_from_slice(&name.as_bytes()[..many]);
        self.put(&bytes, NAMES_AT + usize::from(device) * NAME_BYTES);
    }

    /// Called by the block layer. Appends `many` requests that ended together; `each` returns the first sector and the
    /// bytes of one.
    #[doc(hidden)]
    #[inline(always)]
    pub fn push(&mut self, common: &Common, many: usize, mut each: impl FnMut(usize) -> (u64, u32)) {
        let [ended, depth, whose, stages] = common.words();
        if self.head == self.written {
            self.since_ns = ended;
        }
        let mut at = 0;
        while at < many {
            let waiting = (self.head - self.written) as usize;
            let until = many.min(at + self.batch - waiting);
            for (entry, request) in self.staged[waiting..self.batch].iter_mut().zip(at..until) {
                let (sector, bytes) = each(request);
                let words = [ended, depth | sector & ((1 << 48) - 1), whose | u64::from(bytes), stages];
                for (part, word) in entry.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *part = word.to_ne_bytes();
                }
            }
            self.head += (until - at) as u64;
            at = until;
            if self.head - self.written == self.batch as u64 {
                self.write_out();
            }
        }
        if self.head > self.written && ended.saturating_sub(self.since_ns) >= LINGER_NS {
            self.write_out();
        }
    }

    /// Called by the block layer before the ring sleeps. Writes entries that have waited long enough. Otherwise returns
    /// the time after which the ring must wake up to call again.
    #[doc(hidden)]
    #[must_use]
    pub fn before_sleep(&mut self, now_ns: u64) -> Option<Duration> {
        if self.head == self.written {
            return None;
        }
        let waited = now_ns.saturating_sub(self.since_ns);
        if waited < LINGER_NS {
            return Some(Duration::from_nanos(LINGER_NS - waited));
        }
        self.write_out();
        None
    }

    /// Writes the waiting entries, then their number (T1).
    #[cold]
    #[inline(never)]
    fn write_out(&mut self) {
        let waiting = (self.head - self.written) as usize;
        let place = (self.written & self.mask) as usize;
        if self.error.is_none() {
            let entries = self.staged[..waiting].as_flattened();
            self.error = self.file.write_all_at(entries, (HEADER_BYTES + place * ENTRY_BYTES) as u64).err();
        }
        self.written = self.head;
        self.put(&self.head.to_ne_bytes(), HEAD_AT);
        // A batch ends at the end of the file, because the next entry goes to its beginning.
        self.batch = MAX_RUN.min((self.mask + 1 - (self.head & self.mask)) as usize);
    }

    /// Writes bytes of the header, unless an earlier call failed (W2).
    fn put(&mut self, bytes: &[u8], at: usize) {
        if self.error.is_none() {
            self.error = self.file.write_all_at(bytes, at as u64).err();
        }
    }
}

fn write_header(file: &mut File, ring: u32, capacity: u64) -> io::Result<()> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let coarse = Clock::real().coarse().0;
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(MAGIC.to_ne_bytes());
    header.extend([VERSION, ENTRY_BYTES as u32].into_iter().flat_map(u32::to_ne_bytes));
    header.extend(capacity.to_ne_bytes());
    header.extend([ring, std::process::id()].into_iter().flat_map(u32::to_ne_bytes));
    let wall = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
    header.extend([wall, coarse].into_iter().flat_map(u64::to_ne_bytes));
    header.resize(HEADER_BYTES, 0);
    file.write_all(&header)
}

#[cfg(test)]
impl TraceWriter {
    /// Makes all following writes fail.
    pub(super) fn break_file(&mut self) {
        self.file = File::open("/dev/null").expect("it is there");
    }

    /// Lets writes succeed again.
    pub(super) fn mend_file(&mut self, path: &Path) {
        self.file = OpenOptions::new().write(true).open(path).expect("it is there");
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        if self.head > self.written {
            self.write_out();
        }
    }
}
