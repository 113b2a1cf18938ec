//! Changes of the table: create, snapshot, clone, rollback, rename, resize, delete.
//!
//! Owns their order. Each is one record in the journal, and durable when it returns; what becomes of one whose commit
//! fails is in [`change`](crate::engine::change).
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
use sheave_base::sync::Arc;
use sheave_iomap::completion_plan::MayBlock;

use crate::engine::change::{failed, in_use};
use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::page::table::Interim;
use crate::format::record::Record;
use crate::made_at::{self, now};
use crate::options::CopyOptions;
use crate::state::State;
use crate::state::account::{ENTRY_COST, Spender};
use crate::state::table::{OpenToken, Table, Vol, VolumeCore, check_name};

impl PoolInner {
    /// A new volume; one that grows has a largest size. One that is interim is open before anybody sees it.
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
        state.table.check_new(name)?;
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
        self.durable_new("creating", name, volume)?;
        Ok(volume)
    }

    /// A snapshot or a clone, which is open before anybody sees it.
    pub(crate) fn copy(
        &self,
        source: &str,
        name: &str,
        snapshot: bool,
        options: &CopyOptions,
        token: &std::sync::Arc<OpenToken>,
    ) -> Result<u32, PoolError> {
        let _one = self.structural();
        let volume = self.copy_in_memory(source, name, snapshot, options, token)?;
        self.durable_new("copying", source, volume)?;
        Ok(volume)
    }

    /// A copy that is recorded for the next commit, and that nobody sees. The caller holds `structural`.
    pub(crate) fn copy_in_memory(
        &self,
        source: &str,
        name: &str,
        snapshot: bool,
        options: &CopyOptions,
        token: &std::sync::Arc<OpenToken>,
    ) -> Result<u32, PoolError> {
        self.check_writable("copying a volume")?;
        let state = self.lock();
        state.table.check_new(name)?;
        let from = state.table.whole(source, "copying a volume")?;
        let (id, core) = (from.id, Arc::clone(&from.core));
        let cost = |state: &State| ENTRY_COST + state.cost_of_map(id);
        let state = self.afford(state, "copying a volume", Spender::Table, cost)?;
        let (volume, made) = (state.table.next_id, options.created.unwrap_or_else(now));
        let mut marks = state.marks_of(volume, options.identity, options.interim)?;
        marks.extend(state.origin_of_copy(volume, id, options.origin.as_deref()));
        let settling = Some(volume).filter(|_| !core.snapshot);
        let state = self.settle(state, id, settling);
        let mut state = self.afford_settled(state, id, "copying a volume", Spender::Table, cost)?;
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
        let applied = [&copy].into_iter().chain(&marks).try_for_each(|record| state.apply(record));
        if let Err(status) = applied {
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
            state.table.set_opened(volume, token);
            self.record(&mut state, copy);
            marks.into_iter().for_each(|mark| self.record(&mut state, mark));
        }
        self.settled(&mut state, id);
        Ok(volume)
    }

    /// Waits until no write that began before is under way.
    fn quiet(&self, name: &str, core: &VolumeCore) -> Result<(), PoolError> {
        if core.snapshot {
            return Ok(());
        }
        self.wait_for_io(core, &MayBlock::on_worker()).map_err(|_| self.io_goes_on(name, core))
    }

    /// What was given its place before has ended when this returns (V26). The data would be safe without that:
    /// overwrites begin between the wait and the exchange too, and what the volume had is nobody's before a grace; the
    /// end of a first write sets bits only where the map has the unit that it wrote to, which no snapshot has.
    pub(crate) fn rollback(&self, name: &str, snapshot: &str) -> Result<(), PoolError> {
        let _one = self.structural();
        self.roll_back_in_memory(name, snapshot)?;
        self.durable_at_last("rolling back", name)
    }

    /// A rollback that is recorded for the next commit. The caller holds `structural`.
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
        let mut state = self.afford_settled(state, id, "rolling a volume back", Spender::Discard, cost)?;
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
        Ok(())
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
        // Who gives it a name of its own keeps it.
        let interim = state.table.get(volume).and_then(Vol::interim).filter(|_| name != new_name);
        if interim.is_some() {
            self.apply_and_record(&mut state, Record::Interim { volume, interim: None }, name)?;
        }
        drop(state);
        self.durable_or("renaming", name, |state| {
            let renamed = state.table.rename(volume, name);
            if interim.is_some() {
                state.table.set_interim(volume, interim);
            }
            debug_assert!(renamed || name == new_name, "nobody else gives names meanwhile");
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

    /// Deletes an interim volume that is not open; its name, or none if there is none.
    pub(crate) fn delete_interim(&self) -> Result<Option<String>, PoolError> {
        let idle = |vol: &&Vol| vol.interim().is_some() && vol.is_shown() && !vol.is_open();
        if !self.lock().table.iter().any(|vol| idle(&vol)) {
            return Ok(None);
        }
        // Looked for once more where the lock is held: it may have got a name of its own meanwhile.
        self.delete_found(|table| Ok(table.iter().find(idle).map(|vol| vol.id)))
    }

    /// Deletes the volume that is found under the lock; its name.
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
    /// What is recorded of a new volume beside its copy or creation, for the same commit. A pool that an older program
    /// made knows neither identities nor interim volumes before it is upgraded.
    fn marks_of(
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

    /// That a copy of `source` counts as made of another volume, if there is one of that name in the family.
    fn origin_of_copy(&self, volume: u32, source: u32, origin: Option<&str>) -> Option<Record> {
        let family = self.table.get(source)?.family;
        let origin = self.table.named(origin?).ok().filter(|vol| vol.family == family && vol.id != source)?;
        Some(Record::Origin { volume, origin: origin.id })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
