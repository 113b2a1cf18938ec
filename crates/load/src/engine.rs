//! What the loops of `bench` drive: a ring with slots, whoever's ring it is.
//!
//! One slot is one I/O: its buffer, and its index as `user_data`. The loops own the slots and know which are
//! free; an engine only fills an SQE, hands SQEs over, and tells which slots are done. The loops are generic
//! over the engine, so that both sides of a comparison run the same code around the calls that differ.
//!
//! * I1. A slot is prepared only while it is free, and is free again only after `reap` has named it.
//! * I2. At most [`MAX_DEPTH`] slots; an engine has an SQ entry, a CQ entry and a buffer for each of its slots, so
//!   that `prep` always finds room.

use crate::error::LoadError;

/// Upper bound on slots (I2); the loops' tables have this size, so that indexing needs no check.
pub const MAX_DEPTH: usize = 4096;

/// A ring as the loops see it.
pub trait Engine {
    /// The result that says an I/O went well: the bytes of a block, or 0 for a NOP.
    fn expected(&self) -> i32;

    /// Writes the SQE that reads or writes slot `slot`'s buffer at byte `offset`.
    fn prep(&mut self, slot: u32, write: bool, offset: u64);

    /// Hands over what was prepared and waits until at least `wait` completions are there.
    fn submit(&mut self, wait: u32) -> Result<(), LoadError>;

    /// Takes the completions that are there: `done(slot, result)` for each. Returns how many.
    fn reap(&mut self, done: impl FnMut(u32, i32)) -> u32;

    /// The buffer of a slot that is free (I1).
    fn buffer(&mut self, slot: u32) -> &mut [u8];
}
