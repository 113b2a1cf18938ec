//! The slots of one loop: the free ones, and the I/Os of those in flight.
//!
//! Free slots are used first in, first out. So the loop uses all its buffers, like a program whose buffers come from a
//! pool, and not the same few that are in the CPU cache. Both sides of a comparison use this order.
//!
//! * I1. A slot is in the free queue or in flight, never both; `free + in_flight = depth`.

use crate::engine::MAX_DEPTH;

const MASK: usize = MAX_DEPTH - 1;
const _: () = assert!(MAX_DEPTH.is_power_of_two(), "the mask stands in for the bounds check");

/// I/O of a slot in flight.
#[derive(Clone, Copy, Default)]
pub struct InFlight {
    /// Time at which the I/O was due, in cycles.
    pub stamp: u64,
    /// Offset in bytes, with true for a write in the lowest bit, which is free because offsets are multiples of 512.
    place: u64,
}

impl InFlight {
    /// Makes the record of an I/O at `offset` that was due at `stamp`.
    #[inline]
    pub fn new(stamp: u64, write: bool, offset: u64) -> Self {
        debug_assert_eq!(offset % 512, 0, "blocks lie on sectors");
        Self { stamp, place: offset | u64::from(write) }
    }

    /// Returns the offset in bytes.
    pub fn offset(self) -> u64 {
        self.place & !1
    }

    /// Returns true for a write.
    pub fn write(self) -> bool {
        self.place & 1 == 1
    }
}

/// The slots of one loop.
pub struct Slots {
    free: Box<[u16; MAX_DEPTH]>,
    table: Box<[InFlight; MAX_DEPTH]>,
    /// Numbers of slots taken and of slots freed so far. They are the two ends of the queue, modulo `wrap + 1`.
    taken: usize,
    freed: usize,
    wrap: usize,
    depth: u32,
}

impl Slots {
    /// Makes `depth` slots, all free.
    pub fn new(depth: u32) -> Self {
        assert!((1..=MAX_DEPTH as u32).contains(&depth), "the arguments bound the depth");
        let mut free = Box::new([0; MAX_DEPTH]);
        for (index, slot) in free.iter_mut().enumerate() {
            *slot = index as u16;
        }
        // The queue wraps at the next power of two, so that a loop with a small depth uses only a few cache lines.
        let wrap = (depth as usize).next_power_of_two() - 1;
        let table = Box::new([InFlight::default(); MAX_DEPTH]);
        Self { free, table, taken: 0, freed: depth as usize, wrap, depth }
    }

    /// Returns the number of free slots.
    #[inline]
    pub fn free(&self) -> u32 {
        (self.freed - self.taken) as u32
    }

    /// Returns the number of slots in flight.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.depth - self.free()
    }

    /// Borrows the slots for taking several. The changing state stays in registers until the result is dropped.
    #[inline]
    pub fn taker(&mut self) -> Taker<'_> {
        let Self { free, table, taken, freed, wrap, .. } = self;
        Taker { free, table, next: *taken, end: *freed, wrap: *wrap & MASK, taken }
    }

    /// Borrows the slots for freeing several. The changing state stays in registers until the result is dropped.
    #[inline]
    pub fn giver(&mut self) -> Giver<'_> {
        let Self { free, table, freed, wrap, .. } = self;
        Giver { free, table, next: *freed, wrap: *wrap & MASK, freed }
    }

    /// Takes one free slot; the caller has checked that there is one.
    pub fn take(&mut self, io: InFlight) -> u32 {
        self.taker().take(io)
    }

    /// Frees one slot and returns its I/O.
    pub fn put(&mut self, slot: u32) -> InFlight {
        self.giver().put(slot)
    }
}

pub struct Taker<'a> {
    free: &'a [u16; MAX_DEPTH],
    table: &'a mut [InFlight; MAX_DEPTH],
    next: usize,
    end: usize,
    wrap: usize,
    taken: &'a mut usize,
}

impl Taker<'_> {
    /// Takes a free slot; the caller has checked that there is one.
    #[inline]
    pub fn take(&mut self, io: InFlight) -> u32 {
        debug_assert!(self.next < self.end, "I1: a slot was asked of an empty queue");
        let slot = self.free[self.next & self.wrap & MASK];
        self.next += 1;
        self.table[slot as usize & MASK] = io;
        u32::from(slot)
    }
}

impl Drop for Taker<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.taken = self.next;
    }
}

pub struct Giver<'a> {
    free: &'a mut [u16; MAX_DEPTH],
    table: &'a [InFlight; MAX_DEPTH],
    next: usize,
    wrap: usize,
    freed: &'a mut usize,
}

impl Giver<'_> {
    /// Frees a slot and returns its I/O.
    #[inline]
    pub fn put(&mut self, slot: u32) -> InFlight {
        self.free[self.next & self.wrap & MASK] = slot as u16;
        self.next += 1;
        self.table[slot as usize & MASK]
    }
}

impl Drop for Giver<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.freed = self.next;
    }
}
