//! Changes settings of a pool: its low-water mark, its background discard, and the list of volumes that may have lost
//! data.
//!
//! Owns the changes. All are kept in the superblock, so the next commit is a checkpoint.
//!
//! Called by [`Pool`](crate::Pool).

use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::settings::LowWater;
use crate::ops::create::check_low_water;

impl PoolInner {
    /// Sets the low-water mark. Undone if that cannot be made durable.
    pub(crate) fn set_low_water(&self, low_water: LowWater) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("setting the low-water mark")?;
        check_low_water(low_water)?;
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.sb.low_water, low_water);
        state.next.require();
        self.survey_space(&mut state);
        drop(state);
        let name = self.device.name();
        self.durable_or("setting the low-water mark of", name, |state| state.sb.low_water = before)
    }

    /// Turns the background discard on or off. Undone if that cannot be made durable.
    pub(crate) fn set_discard(&self, on: bool) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("setting the discard of")?;
        let mut state = self.lock();
        let before = state.sb.discards();
        state.sb.set_discards(on);
        state.next.require();
        drop(state);
        self.durable_or("setting the discard of", self.device.name(), |state| state.sb.set_discards(before))?;
        self.keep_stale();
        Ok(())
    }

    /// Clears the list of volumes that may have lost data, durably.
    pub(crate) fn acknowledge_loss(&self) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("acknowledging a loss")?;
        let mut state = self.lock();
        if state.sb.lost.is_empty() {
            return Ok(());
        }
        // The list itself is cleared when a checkpoint without it is durable.
        state.risk.acknowledged = true;
        state.next.require();
        drop(state);
        self.durable_at_last("acknowledging the loss in", self.device.name())
    }
}
