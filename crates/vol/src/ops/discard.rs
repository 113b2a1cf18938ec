//! Background discard: gives units that became free back to the device below, some at a time.
//!
//! Owns the pace and the batches. A unit becomes free when the commit that records this is durable and everything that
//! might use the unit has ended ([`limbo`](crate::state::limbo)). It is listed then ([`alloc`](crate::state::alloc)),
//! and discarded under the rules of [`trim`](super::trim).
//!
//! - G1: a batch has [`BATCH`] units at most, and at most a quarter of the free ones. After each the thread rests as
//!   long as the batch took, [`REST`] at least.
//! - G2: I/O does not wait for a discard, except for a writer that finds no space while some is set aside: it waits
//!   until that comes back.
//! - G3: a discard that fails is the last of this opening. All that is lost by that is space of the host.
//! - G4: closing continues to discard for [`LAST`] at most, and then waits for the discard in flight; a drop only waits
//!   for that one. What is still listed then, or was free before the pool was opened, is left to
//!   [`Pool::trim`](crate::Pool::trim).
//!
//! Called by [`Pool`](crate::Pool).

use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_base::sync::Arc;

use super::trim::{Run, discard, give_back, push};
use crate::engine::background::Keeper;
use crate::engine::inner::PoolInner;
use crate::info::DiscardState;
use crate::state::State;
use crate::state::phase::Phase;

/// Most units of a batch.
const BATCH: u64 = 256;
/// Most entries of the list that are examined for a batch; units that are in use again are skipped.
const MOST_LOOKS: u64 = 16 * BATCH;
/// Least rest between two batches.
const REST: Duration = Duration::from_millis(10);
/// Time for which a close goes on discarding.
const LAST: Duration = Duration::from_millis(500);
/// First and longest interval between checks whether I/O still keeps deferred frees back (back-off).
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Starts the thread, if the pool is set to discard and the device can.
pub(crate) fn start(pool: &Arc<PoolInner>, keeper: &Keeper) {
    pool.keep_stale();
    if !pool.lock().tree.units.keeps_stale() {
        return;
    }
    let pool = Arc::clone(pool);
    let none = Arc::clone(&pool);
    if let Err(status) = keeper.discards.start(move || run(&pool)) {
        none.discards.fail(status);
    }
}

/// Body of the thread.
fn run(pool: &PoolInner) {
    let signal = &pool.discards.signal;
    let mut look = LOOKS.0;
    loop {
        pool.let_go();
        signal.clear();
        let begun = Instant::now();
        match batch(pool, &mut || !signal.is_stopping()) {
            Ok(0) => {}
            Ok(_) => {
                look = LOOKS.0;
                if !signal.pause(begun.elapsed().max(REST)) {
                    return;
                }
                continue;
            }
            Err(_) => return,
        }
        let waits = !pool.lock().limbo.is_empty();
        if !signal.wait(waits.then_some(look)) {
            return;
        }
        look = if waits { (look * 2).min(LOOKS.1) } else { LOOKS.0 };
    }
}

/// Discards a batch while `goes_on` returns true. Returns the bytes discarded; 0 if nothing is listed, or too little is
/// free for a batch.
pub(crate) fn batch(pool: &PoolInner, goes_on: &mut dyn FnMut() -> bool) -> Result<u64, Status> {
    if let Some(status) = pool.discards.failed() {
        return Err(status);
    }
    // If the pool was lost to another opening, free units may be that one's data (O2 of `owner`). The next commit
    // reports it.
    if pool.look_if_due().is_err() {
        return Ok(0);
    }
    let runs = take(&mut pool.lock());
    let (mut bytes, mut done, mut result) = (0, 0, Ok(()));
    for run in &runs {
        if result.is_err() || !goes_on() {
            break;
        }
        result = discard(pool, std::slice::from_ref(run));
        bytes += run.1 << pool.map.geometry.unit_shift;
        done += 1;
    }
    give_back(pool, &runs);
    // The batch ended early: the rest is listed again, and closing discards it.
    let rest = runs[done..].iter().flat_map(|(first, count)| *first..first + count);
    pool.lock().tree.units.list_again(rest);
    result.inspect_err(|status| {
        pool.discards.fail(*status);
        pool.lock().tree.units.keep_stale(false);
    })?;
    Ok(bytes)
}

fn take(state: &mut State) -> Vec<Run> {
    let mut runs = Vec::new();
    // A degraded pool writes nothing.
    if matches!(state.phase, Phase::Degraded(_) | Phase::Taken | Phase::DeletesOnly) {
        return runs;
    }
    let units = &mut state.tree.units;
    let (mut looks, mut left) = (MOST_LOOKS, BATCH.min(units.available() / 4));
    while left > 0
        && let Some(unit) = units.next_stale(&mut looks)
    {
        units.set_aside(unit);
        push(&mut runs, unit);
        left -= 1;
    }
    runs
}

/// Ends the thread of a pool that is closed, and discards what is left (G4).
pub(crate) fn end(pool: &PoolInner, keeper: &Keeper) {
    keeper.discards.stop();
    if !keeper.discards.is_wanted() {
        return;
    }
    pool.let_go();
    let begun = Instant::now();
    let mut goes_on = || begun.elapsed() < LAST;
    while goes_on() && matches!(batch(pool, &mut goes_on), Ok(1..)) {}
}

impl PoolInner {
    /// True if the device takes discards.
    pub(crate) fn takes_back(&self) -> bool {
        self.device.limits().max_discard_sectors > 0
    }

    /// Lists what becomes free from now on, if the pool is set to discard it.
    pub(crate) fn keep_stale(&self) {
        let mut state = self.lock();
        let on = state.sb.discards() && !self.read_only && self.takes_back();
        state.tree.units.keep_stale(on);
    }

    /// Returns the state of the background discard, for reports.
    pub(crate) fn discard_state(&self, state: &State) -> DiscardState {
        match (state.sb.discards(), self.discards.failed()) {
            (false, _) => DiscardState::Off,
            (true, Some(status)) => DiscardState::Failed(status),
            // Support of discards is not probed on a device that was opened for reading.
            (true, None) if !self.read_only && !self.takes_back() => DiscardState::Unsupported,
            (true, None) => DiscardState::On,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
