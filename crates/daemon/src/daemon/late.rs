//! Exports whose devices had not opened when the daemon began to serve: they are served when they have.
//!
//! Until then an export has its place among the others, and neither its name nor no name leads to another one.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use sheave_serve::Export;
use tracing::info;

use super::{Daemon, Row, locked};
use crate::backend;
use crate::config::{ExportPlan, What};
use crate::failure::Failure;
use crate::opening::Ended;
use crate::rights::Rights;

impl Row {
    /// Whether it is what was to be opened; how fast it may be, and for whom it is, does not matter.
    pub(super) fn is(&self, plan: &ExportPlan) -> bool {
        ExportPlan { limit: plan.limit, allow: plan.allow.clone(), ..self.plan.clone() } == *plan
    }
}

impl Daemon {
    /// Begins to serve what opens from now on.
    pub(crate) fn begin_late(self: &Arc<Daemon>) -> Result<Option<Late>, Failure> {
        let Some(mut opening) = locked(&self.opening).take().filter(|opening| !opening.is_over()) else {
            return Ok(None);
        };
        let (daemon, ends) = (self.clone(), opening.ends());
        let run = move || {
            while let Some((plan, opened)) = opening.next(None) {
                daemon.has_opened(&plan, opened);
            }
        };
        let started = std::thread::Builder::new().name("sheave-late".into()).spawn(run);
        let failed =
            |error| Failure::run(format!("cannot start a thread: {error}")).fix("raise the limit of processes");
        Ok(Some(Late { thread: started.map_err(failed)?, ends }))
    }

    /// Tries once more to serve an export that failed. A device is opened without a turn (D1), for it may be silent.
    pub(crate) fn open_again(&self, row: &Row) {
        match &row.plan.what {
            What::Device { spec } => self.has_opened(&row.plan, backend::device(&row.plan, spec, None, Rights::Own)),
            What::Volume { .. } => {
                if let Err(why) = self.add_export(row.plan.clone(), None, Rights::Own, row.configured) {
                    self.keep_failure(&row.plan, why);
                }
            }
        }
    }

    /// Keeps why an export that failed has failed again, if it is still there and not served.
    pub(super) fn keep_failure(&self, plan: &ExportPlan, why: Failure) {
        let mut rows = locked(&self.exports);
        if let Some(row) = rows.iter_mut().find(|row| row.is(plan) && row.failed.is_some()) {
            row.failed = Some(why);
        }
    }

    /// Serves an export that was being opened, or keeps why it cannot be. A reload or a command may have ended it
    /// meanwhile, or opened it, or another one of its name. The list is locked all the while, so it takes no turn (D1):
    /// who has that may wait for the same device.
    fn has_opened(&self, plan: &ExportPlan, opened: Result<Export, Failure>) {
        let name = plan.name.as_str();
        let mut rows = locked(&self.exports);
        let Some(row) = rows.iter_mut().find(|row| row.is(plan) && row.failed.is_some()) else {
            if !rows.iter().any(|row| row.plan.name == name) {
                self.server.forget_export(name);
            }
            return;
        };
        match opened {
            Ok(export) => {
                // A reload may have said for whom it is since it began to be opened.
                let export = Export { allow: row.plan.allow.clone(), ..export };
                let description = plan.in_words(&export, str::to_owned);
                self.server.put_export(export);
                self.limit(&row.plan);
                row.failed = None;
                info!(event = "export_opened", export = name, "export '{name}' is served: {description}");
            }
            Err(why) => {
                self.server.forget_export(name);
                row.failed = Some(why);
            }
        }
        drop(rows);
    }
}

/// The thread that serves what opens while the daemon runs.
pub(crate) struct Late {
    thread: JoinHandle<()>,
    ends: Sender<Option<Ended>>,
}

impl Late {
    /// Ends it. What is being opened is not waited for.
    pub(crate) fn stop(self) {
        // One that has served all has ended.
        let _ = self.ends.send(None);
        // A thread that has panicked has said so.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests;
