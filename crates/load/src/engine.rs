//! Interface of the loops of `bench` to a ring with slots: Sheave's, the kernel's, or a peer's.
//!
//! A slot is one I/O: its buffer, and its index as `user_data`. The loops own the slots and know which are free; an
//! engine only fills an SQE, submits SQEs, and reports the slots that are done. The loops are generic over the engine,
//! so that both sides of a comparison run the same code around the calls that differ.
//!
//! * I1. A slot is prepared only while it is free, and is free again only after `reap` has named it.
//! * I2. At most [`MAX_DEPTH`] slots; an engine has an SQ entry, a CQ entry and a buffer for each of its slots, so
//!   that `prep` always finds room.

use crate::error::LoadError;

/// Largest number of slots (I2). The loops' tables have this size, so that indexing needs no check.
pub const MAX_DEPTH: usize = 4096;

/// A ring that a loop drives.
pub trait Engine {
    /// Returns the result of a successful I/O: the bytes of a block, or 0 for a NOP.
    fn expected(&self) -> i32;

    /// Writes the SQE that reads or writes slot `slot`'s buffer at byte `offset`.
    fn prep(&mut self, slot: u32, write: bool, offset: u64);

    /// Submits the prepared SQEs and waits until at least `wait` completions are available.
    fn submit(&mut self, wait: u32) -> Result<(), LoadError>;

    /// Calls `done(slot, result)` for each available completion. Returns their number.
    fn reap(&mut self, done: impl FnMut(u32, i32)) -> u32;

    /// Returns the buffer of a free slot (I1).
    fn buffer(&mut self, slot: u32) -> &mut [u8];
}
