//! Writes a trace: one ring, one file.
//!
//! Owns the entries that wait to be written. They are written in batches, by calls, so that who shortens the file does
//! no harm but to the file: stores into memory that is a file would end the program then (SIGBUS).
//!
//! - W1: an entry waits until a batch is full, until another ends [`LINGER_NS`] later, until its ring has slept for so
//!   long, or for the end of the trace. Those that wait when the process dies are lost.
//! - W2: after a call that failed nothing more is written, and [`TraceWriter::error`] says why.

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

/// The number of a device that has no name in the file.
const NO_NUMBER: u8 = u8::MAX;
const _: () = assert!(NAMES <= 64 && NAMES < NO_NUMBER as usize);
/// How long an entry waits for others, about.
const LINGER_NS: u64 = 10_000_000;

/// The writer of a trace. Dropping it writes what waits, and leaves the file.
#[derive(Debug)]
pub struct TraceWriter {
    file: File,
    /// Entries that wait.
    staged: Box<[[u8; ENTRY_BYTES]; MAX_RUN]>,
    /// How many of them are written together: as many as lie one after the other in the file.
    batch: usize,
    /// When the first of them ended.
    since_ns: u64,
    /// Entries since the start; those of them that do not wait any more.
    head: u64,
    written: u64,
    /// Entries that there is room for, less one: a power of two less one.
    mask: u64,
    /// Places of devices in the ring whose device has its number, as a mask.
    named: u64,
    /// The number in the file of the device at each of those places. None is given twice: a place is used again when
    /// its device has gone, and the file has entries of that one.
    numbers: [u8; NAMES],
    /// Numbers given.
    given: u8,
    /// Why nothing is written any more.
    error: Option<io::Error>,
}

impl TraceWriter {
    /// A new file for a ring with this number, of at most so many bytes of entries. Replaces a file of that name: who
    /// reads that one is not disturbed.
    ///
    /// The newest entries, up to 127 of some ten milliseconds, wait in memory: a process that is killed loses these.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn create(path: &Path, ring: u32, bytes: u64) -> io::Result<TraceWriter> {
        let entries = (bytes / ENTRY_BYTES as u64).clamp(*CAPACITY.start(), *CAPACITY.end());
        let capacity = 1 << entries.ilog2();
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let len = HEADER_BYTES as u64 + capacity * ENTRY_BYTES as u64;
        // All its space from the start: a disk that is full later is no matter.
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

    /// Why nothing is written any more, if that is so.
    #[must_use]
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    /// Entries that the file has room for; later ones take the places of the oldest.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// For the block layer. The number in the file of the device at a place of the ring; the name is asked for once.
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

    /// For the block layer. The device at a place of the ring has gone; another may come there.
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
            // As many devices have come and gone as the file has names for.
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

    /// For the block layer. Requests have ended together: so many, each with its first sector and its bytes.
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

    /// For the block layer. The ring is about to sleep: writes what has waited long enough. Returns how long it may
    /// sleep before it is to ask again, if it is.
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

    /// Writes what waits, and then that it is there (T1).
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
        // Up to the end of the file, where it goes on at the first.
        self.batch = MAX_RUN.min((self.mask + 1 - (self.head & self.mask)) as usize);
    }

    /// Writes bytes of the header, unless nothing is written any more (W2).
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
    /// The file is one that cannot be written.
    pub(super) fn break_file(&mut self) {
        self.file = File::open("/dev/null").expect("it is there");
    }

    /// The file can be written again.
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
