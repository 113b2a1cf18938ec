//! Closing regions that nobody writes to: what rots in a region that is open at a crash, unread, is believed.
//!
//! Owns the pace. A region closes by the third look after the last write to it: the first takes the mark of that write
//! off, the second finds none and begins to close, and the third, when a grace is over, has a checkpoint close it. A
//! look writes nothing by itself. The life of a region is in [`regions`](crate::state::sums::regions).
//!
//! - D1: looks come [`LOOKS`] times in the time that a region may be idle, as long as any is open; else the thread
//!   sleeps.
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

/// Looks in the time that a region may be idle.
const LOOKS: u32 = 3;
/// The least time between two.
const LEAST: Duration = Duration::from_millis(1);

/// Starts the thread of a pool with checksums.
pub(crate) fn start(pool: &Arc<PoolInner>, keeper: &Keeper, longest_idle: Duration) -> Result<(), Status> {
    if pool.sums.is_none() {
        return Ok(());
    }
    let (pool, every) = (Arc::clone(pool), (longest_idle / LOOKS).max(LEAST));
    keeper.regions.start(move || run(&pool, every))
}

/// The thread.
fn run(pool: &PoolInner, every: Duration) {
    let signal = &pool.regions_opened;
    loop {
        signal.clear();
        let (phase, open) = {
            let state = pool.lock();
            (state.phase, state.has_open_regions())
        };
        // Nothing leaves these.
        if matches!(phase, Phase::Degraded(_) | Phase::Taken | Phase::Closed) {
            return;
        }
        let goes_on = if open { signal.pause(every) } else { signal.wait(None) };
        if !goes_on {
            return;
        }
        // A checkpoint that fails is what the next commit begins with, whoever asks for that; its caller is told.
        let _ = close(pool);
    }
}

/// One look, and the checkpoint that it finds due. Whether any region is open still.
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
