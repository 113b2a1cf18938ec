//! Exports of devices that were not yet open when the server started; each is served as soon as its device is open.
//!
//! Until then the export has its place in the list, so that neither its name nor an empty name leads a client to
//! another export.

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
    /// Returns true if the row has the same name and source as `plan`; limit and access rules may differ.
    pub(super) fn is(&self, plan: &ExportPlan) -> bool {
        ExportPlan { limit: plan.limit, allow: plan.allow.clone(), ..self.plan.clone() } == *plan
    }
}

impl Daemon {
    /// Starts a thread that serves each export as soon as its device is open. Returns `None` if all are open or failed.
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

    /// Tries again to serve an export that failed. A device is opened without the turn (D1), since its server may not
    /// respond.
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

    /// Records the new reason of an export that failed again, if it still exists and is not served.
    pub(super) fn keep_failure(&self, plan: &ExportPlan, why: Failure) {
        let mut rows = locked(&self.exports);
        if let Some(row) = rows.iter_mut().find(|row| row.is(plan) && row.failed.is_some()) {
            row.failed = Some(why);
        }
    }

    /// Serves an export whose device has been opened, or records why that failed. Meanwhile a reload or a command may
    /// have removed it, opened it, or put another export under its name. The list stays locked throughout, so the turn
    /// (D1) is not needed; its holder may be waiting for the same device.
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
                // The access rules may have changed in a reload since the open began.
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

/// Handle of the thread that serves exports whose devices open late.
pub(crate) struct Late {
    thread: JoinHandle<()>,
    ends: Sender<Option<Ended>>,
}

impl Late {
    /// Stops the thread, without waiting for opens in progress.
    pub(crate) fn stop(self) {
        // Fails if the thread has already ended, with all exports served.
        let _ = self.ends.send(None);
        // A panic of the thread was already reported.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests;
