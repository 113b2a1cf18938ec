//! A change of the pool or of its table of volumes: refused before it begins, made durable, or undone. What becomes of
//! one whose commit fails, as when a write of the journal does: it leaves nothing behind, or it is told that it has
//! been made and is not durable.
//!
//! ```text
//!    made in memory -> commit -> durable
//!                        |
//!                      fails: new volumes, copies, names, larger sizes, marks    others: delete, shrink,
//!                        |                                                       rollback, growth of the pool
//!                    undone in memory                                              |
//!                        |                                                         |
//!                    checkpoint -> undone for good                             checkpoint -> durable
//!                        |                                                         |
//!                      fails: undone; a crash before the                         fails: made; a crash before the
//!                      next commit may show it made                              next commit may show it undone
//! ```
//!
//! Owns this state machine. What fails may be on the device all the same: blocks of the journal, or a superblock. So
//! the next commit, of anybody, is a checkpoint: it has everything that memory has, and no record before it counts any
//! more.
//!
//! - U1: what is undone is seen by nobody, and no later commit makes it durable.
//! - U2: what can be undone was used by nobody: a new volume cannot be opened before it is durable, and a volume that
//!   grew ends where it did.
//! - U3: whatever a crash shows, nothing that was acknowledged is lost by it. So a delete is not undone: a volume that
//!   is seen again takes writes that are durable without a commit, and a crash would take them away with it.
//!
//! Called by changes of the table and of the pool.

use sheave_base::status::Status;

use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::record::Record;
use crate::state::State;
use crate::state::account::Spender;
use crate::state::phase::Phase;
use crate::state::table::{Vol, VolumeCore};
use sheave_base::sync::{Arc, MutexGuard};

impl PoolInner {
    /// Whether the pool takes changes.
    pub(crate) fn check_open(&self, what: &str) -> Result<(), PoolError> {
        if self.alarm.failed().is_some() && !self.read_only {
            // Nobody may have looked since: the leader of a commit degrades the pool.
            let _ = self.commit();
        }
        let phase = self.lock().phase;
        match phase {
            Phase::Open => Ok(()),
            Phase::DeletesOnly => {
                Err(self.deletes_only(format!("{what}: the pool can be read, and takes deletes only")))
            }
            Phase::Degraded(cause) => Err(PoolError::Degraded { what: what.into(), cause }),
            Phase::Taken => Err(self.taken(what.into())),
            Phase::Closing | Phase::Closed => Err(closed(what)),
        }
    }

    /// Whether the pool takes changes, and was opened for them.
    pub(crate) fn check_writable(&self, what: &str) -> Result<(), PoolError> {
        if !self.read_only {
            return self.check_open(what);
        }
        Err(PoolError::Invalid {
            what: format!("{what}: the pool is open read-only"),
            fix: "Open it for writing".into(),
        })
    }

    /// Gives back the map of a volume that is out of the table, a part at a time.
    pub(crate) fn drop_map(&self, gone: Option<Vol>) {
        let Some(mut vol) = gone else { return };
        while self.lock().drop_some(&mut vol) {}
    }

    /// Makes everything durable that was done.
    pub(crate) fn durable(&self, what: &str, name: &str) -> Result<(), PoolError> {
        self.commit().map_err(|status| self.failed(what, name, status))
    }

    /// Makes a change durable that `undo` takes back if that fails.
    pub(crate) fn durable_or(&self, what: &str, name: &str, undo: impl FnOnce(&mut State)) -> Result<(), PoolError> {
        self.durable_or_gone(what, name, |state| {
            undo(state);
            Vec::new()
        })
    }

    /// Makes volumes durable that nobody has seen yet: all of them are seen from one moment on, or none is.
    pub(crate) fn durable_new(&self, what: &str, name: &str, volumes: &[u32]) -> Result<(), PoolError> {
        self.durable_or_gone(what, name, |state| volumes.iter().filter_map(|id| state.detach(*id)).collect())?;
        let mut state = self.lock();
        for volume in volumes {
            if let Some(vol) = state.table.get_mut(*volume) {
                vol.hidden = false;
            }
        }
        Ok(())
    }

    /// As [`PoolInner::durable_or`]; `undo` may take volumes out of the table, whose maps go part by part.
    fn durable_or_gone(
        &self,
        what: &str,
        name: &str,
        undo: impl FnOnce(&mut State) -> Vec<Vol>,
    ) -> Result<(), PoolError> {
        let Err(status) = self.commit() else { return Ok(()) };
        let mut state = self.lock();
        let gone = undo(&mut state);
        // Under the same hold of the lock: no commit without it has what was undone.
        state.next.require();
        self.mark_unsynced();
        self.survey_space(&mut state);
        drop(state);
        gone.into_iter().for_each(|vol| self.drop_map(Some(vol)));
        let settled = self.commit();
        let error = self.failed(what, name, status);
        // A host that is full is told as such; the next commit needs no room of it.
        let PoolError::Io { what, status, .. } = error else { return Err(error) };
        let fix = match settled {
            Ok(()) => "It was undone. Check the pool's device, and try again",
            Err(_) => {
                "It was undone, but a crash before the next flush or sync that ends well may show it done. Check the \
                 pool's device"
            }
        };
        Err(PoolError::Io { what, status, fix: fix.into() })
    }

    /// Makes a change durable that cannot be undone.
    pub(crate) fn durable_at_last(&self, what: &str, name: &str) -> Result<(), PoolError> {
        let state = self.lock();
        // Until it is durable a flush of any volume makes it so, also in a pool that had nothing to make durable.
        self.mark_unsynced();
        drop(state);
        // The second is a checkpoint: it lies elsewhere, and what could not be written may be written now.
        let Err(status) = self.commit().or_else(|_| self.checkpoint()) else { return Ok(()) };
        match self.failed(what, name, status) {
            PoolError::Io { what, .. } | PoolError::HostFull { what, .. } => {
                Err(PoolError::NotDurable { what, status })
            }
            other => Err(other),
        }
    }

    /// The error of what failed: in words of its own if the pool is degraded.
    pub(crate) fn failed(&self, what: &str, name: &str, status: Status) -> PoolError {
        let phase = self.lock().phase;
        match phase {
            Phase::Degraded(cause) => PoolError::Degraded { what: format!("{what} '{name}'"), cause },
            Phase::Taken => self.taken(format!("{what} '{name}'")),
            _ if self.is_host_full(status) => self.host_is_full(format!("{what} '{name}'")),
            _ if status == Status::NoSpc => self.full(format!("{what} '{name}'")),
            _ => failed(what, name, status),
        }
    }

    /// The error of who wants something of a pool that another has opened since.
    fn taken(&self, what: String) -> PoolError {
        let who = self.lock().taken_by.clone().unwrap_or_default();
        PoolError::Taken { what, device: self.device.name().to_string(), who }
    }

    /// The error of what found no space in the pool, which says so if a damaged map keeps some of it.
    fn full(&self, what: String) -> PoolError {
        let kept = self.lock().why_kept();
        PoolError::Full { what: kept.map_or(what.clone(), |kept| format!("{what}: {kept}")) }
    }

    /// No unit of the volume is being moved any more, and none begins to be.
    pub(crate) fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        id: u32,
        with: Option<u32>,
    ) -> MutexGuard<'a, State> {
        if let Some(vol) = state.table.get_mut(id) {
            vol.settling = with;
        }
        while state.table.get(id).is_some_and(|vol| vol.busy > 0) {
            state = self.wait(state);
        }
        state
    }

    /// Its units may be moved again.
    pub(crate) fn settled(&self, state: &mut State, id: u32) {
        if let Some(vol) = state.table.get_mut(id) {
            vol.settling = None;
        }
        state.table.set_cutting(id, false);
        self.wake();
    }

    /// Does what a record says, and has the next commit write it down.
    pub(crate) fn apply_and_record(&self, state: &mut State, record: Record, name: &str) -> Result<(), PoolError> {
        state.apply(&record).map_err(|status| failed("changing", name, status))?;
        self.record(state, record);
        self.survey_space(state);
        Ok(())
    }

    /// The lock, when the next checkpoint may need so many pages more.
    pub(crate) fn afford<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        what: &str,
        who: Spender,
        cost: impl Fn(&State) -> u64,
    ) -> Result<MutexGuard<'a, State>, PoolError> {
        self.pay(state, who, cost).map_err(|status| match status {
            status if self.is_host_full(status) => self.host_is_full(format!("the metadata for {what}")),
            Status::NoSpc => self.full(format!("the metadata for {what}")),
            status => failed(what, self.device.name(), status),
        })
    }

    /// The same once more, for a volume that has settled: others may have used what there was while that was waited
    /// for. Its units may be moved again if it fails.
    pub(crate) fn afford_settled<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        id: u32,
        what: &str,
        who: Spender,
        cost: impl Fn(&State) -> u64,
    ) -> Result<MutexGuard<'a, State>, PoolError> {
        self.afford(state, what, who, cost).inspect_err(|_| self.settled(&mut self.lock(), id))
    }
}

impl State {
    /// A new volume is seen by nobody before it is durable (U2).
    pub(crate) fn hide(&mut self, volume: u32) {
        if let Some(vol) = self.table.get_mut(volume) {
            vol.hidden = true;
        }
    }
}

/// The core of a volume by name.
pub(crate) fn core_of(state: &State, name: &str) -> Result<Arc<VolumeCore>, PoolError> {
    Ok(Arc::clone(&state.table.named(name)?.core))
}

/// The refusal of what wants a volume alone that is open.
pub(crate) fn in_use(name: &str) -> PoolError {
    PoolError::Busy {
        what: format!("volume '{name}'"),
        who: "it is open".into(),
        fix: "Close it, and detach it from its rings".into(),
    }
}

/// The error of who wants something of a pool that was closed.
pub(crate) fn closed(what: &str) -> PoolError {
    PoolError::Invalid { what: format!("{what}: the pool was closed"), fix: "Open it again".into() }
}

/// The error of what failed in an open pool.
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

#[cfg(all(test, not(shuttle)))]
mod tests;
