//! Statistics of the situations that a run has met: I/O during calls, failures during calls, and slow reads that were
//! held during whole calls.
//!
//! Owns the entries of the [`Tally`](crate::tally::Tally); each name begins with the kind of the call.

#[cfg(debug_assertions)]
use super::Hot;
use super::job::{Beside, Job, PoolCall};
use super::{Doing, World};
use crate::disk::Failures;
use crate::model::Change;

impl World {
    /// Returns the name under which a call is counted.
    fn kind(&self, job: &Job) -> &'static str {
        let grows = |name: &str| self.model.volumes().get(name).is_some_and(|volume| volume.max.is_some());
        match job {
            Job::Change(Change::Create { .. }) => "create",
            Job::Change(Change::Copy { snapshot: true, .. }) => "snapshot",
            Job::Change(Change::Copy { .. }) => "clone",
            Job::Change(Change::Together { .. }) => "snapshots at one moment",
            Job::Change(Change::Rollback { name, .. }) if grows(name) => "rollback of a volume that grows",
            Job::Change(Change::Rollback { .. }) => "rollback",
            Job::Change(Change::Rename { .. }) => "rename",
            Job::Change(Change::Resize { name, .. }) if grows(name) => "resize of a volume that grows",
            Job::Change(Change::Resize { .. }) => "resize",
            Job::Change(Change::Limit { .. }) => "largest size",
            Job::Change(Change::Delete { .. }) => "delete",
            Job::Sync { .. } => "flush of the pool",
            Job::Grow { .. } => "another disk",
            Job::Scrub => "scrub",
            Job::Trim => "trim or discard",
        }
    }

    /// Returns the number of the volume that a call changes, or of the source of a copy. Returns `None` for other
    /// calls.
    fn subject(&self, job: &Job) -> Option<u32> {
        let Job::Change(change) = job else { return None };
        let name = match change {
            Change::Create { .. } => return None,
            Change::Copy { source, .. } => source,
            Change::Together { copies } => &copies.first()?.0,
            Change::Rollback { name, .. }
            | Change::Rename { name, .. }
            | Change::Resize { name, .. }
            | Change::Limit { name, .. }
            | Change::Delete { name } => name,
        };
        self.model.volumes().get(name).map(|volume| volume.id)
    }

    fn slow_reads(&self) -> usize {
        self.pending.values().filter(|one| matches!(one.what, Doing::Read { slow: true, .. })).count()
    }

    /// Returns the requests and calls that are under way as the call begins.
    pub(super) fn beside(&self, job: &Job) -> Beside {
        let subject = self.subject(job);
        let own = self.pending.values().any(|one| Some(one.volume) == subject);
        Beside { own, any: !self.pending.is_empty(), calls: !self.calls.is_empty(), slow: self.slow_reads() }
    }

    /// Records in the calls under way that a request to `volume` has begun.
    pub(super) fn note_io(&mut self, volume: u32) {
        let subjects: Vec<Option<u32>> = self.calls.iter().map(|one| self.subject(&one.job)).collect();
        for (one, subject) in self.calls.iter_mut().zip(subjects) {
            one.beside.any = true;
            one.beside.own |= subject == Some(volume);
        }
    }

    /// Records in the calls under way that another call has begun.
    pub(super) fn note_call(&mut self) {
        self.calls.iter_mut().for_each(|one| one.beside.calls = true);
    }

    /// Counts a call that has returned. Also counts the slow reads that began before the call and are still under way.
    pub(super) fn met(&mut self, call: &PoolCall, ok: bool) {
        let (kind, Beside { own, any, calls, slow }) = (self.kind(&call.job), call.beside);
        let held = slow > 0 && self.slow_reads() > 0;
        let tally = &mut self.tally;
        tally.count(format!("{kind}: calls"));
        tally.count_if(!ok, format!("{kind}: failed"));
        tally.count_if(any, format!("{kind}: with I/O under way"));
        tally.count_if(own, format!("{kind}: with I/O to its volume under way"));
        tally.count_if(calls, format!("{kind}: with other calls under way"));
        tally.count_if(held, format!("{kind}: with a slow read held across it"));
    }

    /// Checks the flags of the pool's maps, and counts the commits of records that failed, in particular during a copy
    /// or a rollback. Does nothing without debug assertions, where the pool cannot be inspected.
    pub(super) fn inspect(&mut self) -> Result<(), String> {
        #[cfg(debug_assertions)]
        {
            let now = self.pool()?.inspect();
            let before = std::mem::replace(&mut self.inspected, now);
            let names = [
                "a commit of records failed",
                "a commit of records failed beside a copy or a rollback",
                "a commit of records failed beside a copy or a rollback, and a map changed before the next one",
            ];
            for ((now, before), name) in now.into_iter().zip(before).zip(names) {
                self.tally.count_times(now - before, name);
            }
            if now[1] > before[1] {
                self.stay_there();
            }
        }
        Ok(())
    }

    /// Sends most I/O for a while to the volumes of a copy during which a commit has failed, so that the units which
    /// the copy had taken are soon written again.
    #[cfg(debug_assertions)]
    fn stay_there(&mut self) {
        let subject = self.calls.iter().find_map(|one| self.subject(&one.job));
        let Some(volume) = subject.and_then(|id| self.model.volume(id)) else { return };
        let (family, blocks) = (volume.family, volume.size / 4096);
        self.hot = Some(Hot { family, pos: self.rng.below(blocks.max(1)) * 4096, ops: 40 });
    }

    /// Counts the requests that have failed on the disk since `before`, for each call that was under way.
    pub(super) fn met_failures(&mut self, before: &Failures) {
        let now = self.disk.failures();
        if now == *before {
            return;
        }
        let mut kinds: Vec<&str> = self.calls.iter().map(|one| self.kind(&one.job)).collect();
        if kinds.is_empty() {
            kinds.push("no call");
        }
        let failed = [
            (now.reads - before.reads, "a read failed"),
            (now.writes - before.writes, "a write failed"),
            (now.flushes - before.flushes, "a flush failed"),
            (now.refused - before.refused, "the file system was full"),
        ];
        for (count, what) in failed.into_iter().filter(|(count, _)| *count > 0) {
            kinds.iter().for_each(|kind| self.tally.count_times(count, format!("{what} during: {kind}")));
        }
    }
}
