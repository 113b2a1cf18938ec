//! The life of the daemon, until Ctrl-C, SIGTERM or the end of a command.
//!
//! Owns the order: pools and volumes are opened, then the sockets, then the reactors, then the control socket. At the
//! end it is reversed.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sheave_drivers::host;
use sheave_load::signals::{self, End, Ender, Hangups};
use sheave_serve::listen::handover;
use sheave_serve::{Address, Listener, Parcel};
use tracing::{info, warn};

use crate::captive::{self, Captive};
use crate::config::{self, One, Overrides, Plan};
use crate::daemon::late::{Late, PATIENCE};
use crate::daemon::standby::Standby;
use crate::daemon::upgrades::{self, Upgrades};
use crate::daemon::{Daemon, Opened, Origin, Row};
use crate::failure::{self, Failure};
use crate::health::watch::{self, Watch, Watcher};
use crate::http::Http;
use crate::log::Sink;
use crate::retries::Retries;
use crate::ticker::Ticker;
use crate::upgrade::give::{self, Given, Sockets, Successor};

use crate::upgrade::protocol::Take;
use crate::upgrade::take::{self, Incoming, Predecessor};
use crate::{check, confine, control, descriptors, log, metrics, systemd, tls, web};

/// Prints a line to stderr, ignoring errors: a closed or full stderr must not stop the server.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Serves a configuration until a signal arrives, or a new process takes over. Returns the exit code. Parts that do not
/// open are reported, and the rest is served. With `takes_over`, everything is taken over from another process, whose
/// socket is stdin.
///
/// # Errors
///
/// Nothing can be served, or the shutdown failed.
pub fn configured(path: &Path, overrides: Overrides, takes_over: bool) -> Result<u8, Failure> {
    let ender = Arc::new(Ender::new()?);
    if takes_over {
        return taken_over(path, overrides, &ender);
    }
    let begun = Start::read(path, overrides)?.open(&ender, None)?;
    begun.daemon.server.go_on_with(Parcel::default());
    begun.serve(&ender)
}

/// Takes everything over from another process, and serves it.
fn taken_over(path: &Path, overrides: Overrides, ender: &Arc<Ender>) -> Result<u8, Failure> {
    let mut from = Predecessor::greet().inspect_err(take::tell_failed)?;
    let start = Start::read(path, overrides).inspect_err(|why| from.give_up(why))?;
    let mut start = Some(start);
    let (mut incoming, mut begun) = (None, None);
    let mut why = Failure::run("the upgrade has failed");
    let mut step = Take::Receive;
    loop {
        let done = match step {
            Take::Receive => from.receive().map(|all| incoming = Some(all)),
            Take::Open => match start.take().map(|start| start.open(ender, incoming.as_ref())) {
                Some(Ok(daemon)) if ender.is_told() => {
                    let daemon: Begun = daemon;
                    let _ = daemon.daemon.stop();
                    Err(Failure::run("the new process was told to end"))
                }
                Some(Ok(daemon)) => {
                    begun = Some(daemon);
                    Ok(())
                }
                Some(Err(failed)) => Err(failed),
                None => Ok(()),
            },
            Take::Say => from.say_taken(),
            Take::OldEnds => match from.ends() {
                true => Ok(()),
                false => Err(why.clone()),
            },
            Take::GiveUp => {
                from.give_up(&why);
                return Err(why);
            }
            Take::Own => break,
            Take::Die => {
                // Not closed, because that writes to the pools, which belong to the old process.
                std::mem::forget(begun);
                return Err(why);
            }
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
    let (Some(incoming), Some(begun)) = (incoming, begun) else { return Err(why) };
    begun.daemon.server.go_on_with(incoming.own(from));
    begun.serve(ender)
}

/// A configuration that was read, and everything that needs neither pools nor sockets.
struct Start {
    path: PathBuf,
    overrides: Overrides,
    plan: Plan,
    tls: Vec<tls::Loaded>,
    hangups: Arc<Hangups>,
}

impl Start {
    fn read(path: &Path, overrides: Overrides) -> Result<Start, Failure> {
        let plan = overrides.apply(config::read(path)?);
        log::start(plan.log, plan.log_to)?;
        let hangups = Arc::new(signals::hangups()?);
        let tls = tls::load(&plan.tls)?;
        descriptors::raise();
        control::prepare(&plan);
        Ok(Start { path: path.to_owned(), overrides, plan, tls, hangups })
    }

    /// Opens sockets, pools and exports: those of another process, if there is one, or new ones. The server serves
    /// nobody yet.
    fn open(self, ender: &Arc<Ender>, incoming: Option<&Incoming>) -> Result<Begun, Failure> {
        let Start { path, overrides, mut plan, tls, hangups } = self;
        let passed = match incoming {
            Some(incoming) => incoming.passed()?,
            None => systemd::listeners()?,
        };
        let arguments = overrides.arguments();
        let config = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        let upgrades = Upgrades::of(upgrades::Start { config, arguments }, ender.clone());
        let mut origin = Origin::new(&passed, upgrades);
        let listeners = with_passed(passed, &plan, &tls)?;
        let is_attached = plan.exports.iter().any(|export| export.vhost_user.is_some());
        if listeners.is_empty() && plan.control.is_none() && !is_attached {
            return Err(Failure::usage(format!("{} has no address to listen on", path.display()))
                .fix("add listen = [\"unix:/run/sheave/nbd.sock\"], vhost_user to an export, or a control socket"));
        }
        let clear = listeners.iter().filter(|listener| !listener.asks_for_certificates()).map(Listener::address);
        for (event, what) in check::advice(&plan, clear) {
            warn!(event, "{what}");
        }
        sheave_kring::restrict_rings();
        confine::start(&plan, Some(&path));
        let mut added = Vec::new();
        if let Some(incoming) = incoming {
            incoming.expect_all(&plan, &path)?;
            origin.since = incoming.since();
            added = incoming.added()?;
            // An export that a command has added, and that the configuration has by now, stays as the command left it.
            for own in &mut plan.exports {
                let at = added.iter().position(|one| one.name == own.name);
                at.into_iter().for_each(|at| *own = added.remove(at));
            }
        }
        let places = Places::bind(&plan)?;
        let opened = Opened::new(&plan, Some(PATIENCE), &added);
        opened.tell();
        if let Some(why) = incoming.and_then(|incoming| incoming.lacks(&opened)) {
            opened.close()?;
            return Err(why);
        }
        let daemon = opened.serve(listeners, &plan, origin)?;
        if let Some(Err(why)) = incoming.map(|incoming| incoming.blob.apply(&daemon.server)) {
            daemon.stop()?;
            return Err(why);
        }
        Ok(Begun { path, overrides, plan, tls, hangups, places, daemon: Box::new(daemon) })
    }
}

/// A daemon that serves.
struct Begun {
    path: PathBuf,
    overrides: Overrides,
    plan: Plan,
    tls: Vec<tls::Loaded>,
    hangups: Arc<Hangups>,
    places: Places,
    daemon: Box<Daemon>,
}

/// The sockets of the control socket and of the HTTP servers, which are bound before a daemon is taken over: nothing
/// may fail afterwards.
struct Places {
    control: Option<Listener>,
    metrics: Option<Listener>,
    web: Option<Listener>,
}

impl Places {
    fn bind(plan: &Plan) -> Result<Places, Failure> {
        let site = |at: &Option<String>| at.as_ref().map(|at| Http::bind(at)).transpose();
        Ok(Places { control: bind_control(plan)?, metrics: site(&plan.metrics)?, web: site(&plan.web)? })
    }
}

impl Begun {
    /// Serves until a signal arrives, or a new process has taken over. Returns the exit code.
    fn serve(self, ender: &Ender) -> Result<u8, Failure> {
        let Begun { path, overrides, plan, tls, mut hangups, places, daemon } = self;
        let mut places = Some(places);
        let mut daemon = Arc::<Daemon>::from(daemon);
        let mut is_told = false;
        loop {
            let bound = places.take().map_or_else(|| Places::bind(&plan), Ok);
            let started =
                bound.and_then(|bound| Around::start(&daemon, (&plan, bound), &path, &overrides, hangups.clone()));
            let around = match started {
                Ok(around) => around,
                Err(why) => {
                    end(daemon, None)?;
                    return Err(why);
                }
            };
            if !std::mem::replace(&mut is_told, true) {
                tell_serving(&daemon);
            }
            systemd::ready(&daemon.status_line());
            // Everything that was taken over, or back, is open by now.
            host::end_inheritance();
            for address in handover::end_inheritance() {
                info!(event = "listens_no_more", "the configuration has no {address} any more");
            }
            let Some(to) = wait_for_end(ender, &daemon)? else {
                info!(event = "stopping", "ending: clients are drained, pools are closed");
                systemd::stopping();
                around.stop();
                end(daemon, None)?;
                return Ok(0);
            };
            let (sockets, to) = to;
            hangups = around.stop();
            let given = match Arc::try_unwrap(daemon) {
                Ok(alone) => give::give(Box::new(alone), to, sockets, (&plan, &tls), (ender, &hangups))?,
                Err(shared) => {
                    let why = Failure::run("a call at the control socket has not ended");
                    to.refuse(&why);
                    sockets.give_back();
                    shared.upgrades.failed();
                    give::tell_failed(&why);
                    daemon = shared;
                    continue;
                }
            };
            match given {
                Given::Away => {
                    info!(event = "handed_over", "a new process has taken over");
                    return Ok(0);
                }
                Given::Back(back, why) => {
                    back.upgrades.failed();
                    give::tell_failed(&why);
                    daemon = Arc::from(back);
                }
            }
        }
    }
}

/// Waits until the daemon is to end, which is `None`, or a new process waits for its state.
fn wait_for_end(ender: &Ender, daemon: &Daemon) -> Result<Option<(Sockets, Successor)>, Failure> {
    loop {
        if ender.wait().map_err(captive::ender_failed)? == End::Signal {
            return Ok(None);
        }
        let Some(socket) = daemon.upgrades.take() else { continue };
        let ready = Successor::hear(socket).and_then(|to| match Sockets::keep() {
            Ok(sockets) => Ok((sockets, to)),
            Err(why) => {
                to.refuse(&why);
                Err(why)
            }
        });
        match ready {
            Ok(ready) => return Ok(Some(ready)),
            Err(why) => {
                daemon.upgrades.failed();
                give::tell_failed(&why);
            }
        }
    }
}

fn tell_serving(daemon: &Daemon) {
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
    info!(event = "serving", exports = served, "{serving}");
}

/// Everything that works on a daemon beside its server. Nothing of it holds the daemon after it was stopped.
struct Around {
    controlled: Option<control::Running>,
    sites: Vec<Http>,
    watch: Watch,
    watchdog: Option<Ticker>,
    standby: Standby,
    retries: Retries,
    late: Option<Late>,
    reloads: Reloads,
}

impl Around {
    fn start(
        daemon: &Arc<Daemon>,
        (plan, places): (&Plan, Places),
        path: &Path,
        overrides: &Overrides,
        hangups: Arc<Hangups>,
    ) -> Result<Around, Failure> {
        let Places { control, metrics, web } = places;
        let controlled = begin_control(daemon, plan, control)?;
        let sites = match begin_sites(daemon, metrics, web) {
            Ok(sites) => sites,
            Err(why) => {
                controlled.into_iter().for_each(control::Running::stop);
                return Err(why);
            }
        };
        let watch = Watch::start(daemon).map_err(captive::ender_failed)?;
        let watchdog = systemd::watchdog(daemon);
        let standby = Standby::start(daemon)?;
        let retries = Retries::start(daemon)?;
        let late = daemon.begin_late()?;
        let overrides = overrides.clone();
        let read = move |path: &Path| config::read(path).map(|plan| overrides.apply(plan));
        let reloads = Reloads::start(daemon, watch.looker(), path, read, hangups)?;
        Ok(Around { controlled, sites, watch, watchdog, standby, retries, late, reloads })
    }

    /// Stops everything. Returns the receiver of SIGHUP.
    fn stop(self) -> Arc<Hangups> {
        let Around { controlled, sites, watch, watchdog, standby, retries, late, reloads } = self;
        // First ends the copies of control clients: a reload may be waiting for the turn of their pools.
        controlled.into_iter().for_each(control::Running::stop);
        standby.stop();
        retries.stop();
        late.into_iter().for_each(Late::stop);
        watchdog.into_iter().for_each(Ticker::stop);
        watch.stop();
        sites.into_iter().for_each(Http::stop);
        reloads.stop()
    }
}

/// The thread that reloads the configuration at SIGHUP.
struct Reloads {
    thread: JoinHandle<()>,
    hangups: Arc<Hangups>,
    /// Closing it stops the thread.
    ends: UnixStream,
}

impl Reloads {
    fn start(
        daemon: &Arc<Daemon>,
        watcher: Arc<Mutex<Watcher>>,
        path: &Path,
        read: impl Fn(&Path) -> Result<Plan, Failure> + Send + 'static,
        hangups: Arc<Hangups>,
    ) -> Result<Reloads, Failure> {
        let (daemon, path, kept) = (daemon.clone(), path.to_owned(), hangups.clone());
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
        Ok(Reloads { thread: std::thread::spawn(run), hangups: kept, ends })
    }

    fn stop(self) -> Arc<Hangups> {
        drop(self.ends);
        // A panic of a reload was already reported.
        let _ = self.thread.join();
        self.hangups
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
    let opened = Opened::new(&plan, None, &[]);
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
    let origin = Origin::new(&[], Upgrades::default());
    let names: Vec<String> = listeners.iter().flat_map(|at| described.iter().map(|(name, _)| at.uri(name))).collect();
    let daemon = Arc::new(opened.serve(listeners, &plan, origin)?);
    daemon.server.go_on_with(Parcel::default());
    let places = Places::bind(&plan);
    let controlled =
        places.and_then(|Places { control, metrics, web }| Ok((begin_control(&daemon, &plan, control)?, metrics, web)));
    let (controlled, code) = match controlled {
        Ok((controlled, metrics, web)) => {
            let code = begin_sites(&daemon, metrics, web).and_then(|sites| {
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

fn with_passed(mut listeners: Vec<Listener>, plan: &Plan, tls: &[tls::Loaded]) -> Result<Vec<Listener>, Failure> {
    listeners.extend(listen(plan)?);
    tls::set(&listeners, tls, &plan.listen)?;
    Ok(listeners)
}

fn listen(plan: &Plan) -> Result<Vec<Listener>, Failure> {
    let bind = |address: &Address| match plan.access.iter().find(|(of, _)| of == address) {
        Some((_, access)) => Listener::bind_for(address, access),
        None => Listener::bind(address),
    };
    plan.listen.iter().map(bind).collect::<Result<Vec<_>, _>>().map_err(failure::serve)
}

/// Binds the control socket. If nobody asked for it explicitly, the server runs without it on failure.
fn bind_control(plan: &Plan) -> Result<Option<Listener>, Failure> {
    let Some(wanted) = &plan.control else { return Ok(None) };
    match control::bind(wanted) {
        Ok(bound) => Ok(Some(bound)),
        Err(why) if wanted.wanted => Err(why),
        Err(why) => {
            warn!(event = "no_control", "there is no control socket: {}", why.in_a_line());
            Ok(None)
        }
    }
}

/// Starts the control socket. As with [`bind_control`], the server may run without it.
fn begin_control(
    daemon: &Arc<Daemon>,
    plan: &Plan,
    bound: Option<Listener>,
) -> Result<Option<control::Running>, Failure> {
    let (Some(wanted), Some(bound)) = (&plan.control, bound) else { return Ok(None) };
    match control::Running::start(daemon, wanted, bound) {
        Ok(running) => Ok(Some(running)),
        Err(why) if wanted.wanted => Err(why),
        Err(why) => {
            warn!(event = "no_control", "there is no control socket: {}", why.in_a_line());
            Ok(None)
        }
    }
}

/// Starts the HTTP servers: all that are bound, or none.
fn begin_sites(daemon: &Arc<Daemon>, metrics: Option<Listener>, web: Option<Listener>) -> Result<Vec<Http>, Failure> {
    let has_page = web.is_some();
    let mut sites = Vec::new();
    for (site, bound) in [(metrics::SITE, metrics), (web::SITE, web)] {
        let Some(bound) = bound else { continue };
        match Http::start(daemon, bound, site) {
            Ok(http) => sites.push(http),
            Err(why) => {
                sites.into_iter().for_each(Http::stop);
                return Err(why);
            }
        }
    }
    if let (true, Some(page)) = (has_page, sites.last()) {
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
