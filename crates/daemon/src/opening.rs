//! Opening of exports whose devices belong to a server or cluster, at the start of the daemon. Such a device may not
//! respond, and must not delay the rest.
//!
//! Owns the threads that open them, one each. The caller decides how long to wait. Devices that open later are served
//! by `daemon::late`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use sheave_serve::Export;

use crate::config::{ExportPlan, Plan, What};
use crate::failure::Failure;
use crate::rights::Rights;
use crate::{backend, devices};

/// Time for which the start waits for such devices before the other exports are served.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// An export with the result of opening it.
pub(crate) type Ended = (ExportPlan, Result<Export, Failure>);

/// Exports that are being opened.
pub(crate) struct Opening {
    /// `None` stops the receiver.
    told: Receiver<Option<Ended>>,
    teller: Sender<Option<Ended>>,
    /// Exports that have neither opened nor failed.
    left: Vec<ExportPlan>,
}

/// The failure of an export whose device is still being opened.
pub(crate) fn not_yet() -> Failure {
    Failure::busy("its device is being opened, and has not answered yet").fix("check the server that has the device")
}

impl Opening {
    /// Starts opening the exports of `plan` whose devices may not respond.
    pub(crate) fn begin(plan: &Plan) -> Opening {
        let (teller, told) = channel();
        let mut left = Vec::new();
        for plan in &plan.exports {
            let What::Device { spec } = &plan.what else { continue };
            if !devices::may_be_silent(spec) {
                continue;
            }
            let (of, spec, tell) = (plan.clone(), spec.clone(), teller.clone());
            let open = move || {
                let opened = catch_unwind(AssertUnwindSafe(|| backend::device(&of, &spec, None, Rights::Own)));
                let opened = opened.unwrap_or_else(|_| Err(Failure::run("opening it ended by a bug")));
                // Fails if the daemon has ended.
                let _ = tell.send(Some((of, opened)));
            };
            // If no thread can be started, it is opened like a local device.
            if std::thread::Builder::new().name("sheave-open".into()).spawn(open).is_ok() {
                left.push(plan.clone());
            }
        }
        Opening { told, teller, left }
    }

    /// Returns true if this export is still being opened.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.left.iter().any(|plan| plan.name == name)
    }

    /// Returns the next result, waiting at most until `until`. Returns `None` after that time, when there are no more,
    /// or when the receiver was stopped.
    pub(crate) fn next(&mut self, until: Option<Instant>) -> Option<Ended> {
        if self.left.is_empty() {
            return None;
        }
        let ended = match until {
            Some(until) => self.told.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
            None => self.told.recv().ok(),
        };
        let ended = ended.flatten()?;
        self.left.retain(|plan| plan.name != ended.0.name);
        Some(ended)
    }

    /// Returns true if all have opened or failed.
    pub(crate) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Returns a sender; sending `None` stops the receiver.
    pub(crate) fn ends(&self) -> Sender<Option<Ended>> {
        self.teller.clone()
    }
}
