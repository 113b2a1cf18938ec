//! Calls on the pool, during which all I/O goes on.
//!
//! Owns the conditions that must hold when a call has returned. At most one [`Change`] is under way at a time. Flushes
//! of the pool, the addition of a disk, a scrub and a trim may run at the same time as a change.

use std::ops::ControlFlow;

use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_iomap::File;
use sheave_vol::{AddOptions, Checksum, Pool, PoolError, PoolInfo, ScrubOptions};

use super::World;
use super::job::{Job, PoolCall, Why, call, is_degraded, is_host_full, is_io_error};
use crate::model::{Change, Event};

impl World {
    /// Returns the change that is under way, or has failed and is not settled yet.
    pub(super) fn changing(&self) -> Option<&Change> {
        let called = self.calls.iter().find_map(|one| match &one.job {
            Job::Change(change) => Some(change),
            _ => None,
        });
        called.or(self.unsettled.as_ref().map(|(change, _)| change))
    }

    /// Returns true if the change under way may leave the volume `volume` smaller than `end` bytes.
    pub(super) fn may_be_cut_off(&self, volume: u32, end: u64) -> bool {
        let named = |name: &str| self.model.volumes().get(name).filter(|one| one.id == volume);
        match self.changing() {
            Some(Change::Resize { name, size }) => named(name).is_some() && end > *size,
            Some(Change::Rollback { name, snapshot }) => {
                let size = self.model.volumes().get(snapshot).map_or(0, |one| one.size);
                named(name).is_some() && end > size
            }
            _ => false,
        }
    }

    fn start(&mut self, job: Job, call: impl FnOnce(&Pool) -> Result<u64, Why> + Send + 'static) -> Result<(), String> {
        let pool = self.pool()?.clone();
        let call = self.threads.start(move || call(&pool)).ok_or("there is room for calls on the pool")?;
        let number = call.number();
        self.given_back += 1;
        let beside = self.beside(&job);
        self.note_call();
        self.calls.push(PoolCall { job, call, after: self.counters.next_op, beside });
        if self.setup.overlap {
            return Ok(());
        }
        self.go_on_until(|world| !world.threads.running().contains(&number))
    }

    /// Takes the results of calls that have returned, and checks them.
    pub(super) fn end_calls(&mut self) -> Result<(), String> {
        while let Some(at) = self.calls.iter().position(|one| one.call.has_ended()) {
            let ended = self.calls.remove(at);
            let result = ended.call.take().ok_or("a call returned nothing")?;
            self.met(&ended, result.is_ok());
            let PoolCall { job, after, .. } = ended;
            self.given_back += 1;
            self.note(format!("-> {}", result.as_ref().map_or_else(ToString::to_string, |_| "done".into())));
            let errors = self.setup.disk.errors.any();
            if result.is_ok() && !matches!(job, Job::Scrub) && self.degraded.is_some_and(|since| after > since) {
                return Err(format!("V25: {job:?} began after a flush had failed, and ended well"));
            }
            match job {
                Job::Change(change) if errors && is_io_error(&result) => {
                    let made = matches!(result, Err(Why::Pool(PoolError::NotDurable { .. })));
                    if !made {
                        self.is_undone()?;
                    }
                    self.unsettled = Some((change, made));
                }
                Job::Change(_) | Job::Grow { .. } if errors && (is_io_error(&result) || is_degraded(&result)) => {
                    self.in_doubt = true;
                }
                Job::Scrub if errors || self.misdirects() => {}
                Job::Sync { op } if errors && (is_io_error(&result) || is_degraded(&result)) => {
                    self.record(Event::Synced { op, ok: false });
                }
                Job::Grow { .. } if self.setup.disk.host.is_some() && is_host_full(&result) => self.refused += 1,
                Job::Change(change) => self.changed(&change, result)?,
                Job::Sync { op } => {
                    self.record(Event::Synced { op, ok: result.is_ok() });
                    result.map_err(|why| format!("flushing the pool: {why}"))?;
                }
                Job::Grow { before, added } => self.grown(&before, added, result)?,
                Job::Scrub => _ = result.map_err(|why| format!("scrubbing: {why}"))?,
                // A failed discard must leave its units free, which the audit at the end checks.
                Job::Trim if errors && (is_io_error(&result) || is_degraded(&result)) => {}
                Job::Trim => self.trimmed += result.map_err(|why| format!("trimming: {why}"))?,
            }
        }
        Ok(())
    }

    /// Starts a change, in the pool and in the model. Does nothing if one is under way.
    pub(super) fn change(&mut self, change: Change) -> Result<(), String> {
        if self.changing().is_some() {
            return self.go_on();
        }
        if !self.setup.overlap {
            self.drain()?;
        }
        self.prepare(&change)?;
        // A failed DSYNC write may have raised the size. The model has to measure that before the size changes again.
        self.clear_up()?;
        self.note(change.to_string());
        self.record(Event::Change(change.clone()));
        let job = change.clone();
        self.start(Job::Change(change), move |pool| Ok(call(pool, &job).map(|()| 0)?))
    }

    /// Creates the volumes with which the run begins.
    pub fn populate(&mut self) -> Result<(), String> {
        for number in 0..self.setup.crowd {
            let (id, size) = (self.counters.next_volume, self.rng.between(1, 64) * 4096);
            self.counters.next_volume += 1;
            self.change(Change::Create { name: format!("crowd-{number}"), id, size, max: None })?;
            self.drain()?;
        }
        Ok(())
    }

    /// Returns true if no I/O to the volume may be under way during the call. A volume is closed before it is deleted.
    /// In a rollback, a write beyond the maximum size of the snapshot would keep the volume from getting that maximum.
    pub(super) fn wants_quiet(&self, change: &Change) -> bool {
        let max = |name: &str| self.model.volumes().get(name).and_then(|volume| volume.max);
        match change {
            Change::Delete { .. } => true,
            Change::Rollback { name, snapshot } => max(snapshot) < max(name),
            _ => false,
        }
    }

    /// Establishes the preconditions of a change: no I/O to the volume, and the volume open or closed.
    fn prepare(&mut self, change: &Change) -> Result<(), String> {
        let (name, closed) = match change {
            Change::Delete { name } => (name, true),
            // These calls need the volume open, and it can be opened by this name only before a rename.
            Change::Rename { name, .. }
            | Change::Resize { name, .. }
            | Change::Rollback { name, .. }
            | Change::Limit { name, .. } => (name, false),
            Change::Create { .. } | Change::Copy { .. } | Change::Together { .. } => return Ok(()),
        };
        let Some(id) = self.model.volumes().get(name).map(|volume| volume.id) else { return Ok(()) };
        if self.wants_quiet(change) {
            self.go_on_until(|world| world.pending.values().all(|one| one.volume != id))?;
        }
        if !closed {
            self.file(id, name)?;
        } else if let Some(file) = self.files.remove(&id) {
            self.detach(&file);
        }
        // The change may cut off the range of requests that are under way now.
        let reach = match change {
            Change::Resize { size, .. } => *size,
            Change::Rollback { snapshot, .. } => self.model.volumes().get(snapshot).map_or(0, |one| one.size),
            _ => u64::MAX,
        };
        for one in self.pending.values_mut().filter(|one| one.volume == id) {
            one.may_fail |= one.end() > reach;
        }
        Ok(())
    }

    fn detach(&mut self, file: &Arc<dyn File>) {
        self.engines.iter_mut().for_each(|engine| engine.detach(file));
    }

    fn changed(&mut self, change: &Change, result: Result<u64, Why>) -> Result<(), String> {
        let sizes = if result.is_ok() { self.sizes_made(change)? } else { Vec::new() };
        self.record(Event::Changed { ok: result.is_ok(), sizes });
        let is_settling = matches!(change, Change::Copy { .. } | Change::Together { .. } | Change::Rollback { .. });
        match result {
            Ok(_) => Ok(()),
            Err(Why::Pool(PoolError::HostFull { .. })) if self.setup.disk.host.is_none() => {
                Err(format!("{change}: no file system is full"))
            }
            Err(Why::Pool(PoolError::Full { .. } | PoolError::HostFull { .. }))
                if !matches!(change, Change::Delete { .. }) =>
            {
                self.refused += 1;
                Ok(())
            }
            Err(Why::Pool(PoolError::Busy { .. })) if is_settling && self.setup.impatience > 0 => Ok(()),
            Err(why) => Err(format!("{change}: {why}")),
        }
    }

    /// Flushes the pool. The flush undoes a change that failed on the disk, or makes it durable (V27). Called while
    /// nothing else is under way.
    pub(super) fn settle_change(&mut self) -> Result<(), String> {
        let Some((change, made)) = self.unsettled.take() else { return Ok(()) };
        let op = self.op();
        self.note(format!("flush {op} of the pool, after a change that failed"));
        self.record(Event::Sync { op });
        let result = self.pool()?.sync();
        self.record(Event::Synced { op, ok: result.is_ok() });
        if result.is_err() && self.is_degraded() {
            self.in_doubt = true;
            return Ok(());
        }
        result.map_err(|error| format!("flushing the pool after a change that failed: {error}"))?;
        if !made {
            self.is_undone()?;
        }
        self.record(Event::Changed { ok: made, sizes: Vec::new() });
        self.note(format!("{change}: {}", if made { "made" } else { "undone" }));
        Ok(())
    }

    /// Checks that the pool shows no effect of a change that failed on the disk, unless it was reported as made (V27).
    fn is_undone(&self) -> Result<(), String> {
        let fixed = |max: bool, size: u64| if max { 0 } else { size };
        let seen = self.pool()?.volumes().into_iter();
        let seen: Vec<_> =
            seen.map(|info| (info.name, fixed(info.max_size_bytes.is_some(), info.size_bytes))).collect();
        let known = self.model.volumes().iter();
        let mut known: Vec<_> =
            known.map(|(name, volume)| (name.clone(), fixed(volume.max.is_some(), volume.size))).collect();
        known.sort_unstable();
        if seen == known { Ok(()) } else { Err(format!("a change that failed is seen: {seen:?}, not {known:?}")) }
    }

    /// Returns the sizes of the copies that `change` made. Checks each against the sizes that the writes under way
    /// allow.
    fn sizes_made(&self, change: &Change) -> Result<Vec<u64>, String> {
        let size = |((_, name, _), may): ((&str, &str, u32), Vec<u64>)| {
            let info = self.pool()?.volume_info(name).map_err(|error| format!("{change}: {error}"))?;
            if may.contains(&info.size_bytes) {
                return Ok(info.size_bytes);
            }
            Err(format!("{change}: '{name}' has {} bytes, and may have {may:?}", info.size_bytes))
        };
        change.copies().into_iter().zip(self.model.sizes_of_copies()).map(size).collect()
    }

    /// Flushes the whole pool while I/O and other calls go on.
    pub(super) fn flush_pool(&mut self) -> Result<(), String> {
        if self.is_calling(|job| matches!(job, Job::Sync { .. })) {
            return self.go_on();
        }
        let op = self.op();
        self.note(format!("flush {op} of the pool"));
        self.record(Event::Sync { op });
        self.start(Job::Sync { op }, |pool| Ok(pool.sync().map(|()| 0)?))
    }

    fn is_calling(&self, what: impl Fn(&Job) -> bool) -> bool {
        self.calls.iter().any(|one| what(&one.job))
    }

    /// Adds the spare disk if it is not added yet. Otherwise lets the pool extend into the room by which the disk has
    /// grown.
    pub(super) fn grow(&mut self) -> Result<(), String> {
        let spare = self.disk.spare();
        let size = self.pool()?.info().size_bytes;
        let behind = if size > self.setup.size_bytes { 0 } else { self.setup.behind };
        let added = spare.as_ref().map_or(behind, Device::size_bytes);
        if added == 0 || self.is_calling(|job| matches!(job, Job::Grow { .. })) {
            return self.go_on();
        }
        self.note(if spare.is_some() { "add the spare disk" } else { "take in what the disk has grown by" }.into());
        self.history.grew = Some((self.disk.time(), None));
        let before = Box::new(self.pool()?.info());
        self.start(Job::Grow { before, added }, move |pool| match &spare {
            Some(spare) => Ok(pool.add_member(spare, &AddOptions::default())?),
            None => Ok(pool.grow()?),
        })
    }

    fn grown(&mut self, before: &PoolInfo, added: u64, result: Result<u64, Why>) -> Result<(), String> {
        let size = result.map_err(|why| format!("growing the pool: {why}"))?;
        self.history.grew = self.history.grew.map(|(from, _)| (from, Some(self.disk.time())));
        self.disk.has_grown();
        let info = self.pool()?.info();
        let members = if self.setup.disk.spare > 0 { 2 } else { 1 };
        if size != before.size_bytes + added || info.size_bytes != size || info.members.len() < members {
            return Err(format!("{added} bytes were added: {info:?}, before: {before:?}"));
        }
        Ok(())
    }

    /// Scrubs the pool. Changes during the scrub must not appear as findings.
    pub(super) fn scrub(&mut self) -> Result<(), String> {
        if self.is_calling(|job| matches!(job, Job::Scrub)) {
            return self.go_on();
        }
        self.note("scrub".into());
        self.start(Job::Scrub, |pool| {
            let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(()))?;
            if report.is_clean() {
                return Ok(0);
            }
            let findings: Vec<String> = report.findings.iter().map(|finding| format!("\n  {finding}")).collect();
            Err(Why::Told(format!("while the pool is in use it finds{}", findings.concat())))
        })
    }

    /// Trims free space, wholly or in part. The disk returns arbitrary data for a discarded sector, so a later read or
    /// a crash shows it if a discarded unit was still in use.
    pub(super) fn trim(&mut self) -> Result<(), String> {
        if self.is_calling(|job| matches!(job, Job::Trim)) {
            return self.go_on();
        }
        if self.rng.percent(40) {
            self.note("what the pool's threads do: discard what became free, close idle regions".into());
            let sums = self.setup.checksum != Checksum::None;
            return self.start(Job::Trim, move |pool| {
                if sums {
                    pool.close_idle()?;
                }
                Ok(pool.discard_freed()?)
            });
        }
        let ends_early = self.rng.percent(15);
        self.note(if ends_early { "trim a part".into() } else { "trim".into() });
        self.start(Job::Trim, move |pool| {
            let go_on = if ends_early { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let at = pool.trim(&mut |_| go_on)?;
            let known = at.done_bytes <= at.total_bytes && at.trimmed_bytes + at.left_bytes <= at.done_bytes;
            if !known || at.completed != (at.done_bytes == at.total_bytes) || !(at.completed || ends_early) {
                return Err(Why::Told(format!("it says: {at:?}")));
            }
            Ok(at.trimmed_bytes)
        })
    }
}
