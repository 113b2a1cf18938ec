//! The slots of one loop: which are free, and what those in flight do.
//!
//! Free slots rotate first in, first out, so that a loop touches all its buffers as a program does whose buffers
//! come from a pool, and not the same few hot ones. Both sides of a comparison use this order.
//!
//! * I1. A slot is in the free queue or in flight, never both; `free + in_flight = depth`.

use crate::bench::engine::MAX_DEPTH;

const MASK: usize = MAX_DEPTH - 1;
const _: () = assert!(MAX_DEPTH.is_power_of_two(), "the mask stands in for the bounds check");

/// What a slot in flight does.
#[derive(Clone, Copy, Default)]
pub struct InFlight {
    /// When it was due, in cycles.
    pub stamp: u64,
    /// Where it goes, with the direction in the lowest bit: offsets are multiples of 512.
    place: u64,
}

impl InFlight {
    /// An I/O at `offset`, due at `stamp`.
    #[inline]
    pub fn new(stamp: u64, write: bool, offset: u64) -> Self {
        debug_assert_eq!(offset % 512, 0, "blocks lie on sectors");
        Self { stamp, place: offset | u64::from(write) }
    }

    /// Where it goes, in bytes.
    pub fn offset(self) -> u64 {
        self.place & !1
    }

    /// Whether it writes.
    pub fn write(self) -> bool {
        self.place & 1 == 1
    }
}

/// The slots of one loop.
pub struct Slots {
    free: Box<[u16; MAX_DEPTH]>,
    table: Box<[InFlight; MAX_DEPTH]>,
    /// Turns of the free queue, modulo `wrap`.
    head: usize,
    tail: usize,
    wrap: usize,
    depth: u32,
    in_flight: u32,
}

impl Slots {
    /// `depth` free slots.
    pub fn new(depth: u32) -> Self {
        assert!((1..=MAX_DEPTH as u32).contains(&depth), "the arguments bound the depth");
        let mut free = Box::new([0; MAX_DEPTH]);
        for (index, slot) in free.iter_mut().enumerate() {
            *slot = index as u16;
        }
        // The queue wraps at the next power of two, so that a shallow loop stays in a few cache lines.
        let wrap = (depth as usize).next_power_of_two() - 1;
        Self {
            free,
            table: Box::new([InFlight::default(); MAX_DEPTH]),
            head: 0,
            tail: depth as usize,
            wrap,
            depth,
            in_flight: 0,
        }
    }

    /// How many are in flight.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How many are free.
    #[inline]
    pub fn free(&self) -> u32 {
        self.depth - self.in_flight
    }

    /// Takes a free slot; the caller has checked that there is one.
    #[inline]
    pub fn take(&mut self, io: InFlight) -> u32 {
        debug_assert!(self.in_flight < self.depth, "I1: a slot was asked of an empty queue");
        let slot = self.free[self.head & self.wrap & MASK];
        self.head += 1;
        self.in_flight += 1;
        self.table[slot as usize & MASK] = io;
        u32::from(slot)
    }

    /// Gives a slot back and says what it did.
    #[inline]
    pub fn put(&mut self, slot: u32) -> InFlight {
        debug_assert!(slot < self.depth && self.in_flight > 0, "I1: slot {slot} was not in flight");
        self.free[self.tail & self.wrap & MASK] = slot as u16;
        self.tail += 1;
        self.in_flight -= 1;
        self.table[slot as usize & MASK]
    }
}
