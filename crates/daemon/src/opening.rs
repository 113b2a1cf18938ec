//! Exports of devices that a server or a cluster has, when the daemon starts: it may be silent, and holds nobody up.
//!
//! Owns the threads that open them, one each. Who waits for them decides for how long; what opens later is served by
//! `daemon::late`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use sheave_serve::Export;

use crate::config::{ExportPlan, Plan, What};
use crate::failure::Failure;
use crate::rights::Rights;
use crate::{backend, devices};

/// How long a daemon that begins waits for devices before it serves all others.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What an export has become.
pub(crate) type Ended = (ExportPlan, Result<Export, Failure>);

/// Exports that are being opened.
pub(crate) struct Opening {
    /// `None` ends who listens.
    told: Receiver<Option<Ended>>,
    teller: Sender<Option<Ended>>,
    /// Those that have not ended.
    left: Vec<ExportPlan>,
}

/// Why an export is not served whose device is being opened.
pub(crate) fn not_yet() -> Failure {
    Failure::busy("its device is being opened, and has not answered yet").fix("check the server that has the device")
}

impl Opening {
    /// Begins to open those of a plan.
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
                // Nobody hears it when the daemon has ended.
                let _ = tell.send(Some((of, opened)));
            };
            // Without a thread it is opened as those are that answer at once.
            if std::thread::Builder::new().name("sheave-open".into()).spawn(open).is_ok() {
                left.push(plan.clone());
            }
        }
        Opening { told, teller, left }
    }

    /// Whether this export has not ended.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.left.iter().any(|plan| plan.name == name)
    }

    /// The next one that ends, until then if there is an end to that; `None` when all have, or who listens is to end.
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

    /// Whether all have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Where `None` ends who listens.
    pub(crate) fn ends(&self) -> Sender<Option<Ended>> {
        self.teller.clone()
    }
}
