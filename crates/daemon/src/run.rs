//! The life of the daemon, until Ctrl-C, SIGTERM or the end of a command.
//!
//! Owns the order: pools and volumes are opened, then the sockets, then the reactors, then the control socket. At the
//! end it is reversed.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sheave_load::signals::{self, Ender, Hangups};
use sheave_serve::{Address, Listener};
use tracing::{info, warn};

use crate::captive::{self, Captive};
use crate::config::{self, One, Overrides, Plan};
use crate::daemon::late::{Late, PATIENCE};
use crate::daemon::standby::Standby;
use crate::daemon::{Daemon, Opened, Row};
use crate::failure::{self, Failure};
use crate::health::watch::{self, Watch, Watcher};
use crate::http::Http;
use crate::log::Sink;
use crate::retries::Retries;
use crate::ticker::Ticker;
use crate::{check, confine, control, descriptors, log, metrics, systemd, tls, web};

/// Prints a line to stderr, ignoring errors: a closed or full stderr must not stop the server.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Serves a configuration until a signal arrives. Returns the exit code. Parts that do not open are reported, and the
/// rest is served.
///
/// # Errors
///
/// Nothing can be served, or the shutdown failed.
pub fn configured(path: &Path, overrides: Overrides) -> Result<u8, Failure> {
    let ender = Ender::new()?;
    let read = move |path: &Path| config::read(path).map(|plan| overrides.apply(plan));
    let plan = read(path)?;
    log::start(plan.log, plan.log_to)?;
    let hangups = signals::hangups()?;
    let mut listeners = systemd::listeners()?;
    let tls = tls::load(&plan.tls)?;
    listeners.extend(listen(&plan)?);
    tls::set(&listeners, &tls, &plan.listen)?;
    let is_attached = plan.exports.iter().any(|export| export.vhost_user.is_some());
    if listeners.is_empty() && plan.control.is_none() && !is_attached {
        return Err(Failure::usage(format!("{} has no address to listen on", path.display()))
            .fix("add listen = [\"unix:/run/sheave/nbd.sock\"], vhost_user to an export, or a control socket"));
    }
    let clear = listeners.iter().filter(|listener| !listener.asks_for_certificates()).map(Listener::address);
    for (event, what) in check::advice(&plan, clear) {
        warn!(event, "{what}");
    }
    descriptors::raise();
    control::prepare(&plan);
    sheave_kring::restrict_rings();
    confine::start(&plan, Some(path));
    let opened = Opened::new(&plan, Some(PATIENCE));
    opened.tell();
    let daemon = Arc::new(opened.serve(listeners, &plan)?);
    let controlled = begin_control(&daemon, &plan).and_then(|controlled| match begin_sites(&daemon, &plan) {
        Ok(sites) => Ok((controlled, sites)),
        Err(why) => {
            if let Some(controlled) = controlled {
                controlled.stop();
            }
            Err(why)
        }
    });
    let (controlled, sites) = match controlled {
        Ok(controlled) => controlled,
        Err(why) => {
            end(daemon, None)?;
            return Err(why);
        }
    };
    let served = daemon.server.exports().len();
    let at: Vec<String> = daemon.server.listeners().iter().map(|listener| listener.address().to_string()).collect();
    let is_attachable = |row: &&Row| row.failed.is_none() && row.plan.vhost_user.is_some();
    let attached = daemon.rows().iter().filter(is_attachable).count();
    let serving = match (at.is_empty(), attached) {
        (false, 0) => format!("serving {served} exports at {}", at.join(", ")),
        (false, _) => format!("serving {served} exports at {}, and {attached} of them by vhost-user", at.join(", ")),
        (true, 0) => format!("serving {served} exports"),
        (true, _) => format!("serving {served} exports, {attached} of them by vhost-user"),
    };
    let watch = Watch::start(&daemon).map_err(captive::ender_failed)?;
    info!(event = "serving", exports = served, "{serving}");
    systemd::ready(&daemon.status_line());
    let watchdog = systemd::watchdog(&daemon);
    let standby = Standby::start(&daemon)?;
    let retries = Retries::start(&daemon)?;
    let late = daemon.begin_late()?;
    let reloads = Reloads::start(&daemon, watch.looker(), path, read, hangups)?;
    let ended = ender.wait().map_err(captive::ender_failed);
    info!(event = "stopping", "ending: clients are drained, pools are closed");
    systemd::stopping();
    // First ends the copies of control clients: a reload may be waiting for the turn of their pools.
    controlled.into_iter().for_each(control::Running::stop);
    standby.stop();
    retries.stop();
    late.into_iter().for_each(Late::stop);
    watchdog.into_iter().for_each(Ticker::stop);
    watch.stop();
    sites.into_iter().for_each(Http::stop);
    reloads.stop();
    end(daemon, None)?;
    ended.map(|_| 0)
}

/// The thread that reloads the configuration at SIGHUP.
struct Reloads {
    thread: JoinHandle<()>,
    /// Closing it stops the thread.
    ends: UnixStream,
}

impl Reloads {
    fn start(
        daemon: &Arc<Daemon>,
        watcher: Arc<Mutex<Watcher>>,
        path: &Path,
        read: impl Fn(&Path) -> Result<Plan, Failure> + Send + 'static,
        mut hangups: Hangups,
    ) -> Result<Reloads, Failure> {
        let (daemon, path) = (daemon.clone(), path.to_owned());
        let (ends, told) = UnixStream::pair().map_err(captive::ender_failed)?;
        let run = move || {
            while hangups.wait(&told) {
                systemd::reloading();
                let is_read = match read(&path) {
                    Ok(new) => {
                        log::set(new.log);
                        daemon.reload(&new);
                        daemon.note_reload(None);
                        true
                    }
                    Err(why) => {
                        // Logged each time, even if the reason is unchanged, because somebody has just asked for the
                        // reload.
                        let line = why.in_a_line();
                        warn!(event = "reload_failed", "the configuration stays as it was: {line}");
                        daemon.note_reload(Some(why));
                        false
                    }
                };
                watch::look_after_reload(&watcher, &daemon);
                if is_read {
                    info!(event = "reloaded", "the configuration was read again");
                }
                systemd::ready(&daemon.status_line());
            }
        };
        Ok(Reloads { thread: std::thread::spawn(run), ends })
    }

    fn stop(self) {
        drop(self.ends);
        // A panic of a reload was already reported.
        let _ = self.thread.join();
    }
}

/// Serves one volume, snapshot or device. Returns the exit code.
///
/// # Errors
///
/// The device cannot be served, or the shutdown failed.
pub fn one(args: &One) -> Result<u8, Failure> {
    let ender = Ender::new()?;
    log::start(args.log, Sink::Auto)?;
    let mut plan = config::of_one(args)?;
    let mut listeners = systemd::listeners()?;
    let is_private = listeners.is_empty() && plan.listen.is_empty() && args.vhost_user.is_none();
    if is_private && args.run.is_none() {
        let what = "no client could reach it: there is no address, no command, and no passed socket";
        let fix = "give --nbd unix:PATH, --vhost-user unix:PATH or --run COMMAND, or pass a listening socket \
                   (LISTEN_FDS)";
        return Err(Failure::usage(what).fix(fix));
    }
    // The command of --run gets an address of its own.
    let directory = if is_private { Some(captive::private_directory()?) } else { None };
    plan.listen.extend(directory.iter().map(captive::Directory::address));
    let tls = tls::load(&plan.tls)?;
    control::prepare(&plan);
    // A command that the daemon runs would inherit the confinement.
    if plan.confine {
        descriptors::raise();
        sheave_kring::restrict_rings();
        confine::start(&plan, None);
    }
    let opened = Opened::new(&plan, None);
    if let Some(why) = opened.failure().cloned() {
        opened.close()?;
        return Err(why);
    }
    let described = opened.describe();
    // Bound only now, because clients can connect from here on and must then be served.
    match listen(&plan) {
        Ok(bound) => listeners.extend(bound),
        Err(why) => {
            opened.close()?;
            return Err(why);
        }
    }
    tls::set(&listeners, &tls, &plan.listen)?;
    let names: Vec<String> = listeners.iter().flat_map(|at| described.iter().map(|(name, _)| at.uri(name))).collect();
    let daemon = Arc::new(opened.serve(listeners, &plan)?);
    let (controlled, code) = match begin_control(&daemon, &plan) {
        Ok(controlled) => {
            let code = begin_sites(&daemon, &plan).and_then(|sites| {
                let watch = Watch::start(&daemon).map_err(captive::ender_failed);
                // If another host takes over the pool, its export here ends too.
                let code = watch.and_then(|watch| {
                    let code = Standby::start(&daemon).and_then(|standby| {
                        let code = wait(args, &described[0].1, &names, &ender);
                        standby.stop();
                        code
                    });
                    watch.stop();
                    code
                });
                sites.into_iter().for_each(Http::stop);
                code
            });
            (controlled, code)
        }
        Err(why) => (None, Err(why)),
    };
    let ended = end(daemon, controlled);
    let code = code?;
    ended?;
    Ok(code)
}

/// Waits for a signal, or for the end of the command.
fn wait(args: &One, what: &str, names: &[String], ender: &Ender) -> Result<u8, Failure> {
    match &args.run {
        None => {
            for name in names {
                say(&format!("serving {what} at {name}; Ctrl-C ends it"));
            }
            if let Some(vhost_user) = &args.vhost_user {
                say(&format!("serving {what} at {} by vhost-user; Ctrl-C ends it", vhost_user.address()));
            }
            ender.wait().map_err(captive::ender_failed)?;
            Ok(0)
        }
        Some(command) => {
            let socket = args.vhost_user.as_ref().map(|vhost_user| &vhost_user.path);
            let socket = socket.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
            Captive::start(command, names.first().map(String::as_str), socket.as_deref(), ender)?.wait(ender)
        }
    }
}

fn listen(plan: &Plan) -> Result<Vec<Listener>, Failure> {
    let bind = |address: &Address| match plan.access.iter().find(|(of, _)| of == address) {
        Some((_, access)) => Listener::bind_for(address, access),
        None => Listener::bind(address),
    };
    plan.listen.iter().map(bind).collect::<Result<Vec<_>, _>>().map_err(failure::serve)
}

/// Starts the control socket. If nobody asked for it explicitly, the server runs without it on failure.
fn begin_control(daemon: &Arc<Daemon>, plan: &Plan) -> Result<Option<control::Running>, Failure> {
    let Some(wanted) = &plan.control else { return Ok(None) };
    match control::Running::start(daemon, wanted) {
        Ok(running) => Ok(Some(running)),
        Err(why) if wanted.wanted => Err(why),
        Err(why) => {
            warn!(event = "no_control", "there is no control socket: {}", why.in_a_line());
            Ok(None)
        }
    }
}

/// Starts the HTTP servers: all that are configured, or none.
fn begin_sites(daemon: &Arc<Daemon>, plan: &Plan) -> Result<Vec<Http>, Failure> {
    let wanted = [(metrics::SITE, &plan.metrics), (web::SITE, &plan.web)];
    let mut sites = Vec::new();
    for (site, at) in wanted.into_iter().filter_map(|(site, at)| Some((site, at.as_ref()?))) {
        match Http::start(daemon, at, site) {
            Ok(http) => sites.push(http),
            Err(why) => {
                sites.into_iter().for_each(Http::stop);
                return Err(why);
            }
        }
    }
    if let (Some(_), Some(page)) = (&plan.web, sites.last()) {
        info!(event = "status_page", "the status page is at http://{}/", page.address());
    }
    Ok(sites)
}

/// Shuts down: first the control socket, whose clients could still change something.
fn end(daemon: Arc<Daemon>, controlled: Option<control::Running>) -> Result<(), Failure> {
    if let Some(controlled) = controlled {
        controlled.stop();
    }
    Arc::try_unwrap(daemon).map_or_else(
        |shared| {
            // A call that has not ended holds a reference, so the pools cannot be closed.
            shared.sync();
            Err(Failure::run("something of the server still runs; the pools are recovered when they are opened"))
        },
        Daemon::stop,
    )
}
