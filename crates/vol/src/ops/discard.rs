//! Background discard: units that became free go back to the device below, some at a time.
//!
//! Owns the pace and the batches. A unit becomes free when the commit that says so is durable and all who might use it
//! have ended ([`limbo`](crate::state::limbo)); it is listed then
//! ([`alloc`](crate::state::alloc)), and discarded as [`trim`](super::trim) does it, under the same rules.
//!
//! - G1: a batch has [`BATCH`] units at most, and a quarter of what is free. After each the thread rests as long as the
//!   batch took, [`REST`] at least.
//! - G2: nobody who does I/O waits for a discard; who finds no space while some is set aside waits until it comes back.
//! - G3: a discard that fails is the last of this opening. Nothing is lost by that but space of the host.
//! - G4: closing discards what is left for [`LAST`] at most, and one discard more; a drop waits for one. What is still
//!   listed then, or was free before the pool was opened, waits for [`Pool::trim`](crate::Pool::trim).
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

/// Units of a batch.
const BATCH: u64 = 256;
/// Entries of the list that are looked at for a batch: those that are in use again are passed over.
const MOST_LOOKS: u64 = 16 * BATCH;
/// The least rest between two batches.
const REST: Duration = Duration::from_millis(10);
/// How long a close goes on with what is left.
const LAST: Duration = Duration::from_millis(500);
/// How often the thread looks whether I/O still keeps back what was let go: at first, and at last.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Starts the thread of a pool that is set to discard, on a device that can.
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

/// The thread.
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

/// Discards a batch, while `goes_on` says so; how many bytes. 0: there is nothing to discard, or too little is free for
/// that.
pub(crate) fn batch(pool: &PoolInner, goes_on: &mut dyn FnMut() -> bool) -> Result<u64, Status> {
    if let Some(status) = pool.discards.failed() {
        return Err(status);
    }
    // The free units of who has lost the pool may be another's data (O2 of `owner`). The next commit says the error.
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
    // A batch that ended early has taken these off the list, and closing goes on with them.
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
    // A pool that is degraded writes nothing.
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
    /// Whether the device takes space back.
    pub(crate) fn takes_back(&self) -> bool {
        self.device.limits().max_discard_sectors > 0
    }

    /// Lists what becomes free from now on, if that is to be discarded.
    pub(crate) fn keep_stale(&self) {
        let mut state = self.lock();
        let on = state.sb.discards() && !self.read_only && self.takes_back();
        state.tree.units.keep_stale(on);
    }

    /// What reports say of it.
    pub(crate) fn discard_state(&self, state: &State) -> DiscardState {
        match (state.sb.discards(), self.discards.failed()) {
            (false, _) => DiscardState::Off,
            (true, Some(status)) => DiscardState::Failed(status),
            // Nobody asks a device that is opened to be read whether it takes space back.
            (true, None) if !self.read_only && !self.takes_back() => DiscardState::Unsupported,
            (true, None) => DiscardState::On,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
