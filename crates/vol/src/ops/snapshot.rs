//! Changes of the volume table: create, rollback, rename, delete. Snapshots and clones are in [`copy`](super::copy),
//! sizes in `resize`.
//!
//! Owns their order. Each is durable when it returns; [`change`](crate::engine::change) decides what becomes of one
//! whose commit fails.
//!
//! - S4: delete, rollback and resize release the lock after each slot of the map that they take apart, and so do
//!   commits for the parts that they find free ([`PoolInner::let_go`]).
//!
//! Called by [`Pool`](crate::Pool).

use sheave_base::sync::Arc;
use sheave_iomap::completion_plan::MayBlock;

use crate::engine::change::{failed, in_use};
use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::page::table::Interim;
use crate::format::record::Record;
use crate::made_at::{self, now};
use crate::state::State;
use crate::state::account::{ENTRY_COST, Spender};
use crate::state::names::check_no_snapshot;
use crate::state::table::{OpenToken, Table, Vol, VolumeCore};

impl PoolInner {
    /// Creates a volume; with `max_size` it grows by being written. An interim volume is open before it can be seen.
    pub(crate) fn create(
        &self,
        name: &str,
        size: u64,
        max_size: Option<u64>,
        interim: Option<(Interim, &std::sync::Arc<OpenToken>)>,
    ) -> Result<u32, PoolError> {
        let _one = self.structural();
        self.check_writable("creating a volume")?;
        match max_size {
            Some(max_size) => self.check_growing(size, max_size)?,
            None => self.check_size(size)?,
        }
        let mut state = self.lock();
        state.table.check_new(name, 0)?;
        check_no_snapshot(name)?;
        state = self.afford(state, "creating a volume", Spender::Table, |_| ENTRY_COST)?;
        let volume = state.table.next_id;
        let (grows, max_size) = (max_size.is_some(), max_size.unwrap_or(self.most()));
        let marks = state.marks_of(volume, None, interim.map(|(interim, _)| interim))?;
        let record = Record::Create { volume, grows, size, max_size, created: now(), name: name.into() };
        self.apply_and_record(&mut state, record, name)?;
        for mark in marks {
            self.apply_and_record(&mut state, mark, name)?;
        }
        if let Some((_, token)) = interim {
            state.table.set_opened(volume, token);
        }
        state.hide(volume);
        drop(state);
        self.durable_new("creating", name, &[volume])?;
        Ok(volume)
    }

    /// Waits until no write that began before is in flight.
    fn quiet(&self, name: &str, core: &VolumeCore) -> Result<(), PoolError> {
        if core.snapshot {
            return Ok(());
        }
        self.wait_for_io(core, &MayBlock::on_worker()).map_err(|_| self.io_goes_on(name, core))
    }

    /// Rolls a volume back. Writes that had their mapping before have ended when this returns (V26). The data would be
    /// safe without that wait, as it is for overwrites that begin between the wait and the exchange. The units that the
    /// volume had are not reused before a grace period. The end of a first write sets bits only if the map still has
    /// the unit that it wrote to, and no snapshot has that unit.
    pub(crate) fn rollback(&self, name: &str, snapshot: &str) -> Result<(), PoolError> {
        let _one = self.structural();
        self.roll_back_in_memory(name, snapshot)?;
        self.durable_at_last("rolling back", name)
    }

    /// Rolls a volume back in memory, and records it for the next commit. The caller holds `structural`.
    pub(crate) fn roll_back_in_memory(&self, name: &str, snapshot: &str) -> Result<(), PoolError> {
        self.check_writable("rolling a volume back")?;
        let state = self.lock();
        let (vol, from) = (state.table.named(name)?, state.table.whole(snapshot, "rolling a volume back")?);
        if vol.core.snapshot || !from.core.snapshot || vol.family != from.family {
            return Err(PoolError::Invalid {
                what: format!("'{name}' cannot be rolled back to '{snapshot}'"),
                fix: "Name a volume and a snapshot of it, or of what it was cloned from".into(),
            });
        }
        let (id, core, source) = (vol.id, Arc::clone(&vol.core), from.id);
        let cost = |state: &State| state.cost_of_map(source) + state.kept_pages();
        let state = self.afford(state, "rolling a volume back", Spender::Discard, cost)?;
        let state = self.settle(state, id, Some(id));
        drop(state);
        let quiet = self.quiet(name, &core);
        let mut state = self.lock();
        if let Err(busy) = quiet {
            self.settled(&mut state, id);
            return Err(busy);
        }
        let mut state = self.afford_settled(state, id, "rolling a volume back", Spender::Discard, cost)?;
        let exchanged = state.exchange(id, source);
        if exchanged.is_ok() {
            self.record(&mut state, Record::Rollback { volume: id, source });
        }
        self.settled(&mut state, id);
        drop(state);
        // The old map is taken apart slot by slot, with writers of the new map in between.
        for old in exchanged.map_err(|status| failed("rolling back", name, status))? {
            self.lock().tree.put_exchanged(&core.top, old);
        }
        Ok(())
    }

    /// Renames the volume, and the snapshots that carry its name: all of them or none.
    pub(crate) fn rename(&self, name: &str, new_name: &str) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("renaming a volume")?;
        let state = self.lock();
        let vol = state.table.named(name)?;
        let (volume, all) = (vol.id, state.table.renamed_with(vol, new_name)?);
        let cost = all.len() as u64 * ENTRY_COST;
        let mut state = self.afford(state, "renaming a volume", Spender::Table, |_| cost)?;
        // One hold of the lock, so that all records are in one commit.
        for (id, _, new) in &all {
            self.apply_and_record(&mut state, Record::Rename { volume: *id, name: new.clone() }, name)?;
        }
        // An interim volume that gets a name of its own is to be kept.
        let interim = state.table.get(volume).and_then(Vol::interim).filter(|_| name != new_name);
        if interim.is_some() {
            self.apply_and_record(&mut state, Record::Interim { volume, interim: None }, name)?;
        }
        drop(state);
        self.durable_or("renaming", name, |state| {
            for (id, old, new) in &all {
                let renamed = state.table.rename(*id, old);
                debug_assert!(renamed || old == new, "nobody else gives names meanwhile");
            }
            if interim.is_some() {
                state.table.set_interim(volume, interim);
            }
        })
    }

    pub(crate) fn can_delete(&self, names: &[&str]) -> Result<(), PoolError> {
        let state = self.lock();
        names.iter().try_for_each(|name| match state.table.named(name)?.is_open() {
            true => Err(in_use(name)),
            false => Ok(()),
        })
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), PoolError> {
        let found = |table: &Table| table.named(name).map(|vol| Some(vol.id));
        self.delete_found(found).map(drop)
    }

    /// Deletes an interim volume that is not open. Returns its name, or `None` if there is none.
    pub(crate) fn delete_interim(&self) -> Result<Option<String>, PoolError> {
        let idle = |vol: &&Vol| vol.interim().is_some() && vol.is_shown() && !vol.is_open();
        if !self.lock().table.iter().any(|vol| idle(&vol)) {
            return Ok(None);
        }
        // Looked up again under the lock: the volume may have been renamed, and so kept, meanwhile.
        self.delete_found(|table| Ok(table.iter().find(idle).map(|vol| vol.id)))
    }

    /// Deletes the volume that `find` picks under the lock. Returns its name.
    fn delete_found(
        &self,
        find: impl Fn(&Table) -> Result<Option<u32>, PoolError>,
    ) -> Result<Option<String>, PoolError> {
        let _one = self.structural();
        let mut state = self.begin_delete()?;
        let Some(vol) = find(&state.table)?.and_then(|id| state.table.get(id)) else { return Ok(None) };
        let name = vol.name.clone();
        if vol.is_open() {
            return Err(in_use(&name));
        }
        let (volume, core) = (vol.id, Arc::clone(&vol.core));
        state.note_deleted(&core);
        let gone = state.detach(volume);
        self.record(&mut state, Record::Delete { volume });
        self.survey_space(&mut state);
        drop(state);
        self.drop_map(gone);
        self.durable_at_last("deleting", &name)?;
        Ok(Some(name))
    }
}

impl State {
    /// Returns the records that go with the copy or creation of a volume, in the same commit. Empty for a pool of an
    /// older program that is not upgraded: it has neither identities nor interim volumes.
    pub(super) fn marks_of(
        &self,
        volume: u32,
        identity: Option<[u8; 16]>,
        interim: Option<Interim>,
    ) -> Result<Vec<Record>, PoolError> {
        if !self.sb.identities {
            return Ok(Vec::new());
        }
        let identity = match identity {
            Some(identity) if identity != [0; 16] => identity,
            Some(_) => {
                return Err(PoolError::Invalid {
                    what: "an identity cannot be all zeroes".into(),
                    fix: "Use that of the snapshot that this is a copy of, or none: then one is chosen".into(),
                });
            }
            None => made_at::random(volume.into()).map_err(PoolError::no_random_bits)?,
        };
        let interim = interim.map(|interim| Record::Interim { volume, interim: Some(interim) });
        Ok([Record::Identity { volume, identity }].into_iter().chain(interim).collect())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
