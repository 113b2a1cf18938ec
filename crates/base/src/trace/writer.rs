//! Writes a trace: one ring, one file, plain stores into mapped memory.
//!
//! Owns the mapping. The file has all its space from the start, so that no store finds the disk full. Who shortens a
//! file that is written ends the program (SIGBUS): it belongs to its user alone.
#![allow(unsafe_code)] // Stores into memory that is a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{
    CAPACITY, Common, ENTRY_BYTES, HEAD_AT, HEADER_BYTES, MAGIC, MAX_RUN, NAME_BYTES, NAMES, NAMES_AT, VERSION,
};
use crate::clock::Clock;
use crate::sync::atomic::{Ordering, fence};

/// The number of a device that has no name in the file.
const NO_NUMBER: u8 = u8::MAX;
const _: () = assert!(NAMES <= 64 && NAMES < NO_NUMBER as usize);

/// The writer of a trace. Dropping it leaves the file as it is.
#[derive(Debug)]
pub struct TraceWriter {
    /// The mapping, of [`HEADER_BYTES`] and the entries.
    base: NonNull<u8>,
    len: usize,
    /// Entries written since the start.
    head: u64,
    /// Entries that there is room for, less one: a power of two less one.
    mask: u64,
    /// Places of devices in the ring whose device has its number, as a mask.
    named: u64,
    /// The number in the file of the device at each of those places. None is given twice: a place is used again when
    /// its device has gone, and the file has entries of that one.
    numbers: [u8; NAMES],
    /// Numbers given.
    given: u8,
}

// SAFETY: the mapping is the writer's own and belongs to no thread.
unsafe impl Send for TraceWriter {}

impl TraceWriter {
    /// A new file for a ring with this number, of at most so many bytes of entries. Replaces a file of that name: who
    /// reads that one is not disturbed.
    ///
    /// The file is mapped: who shortens it while it is written ends the program (SIGBUS), this program's own safe code
    /// too. Put it where nobody else writes, and remove it rather than truncate it.
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
        let len = HEADER_BYTES + capacity as usize * ENTRY_BYTES;
        let made = write_header(&mut file, ring, capacity).and_then(|()| map(&file, len));
        let base = made.inspect_err(|_| _ = fs::remove_file(path))?;
        Ok(TraceWriter { base, len, head: 0, mask: capacity - 1, named: 0, numbers: [NO_NUMBER; NAMES], given: 0 })
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
        // SAFETY: within the header, for `device` is below `NAMES`; nobody else has this memory in the process.
        unsafe { self.base.add(NAMES_AT + usize::from(device) * NAME_BYTES).cast().write(bytes) };
    }

    /// For the block layer. Requests have ended together: so many, each with its first sector and its bytes.
    #[doc(hidden)]
    #[inline(always)]
    pub fn push(&mut self, common: &Common, many: usize, mut each: impl FnMut(usize) -> (u64, u32)) {
        let [ended, depth, whose, stages] = common.words();
        let mut at = 0;
        while at < many {
            let place = self.head & self.mask;
            // Up to the end of the file, where it goes on at the first.
            let until = many.min(at + MAX_RUN.min((self.mask + 1 - place) as usize));
            // SAFETY: the masked number is below the capacity; the place is aligned as the page is.
            let mut to = unsafe { self.base.add(HEADER_BYTES + place as usize * ENTRY_BYTES) }.cast::<[u64; 4]>();
            for request in at..until {
                let (sector, bytes) = each(request);
                let words = [ended, depth | sector & ((1 << 48) - 1), whose | u64::from(bytes), stages];
                // SAFETY: there is room for as many as the loop has turns.
                unsafe {
                    to.write(words);
                    to = to.add(1);
                }
            }
            self.head += (until - at) as u64;
            at = until;
            // Release: the entries come before their number (T1); pairs with the order of a reader's calls of read(2).
            fence(Ordering::Release);
            // SAFETY: within the header. Volatile, so that each number is stored, and in this order.
            unsafe { self.base.add(HEAD_AT).cast::<u64>().write_volatile(self.head) };
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

fn map(file: &File, len: usize) -> io::Result<NonNull<u8>> {
    fallocate(file, FallocateFlags::empty(), 0, len as u64)?;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory in use.
    let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) }?;
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        // SAFETY: the writer's own mapping, of this length.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
