//! Opens regions for writes: data is written to a region only after it is durable that the region is open.
//!
//! Owns two waits. One is for the commit that holds the intent. The other, when too many regions are open, is for some
//! of them to close. The life of a region is in [`regions`](crate::state::sums::regions).
//!
//! Called by writes that found a region closed, before they begin.

use std::time::Instant;

use sheave_base::status::Status;
use sheave_iomap::completion_plan::MayBlock;

use crate::engine::inner::{LOOK_EVERY, PoolInner};
use crate::engine::wait::Waited;
use crate::format::record::Record;
use crate::state::State;
use crate::state::account::Spender;
use crate::state::phase::Phase;
use crate::state::sums::regions::Regions;

impl PoolInner {
    /// Opens the region of byte address `addr` for writes, durably (S1). Waits while too many regions are open.
    ///
    /// # Errors
    ///
    /// `Timeout` or `Canceled` if no region closed in time, `IoErr` if the pool takes no writes.
    pub(crate) fn intend(&self, addr: u64, may_block: &MayBlock) -> Result<(), Status> {
        let mut crowded: Option<Waited> = None;
        loop {
            let mut state = self.lock();
            if state.phase != Phase::Open {
                return Err(Status::IoErr);
            }
            let State { sums: Some(regions), sb, .. } = &mut *state else { return Ok(()) };
            let wanted = regions.sums.region_at(addr);
            let all = Regions::together(wanted, self.geometry.regions(sb.total_units));
            if regions.open(wanted, all.clone()) {
                return Ok(());
            }
            if regions.is_crowded() {
                drop(state);
                if may_block.is_cancelled() {
                    return Err(Status::Canceled);
                }
                let now = Instant::now();
                if crowded.get_or_insert_with(|| Waited::since(now)).left(self.longest_wait, now).is_zero() {
                    return Err(Status::Timeout);
                }
                // The first checkpoint begins to close idle regions. The second one closes them if no writes to them
                // are left.
                self.checkpoint()?;
                let everyone = self.lock().table.everyone();
                let _ = everyone.wait(LOOK_EVERY);
                self.checkpoint()?;
                continue;
            }
            let cost = |state: &State| state.cost_of_intent(all.clone());
            if !state.can_pay(cost(&state), Spender::Discard) {
                drop(self.pay(state, Spender::Discard, cost)?);
                continue;
            }
            let Some(regions) = &mut state.sums else { return Ok(()) };
            let intent = regions.intend(all.clone())?;
            self.record(&mut state, Record::Intent { first: all.start, count: all.end - all.start });
            drop(state);
            // Another thread may close the region during the commit, which does not hold the lock. So the loop checks
            // again.
            self.commit()?;
            let mut state = self.lock();
            if let Some(regions) = &mut state.sums {
                regions.intent_is_durable(all, intent);
            }
            self.regions_opened.notify();
        }
    }
}
