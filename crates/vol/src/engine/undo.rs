//! What becomes of a change whose commit fails, as when a write of the journal does: it leaves nothing behind, or it is
//! told that it has been made and is not durable.
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

use crate::engine::inner::{PoolInner, State};
use crate::engine::phase::Phase;
use crate::error::PoolError;
use crate::ops::snapshot::failed;
use crate::state::table::Vol;

impl PoolInner {
    /// Makes everything durable that was done.
    pub(crate) fn durable(&self, what: &str, name: &str) -> Result<(), PoolError> {
        self.commit().map_err(|status| self.failed(what, name, status))
    }

    /// Makes a change durable that `undo` takes back if that fails.
    pub(crate) fn durable_or(&self, what: &str, name: &str, undo: impl FnOnce(&mut State)) -> Result<(), PoolError> {
        self.durable_or_gone(what, name, |state| {
            undo(state);
            None
        })
    }

    /// Makes a volume durable that nobody has seen yet.
    pub(crate) fn durable_new(&self, what: &str, name: &str, volume: u32) -> Result<(), PoolError> {
        self.durable_or_gone(what, name, |state| state.detach(volume))?;
        if let Some(vol) = self.lock().table.get_mut(volume) {
            vol.hidden = false;
        }
        Ok(())
    }

    /// As [`PoolInner::durable_or`]; `undo` may take a volume out of the table, whose map goes part by part.
    fn durable_or_gone(
        &self,
        what: &str,
        name: &str,
        undo: impl FnOnce(&mut State) -> Option<Vol>,
    ) -> Result<(), PoolError> {
        let Err(status) = self.commit() else { return Ok(()) };
        let mut state = self.lock();
        let gone = undo(&mut state);
        // Under the same hold of the lock: no commit without it has what was undone.
        state.wants_checkpoint = true;
        self.mark_unsynced();
        self.survey_space(&mut state);
        drop(state);
        self.drop_map(gone);
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
        match self.lock().phase {
            Phase::Degraded(cause) => PoolError::Degraded { what: format!("{what} '{name}'"), cause },
            _ if self.is_host_full(status) => self.host_is_full(format!("{what} '{name}'")),
            _ => failed(what, name, status),
        }
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

#[cfg(test)]
mod tests;
