//! The new process of an upgrade: receives everything, and owns it once everything is open.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::Mode;
use rustix::process::{Pid, PidfdFlags};
use serde_json::json;
use sheave_drivers::host::{self, Inherited, InheritedKind};
use sheave_serve::listen::handover::{self, HandedOver};
use sheave_serve::{Address, Allow, Limit, Listener, Parcel, Server};

use super::blob::{Added, Blob, Kind, Listening, OpenFile};
use super::{DRAIN, Line, PROMPT, STATE_VERSION, Said, broken, has_ended};
use crate::config::{ExportPlan, Plan, What};
use crate::daemon::Opened;
use crate::failure::{self, Failure};
use crate::vhost_user::VhostUserPlan;

/// Time that the old process has to end after it has shut the connection down. It ends this one before, if it goes on.
const OLD_ENDS: Duration = Duration::from_secs(15);

/// The old process, which waits until this one is ready.
pub(crate) struct Predecessor {
    line: Line,
    /// `None` if it has ended already.
    process: Option<OwnedFd>,
    /// Its stdout.
    out: OwnedFd,
}

/// Everything that the old process has passed over.
pub(crate) struct Incoming {
    /// When the clients began to wait.
    since: Instant,
    pub(crate) blob: Blob,
    fds: Vec<OwnedFd>,
    bytes: Vec<u8>,
}

fn failed(error: std::io::Error) -> Failure {
    broken("the old process does not pass its state over", &error)
}

impl Predecessor {
    /// Greets the old process, by the socket that is the stdin of this one. From now on, stderr is that of the old
    /// process.
    pub(crate) fn greet() -> Result<Predecessor, Failure> {
        let stdin = rustix::stdio::stdin().try_clone_to_owned().map_err(failed)?;
        let null = std::fs::File::open("/dev/null").map_err(failed)?;
        rustix::stdio::dup2_stdin(&null).map_err(|error| failed(error.into()))?;
        let mut line = Line::new(UnixStream::from(stdin)).map_err(failed)?;
        line.say(&Said::Hello { pid: std::process::id(), state: STATE_VERSION }, &[]).map_err(failed)?;
        let (said, fds) = line.hear(PROMPT).map_err(failed)?;
        let Said::Welcome { pid } = said else { return Err(other(said)) };
        let Ok([out, err]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(Failure::run("the old process has not sent its stdout and stderr"));
        };
        // Fails if it has ended already.
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = process.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        rustix::stdio::dup2_stderr(&err).map_err(|error| failed(error.into()))?;
        // The sockets and files that it makes have the rights that the old process would have given them.
        umask_of(pid).into_iter().for_each(|mask| _ = rustix::process::umask(mask));
        Ok(Predecessor { line, process, out })
    }

    /// Receives everything from the old process. From now on, its files and sockets are used in the place of new ones.
    pub(crate) fn receive(&mut self) -> Result<Incoming, Failure> {
        self.line.say(&Said::Ready {}, &[]).map_err(failed)?;
        let (said, memory) = self.line.hear(DRAIN + PROMPT).map_err(failed)?;
        let Said::Parcel { fds: many, paused_us } = said else { return Err(other(said)) };
        let since = Instant::now().checked_sub(Duration::from_micros(paused_us)).unwrap_or_else(Instant::now);
        let Ok([memory]) = <[OwnedFd; 1]>::try_from(memory) else {
            return Err(Failure::run("the old process has not sent its state"));
        };
        let mut fds = self.line.take(many).map_err(failed)?;
        let (blob, bytes) = Blob::read(memory).map_err(failed)?;
        let (own, listening) = (blob.server_fds as usize, blob.listeners.len());
        if own.saturating_add(listening).saturating_add(blob.files.len()) != fds.len() {
            return Err(Failure::run("the state does not name the descriptors that came with it"));
        }
        let files = fds.split_off(own + listening);
        let sockets = fds.split_off(own);
        host::inherit(blob.files.iter().zip(files).map(inherited).collect());
        let sockets = blob.listeners.iter().zip(sockets).map(handed_over);
        handover::inherit(sockets.collect::<Result<_, _>>()?);
        Ok(Incoming { since, blob, fds, bytes })
    }

    /// Tells the old process that everything belongs to this one now. Fails if the old one has shut the connection
    /// down, or has died (P1).
    pub(crate) fn say_taken(&self) -> Result<(), Failure> {
        self.line.say(&Said::Taken {}, &[]).map_err(|error| broken("the old process goes on", &error))
    }

    /// Waits for the end of the old process. Returns true if it has ended (P4).
    pub(crate) fn ends(&self) -> bool {
        self.process.as_ref().is_none_or(|process| has_ended(process, OLD_ENDS))
    }

    /// Tells the old process that this one has let go of everything, so that the old one goes on; and the command that
    /// has started this one.
    pub(crate) fn give_up(&self, why: &Failure) {
        // First, because the old process ends this one when it has heard.
        tell_failed(why);
        // It may have ended, or given up waiting.
        let _ = self.line.say(&Said::Failed { cause: why.in_a_line() }, &[]);
    }
}

/// Returns the umask of a process.
fn umask_of(pid: u32) -> Option<Mode> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(mask.trim(), 8).ok().map(Mode::from_raw_mode)
}

/// Returns the failure for a message that ends the upgrade, or was not expected.
fn other(said: Said) -> Failure {
    match said {
        Said::Refused { cause } => Failure::run(format!("the daemon goes on as before: {cause}")),
        other => Failure::run(format!("the old process has said something else: {other:?}")),
    }
}

impl Incoming {
    /// Returns the listeners that the old process was given.
    pub(crate) fn passed(&self) -> Result<Vec<Listener>, Failure> {
        let bind = |text: &String| Listener::bind(&text.parse()?);
        self.blob.passed.iter().map(bind).collect::<Result<_, _>>().map_err(failure::serve)
    }

    /// Returns when the first daemon of the row was started.
    pub(crate) fn since(&self) -> Instant {
        let started = UNIX_EPOCH.checked_add(Duration::from_millis(self.blob.started));
        let ago = started.and_then(|started| SystemTime::now().duration_since(started).ok()).unwrap_or_default();
        Instant::now().checked_sub(ago).unwrap_or_else(Instant::now)
    }

    /// Fails if this configuration lacks what the old process served when it was suspended, or has it otherwise. A
    /// client may have come after the command had checked this.
    pub(crate) fn expect_all(&self, plan: &Plan, config: &Path) -> Result<(), Failure> {
        let dropped = self.blob.served.as_ref().map(|served| super::plan::dropped(served, plan, config));
        dropped.into_iter().flatten().next().map_or(Ok(()), Err)
    }

    /// Returns the exports that were added while the old process ran.
    pub(crate) fn added(&self) -> Result<Vec<ExportPlan>, Failure> {
        self.blob.added.iter().map(Added::plan).collect()
    }

    /// Returns the clients, once everything belongs to this process. Tells the command that has started it, and has
    /// stdout be that of the old process.
    pub(crate) fn own(self, from: Predecessor) -> Parcel {
        let Incoming { since, blob, fds, bytes } = self;
        let (clients, paused_ms) = (blob.server.clients.len(), since.elapsed().as_millis() as u64);
        tell(&json!({ "taken_over": { "pid": std::process::id(), "clients": clients, "paused_ms": paused_ms } }));
        // If it fails, the daemon writes to a pipe that nobody reads, where it has nothing to say.
        let _ = rustix::stdio::dup2_stdout(&from.out);
        Parcel { state: blob.server, fds, bytes }
    }

    /// Returns the reason why a daemon that was opened with this state does not have everything that the old one had.
    pub(crate) fn lacks(&self, opened: &Opened) -> Option<Failure> {
        let pool = self.blob.pools.iter().find_map(|name| opened.pool_failure(name));
        pool.or_else(|| self.blob.exports.iter().find_map(|name| opened.export_failure(name)))
    }
}

/// Tells the command that has started this process that the upgrade has failed.
pub(crate) fn tell_failed(why: &Failure) {
    tell(&json!({ "failed": { "cause": why.cause(), "fix": why.how_to_mend() } }));
}

/// Prints a line for the command that has started this process. The command may have ended.
fn tell(value: &serde_json::Value) {
    // Without a buffer, which would keep the line for the stdout of the old process if the command has ended.
    let _ = rustix::io::write(rustix::stdio::stdout(), format!("{value}\n").as_bytes());
}

fn inherited((file, fd): (&OpenFile, OwnedFd)) -> Inherited {
    let kind = match file.kind {
        Kind::File => InheritedKind::File,
        Kind::Lock => InheritedKind::Lock,
        Kind::Exclusive => InheritedKind::Exclusive,
    };
    Inherited { kind, path: file.path.clone(), file: fd.into() }
}

fn handed_over((socket, fd): (&Listening, OwnedFd)) -> Result<HandedOver, Failure> {
    let address = |text: &str| text.parse::<Address>().map_err(failure::serve);
    let (asked_for, address) = (address(&socket.asked_for)?, address(&socket.address)?);
    Ok(HandedOver { fd, asked_for, address, owns_path: socket.owns_path })
}

impl Blob {
    /// Sets the limits that were set while the old process ran. The plans keep those of the configuration, so that the
    /// next process learns of these too.
    pub(crate) fn apply(&self, server: &Server) -> Result<(), Failure> {
        let limit = |(name, limit): &(String, Option<String>)| {
            let wrong = |why: String| Failure::run(format!("the limit of the export '{name}': {why}"));
            limit.as_deref().map(str::parse::<Limit>).transpose().map_err(wrong)
        };
        let limits = self.limits.iter().map(|one| Ok((one.0.as_str(), limit(one)?)));
        server.set_limits(&limits.collect::<Result<_, Failure>>()?);
        if let Some(limit) = self.slow_limit_ns {
            server.set_slow_limit(Duration::from_nanos(limit));
        }
        Ok(())
    }
}

impl Added {
    /// Returns the export's plan.
    pub(crate) fn plan(&self) -> Result<ExportPlan, Failure> {
        let Added { export, limit } = self;
        let what = match (&export.pool, &export.volume, &export.spec) {
            (Some(pool), Some(volume), None) => What::Volume { pool: pool.clone(), volume: volume.clone() },
            (None, None, Some(spec)) => What::Device { spec: spec.clone() },
            _ => return Err(Failure::run(format!("the export '{}' has no source", export.name))),
        };
        let wrong = |why: String| Failure::run(format!("the limit of the export '{}': {why}", export.name));
        let limit = limit.as_deref().map(str::parse).transpose().map_err(wrong)?;
        let queues = export.vhost_queues.map(|queues| u16::try_from(queues).unwrap_or(u16::MAX));
        let in_order = export.vhost_in_order.unwrap_or(false);
        let socket = export.vhost_user.as_ref().map(|path| VhostUserPlan {
            path: path.into(),
            access: None,
            queues,
            in_order,
            passed: None,
        });
        let (name, read_only) = (export.name.clone(), export.read_only.unwrap_or(false));
        Ok(ExportPlan { name, what, read_only, limit, allow: Allow::All, vhost_user: socket })
    }
}
