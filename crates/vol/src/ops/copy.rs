//! Snapshots and clones: of one volume, or of several at one moment.
//!
//! Owns the moment. A copy shares the map of its source. Its point in time is fixed in two steps: first the tops of
//! both get tags in all slots, so that new writes wait; then a grace period passes, so that no write that began before
//! is in flight. Until then the copy is unborn: no checkpoint has it, and no shared unit is copied or moved.
//!
//! - S1: what was completed before the call is in the copy; what is submitted after it returned is not.
//! - S2: the records of all changes of the source come before the record of the copy.
//! - S3: a copy costs one step for each slot of its source's top, whatever the slots hold.
//! - S5: the tags of all copies that are made together are set under one hold of the lock, and no source goes on before
//!   all copies are born. So a write that is in one of the copies began before that hold, and every write that had
//!   ended before that one began is in all of them.
//! - S6: their records are added under one hold of the lock, so they are in one commit: a crash leaves all of them, or
//!   none.
//!
//! Called by [`Pool`](crate::Pool).

use sheave_base::status::Status;
use sheave_base::sync::{Arc, MutexGuard};
use sheave_iomap::completion_plan::MayBlock;

use crate::engine::change::failed;
use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::record::Record;
use crate::made_at::now;
use crate::options::CopyOptions;
use crate::state::State;
use crate::state::account::{ENTRY_COST, Spender};
use crate::state::table::{OpenToken, VolumeCore};

/// Most volumes that are copied together.
pub(crate) const MAX_TOGETHER: usize = 1024;
/// Most slots in the maps of volumes that are copied together: as many as the largest volume has. All of them are
/// tagged under one hold of the lock.
const MAX_SLOTS: u64 = 262_144;

/// A copy that is being made.
struct Birth<'a> {
    source: u32,
    source_name: &'a str,
    core: Arc<VolumeCore>,
    volume: u32,
    name: &'a str,
    snapshot: bool,
    created: u64,
    /// Records that go with the copy's own.
    marks: Vec<Record>,
}

impl Birth<'_> {
    /// Returns the record of the copy. `size` is the source's.
    fn record(&self, size: u64) -> Record {
        Record::Copy {
            volume: self.volume,
            source: self.source,
            snapshot: self.snapshot,
            grows: self.core.grows,
            size,
            max_size: self.core.max_size(),
            created: self.created,
            name: self.name.into(),
        }
    }

    /// Returns the value of the source's `settling`: the copy's number. `None` if the source is a snapshot, which
    /// nobody writes.
    fn settling(&self) -> Option<u32> {
        Some(self.volume).filter(|_| !self.core.snapshot)
    }
}

impl PoolInner {
    /// Makes snapshots or clones, all of one moment, and opens them before they can be seen. `wanted` has the source
    /// and the name of each.
    pub(crate) fn copy(
        &self,
        wanted: &[(&str, &str)],
        snapshot: bool,
        options: &CopyOptions,
        token: &std::sync::Arc<OpenToken>,
    ) -> Result<(), PoolError> {
        let _one = self.structural();
        let volumes = self.copy_in_memory(wanted, snapshot, options, token)?;
        let sources = wanted.iter().map(|(source, _)| *source).collect::<Vec<_>>().join("', '");
        self.durable_new("copying", &sources, &volumes)
    }

    /// Makes the copies in memory, hidden, and records them for the next commit. The caller holds `structural`.
    pub(crate) fn copy_in_memory(
        &self,
        wanted: &[(&str, &str)],
        snapshot: bool,
        options: &CopyOptions,
        token: &std::sync::Arc<OpenToken>,
    ) -> Result<Vec<u32>, PoolError> {
        const WHAT: &str = "copying a volume";
        self.check_writable(WHAT)?;
        let state = self.lock();
        let births = state.births(wanted, snapshot, options)?;
        let cost = |state: &State| births.iter().map(|one| ENTRY_COST + state.cost_of_map(one.source)).sum();
        let state = self.afford(state, WHAT, Spender::Table, cost)?;
        let state = self.settle_all(state, &births);
        // Once more: settling releases the lock, and others may have used the pages up meanwhile.
        let afforded = self.afford(state, WHAT, Spender::Table, cost);
        let mut state = afforded.inspect_err(|_| self.go_on(&mut self.lock(), &births))?;
        // One hold of the lock (S5): no write begins on one source between its tags and those of another.
        for (at, birth) in births.iter().enumerate() {
            if let Err(status) = state.bear(birth) {
                births[..at].iter().for_each(|other| state.unbear(other));
                self.go_on(&mut state, &births);
                return Err(failed("copying", birth.source_name, status));
            }
        }
        self.survey_space(&mut state);
        drop(state);
        let quiet = self.quiet_all(&births);
        let mut state = self.lock();
        if let Err(busy) = quiet {
            // All copies are undone before any source goes on: writes to the sources that are in flight keep their
            // units.
            births.iter().for_each(|birth| state.unbear(birth));
            self.go_on(&mut state, &births);
            return Err(busy);
        }
        let volumes = births.iter().map(|birth| birth.volume).collect();
        self.record_all(&mut state, births, token);
        Ok(volumes)
    }

    /// Waits until no unit of a source is being moved. From then on no move begins, nor does a write to new space.
    fn settle_all<'a>(&'a self, mut state: MutexGuard<'a, State>, births: &[Birth<'_>]) -> MutexGuard<'a, State> {
        for birth in births {
            if let Some(vol) = state.table.get_mut(birth.source) {
                vol.settling = birth.settling();
            }
        }
        for birth in births {
            state = self.settle(state, birth.source, birth.settling());
        }
        state
    }

    /// Lets the sources go on: they are no longer settling.
    fn go_on(&self, state: &mut State, births: &[Birth<'_>]) {
        births.iter().for_each(|birth| self.settled(state, birth.source));
    }

    /// Waits until no write that began before is in flight to any of the sources.
    fn quiet_all(&self, births: &[Birth<'_>]) -> Result<(), PoolError> {
        let written = births.iter().filter(|birth| !birth.core.snapshot).map(|birth| &*birth.core);
        self.wait_for_io_of(written, &MayBlock::on_worker()).map_err(|(core, _)| {
            let name = births.iter().find(|birth| birth.core.id == core.id).map_or("", |birth| birth.source_name);
            self.io_goes_on(name, core)
        })
    }

    /// Makes the copies, now born, part of the next commit (S6).
    fn record_all(&self, state: &mut State, births: Vec<Birth<'_>>, token: &std::sync::Arc<OpenToken>) {
        // S2: before the records of the copies.
        for birth in &births {
            state.record_changes_of(birth.source);
        }
        let sources: Vec<u32> = births.iter().map(|birth| birth.source).collect();
        for birth in births {
            let Some(vol) = state.table.get_mut(birth.volume) else { continue };
            (vol.unborn, vol.hidden) = (false, true);
            // Writes in flight that made the source larger have made the copy larger too.
            let copy = birth.record(vol.core.size());
            state.table.set_opened(birth.volume, token);
            self.record(state, copy);
            birth.marks.into_iter().for_each(|mark| self.record(state, mark));
        }
        sources.into_iter().for_each(|source| self.settled(state, source));
    }
}

impl State {
    /// Checks the request. Returns the copies to make, if all of them can be made.
    fn births<'a>(
        &self,
        wanted: &[(&'a str, &'a str)],
        snapshot: bool,
        options: &CopyOptions,
    ) -> Result<Vec<Birth<'a>>, PoolError> {
        check_number(wanted)?;
        let created = options.created.unwrap_or_else(now);
        let (mut births, mut slots) = (Vec::with_capacity(wanted.len()), 0);
        for (at, &(source, name)) in wanted.iter().enumerate() {
            self.table.check_new(name, at)?;
            let from = self.table.whole(source, "copying a volume")?;
            let (id, core, volume) = (from.id, Arc::clone(&from.core), self.table.next_id + at as u32);
            slots += core.top.used();
            let mut marks = self.marks_of(volume, options.identity, options.interim)?;
            let origin = self.origin_of_copy(id, options.origin.as_deref());
            self.table.check_copy(name, snapshot, origin.unwrap_or(self.table.owner_of_copies(id)))?;
            marks.extend(origin.map(|origin| Record::Origin { volume, origin }));
            births.push(Birth { source: id, source_name: source, core, volume, name, snapshot, created, marks });
        }
        if wanted.len() > 1 && slots > MAX_SLOTS {
            return Err(PoolError::Limit {
                what: "copying volumes at one moment: parts of their maps".into(),
                limit: MAX_SLOTS,
                fix: "Copy fewer of them at a time, or smaller ones".into(),
            });
        }
        Ok(births)
    }

    /// Returns the volume that a copy of `source` counts as made of, if that is another one: `origin`, if it is of the
    /// same family.
    fn origin_of_copy(&self, source: u32, origin: Option<&str>) -> Option<u32> {
        let family = self.table.get(source)?.family;
        let origin = self.table.named(origin?).ok().filter(|vol| vol.family == family && vol.id != source)?;
        Some(origin.id)
    }

    /// Shares the map of the source with the copy, which is unborn. An error leaves nothing of the copy behind.
    fn bear(&mut self, birth: &Birth<'_>) -> Result<(), Status> {
        let copy = birth.record(birth.core.size());
        [&copy].into_iter().chain(&birth.marks).try_for_each(|record| self.apply(record))?;
        self.table.get_mut(birth.volume).ok_or(Status::Offline)?.unborn = true;
        Ok(())
    }

    /// Undoes `bear`: the map is the source's alone again.
    fn unbear(&mut self, birth: &Birth<'_>) {
        if let Some(unborn) = self.detach(birth.volume) {
            self.tree.unshare(&unborn.core.top, unborn.slots);
        }
    }
}

/// Refuses an empty list, too many copies, and a source or a name that occurs twice: a source settles for one copy at a
/// time.
fn check_number(wanted: &[(&str, &str)]) -> Result<(), PoolError> {
    if wanted.is_empty() || wanted.len() > MAX_TOGETHER {
        return Err(PoolError::Limit {
            what: format!("copying {} volumes at one moment", wanted.len()),
            limit: MAX_TOGETHER as u64,
            fix: "Name one at least, and not more than that in a call".into(),
        });
    }
    let twice = |pick: fn(&(&str, &str)) -> String| {
        let mut names: Vec<String> = wanted.iter().map(pick).collect();
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone())
    };
    match twice(|one| one.0.into()).or_else(|| twice(|one| one.1.into())) {
        None => Ok(()),
        Some(name) => Err(PoolError::Invalid {
            what: format!("'{name}' stands there twice, and one copy of it is made at a moment"),
            fix: "Name each volume and each snapshot once".into(),
        }),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
