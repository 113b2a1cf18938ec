//! Closes regions that get no writes. After a crash, recovery computes the checksums of open regions from the data. If
//! that data had rotted before the crash and nobody had read it, the rotten data would be taken for correct.
//!
//! Owns the pace. A region closes at the third look after the last write to it: the first look clears the flag that
//! this write left, the second finds the flag clear and begins to close the region, and the third, after a grace,
//! closes it by a checkpoint. A look writes nothing by itself. The life of a region is in
//! [`regions`](crate::state::sums::regions).
//!
//! - D1: while any region is open, there are [`LOOKS`] looks in the longest time that a region may be idle. Otherwise
//!   the thread sleeps.
//!
//! Called by [`Pool`](crate::Pool).

use std::time::Duration;

use sheave_base::status::Status;
use sheave_base::sync::Arc;

use crate::engine::background::Keeper;
use crate::engine::inner::PoolInner;
use crate::state::State;
use crate::state::phase::Phase;
use crate::state::sums::regions::Regions;

/// Number of looks per longest idle time. Closing a region needs three.
const LOOKS: u32 = 3;
/// Shortest time between two looks.
const LEAST: Duration = Duration::from_millis(1);

/// Starts the thread if the pool has checksums.
pub(crate) fn start(pool: &Arc<PoolInner>, keeper: &Keeper, longest_idle: Duration) -> Result<(), Status> {
    if pool.sums.is_none() {
        return Ok(());
    }
    let (pool, every) = (Arc::clone(pool), (longest_idle / LOOKS).max(LEAST));
    keeper.regions.start(move || run(&pool, every))
}

fn run(pool: &PoolInner, every: Duration) {
    let signal = &pool.regions_opened;
    loop {
        signal.clear();
        let (phase, open) = {
            let state = pool.lock();
            (state.phase, state.has_open_regions())
        };
        // The pool never leaves these phases.
        if matches!(phase, Phase::Degraded(_) | Phase::Taken | Phase::Closed) {
            return;
        }
        let goes_on = if open { signal.pause(every) } else { signal.wait(None) };
        if !goes_on {
            return;
        }
        // The error can be dropped: the next commit writes the failed checkpoint again, and its caller gets the result.
        let _ = close(pool);
    }
}

/// Makes one look, and writes a checkpoint if that would close a region. Returns true if any region is still open.
pub(crate) fn close(pool: &PoolInner) -> Result<bool, Status> {
    let due = {
        let mut state = pool.lock();
        let State { sums: Some(regions), table, phase: Phase::Open, .. } = &mut *state else { return Ok(false) };
        regions.look(|| table.everyone())
    };
    if due {
        pool.checkpoint()?;
    }
    Ok(pool.lock().has_open_regions())
}

impl State {
    fn has_open_regions(&self) -> bool {
        self.sums.as_ref().is_some_and(Regions::any_is_open)
    }
}
