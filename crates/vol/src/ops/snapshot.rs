//! Changes of the table: create, snapshot, clone, rollback, rename, resize, delete.
//!
//! Owns their order. Each is one record in the journal, and durable when it returns; what becomes of one whose commit
//! fails is in [`undo`](crate::engine::undo).
//!
//! A copy (snapshot or clone) shares the map of its source. Its point in time is fixed in two steps: first every way
//! gets tags on both sides, so that new writes wait; then a grace passes, so that no write that began before is under
//! way. Until then the copy is unborn: no checkpoint has it, and nothing shared is copied or moved.
//!
//! - S1: what was completed before the call is in the copy; what is submitted after it returned is not.
//! - S2: the records of all changes of the source come before the record of the copy.
//! - S3: the cost of a copy is the slots of its source's top, whatever is in it.
//! - S4: what a volume had goes with the lock let go after each slot of its map, whatever takes it: delete, rollback,
//!   resize; and so do the parts of it that commits find free ([`PoolInner::let_go`]).
//!
//! Called by [`Pool`](crate::Pool).

use sheave_base::status::Status;
use sheave_base::sync::{Arc, MutexGuard};
use sheave_iomap::completion_plan::MayBlock;

use crate::engine::inner::{PoolInner, State};
use crate::error::PoolError;
use crate::format::record::Record;
use crate::format::{BLOCK_BYTES, MAX_VOLUME_UNITS};
use crate::made_at::now;
use crate::state::account::{ENTRY_COST, Spender};
use crate::state::extent_map::Entry;
use crate::state::table::{Vol, VolumeCore, check_name};

impl PoolInner {
    /// A new volume; one that grows has a largest size.
    pub(crate) fn create(&self, name: &str, size: u64, max_size: Option<u64>) -> Result<u32, PoolError> {
        let _one = self.structural();
        self.check_writable("creating a volume")?;
        match max_size {
            Some(max_size) => self.check_growing(size, max_size)?,
            None => self.check_size(size)?,
        }
        let mut state = self.lock();
        state.table.check_new(name)?;
        state = self.afford(state, "creating a volume", Spender::Table, |_| ENTRY_COST)?;
        let volume = state.table.next_id;
        let (grows, max_size) = (max_size.is_some(), max_size.unwrap_or(self.most()));
        let record = Record::Create { volume, grows, size, max_size, created: now(), name: name.into() };
        self.apply_and_record(&mut state, record, name)?;
        state.hide(volume);
        drop(state);
        self.durable_new("creating", name, volume)?;
        Ok(volume)
    }

    /// A snapshot or a clone.
    pub(crate) fn copy(&self, source: &str, name: &str, snapshot: bool) -> Result<u32, PoolError> {
        let _one = self.structural();
        self.check_writable("copying a volume")?;
        let state = self.lock();
        state.table.check_new(name)?;
        let from = state.table.named(source)?;
        let (id, core) = (from.id, Arc::clone(&from.core));
        let state =
            self.afford(state, "copying a volume", Spender::Table, |state| ENTRY_COST + state.cost_of_map(id))?;
        let (volume, made) = (state.table.next_id, now());
        let settling = Some(volume).filter(|_| !core.snapshot);
        let mut state = self.settle(state, id, settling);
        let record = |size| Record::Copy {
            volume,
            source: id,
            snapshot,
            grows: core.grows,
            size,
            max_size: core.max_size(),
            created: made,
            name: name.into(),
        };
        let copy = record(core.size());
        if let Err(status) = state.apply(&copy) {
            self.settled(&mut state, id);
            return Err(failed("copying", source, status));
        }
        let Some(vol) = state.table.get_mut(volume) else { return Err(failed("copying", source, Status::Offline)) };
        vol.unborn = true;
        self.survey_space(&mut state);
        drop(state);
        let quiet = self.quiet(source, &core);
        let mut state = self.lock();
        if let Err(busy) = quiet {
            // All of it before anybody goes on: writes to the source that are under way keep their units.
            if let Some(unborn) = state.detach(volume) {
                state.tree.unshare(&unborn.core.top, unborn.slots);
            }
            self.settled(&mut state, id);
            return Err(busy);
        }
        state.record_changes_of(id);
        if let Some(vol) = state.table.get_mut(volume) {
            (vol.unborn, vol.hidden) = (false, true);
            // Writes that were under way have made it larger too, if they did so to its source.
            let copy = record(vol.core.size());
            self.record(&mut state, copy);
        }
        self.settled(&mut state, id);
        drop(state);
        self.durable_new("copying", source, volume)?;
        Ok(volume)
    }

    /// Waits until no write that began before is under way.
    fn quiet(&self, name: &str, core: &VolumeCore) -> Result<(), PoolError> {
        if core.snapshot {
            return Ok(());
        }
        self.wait_for_io(core, &MayBlock::on_worker()).map_err(|_| self.io_goes_on(name, core))
    }

    /// No unit of the volume is being moved any more, and none begins to be.
    fn settle<'a>(&'a self, mut state: MutexGuard<'a, State>, id: u32, with: Option<u32>) -> MutexGuard<'a, State> {
        if let Some(vol) = state.table.get_mut(id) {
            vol.settling = with;
        }
        while state.table.get(id).is_some_and(|vol| vol.busy > 0) {
            state = self.wait(state);
        }
        state
    }

    fn settled(&self, state: &mut State, id: u32) {
        if let Some(vol) = state.table.get_mut(id) {
            (vol.settling, vol.cutting) = (None, false);
        }
        self.wake();
    }

    pub(crate) fn rollback(&self, name: &str, snapshot: &str) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("rolling a volume back")?;
        let state = self.lock();
        let (vol, from) = (state.table.named(name)?, state.table.named(snapshot)?);
        if vol.core.snapshot || !from.core.snapshot || vol.family != from.family {
            return Err(PoolError::Invalid {
                what: format!("'{name}' cannot be rolled back to '{snapshot}'"),
                fix: "Name a volume and a snapshot of it, or of what it was cloned from".into(),
            });
        }
        let (id, core, source) = (vol.id, Arc::clone(&vol.core), from.id);
        let cost = |state: &State| state.cost_of_map(source);
        let state = self.afford(state, "rolling a volume back", Spender::Discard, cost)?;
        let state = self.settle(state, id, Some(id));
        drop(state);
        let quiet = self.quiet(name, &core);
        let mut state = self.lock();
        if let Err(busy) = quiet {
            self.settled(&mut state, id);
            return Err(busy);
        }
        let exchanged = state.exchange(id, source);
        if exchanged.is_ok() {
            self.record(&mut state, Record::Rollback { volume: id, source });
        }
        self.settled(&mut state, id);
        drop(state);
        // What it had goes slot by slot, with writers of the new map in between.
        for old in exchanged.map_err(|status| failed("rolling back", name, status))? {
            self.lock().tree.put_exchanged(&core.top, old);
        }
        self.durable_at_last("rolling back", name)
    }

    pub(crate) fn rename(&self, name: &str, new_name: &str) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("renaming a volume")?;
        check_name(new_name)?;
        let state = self.lock();
        let volume = state.table.named(name)?.id;
        if name != new_name && state.table.id_of(new_name).is_some() {
            return Err(PoolError::Exists { name: new_name.into() });
        }
        let mut state = self.afford(state, "renaming a volume", Spender::Table, |_| ENTRY_COST)?;
        self.apply_and_record(&mut state, Record::Rename { volume, name: new_name.into() }, name)?;
        drop(state);
        self.durable_or("renaming", name, |state| {
            let renamed = state.table.rename(volume, name);
            debug_assert!(renamed || name == new_name, "nobody else gives names meanwhile");
        })
    }

    /// Users see a smaller size from now on, and checkpoints the one that the volume has.
    pub(crate) fn narrow(&self, core: &VolumeCore, size: u64) {
        let mut state = self.lock();
        if let Some(vol) = state.table.get_mut(core.id) {
            vol.durable_size = Some(core.size());
            core.set_size(size);
        }
    }

    /// What [`PoolInner::narrow`] did is undone, unless the volume has the smaller size by now.
    pub(crate) fn widen_again(&self, core: &VolumeCore) {
        let mut state = self.lock();
        if let Some(size) = state.table.get_mut(core.id).and_then(|vol| vol.durable_size.take()) {
            core.set_size(size);
        }
    }

    /// The part of resizing that the map and the table take; what lies in the last block beyond `size` is zero already.
    pub(crate) fn resize(&self, name: &str, size: u64) -> Result<(), PoolError> {
        let state = self.lock();
        let vol = state.table.named(name)?;
        let (volume, core) = (vol.id, Arc::clone(&vol.core));
        let shrinks = size < vol.size_to_write();
        if !shrinks {
            return self.enlarge(state, &core, name, size);
        }
        let last = self.map.geometry.units_of(size).saturating_sub(1);
        let cost = |state: &State| state.cost_of_units(volume, last, last + 1);
        let state = self.afford(state, "resizing a volume", Spender::Discard, cost)?;
        let mut state = self.settle(state, volume, Some(volume));
        core.set_size(size);
        if let Some(vol) = state.table.get_mut(volume) {
            (vol.cutting, vol.durable_size) = (true, None);
        }
        state.unlist_grown(volume);
        self.record(&mut state, Record::Resize { volume, size });
        drop(state);
        let mut cut = Ok(true);
        while matches!(cut, Ok(true)) {
            cut = self.lock().cut_some(&core, size);
        }
        self.settled(&mut self.lock(), volume);
        cut.map_err(|status| failed("resizing", name, status))?;
        self.durable_at_last("resizing", name)
    }

    /// Resizing to what is no smaller. Users see it when it is durable: until then it can be undone, for nobody has
    /// written there.
    fn enlarge(
        &self,
        mut state: MutexGuard<'_, State>,
        core: &VolumeCore,
        name: &str,
        size: u64,
    ) -> Result<(), PoolError> {
        let volume = core.id;
        if let Some(vol) = state.table.get_mut(volume) {
            vol.durable_size = Some(size);
        }
        state.unlist_grown(volume);
        self.record(&mut state, Record::Resize { volume, size });
        drop(state);
        let durable = self.durable_or("resizing", name, |state| {
            if let Some(vol) = state.table.get_mut(volume) {
                vol.durable_size = None;
            }
        });
        if let Some(vol) = self.lock().table.get_mut(volume).filter(|vol| vol.durable_size.is_some()) {
            core.set_size(vol.size_to_write());
            vol.durable_size = None;
        }
        durable
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("deleting a volume")?;
        let mut state = self.lock();
        let vol = state.table.named(name)?;
        if vol.is_open() {
            return Err(in_use(name));
        }
        let (volume, core) = (vol.id, Arc::clone(&vol.core));
        state.note_deleted(&core);
        let gone = state.detach(volume);
        self.record(&mut state, Record::Delete { volume });
        self.survey_space(&mut state);
        drop(state);
        self.drop_map(gone);
        self.durable_at_last("deleting", name)
    }

    /// Gives back the map of a volume that is out of the table, a part at a time.
    pub(crate) fn drop_map(&self, gone: Option<Vol>) {
        let Some(mut vol) = gone else { return };
        while self.lock().drop_some(&mut vol) {}
    }

    fn apply_and_record(&self, state: &mut State, record: Record, name: &str) -> Result<(), PoolError> {
        state.apply(&record).map_err(|status| failed("changing", name, status))?;
        self.record(state, record);
        self.survey_space(state);
        Ok(())
    }

    pub(crate) fn check_writable(&self, what: &str) -> Result<(), PoolError> {
        if !self.read_only {
            return self.check_open(what);
        }
        Err(PoolError::Invalid {
            what: format!("{what}: the pool is open read-only"),
            fix: "Open it for writing".into(),
        })
    }

    /// The lock, when the next checkpoint may need so many pages more.
    fn afford<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        what: &str,
        who: Spender,
        cost: impl Fn(&State) -> u64,
    ) -> Result<MutexGuard<'a, State>, PoolError> {
        self.pay(state, who, cost).map_err(|status| match status {
            status if self.is_host_full(status) => self.host_is_full(format!("the metadata for {what}")),
            Status::NoSpc => PoolError::Full { what: format!("the metadata for {what}") },
            status => failed(what, self.device.name(), status),
        })
    }

    /// Another largest size for a volume that grows.
    pub(crate) fn limit(&self, name: &str, max_size: u64) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("changing the largest size of a volume")?;
        let mut state = self.lock();
        let vol = state.table.named(name)?;
        let (volume, core) = (vol.id, Arc::clone(&vol.core));
        check_grows(&core, name)?;
        self.check_growing(core.size(), max_size)?;
        let before = core.max_size();
        self.apply_and_record(&mut state, Record::Limit { volume, max_size }, name)?;
        drop(state);
        // Writes may have made it larger meanwhile than it was to become before.
        self.durable_or("changing the largest size of", name, |_| core.set_max_size(before.max(core.size())))
    }

    /// Most bytes of a volume.
    pub(crate) fn most(&self) -> u64 {
        MAX_VOLUME_UNITS << self.map.geometry.unit_shift
    }

    /// The blocks of volumes: those of the device, or those that have checksums.
    pub(crate) fn block_bytes(&self) -> u64 {
        let block = u64::from(self.device.limits().logical_block);
        if self.sums.is_some() { block.max(crate::format::BLOCK_BYTES) } else { block }
    }

    pub(crate) fn check_size(&self, size: u64) -> Result<(), PoolError> {
        let block = self.block_bytes();
        if size == 0 || !size.is_multiple_of(block) {
            return Err(PoolError::Invalid {
                what: format!("a volume cannot have {size} bytes"),
                fix: format!("Use a multiple of {block}, the block of the pool's device"),
            });
        }
        self.check_most(size)
    }

    fn check_most(&self, size: u64) -> Result<(), PoolError> {
        if size <= self.most() {
            return Ok(());
        }
        Err(PoolError::Limit {
            what: format!("a volume of {size} bytes"),
            limit: self.most(),
            fix: "Use a smaller size, or a pool with larger allocation units".into(),
        })
    }

    /// Whether a volume may be given this size.
    pub(crate) fn check_resize(&self, core: &VolumeCore, size: u64) -> Result<(), PoolError> {
        if core.grows { self.check_growing(size, core.max_size()) } else { self.check_size(size) }
    }

    /// The sizes of a volume that grows.
    pub(crate) fn check_growing(&self, size: u64, max_size: u64) -> Result<(), PoolError> {
        if max_size == 0 || (size | max_size) & (BLOCK_BYTES - 1) != 0 {
            return Err(PoolError::Invalid {
                what: format!("a volume cannot have {size} bytes and grow to {max_size}"),
                fix: "Use multiples of 4096, for it grows by whole blocks".into(),
            });
        }
        if size > max_size {
            return Err(PoolError::Invalid {
                what: format!("{size} bytes are more than {max_size}, which is the most that the volume may have"),
                fix: "Raise its largest size first, or use a smaller size".into(),
            });
        }
        self.check_most(max_size)
    }
}

fn check_grows(core: &VolumeCore, name: &str) -> Result<(), PoolError> {
    let what = match core {
        core if core.snapshot => format!("'{name}' is a snapshot, and a snapshot keeps its size"),
        core if !core.grows => format!("'{name}' does not grow by being written, so it has no largest size"),
        _ => return Ok(()),
    };
    Err(PoolError::Invalid { what, fix: "Name a volume that was created with a largest size".into() })
}

impl State {
    /// Turns the changes of a volume that wait for a commit into records (S2).
    fn record_changes_of(&mut self, id: u32) {
        let (ours, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.dirty).into_iter().partition(|at| at.0 == id);
        self.dirty = others;
        let size = self.unlist_grown(id);
        self.pending.extend(size);
        for &(volume, unit) in &ours {
            self.pending.extend(self.record_of(volume, unit));
            if let Some((place, entry)) = self.find(volume, unit) {
                self.tree.store(place, entry.without(Entry::LISTED));
            }
        }
        self.recorded.extend(ours);
    }
}

/// The core of a volume by name.
pub(crate) fn core_of(state: &State, name: &str) -> Result<Arc<VolumeCore>, PoolError> {
    Ok(Arc::clone(&state.table.named(name)?.core))
}

pub(crate) fn in_use(name: &str) -> PoolError {
    PoolError::Busy {
        what: format!("volume '{name}'"),
        who: "it is open".into(),
        fix: "Close it, and detach it from its rings".into(),
    }
}

pub(crate) fn failed(what: &str, name: &str, status: Status) -> PoolError {
    match status {
        Status::NoSpc => PoolError::Full { what: format!("{what} '{name}'") },
        status => PoolError::Io {
            what: format!("{what} '{name}'"),
            status,
            fix: "Check the pool's device; what was durable before is still there".into(),
        },
    }
}

#[cfg(test)]
mod tests;
