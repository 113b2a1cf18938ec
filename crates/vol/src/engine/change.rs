//! Changes of the pool or of its table of volumes: each is refused before it begins, made durable, or undone. If the
//! commit of a change fails, because a write of the journal fails for example, the change is undone, or its caller gets
//! an error that says: made, but not durable.
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
//! Owns this state machine. A failed write of journal blocks or of a superblock may have reached the device all the
//! same. So the next commit, by any caller, is a checkpoint: it contains everything in memory, and makes all earlier
//! records void.
//!
//! - U1: a change that is undone was never visible, and no later commit makes it durable.
//! - U2: a change that can be undone has no users yet: a new volume cannot be opened before it is durable, and a volume
//!   that grows keeps its old end until the new one is durable.
//! - U3: after any crash, everything that was acknowledged is still there. So a delete is not undone: a volume that
//!   became visible again would take writes that are durable without a commit, and a crash could delete them with the
//!   volume.
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
    /// Returns an error unless the pool takes changes.
    pub(crate) fn check_open(&self, what: &str) -> Result<(), PoolError> {
        if self.alarm.failed().is_some() && !self.read_only {
            // The alarm may have rung since the last commit. Only the leader of a commit degrades the pool, so make
            // one.
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

    /// Returns an error unless the pool is open for writing and takes changes.
    pub(crate) fn check_writable(&self, what: &str) -> Result<(), PoolError> {
        if !self.read_only {
            return self.check_open(what);
        }
        Err(PoolError::Invalid {
            what: format!("{what}: the pool is open read-only"),
            fix: "Open it for writing".into(),
        })
    }

    /// Frees the map of a volume that was removed from the table, part by part.
    pub(crate) fn drop_map(&self, gone: Option<Vol>) {
        let Some(mut vol) = gone else { return };
        while self.lock().drop_some(&mut vol) {}
    }

    /// Commits, with an error that names `what` and `name`.
    pub(crate) fn durable(&self, what: &str, name: &str) -> Result<(), PoolError> {
        self.commit().map_err(|status| self.failed(what, name, status))
    }

    /// Makes a change durable. If that fails, `undo` undoes it.
    pub(crate) fn durable_or(&self, what: &str, name: &str, undo: impl FnOnce(&mut State)) -> Result<(), PoolError> {
        self.durable_or_gone(what, name, |state| {
            undo(state);
            Vec::new()
        })
    }

    /// Makes new, hidden volumes durable: all of them become visible at once, or none does.
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

    /// Does the same as [`PoolInner::durable_or`], for an `undo` that may take volumes out of the table: their maps are
    /// freed part by part.
    fn durable_or_gone(
        &self,
        what: &str,
        name: &str,
        undo: impl FnOnce(&mut State) -> Vec<Vol>,
    ) -> Result<(), PoolError> {
        let Err(status) = self.commit() else { return Ok(()) };
        let mut state = self.lock();
        let gone = undo(&mut state);
        // Requires the checkpoint that makes the undo durable. The lock is still held since `undo`, so that no commit
        // of records comes in between.
        state.next.require();
        self.mark_unsynced();
        self.survey_space(&mut state);
        drop(state);
        gone.into_iter().for_each(|vol| self.drop_map(Some(vol)));
        let settled = self.commit();
        let error = self.failed(what, name, status);
        // Only a plain I/O error gets the text about the undo. A full host has its own error, with its own fix, and the
        // checkpoint that the undo needs takes no space from the host.
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
        // Until the change is durable, a flush of any volume must be a commit, even in a pool that had nothing else to
        // make durable.
        self.mark_unsynced();
        drop(state);
        // The second attempt is a checkpoint. It writes to other places, which may be writable although the journal is
        // not.
        let Err(status) = self.commit().or_else(|_| self.checkpoint()) else { return Ok(()) };
        match self.failed(what, name, status) {
            PoolError::Io { what, .. } | PoolError::HostFull { what, .. } => {
                Err(PoolError::NotDurable { what, status })
            }
            other => Err(other),
        }
    }

    /// Returns the error for a failed operation. A pool that is degraded, taken or full gets the error of that
    /// condition.
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

    /// The error for an operation on a pool that another opening has taken.
    fn taken(&self, what: String) -> PoolError {
        let who = self.lock().taken_by.clone().unwrap_or_default();
        PoolError::Taken { what, device: self.device.name().to_string(), who }
    }

    /// Returns the error for a pool without space. If a damaged map keeps space from use, the error says so.
    fn full(&self, what: String) -> PoolError {
        let kept = self.lock().why_kept();
        PoolError::Full { what: kept.map_or(what.clone(), |kept| format!("{what}: {kept}")) }
    }

    /// Waits until no unit of the volume is being moved. If `with` is `Some`, no new move begins before `settled`;
    /// `with` is the volume itself, or the clone that is being made of it.
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

    /// Ends `settle`: units of the volume may be moved again.
    pub(crate) fn settled(&self, state: &mut State, id: u32) {
        if let Some(vol) = state.table.get_mut(id) {
            vol.settling = None;
        }
        state.table.set_cutting(id, false);
        self.wake();
    }

    pub(crate) fn apply_and_record(&self, state: &mut State, record: Record, name: &str) -> Result<(), PoolError> {
        state.apply(&record).map_err(|status| failed("changing", name, status))?;
        self.record(state, record);
        self.survey_space(state);
        Ok(())
    }

    /// Returns the lock once the next checkpoint has room for `cost` more pages.
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

    /// Repeats `afford` after `settle`: others may have used the pages during that wait. An error ends `settle`, so
    /// that units of the volume can be moved again.
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
    /// Hides a new volume until it is durable (U2).
    pub(crate) fn hide(&mut self, volume: u32) {
        if let Some(vol) = self.table.get_mut(volume) {
            vol.hidden = true;
        }
    }
}

pub(crate) fn core_of(state: &State, name: &str) -> Result<Arc<VolumeCore>, PoolError> {
    Ok(Arc::clone(&state.table.named(name)?.core))
}

/// The error for an operation that needs exclusive use of a volume that is open.
pub(crate) fn in_use(name: &str) -> PoolError {
    PoolError::Busy {
        what: format!("volume '{name}'"),
        who: "it is open".into(),
        fix: "Close it, and detach it from its rings".into(),
    }
}

pub(crate) fn closed(what: &str) -> PoolError {
    PoolError::Invalid { what: format!("{what}: the pool was closed"), fix: "Open it again".into() }
}

/// The error for a failed operation on an open pool.
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
