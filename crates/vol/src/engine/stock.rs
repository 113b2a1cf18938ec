//! The stock: pages that surely have space, for metadata on a device that allocates space only when it is written.
//!
//! A pool file is sparse. When the file system that holds it is full, a write to new space fails, even if the pool has
//! free units. Writes of data may be refused. But flushes, deletes, closing and opening write pages of metadata, and
//! these must find space. So each unit that becomes metadata is first filled with zeroes, and the
//! [account](crate::state::account) counts only the free pages of such units (M4). The journal and the superblocks were
//! written when the pool was made.
//!
//! Owns those writes, and the record that the host had space for them or not. Does not own the pages
//! ([`alloc::pages`](crate::state::alloc::pages)).
//!
//! - H1: a unit is written here only if no crash can bring it back into use: it is free, and that is durable. An
//!   opening first flushes the journal that it has read, which may be in a cache only.
//! - H2: pages of metadata that become free stay metadata up to a bound, so that a pool whose host is full needs no new
//!   space for the pages that it writes again and again.
//! - H3: after a crash it is not known which free units have space. An opening searches where units are usually taken
//!   from, and passes over units that the host refuses, up to a limit.
//!
//! Called by the account and by opening. Writes to new space also report their results here.

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::MutexGuard;
use sheave_base::sync::atomic::Ordering;

use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::BLOCK;
use crate::state::State;
use crate::state::account::Spender;
use crate::state::alloc::pages::Pages;

/// Largest number of units that the host may refuse during an opening. Then the opening continues with the stock it
/// has.
const MOST_REFUSED: usize = 1024;
impl PoolInner {
    /// Adds units to the stock until the stock has `wanted` pages, the host has refused `most` units, or no unit is
    /// free. Returns the lock.
    ///
    /// # Errors
    ///
    /// The error of a write that failed for a reason other than lack of space.
    pub(crate) fn stock_up<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        most: usize,
        wanted: impl Fn(&State) -> u64,
    ) -> Result<MutexGuard<'a, State>, Status> {
        let mut refused = Vec::new();
        let mut result = Ok(());
        while state.tree.pages.stock() < wanted(&state) && refused.len() < most && result.is_ok() {
            let State { tree, .. } = &mut *state;
            let Some(taken) = tree.pages.take_unit(&mut tree.units) else { break };
            drop(state);
            let second = |()| taken.second.map_or(Ok(()), |second| self.write_unit(second));
            let written = self.write_unit(taken.unit).and_then(second);
            state = self.lock();
            match written {
                Ok(()) => state.tree.pages.add(taken),
                Err(status) => {
                    refused.push(taken);
                    result = if status == Status::NoSpc { Ok(()) } else { Err(status) };
                }
            }
            state.set_reserve();
        }
        refused.into_iter().for_each(|taken| Pages::release_unit(taken, &mut state.tree.units));
        self.survey_space(&mut state);
        result.map(|()| state)
    }

    fn write_unit(&self, unit: u64) -> Result<(), Status> {
        let shift = self.map.geometry.unit_shift;
        let zeroes = Buf::zeroed(1 << shift, BLOCK).map_err(|_| Status::NoMem)?;
        self.write_new(unit << shift, &zeroes)
    }

    /// Begins the stock of an opening: makes the journal that it has read durable (H1), and fills the stock for the
    /// first checkpoint.
    pub(crate) fn begin_stock(&self) -> Result<(), Status> {
        // H1. The journal that this opening has read may be only in a cache, left there by a process that ended.
        self.flush()?;
        let mut state = self.lock();
        state.tree.pages.sparse = self.io.is_sparse();
        state.set_reserve();
        drop(state);
        self.stock_for_first()
    }

    pub(crate) fn stock_for_first(&self) -> Result<(), Status> {
        let wanted = |state: &State| state.stock_wanted(state.pages_due(), Spender::Table);
        self.stock_up(self.lock(), MOST_REFUSED, wanted).map(drop)
    }

    /// Writes metadata to space that may be new, and records whether the host had space for it.
    pub(crate) fn write_new(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        let written = self.io.write(at, bytes);
        self.note_host(written.err().unwrap_or(Status::Ok));
        written
    }

    /// Records the result of a write to new space.
    pub(crate) fn note_host(&self, status: Status) {
        // Relaxed, all: a report, which orders nothing.
        match status {
            Status::NoSpc if self.io.is_sparse() => {
                self.host_full.store(true, Ordering::Relaxed);
                self.host_refusals.fetch_add(1, Ordering::Relaxed);
            }
            Status::Ok if self.host_full.load(Ordering::Relaxed) => self.host_full.store(false, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Returns true if an operation failed with `status` because the host is full.
    pub(crate) fn is_host_full(&self, status: Status) -> bool {
        status == Status::NoSpc && self.host_full.load(Ordering::Relaxed) // Relaxed: as above
    }

    /// Returns the error for an operation that found the host full.
    pub(crate) fn host_is_full(&self, what: String) -> PoolError {
        PoolError::HostFull { what, device: self.device.name().to_string() }
    }
}

impl PoolInner {
    /// Returns the lock once the next checkpoint has room for `cost` more pages. Fills the stock, or writes a
    /// checkpoint, if that helps.
    ///
    /// # Errors
    ///
    /// `NoSpc` when metadata has no room for the pages, or the error of the checkpoint.
    pub(crate) fn pay<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        who: Spender,
        cost: impl Fn(&State) -> u64,
    ) -> Result<MutexGuard<'a, State>, Status> {
        if state.can_pay(cost(&state), who) {
            return Ok(state);
        }
        let due = |state: &State| state.pages_due() + cost(state);
        // Stops at the first unit that the host refuses; only an opening tries more (H3).
        let state = match state.has_room(due(&state), who) {
            true => self.stock_up(state, 1, |state| state.stock_wanted(due(state), who))?,
            false => state,
        };
        if state.can_pay(cost(&state), who) {
            return Ok(state);
        }
        if !state.can_pay_after_checkpoint(cost(&state), who) {
            return Err(Status::NoSpc);
        }
        drop(state);
        self.checkpoint()?;
        // The lock was free during the checkpoint: others may have used the pages.
        let state = self.lock();
        if state.can_pay(cost(&state), who) { Ok(state) } else { Err(Status::NoSpc) }
    }
}

#[cfg(test)]
pub(super) mod tests;
