//! Pages with space under them: what metadata needs on a device that gives space only when it is written.
//!
//! A pool file is sparse. When the file system that holds it is full, a write to what was never written fails,
//! whatever the pool itself has free. Data may be refused; but flushes, deletes, closing and opening write pages of
//! metadata, and these must find space. So each unit that becomes metadata is written with zeroes as a whole first, and
//! the [account](crate::state::account) counts the free pages of such units only (M4). The journal and the superblocks
//! were written when the pool was made.
//!
//! Owns those writes, and what is known of the host. Does not own the pages
//! ([`alloc::pages`](crate::state::alloc::pages)).
//!
//! - H1: nothing is written to a unit that a crash might find in use: units are free when that is durable. What an
//!   opening has read of the journal is flushed first, for it may be in a cache alone.
//! - H2: pages of metadata that become free stay metadata up to a bound, so that a pool whose host is full needs no new
//!   space for what it writes again and again.
//! - H3: a crash forgets which units have space. Opening looks for them where they were taken from, and passes over
//!   units that the host refuses, up to a bound.
//!
//! Called by the account and by opening; writes tell it what the host said.

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

/// Units that opening tries and that the host refuses, before it goes on with what it has.
const MOST_REFUSED: usize = 1024;
impl PoolInner {
    /// The lock, when so many pages have space as `wanted` says, or the host has refused `most` units, or none is free.
    ///
    /// # Errors
    ///
    /// What a write says that fails for another reason than want of space.
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

    /// Before the first checkpoint of an opening, which writes what was recovered.
    pub(crate) fn begin_stock(&self) -> Result<(), Status> {
        // H1. A process that ended may have left in a cache what this one has read.
        self.flush()?;
        let mut state = self.lock();
        state.tree.pages.sparse = self.io.is_sparse();
        state.set_reserve();
        drop(state);
        self.stock_for_first()
    }

    /// Looks for the pages of the first checkpoint.
    pub(crate) fn stock_for_first(&self) -> Result<(), Status> {
        let wanted = |state: &State| state.stock_wanted(state.pages_due(), Spender::Table);
        self.stock_up(self.lock(), MOST_REFUSED, wanted).map(drop)
    }

    /// A write of the pool's own to space that may be new.
    pub(crate) fn write_new(&self, at: u64, bytes: &[u8]) -> Result<(), Status> {
        let written = self.io.write(at, bytes);
        self.note_host(written.err().unwrap_or(Status::Ok));
        written
    }

    /// How a write ended that needed new space.
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

    /// Whether what failed so did because the host is full.
    pub(crate) fn is_host_full(&self, status: Status) -> bool {
        status == Status::NoSpc && self.host_full.load(Ordering::Relaxed) // Relaxed: as above
    }

    /// The error of what found the host full.
    pub(crate) fn host_is_full(&self, what: String) -> PoolError {
        PoolError::HostFull { what, device: self.device.name().to_string() }
    }
}

impl PoolInner {
    /// The lock, when the next checkpoint may need what `cost` says. Writes a checkpoint for that if it helps.
    ///
    /// # Errors
    ///
    /// `NoSpc` when metadata has no room for it, and what a checkpoint says that fails.
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
        let state = self.lock();
        if state.can_pay(cost(&state), who) { Ok(state) } else { Err(Status::NoSpc) }
    }
}

#[cfg(test)]
pub(super) mod tests;
