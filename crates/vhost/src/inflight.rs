//! The shared region that says which requests are in flight, also after a crash of the back-end.
//!
//! Owns the layout of the region, its creation and checks, and the order of the stores. The front-end keeps the region
//! while the back-end is away, and gives it to the next back-end. Called by [`crate::Queue`].
//!
//! A queue has a header of 16 bytes, and 16 bytes for each descriptor: a mark, a link, and a counter.
//!
//! Every entry is input of a peer: indexes are checked, and lists are followed for a bounded number of steps.
//!
//! Invariants, which hold between any two stores, so that a crash at any instruction loses no request and answers none
//! twice. `idx` is the index of the used ring, which is the only truth about what was answered.
//! - F1: a head is marked after its counter was written, and before anything is done for its request. A head that was
//!   taken from the avail ring and is not marked yet is the last one taken, and is taken again.
//! - F2: the heads of the batch that is being answered are linked from `last_batch_head`, the last one first, before
//!   `idx` counts them. Their marks are still set then.
//! - F3: their marks are cleared after `idx` counts them, and `used_idx` follows last. So if `used_idx` differs from
//!   `idx`, the difference is the length of the batch whose marks may still be set, and its list is complete.
//! - F4: at the start, the next entry of the avail ring to take is `idx` plus the number of marks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};
use sheave_base::sync::atomic::Ordering;

use crate::Broken;
use crate::memory::{Mapping, Place, Window};
use crate::queue::{MAX_SIZE, is_size};

const VERSION: u16 = 1;

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
/// The queues of a region begin at multiples of a cache line.
const QUEUE_ALIGN: usize = 64;

/// Offsets in the header of a queue; eight bytes of feature flags, which are 0, come first.
mod header {
    pub const VERSION: usize = 8;
    pub const DESC_NUM: usize = 10;
    pub const LAST_BATCH_HEAD: usize = 12;
    pub const USED_IDX: usize = 14;
}

/// Offsets in the entry of a descriptor.
mod entry {
    pub const INFLIGHT: usize = 0;
    pub const NEXT: usize = 6;
    pub const COUNTER: usize = 8;
}

/// Shape and place of a region, as the messages carry them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    pub len: u64,
    pub offset: u64,
    pub queues: u16,
    pub queue_size: u16,
}

fn queue_bytes(queue_size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(QUEUE_ALIGN)
}

impl Shape {
    /// Returns the bytes of each queue: an equal part of the region, which may be more than `queue_size` needs.
    fn stride(&self) -> usize {
        let part = usize::try_from(self.len).unwrap_or(usize::MAX) / usize::from(self.queues.max(1));
        (part / QUEUE_ALIGN * QUEUE_ALIGN).min(queue_bytes(MAX_SIZE))
    }
}

/// A mapped in-flight region.
#[derive(Clone)]
pub struct Area {
    mapping: Arc<Mapping>,
    file: Arc<OwnedFd>,
    shape: Shape,
}

impl Area {
    /// Creates an empty region. It has room for queues of any size: firmware makes larger queues than QEMU announces
    /// here (SeaBIOS on QEMU 10: 256 descriptors where `queue-size` is 128).
    pub fn create(queues: u16, queue_size: u16) -> Result<Area, Broken> {
        Area::with_room(queues, queue_size, MAX_SIZE)
    }

    /// Creates an empty region with room for queues of `room` descriptors.
    fn with_room(queues: u16, queue_size: u16, room: u16) -> Result<Area, Broken> {
        check_shape(queues, queue_size)?;
        let len = (usize::from(queues) * queue_bytes(room)) as u64;
        let file =
            memfd_create("vhost-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(Broken::Map)?;
        ftruncate(&file, len).map_err(Broken::Map)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(Broken::Map)?;
        Area::map(Arc::new(file), Shape { len, offset: 0, queues, queue_size })
    }

    /// Maps a region of the front-end.
    pub fn map(file: Arc<OwnedFd>, shape: Shape) -> Result<Area, Broken> {
        check_shape(shape.queues, shape.queue_size)?;
        let needed = (usize::from(shape.queues) * queue_bytes(shape.queue_size)) as u64;
        if shape.len < needed || !shape.offset.is_multiple_of(8) {
            return Err(Broken::InflightLength { len: shape.len, offset: shape.offset, needed });
        }
        // Not more than queues of the largest size need, however much is announced.
        let mapped = (usize::from(shape.queues) * shape.stride()) as u64;
        let mapping = Arc::new(Mapping::new(file.as_fd(), shape.offset, mapped)?);
        Ok(Area { mapping, file, shape })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Returns the part of a queue, if the region has this queue.
    pub fn slots(&self, queue: u16) -> Option<Slots> {
        if queue >= self.shape.queues {
            return None;
        }
        let len = self.shape.stride();
        let window = Window::of_mapping(self.mapping.clone(), usize::from(queue) * len, len)?;
        // The padding of the exact layout is no entry.
        let recorded = match len == queue_bytes(self.shape.queue_size) {
            true => self.shape.queue_size,
            false => ((len - HEADER_BYTES) / ENTRY_BYTES).min(usize::from(MAX_SIZE)) as u16,
        };
        Some(Slots { window, recorded, counter: 0 })
    }
}

fn check_shape(queues: u16, size: u16) -> Result<(), Broken> {
    // The number of a queue has 8 bits in the messages that carry its descriptors.
    if !(1..=256).contains(&queues) || !(1..=MAX_SIZE).contains(&size) {
        return Err(Broken::InflightShape { queues, size });
    }
    Ok(())
}

/// The part of an in-flight region that belongs to one queue.
pub struct Slots {
    window: Window,
    /// Number of entries.
    recorded: u16,
    /// Counter of the next head.
    counter: u64,
}

impl Slots {
    /// Repairs the entries of a batch that was interrupted, and returns the heads in flight in the order in which they
    /// were taken. `size` is that of the queue, and `used_idx` the index of its used ring.
    pub(crate) fn recover(&mut self, size: u16, used_idx: u16) -> Result<Vec<u16>, Broken> {
        debug_assert!(is_size(u32::from(size)));
        let place = self.window.place();
        if size > self.recorded {
            return Err(Broken::InflightSize { recorded: self.recorded, size });
        }
        match place.load_u16(header::VERSION, Ordering::Relaxed) {
            0 => {
                // A region that nobody has used yet.
                place.zero();
                put_u16(place, header::DESC_NUM, self.recorded);
                put_u16(place, header::USED_IDX, used_idx);
                put_u16(place, header::VERSION, VERSION);
            }
            VERSION => self.finish_batch(size, used_idx)?,
            version => return Err(Broken::InflightVersion { version }),
        }
        let mut marked = Vec::new();
        for index in 0..self.recorded {
            let at = entry_at(index);
            if place.load_u8(at + entry::INFLIGHT) == 0 {
                continue;
            }
            if index >= size {
                return Err(Broken::InflightIndex { index, size });
            }
            marked.push((place.load_u64(at + entry::COUNTER), index));
        }
        marked.sort_unstable();
        self.counter = marked.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(marked.into_iter().map(|(_, index)| index).collect())
    }

    /// Clears the marks of a batch that the used ring counts and `used_idx` does not (F3).
    fn finish_batch(&self, size: u16, used_idx: u16) -> Result<(), Broken> {
        let place = self.window.place();
        let batch = used_idx.wrapping_sub(place.load_u16(header::USED_IDX, Ordering::Relaxed));
        let mut index = place.load_u16(header::LAST_BATCH_HEAD, Ordering::Relaxed);
        // A difference of more than a batch means that the driver has begun anew with other rings. The requests of the
        // old ones were answered before.
        for _ in 0..batch.min(size) {
            if index >= self.recorded {
                return Err(Broken::InflightIndex { index, size: self.recorded });
            }
            put_mark(place, index, 0);
            index = place.load_u16(entry_at(index) + entry::NEXT, Ordering::Relaxed);
        }
        put_u16(place, header::USED_IDX, used_idx);
        Ok(())
    }

    /// Marks a head that was taken (F1).
    #[inline]
    pub(crate) fn take(&mut self, head: u16) {
        let place = self.window.place();
        // Pairs with the loads in `recover`, after a crash.
        place.store_u64(entry_at(head) + entry::COUNTER, self.counter, Ordering::Release);
        step();
        self.counter = self.counter.wrapping_add(1);
        put_mark(place, head, 1);
    }

    /// Clears the mark of the head that was taken last and is not begun (F4).
    pub(crate) fn put_back(&mut self, head: u16) {
        put_mark(self.window.place(), head, 0);
    }

    /// Links a head into the batch that is published next (F2).
    #[inline]
    pub(crate) fn link(&self, head: u16) {
        let place = self.window.place();
        let last = place.load_u16(header::LAST_BATCH_HEAD, Ordering::Relaxed);
        put_u16(place, entry_at(head) + entry::NEXT, last);
        put_u16(place, header::LAST_BATCH_HEAD, head);
    }

    /// Clears the marks of a batch that the used ring counts now (F3).
    #[inline]
    pub(crate) fn published(&self, batch: &[u16], used_idx: u16) {
        let place = self.window.place();
        for head in batch {
            put_mark(place, *head, 0);
        }
        put_u16(place, header::USED_IDX, used_idx);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.window.is_broken()
    }
}

#[inline]
fn entry_at(index: u16) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(index)
}

/// Stores a number after all stores before it: the order of F1 to F3 is the order of the program.
#[inline(always)]
fn put_u16(place: Place<'_>, offset: usize, value: u16) {
    place.store_u16(offset, value, Ordering::Release); // Pairs with the loads in `recover`, after a crash.
    step();
}

/// Stores the mark of a descriptor, like [`put_u16`].
#[inline(always)]
fn put_mark(place: Place<'_>, index: u16, mark: u8) {
    let at = entry_at(index) + entry::INFLIGHT;
    place.store_u8(at, mark, Ordering::Release); // Pairs with the loads in `recover`, after a crash.
    step();
}

/// Called after each store whose order matters for a crash. Tests look at the memory there.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    tests::cut();
}

#[cfg(test)]
pub(crate) mod tests;
