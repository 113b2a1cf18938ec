//! Exports of devices that belong to a server or cluster: opened in parallel at the start of the daemon, because such a
//! device may not respond, and must not delay the rest.
//!
//! Owns the threads that open them, one each, and the thread that serves an export whose device was not yet open when
//! the server started, as soon as it is. Until then the export has its place in the list, so that neither its name nor
//! an empty name leads a client to another export. The caller decides how long to wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sheave_serve::Export;
use tracing::info;

use super::{Daemon, Row, locked};
use crate::config::{ExportPlan, Plan, What};
use crate::failure::Failure;
use crate::rights::Rights;
use crate::{backend, devices};

/// Time for which the start waits for such devices before the other exports are served.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// An export with the result of opening it.
type Ended = (ExportPlan, Result<Export, Failure>);

/// Exports that are being opened.
pub(super) struct Opening {
    /// `None` stops the receiver.
    told: Receiver<Option<Ended>>,
    teller: Sender<Option<Ended>>,
    /// Exports that have neither opened nor failed.
    left: Vec<ExportPlan>,
}

/// The failure of an export whose device is still being opened.
pub(super) fn not_yet() -> Failure {
    Failure::busy("its device is being opened, and has not answered yet").fix("check the server that has the device")
}

impl Opening {
    /// Starts opening the exports of `plan` whose devices may not respond.
    pub(super) fn begin(plan: &Plan) -> Opening {
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
    pub(super) fn has(&self, name: &str) -> bool {
        self.left.iter().any(|plan| plan.name == name)
    }

    /// Returns the next result, waiting at most until `until`. Returns `None` after that time, when there are no more,
    /// or when the receiver was stopped.
    pub(super) fn next(&mut self, until: Option<Instant>) -> Option<Ended> {
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
    pub(super) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Returns a sender; sending `None` stops the receiver.
    pub(super) fn ends(&self) -> Sender<Option<Ended>> {
        self.teller.clone()
    }
}

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
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    use sheave_kring::{KernelRing, KringOpts};
    use sheave_serve::{Address, Listener, Parcel};

    use super::*;
    use crate::config;
    use crate::daemon::upgrades::Upgrades;
    use crate::daemon::{Opened, Origin};
    use crate::devices::open_device;

    const LONG: Duration = Duration::from_secs(20);

    /// Starts a daemon with this configuration, which listens on a socket in `dir`.
    fn daemon(dir: &Path, name: &str, exports: &str, patience: Option<Duration>) -> Arc<Daemon> {
        let (file, socket) = (dir.join(format!("{name}.toml")), dir.join(format!("{name}.sock")));
        let listen = format!("listen = [\"unix:{}\"]\nthreads = 1\n", socket.display());
        std::fs::write(&file, listen + exports).expect("written");
        let plan = config::read(&file).expect("it is right");
        let listener = Listener::bind(&Address::Unix(socket)).expect("listening");
        let origin = Origin::new(&[], Upgrades::default());
        let daemon = Opened::new(&plan, patience, &[]).serve(vec![listener], &plan, origin).expect("it serves");
        daemon.server.go_on_with(Parcel::default());
        Arc::new(daemon)
    }

    fn stop(daemon: Arc<Daemon>, late: Option<Late>) {
        late.into_iter().for_each(Late::stop);
        Arc::into_inner(daemon).expect("nobody else has it").stop().expect("it ends");
    }

    /// Accepts connections, and forwards them to another server once it is told to.
    fn hold(path: &Path, to: &Path) -> Sender<()> {
        let (listener, to) = (UnixListener::bind(path).expect("listening"), to.to_owned());
        let (go, told) = channel();
        std::thread::spawn(move || {
            let mut held = false;
            for near in listener.incoming().map(|near| near.expect("a connection")) {
                if !std::mem::replace(&mut held, true) && told.recv().is_err() {
                    return;
                }
                let far = UnixStream::connect(&to).expect("connected");
                for (mut from, mut to) in [(&near, &far), (&far, &near)].map(|(a, b)| (copy_of(a), copy_of(b))) {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        go
    }

    fn copy_of(stream: &UnixStream) -> UnixStream {
        stream.try_clone().expect("a descriptor")
    }

    fn until(what: &str, is: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < LONG, "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn devices_that_are_silent_hold_up_no_other_export_and_are_served_when_they_answer() {
        if KernelRing::new(8, KringOpts::default()).is_err() {
            return eprintln!("SKIPPED: no io_uring");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let far = daemon(dir.path(), "far", "[[export]]\nname = \"disk\"\nspec = \"ram:size=3M\"\n", None);
        let (go, mute) = (hold(&at("slow.sock"), &at("far.sock")), hold(&at("mute.sock"), &at("far.sock")));
        let export = |name: &str, spec: &str| format!("[[export]]\nname = \"{name}\"\nspec = \"{spec}\"\n");
        let nbd = |name: &str| format!("nbd:unix:{},export=disk,connect=30s", at(name).display());
        let exports =
            [export("slow", &nbd("slow.sock")), export("mute", &nbd("mute.sock")), export("scratch", "ram:size=1M")];
        let begun = Instant::now();
        let near = daemon(dir.path(), "near", &exports.concat(), Some(Duration::from_millis(50)));
        assert!(begun.elapsed() < LONG, "the others are served meanwhile");
        let why = |name: &str| {
            let row = near.rows().into_iter().find(|row| row.plan.name == name).expect("it is there");
            row.failed.map(|why| why.cause().to_owned())
        };
        assert_eq!(near.server.exports().iter().map(|export| export.name.clone()).collect::<Vec<_>>(), ["scratch"]);
        assert_eq!(["slow", "mute"].map(why), [Some(not_yet().cause().to_owned()), Some(not_yet().cause().to_owned())]);
        assert_eq!(why("scratch"), None);
        // Clients that name no export get the first one, and no other in its place.
        let unnamed = || open_device(&format!("nbd:unix:{}", at("near.sock").display()));
        assert!(unnamed().is_err(), "it is not served");
        let late = near.begin_late().expect("a thread");
        go.send(()).expect("it waits");
        until("it is served", || why("slow").is_none());
        assert_eq!(unnamed().expect("it is served").size_bytes(), 3 << 20);
        drop(mute);
        until("its server has gone", || why("mute").is_some_and(|why| why != not_yet().cause()));
        let order: Vec<_> = near.rows().iter().map(|row| (row.plan.name.clone(), row.failed.is_none())).collect();
        assert_eq!(order, [("slow".into(), true), ("mute".into(), false), ("scratch".into(), true)]);
        stop(near, late);
        stop(far, None);
    }

    #[test]
    fn what_was_taken_out_while_it_was_being_opened_is_not_served() {
        if KernelRing::new(8, KringOpts::default()).is_err() {
            return eprintln!("SKIPPED: no io_uring");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let far = daemon(dir.path(), "far", "[[export]]\nname = \"disk\"\nspec = \"ram:size=3M\"\n", None);
        let go = hold(&at("slow.sock"), &at("far.sock"));
        let exports =
            format!("[[export]]\nname = \"slow\"\nspec = \"nbd:unix:{},connect=30s\"\n", at("slow.sock").display());
        let near = daemon(dir.path(), "near", &exports, Some(Duration::ZERO));
        near.remove_export("slow", false).expect("it goes");
        let late = near.begin_late().expect("a thread").expect("something is being opened");
        go.send(()).expect("it waits");
        until("it has opened", || late.thread.is_finished());
        assert_eq!((near.rows().len(), near.server.exports().len()), (0, 0));
        assert!(near.server.set_limit("slow", None).is_err(), "and it has no place any more");
        stop(near, Some(late));
        stop(far, None);
    }
}
