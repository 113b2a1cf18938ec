//! The old process of an upgrade: takes the daemon apart, passes everything over, and puts it together again if the
//! new process does not take it.

use std::fs::Metadata;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, PidfdFlags, Signal};
use sheave_drivers::host::{self, Inherited, InheritedKind};
use sheave_load::signals::{Ender, Hangups};
use sheave_serve::listen::handover::{self, HandedOver};
use sheave_serve::{Address, Limit, Listener, Parcel};
use tracing::{error, info, warn};

use super::blob::{Added, Blob, Kind, Listening, OpenFile};
use super::protocol::Give;
use super::{DRAIN, Line, PROMPT, STATE_VERSION, Said, TAKE, broken, has_ended};
use crate::api::types::AddExport;
use crate::config::{ExportPlan, Plan, What};
use crate::daemon::late::PATIENCE;
use crate::daemon::{Apart, Daemon, Opened, Origin};
use crate::failure::{self, Failure};
use crate::{systemd, tls};

/// Time for a last look at what the new process has said, which is in the socket or is not.
const LOOK: Duration = Duration::from_millis(1);
/// Time that a process may take to end after SIGKILL.
const DEATH: Duration = Duration::from_secs(10);

/// The new process, which has said who it is.
pub(crate) struct Successor {
    line: Line,
    pid: Pid,
    /// Descriptor of the process, which no other process can get the id of.
    process: OwnedFd,
}

/// The outcome of an upgrade.
pub(crate) enum Given {
    /// The new process has everything.
    Away,
    /// The daemon serves as before, for this reason.
    Back(Box<Daemon>, Failure),
}

impl Successor {
    /// Waits until the new process says who it is. Nothing has changed if this fails.
    pub(crate) fn hear(socket: UnixStream) -> Result<Successor, Failure> {
        let failed = |error: std::io::Error| broken("the new process does not begin", &error);
        let mut line = Line::new(socket).map_err(failed)?;
        let (said, _) = line.hear(PROMPT).map_err(failed)?;
        let Said::Hello { pid, state } = said else {
            return Err(Failure::run("the new process begins with another message"));
        };
        let refuse = |cause: String| {
            // The new process may have ended already.
            let _ = line.say(&Said::Refused { cause: cause.clone() }, &[]);
            Failure::run(cause)
        };
        if state < STATE_VERSION {
            let what = format!("the new program takes over state of version {state}, and this one has {STATE_VERSION}");
            return Err(refuse(what).fix("use a sheave that is at least as new as this one"));
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| refuse("the new process has no process id".into()))?;
        // P1: this process must be able to end the new one.
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        let process = process.and_then(|fd| rustix::process::test_kill_process(pid).map(|()| fd));
        let process = process
            .map_err(|error| refuse(format!("the new process {} cannot be watched: {error}", pid.as_raw_nonzero())))?;
        let (out, err) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        line.say(&Said::Welcome { pid: std::process::id() }, &[out, err]).map_err(failed)?;
        match line.hear(PROMPT).map_err(failed)?.0 {
            Said::Ready {} => Ok(Successor { line, pid, process }),
            Said::Failed { cause } => Err(Failure::run(format!("the new process could not begin: {cause}"))),
            _ => Err(Failure::run("the new process goes on with another message")),
        }
    }

    /// Tells the new process that the daemon goes on as before.
    pub(crate) fn refuse(&self, why: &Failure) {
        // It may have ended.
        let _ = self.line.say(&Said::Refused { cause: why.in_a_line() }, &[]);
    }

    /// Ends the process, which has not taken the daemon over (P1). Returns false if it does not end.
    fn end(&self) -> bool {
        // Fails if it has ended.
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
        has_ended(&self.process, DEATH)
    }

    /// Passes signals on that have come while the daemon was given away.
    fn pass_signals(&self, ender: &Ender, hangups: &Hangups) {
        let came = [(ender.is_told(), Signal::TERM), (hangups.has_come(), Signal::HUP)];
        for (_, signal) in came.into_iter().filter(|(came, _)| *came) {
            // Fails if the new process has ended, as the signal would have had it.
            let _ = rustix::process::pidfd_send_signal(&self.process, signal);
        }
    }

    /// Waits until the new process says that it has taken the daemon over.
    fn waits(&mut self, within: Duration) -> Result<(), Failure> {
        match self.line.hear(within) {
            Ok((Said::Taken {}, _)) => Ok(()),
            Ok((Said::Failed { cause }, _)) => {
                Err(Failure::run(format!("the new process could not take over: {cause}")))
            }
            Ok(_) => Err(Failure::run("the new process has said something else")),
            Err(error) => Err(broken("the new process does not take over", &error)),
        }
    }
}

/// The sockets that this process listens on, kept for the new process or for this one.
pub(crate) struct Sockets(Vec<HandedOver>);

impl Sockets {
    /// Duplicates all sockets. From now on their paths stay when a listener is dropped.
    pub(crate) fn keep() -> Result<Sockets, Failure> {
        let kept = handover::open_now().map_err(no_descriptor)?;
        handover::leave_paths(true);
        Ok(Sockets(kept))
    }

    /// Lets this process listen on them again: those that are closed by now can be bound again.
    pub(crate) fn give_back(self) {
        handover::leave_paths(false);
        handover::inherit_closed(self.0);
    }
}

fn no_descriptor(error: std::io::Error) -> Failure {
    Failure::run(format!("descriptors cannot be duplicated: {error}")).fix("raise the limit (ulimit -n, LimitNOFILE)")
}

/// Gives the daemon to the new process. `sockets` were kept before the control socket was stopped. `plan` is that of
/// the daemon's start.
///
/// # Errors
///
/// The daemon could not be put together again. Its pools are as after a crash of the process.
pub(crate) fn give(
    daemon: Box<Daemon>,
    mut to: Successor,
    sockets: Sockets,
    (plan, tls): (&Plan, &[tls::Loaded]),
    (ender, hangups): (&Ender, &Hangups),
) -> Result<Given, Failure> {
    let mut daemon = Some(daemon);
    let mut sockets = Some(sockets);
    let mut suspended = None;
    let mut kept: Option<Kept> = None;
    let mut why = Failure::run("the upgrade has failed");
    let mut step = Give::Suspend;
    loop {
        let done = match step {
            Give::Suspend if ender.is_told() => Err(Failure::run("the daemon was told to end")),
            Give::Suspend => match daemon.as_ref().map(|daemon| suspend(daemon)) {
                Some(Ok(done)) => {
                    suspended = Some(done);
                    Ok(())
                }
                Some(Err(failed)) => Err(failed),
                None => Ok(()),
            },
            Give::Resume => {
                to.refuse(&why);
                sockets.take().into_iter().for_each(Sockets::give_back);
                Ok(())
            }
            Give::TakeApart => match (daemon.take(), sockets.take(), suspended.take()) {
                (Some(daemon), Some(sockets), Some(files)) => {
                    Kept::of(*daemon, sockets, files, plan).map(|all| kept = Some(all))
                }
                _ => Err(Failure::run("the daemon was taken apart already")),
            },
            Give::Pass => kept.as_mut().map_or(Ok(()), |kept| {
                kept.pass(&to).map_err(|error| broken("the state cannot be passed over", &error))
            }),
            Give::Wait => to.waits(TAKE),
            Give::ShutAndLook => {
                to.line.shut();
                to.waits(LOOK).map_err(|_| why.clone())
            }
            Give::EndNew => match to.end() {
                true => Ok(()),
                false => Err(why.clone().but("the new process does not end, and may still have the pools open")),
            },
            Give::PutTogether => match kept.take().map(|kept| kept.put_together(tls)) {
                Some(Ok(back)) => {
                    daemon = Some(Box::new(back));
                    Ok(())
                }
                Some(Err(failed)) => return Err(failed),
                None => Ok(()),
            },
            Give::Leave => {
                to.pass_signals(ender, hangups);
                systemd::main_is(to.pid);
                kept.take().into_iter().for_each(Kept::leave);
                Ok(())
            }
            Give::Abandon => return Err(why),
        };
        let ended_well = done.is_ok();
        if let Err(failed) = done {
            why = failed;
        }
        match step.next(ended_well) {
            Some(next) => step = next,
            None => break,
        }
    }
    Ok(daemon.map_or(Given::Away, |daemon| Given::Back(daemon, why)))
}

/// Suspends the server, and duplicates the files that the daemon has open. If there is no room for all the descriptors
/// that an upgrade takes, the server goes on.
fn suspend(daemon: &Daemon) -> Result<(Vec<Inherited>, Instant), Failure> {
    for held in daemon.pools() {
        // While clients are served, so that they do not wait for all of it when the pool is closed. A failure comes up
        // again then.
        if let Ok(pool) = held.pool() {
            let _ = pool.checkpoint();
        }
    }
    let since = Instant::now();
    daemon.server.suspend(DRAIN).map_err(failure::serve)?;
    let files = host::open_now().and_then(|files| has_room(daemon).map(|()| files)).map_err(no_descriptor);
    let files = files.and_then(|files| has_pools_in_place(daemon, &files).map(|()| (files, since)));
    files.inspect_err(|_| _ = daemon.server.resume())
}

/// Fails if the path of a pool does not lead to the file that is open: neither process could open it there.
fn has_pools_in_place(daemon: &Daemon, open: &[Inherited]) -> Result<(), Failure> {
    let is = |seen: &Metadata, file: &Inherited| match file.file.metadata() {
        Ok(own) if own.file_type().is_block_device() => own.rdev() == seen.rdev(),
        Ok(own) => (own.dev(), own.ino()) == (seen.dev(), seen.ino()),
        Err(_) => false,
    };
    let pools = daemon.pools();
    for path in pools.iter().filter(|held| held.failed().is_none()).flat_map(|held| held.place().file_paths()) {
        if !std::fs::metadata(&path).is_ok_and(|seen| open.iter().any(|file| is(&seen, file))) {
            return Err(Failure::run(format!("the file of a pool that is open is no longer at {path}"))
                .fix("move it back; or end the server, and start it with the new place"));
        }
    }
    Ok(())
}

/// Fails if this process cannot have as many more descriptors as its guests have passed, and some.
fn has_room(daemon: &Daemon) -> std::io::Result<()> {
    /// Descriptors of a device beside those of its queues, and of everything else that takes some for a moment.
    const DEVICE: usize = 16;
    const OTHERS: usize = 32;
    let attached = daemon.server.exports().into_iter().filter_map(|export| export.vhost_user);
    let guests: usize = attached.map(|device| DEVICE + 3 * usize::from(device.queues)).sum();
    let stderr = rustix::stdio::stderr();
    let room: std::io::Result<Vec<_>> = (0..guests + OTHERS).map(|_| stderr.try_clone_to_owned()).collect();
    room.map(drop)
}

/// Everything that a daemon was made of.
struct Kept {
    parcel: Parcel,
    sockets: Sockets,
    files: Vec<Inherited>,
    plan: Plan,
    added: Vec<ExportPlan>,
    origin: Origin,
    blob: Blob,
    /// When the clients began to wait.
    since: Instant,
}

impl Kept {
    /// Takes a suspended daemon apart. Its files stay open, so that their locks are kept.
    fn of(
        daemon: Daemon,
        sockets: Sockets,
        (files, since): (Vec<Inherited>, Instant),
        plan: &Plan,
    ) -> Result<Kept, Failure> {
        let mut served = super::plan::tell(&daemon);
        served.environment.clear();
        let apart = daemon.take_apart(plan)?;
        let blob = Blob { served: Some(served), ..blob_of(&apart) };
        let Apart { plan, added, parcel, origin, .. } = apart;
        Ok(Kept { parcel, sockets, files, plan, added, origin, blob, since })
    }

    /// Passes state and descriptors over.
    fn pass(&mut self, to: &Successor) -> std::io::Result<()> {
        let blob = &mut self.blob;
        blob.server = std::mem::take(&mut self.parcel.state);
        blob.server_fds = self.parcel.fds.len() as u32;
        blob.listeners = self.sockets.0.iter().map(listening).collect();
        // The path of a socket that a caller has passed is removed with the plan of its export. The new process has no
        // such plan, and removes the path with the socket.
        let passed = self.added.iter().filter_map(|plan| plan.vhost_user.as_ref()).filter(|plan| plan.removes_path());
        let passed: Vec<String> = passed.map(|plan| plan.address().to_string()).collect();
        blob.listeners.iter_mut().for_each(|one| one.owns_path |= passed.contains(&one.asked_for));
        blob.files = self.files.iter().map(open_file).collect();
        blob.added = self.added.iter().map(added).collect();
        let memory = blob.write(&self.parcel.bytes);
        self.parcel.state = std::mem::take(&mut blob.server);
        let memory = memory?;
        let fds = self.parcel.fds.len() + self.sockets.0.len() + self.files.len();
        let paused_us = self.since.elapsed().as_micros() as u64;
        to.line.say(&Said::Parcel { fds: fds as u32, paused_us }, &[memory.as_fd()])?;
        let own = self.parcel.fds.iter().map(AsFd::as_fd);
        let sockets = self.sockets.0.iter().map(|socket| socket.fd.as_fd());
        let all: Vec<_> = own.chain(sockets).chain(self.files.iter().map(|file| file.file.as_fd())).collect();
        to.line.pass(&all)
    }

    /// Leaves everything to the new process.
    fn leave(self) {
        for plan in self.added {
            // The path of a socket that a caller has passed is removed with it, and belongs to the new process now.
            std::mem::forget(plan.vhost_user);
        }
    }

    /// Opens pools and exports again, and serves the clients as before.
    fn put_together(self, tls: &[tls::Loaded]) -> Result<Daemon, Failure> {
        let Kept { parcel, sockets, files, plan, added, origin, blob, .. } = self;
        host::inherit(files);
        sockets.give_back();
        let opened = Opened::new(&plan, Some(PATIENCE), &added);
        if let Some(why) = opened.failure() {
            error!(event = "not_served", "after the upgrade has failed: {}", why.in_a_line());
        }
        // The files of the certificates may be gone by now. Those that were read at the start do as well.
        let loaded = tls::load(&plan.tls);
        let listeners = listeners(&plan, &origin.passed);
        if let Err(why) = tls::set(&listeners, loaded.as_deref().unwrap_or(tls), &plan.listen) {
            error!(event = "tls_not_set", "after the upgrade has failed: {}", why.in_a_line());
        }
        let daemon = opened.serve(listeners, &plan, origin)?;
        if let Err(why) = blob.apply(&daemon.server) {
            error!(event = "limit_not_set", "after the upgrade has failed: {}", why.in_a_line());
        }
        daemon.server.go_on_with(parcel);
        info!(event = "goes_on", "the daemon serves as before the upgrade");
        Ok(daemon)
    }
}

/// Listens again on the addresses of the plan, and on those that the daemon was given. One that fails is reported.
fn listeners(plan: &Plan, passed: &[Address]) -> Vec<Listener> {
    let bind = |address: &Address| match Listener::bind(address) {
        Ok(listener) => Some(listener),
        Err(why) => {
            error!(event = "not_listening", "after the upgrade has failed: {why}");
            None
        }
    };
    passed.iter().chain(&plan.listen).filter_map(bind).collect()
}

fn listening(socket: &HandedOver) -> Listening {
    Listening {
        asked_for: socket.asked_for.to_string(),
        address: socket.address.to_string(),
        owns_path: socket.owns_path,
    }
}

fn open_file(file: &Inherited) -> OpenFile {
    let kind = match file.kind {
        InheritedKind::File => Kind::File,
        InheritedKind::Lock => Kind::Lock,
        InheritedKind::Exclusive => Kind::Exclusive,
    };
    OpenFile { path: file.path.clone(), kind }
}

fn added(plan: &ExportPlan) -> Added {
    let (pool, volume, spec) = match plan.what.clone() {
        What::Volume { pool, volume } => (Some(pool), Some(volume), None),
        What::Device { spec } => (None, None, Some(spec)),
    };
    let socket = plan.vhost_user.as_ref();
    let export = AddExport {
        name: plan.name.clone(),
        pool,
        volume,
        spec,
        read_only: Some(plan.read_only),
        vhost_user: socket.map(|socket| socket.path.display().to_string()),
        vhost_queues: socket.and_then(|socket| socket.queues).map(u64::from),
        vhost_in_order: socket.map(|socket| socket.in_order),
    };
    Added { export, limit: plan.limit.map(|limit| limit.to_string()) }
}

/// Returns the state of a daemon that was taken apart, without what has descriptors.
fn blob_of(apart: &Apart) -> Blob {
    let started = SystemTime::now().checked_sub(apart.origin.since.elapsed()).unwrap_or(UNIX_EPOCH);
    let limit = |(name, limit): &(String, Option<Limit>)| (name.clone(), limit.map(|limit| limit.to_string()));
    Blob {
        package: env!("CARGO_PKG_VERSION").into(),
        started: started.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
        passed: apart.origin.passed.iter().map(ToString::to_string).collect(),
        pools: apart.pools.clone(),
        exports: apart.exports.clone(),
        limits: apart.limits.iter().map(limit).collect(),
        slow_limit_ns: apart.slow_limit.map(|limit| limit.as_nanos() as u64),
        ..Blob::default()
    }
}

/// Logs that an upgrade has failed.
pub(crate) fn tell_failed(why: &Failure) {
    warn!(event = "upgrade_failed", "the upgrade has failed: {}", why.in_a_line());
}
