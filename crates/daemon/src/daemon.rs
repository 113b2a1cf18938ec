//! The daemon: pools that it holds, exports of them, and the server.
//!
//! * D1. What changes the volumes of a pool, or what is exported of it, has the pool's turn ([`Held::turn`]). So no
//!   export of a volume begins while the volume is rolled back, and changes that several ask for are done one after
//!   the other. The turn is taken before the list of exports is locked, never after.
//! * D2. A pool or export that cannot be opened is kept with the reason, and nothing else waits for it. A reload tries
//!   again. At the start an export of a device that a server has is opened beside the others, and served when it is.
//! * D3. When it ends, no client is served any more before the pools are closed, so that all that was acknowledged is
//!   in them.
//! * D4. Who names no export gets the first of the configuration, and while that is not served none: a client that
//!   comes back never finds another disk in the place of its own.

mod changes;
pub(crate) mod late;
mod reload;
mod standby;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_drivers::host::Passed;
use sheave_drivers::spec;
use sheave_serve::{DefaultExport, Export, Exports, Limit, Listener, Notice, Origin, Server, ServerOptions};
use sheave_vol::Pool;
use tracing::{error, info, warn};

use crate::api::types::DeviceId;
use crate::config::{ExportPlan, Plan, PoolPlan, What};
use crate::failure::{self, Failure};
use crate::history::History;
use crate::log::CLIENT;
use crate::look::node_of;
use crate::opening::{self, Opening};
use crate::place::{Access, PoolPlace};
use crate::problems::Health;
use crate::rights::Rights;
use crate::{backend, confine, descriptors, trace};

/// How long a pool that another process has is waited for, and how often that is looked at.
const BUSY_WAIT: Duration = Duration::from_secs(2);
const BUSY_AGAIN: Duration = Duration::from_millis(20);

/// A running daemon.
pub struct Daemon {
    /// What serves.
    pub server: Server,
    pools: Mutex<BTreeMap<String, Arc<Held>>>,
    exports: Mutex<Vec<Row>>,
    /// The turn of exports of devices (D1).
    devices: Mutex<()>,
    /// Exports that were being opened when it began, until somebody serves them.
    opening: Mutex<Option<Opening>>,
    since: Instant,
    health: Mutex<Arc<Health>>,
    /// The last hour, for the status page.
    pub(crate) history: Mutex<History>,
    /// Why the configuration could not be read again.
    reload_failure: Mutex<Option<Failure>>,
    /// What of the configuration as it was read last counts from the next start on.
    restart_keys: Mutex<String>,
    /// What a reload does not change, as it was at the start.
    started: Vec<(&'static str, String)>,
    /// Where its traces are, if there is a place for them.
    pub traces: Option<PathBuf>,
}

/// A pool.
pub struct Held {
    /// As the configuration has it.
    pub plan: PoolPlan,
    /// What it lies on now.
    at: Mutex<At>,
    pool: Result<Pool, Failure>,
    /// Another host has it, or may have it: nothing begins on it any more.
    lost: AtomicBool,
    turn: Mutex<()>,
}

/// Where a pool lies: as the configuration has it, and on the members that were added since.
#[derive(Clone, Debug)]
struct At {
    place: PoolPlace,
    devices: Vec<DeviceId>,
}

impl At {
    /// On these members.
    fn of(whole: PoolPlace) -> At {
        let devices = ids(&whole);
        At { place: whole.spelled(), devices }
    }

    /// With one member more, which has this identity if it came as a file.
    fn add(&mut self, added: &PoolPlace, id: Option<DeviceId>) -> Result<(), Failure> {
        // As `PoolPlace::with` has it: in a spec with a device under it a path is a spec too.
        let nested = self.place.to_string().contains("over=");
        let named = match added.file_spec() {
            Some((path, options)) if options.is_empty() && !path.contains([',', '+', '"']) && !nested => path,
            Some((path, options)) => format!("file:{}{options}", spec::quoted(&path)),
            None => added.to_string(),
        };
        let unclear = |why| Failure::usage(format!("{added}: {why}")).fix("add it by a path without such signs");
        self.place = format!("{}+{named}", self.place).parse().map_err(unclear)?;
        match id {
            // Without all of them no command finds the daemon by the pool's files, as of a pool on other devices.
            None => self.devices = ids(&self.place),
            Some(_) if self.devices.is_empty() => {}
            Some(id) => self.devices.push(id),
        }
        Ok(())
    }
}

impl DeviceId {
    /// Of a file or block device that was opened.
    fn of(passed: &Passed) -> Result<DeviceId, Failure> {
        let meta = passed.file.metadata().map_err(|error| Failure::run(format!("looking at the file: {error}")))?;
        let (device, inode) = node_of(&meta);
        Ok(DeviceId { device, inode })
    }
}

/// By which other processes know what a pool lies on.
fn ids(place: &PoolPlace) -> Vec<DeviceId> {
    place.identities().into_iter().map(|(device, inode)| DeviceId { device, inode }).collect()
}

/// What a look at a pool has told.
pub(crate) enum Look {
    /// It is this host's.
    Own,
    /// The storage does not answer: whose the pool is, it will tell.
    Unknown,
    /// Another has it.
    Lost(Failure),
}

/// An export.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is.
    pub plan: ExportPlan,
    /// The configuration has it.
    pub configured: bool,
    /// Why it is not served.
    pub failed: Option<Failure>,
}

/// A lock, also after a panic elsewhere: what is under these is whole between any two statements.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells what a client has brought about: which one, and what it has.
fn client_notice(notice: &Notice<'_>) {
    let (event, client, export) = match notice {
        Notice::Server(what) => return warn!(target: CLIENT, event = "server", "{what}"),
        Notice::Dropped { client, .. } => ("client_dropped", client, client.export.as_deref()),
        Notice::Refused { client, export } => ("client_refused", client, Some(*export)),
    };
    let (mut uid, mut gid, mut process, mut address) = (None, None, None, None);
    match client.who.origin {
        Origin::Process { pid, uid: of, gid: group } => (process, uid, gid) = (pid, Some(of), Some(group)),
        Origin::Address(from) => address = Some(from.to_string()),
        Origin::Unknown => {}
    }
    let certificate = client.who.certificate.first();
    let (id, peer) = (client.id, client.peer.as_str());
    warn!(target: CLIENT, event, client = id, export, peer, pid = process, uid, gid, address, certificate, "{notice}");
}

impl Plan {
    /// What stays as it was at the start, by the keys of the configuration, in a form that is compared.
    fn fixed(&self) -> Vec<(&'static str, String)> {
        let Plan { listen, access, threads, max_clients, control, confine, reach, log_to, metrics, web, .. } = self;
        vec![
            ("listen", format!("{listen:?} {access:?}")),
            ("threads", format!("{threads:?}")),
            ("max_clients", max_clients.to_string()),
            ("control", format!("{control:?}")),
            ("confine", confine.to_string()),
            ("reach", format!("{reach:?}")),
            ("log_to", format!("{log_to:?}")),
            ("metrics", format!("{metrics:?}")),
            ("web", format!("{web:?}")),
        ]
    }

    /// What clients get that name no export (D4). What a command adds is for those that name it.
    fn default_export(&self) -> DefaultExport {
        self.exports.first().map_or(DefaultExport::Nobody, |first| DefaultExport::Named(first.name.clone()))
    }
}

impl PoolPlan {
    /// Tells that it is waited for, and what it waits for. That it is not open is told by the health.
    fn tell_waits(&self, why: &Failure) {
        if self.standby && why.is_busy() {
            let name = self.name.as_str();
            info!(event = "pool_waits", pool = name, "pool '{name}' is waited for: {}", why.in_a_line());
        }
    }
}

impl Held {
    fn open(plan: &PoolPlan) -> Held {
        match open_when_free(plan) {
            Ok((pool, whole)) => Held::new(plan, At::of(whole), Ok(pool)),
            Err(why) => Held::new(plan, At { devices: ids(&plan.place), place: plan.place.clone() }, Err(why)),
        }
    }

    /// One that is to be opened when it can be.
    fn waiting(plan: &PoolPlan) -> Held {
        Held::unopened(plan, Failure::busy("it is being opened"))
    }

    fn unopened(plan: &PoolPlan, why: Failure) -> Held {
        Held::new(plan, At { place: plan.place.clone(), devices: Vec::new() }, Err(why))
    }

    fn new(plan: &PoolPlan, at: At, pool: Result<Pool, Failure>) -> Held {
        Held { plan: plan.clone(), at: Mutex::new(at), pool, lost: AtomicBool::new(false), turn: Mutex::new(()) }
    }

    /// How it is named, with the members that were added since it was opened.
    pub fn place(&self) -> PoolPlace {
        self.at().place
    }

    /// What it lies on.
    pub fn devices(&self) -> Vec<DeviceId> {
        self.at().devices
    }

    fn at(&self) -> At {
        locked(&self.at).clone()
    }

    /// It lies on more from now on; in its turn (D1).
    fn moved(&self, at: &At) {
        locked(&self.at).clone_from(at);
    }

    /// Whether it is what a configuration asks for: as it was opened, or by any of its members.
    fn is(&self, plan: &PoolPlan) -> bool {
        let Self { plan: own, .. } = self;
        *plan == *own || (&plan.name, plan.read_only) == (&own.name, own.read_only) && self.has(plan)
    }

    /// Whether the members that a plan names, or those to which its UUID leads, are of this pool.
    fn has(&self, plan: &PoolPlan) -> bool {
        let devices = self.devices();
        let mut named = ids(&plan.place);
        if named.is_empty() {
            named = plan.place.whole().map_or_else(|_| Vec::new(), |whole| ids(&whole));
        }
        !named.is_empty() && named.iter().all(|id| devices.contains(id))
    }

    /// The pool, if it is open.
    pub fn pool(&self) -> Result<&Pool, Failure> {
        if self.is_lost() {
            let what = format!("the pool '{}' was lost: another host has it, or may have it", self.plan.name);
            return Err(Failure::busy(what).fix("see which host serves it now"));
        }
        self.pool.as_ref().map_err(|why| {
            let what = format!("the pool '{}' is not open: {}", self.plan.name, why.cause());
            Failure::run(what).fix(why.how_to_mend().unwrap_or("mend the cause, then reload the daemon (SIGHUP)"))
        })
    }

    /// Why it is not open.
    pub fn failed(&self) -> Option<&Failure> {
        self.pool.as_ref().err()
    }

    /// Whether it was open and is not this host's any more. What was begun on it before is to end.
    pub(crate) fn is_lost(&self) -> bool {
        // Acquire, with the exchange in `Daemon::lose`: who sees it finds in the log why.
        self.lost.load(Ordering::Acquire)
    }

    /// Whether it is waited for.
    fn is_waited_for(&self) -> bool {
        self.plan.standby && self.failed().is_some()
    }
}

/// Opens a pool. One that is in use is waited for, unless the daemon stands by and tries again later: the kernel ring
/// of a daemon that was killed has its files for an instant longer than the daemon lives, and the next daemon is
/// started at once.
fn open_when_free(plan: &PoolPlan) -> Result<(Pool, PoolPlace), Failure> {
    plan.place.expect_pool()?;
    if let Some(refused) = confine::refusal(&plan.place.reaches()) {
        return Err(refused);
    }
    let whole = confine::whole(&plan.place)?;
    if let Some(refused) = confine::refusal(&whole.reaches()) {
        return Err(refused);
    }
    if plan.standby {
        return whole.open_fenced().map(|pool| (pool, whole));
    }
    let until = Instant::now() + BUSY_WAIT;
    loop {
        match whole.open_now(if plan.read_only { Access::Look } else { Access::Change }) {
            Err(busy) if busy.is_busy() && Instant::now() < until => std::thread::sleep(BUSY_AGAIN),
            opened => return opened.map(|pool| (pool, whole)),
        }
    }
}

/// Opens each of them on a thread of its own, so that none waits for another's recovery.
fn open_all(plans: &[PoolPlan]) -> Vec<Held> {
    std::thread::scope(|scope| {
        let open = |plan| std::thread::Builder::new().spawn_scoped(scope, move || Held::open(plan));
        let threads: Vec<_> = plans.iter().map(open).collect();
        let held = threads.into_iter().zip(plans).map(|(thread, plan)| match thread {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Held::unopened(plan, Failure::run("opening it ended by a bug")))
            }
            // There is no thread to be had: one after the other, then.
            Err(_) => Held::open(plan),
        });
        held.collect()
    })
}

/// What is open, before it is served.
pub struct Opened {
    pools: BTreeMap<String, Arc<Held>>,
    rows: Vec<Row>,
    /// In the order of the rows.
    exports: Vec<Option<Export>>,
    opening: Opening,
}

impl Opened {
    /// Opens everything of a plan that opens (D2). Pools that it stands by for are opened later, by the threads for
    /// that: another host may have them, or the storage may be silent. Devices that may be silent are waited for with
    /// some patience, or until all have opened or failed.
    pub fn new(plan: &Plan, patience: Option<Duration>) -> Opened {
        let opening = Opening::begin(plan);
        let (waited, now): (Vec<_>, Vec<_>) = plan.pools.iter().cloned().partition(|plan| plan.standby);
        let waited = waited.iter().map(Held::waiting);
        let pools: BTreeMap<_, _> =
            open_all(&now).into_iter().chain(waited).map(|held| (held.plan.name.clone(), Arc::new(held))).collect();
        let (mut rows, mut exports) = (Vec::new(), Vec::new());
        for plan in &plan.exports {
            let opened = match opening.has(&plan.name) {
                true => Err(opening::not_yet()),
                false => open_export(plan, None, Rights::Own, |name| pools.get(name).cloned()),
            };
            let (export, failed) = apart(opened);
            rows.push(Row { plan: plan.clone(), configured: true, failed });
            exports.push(export);
        }
        let mut opened = Opened { pools, rows, exports, opening };
        opened.wait(patience.map(|patience| Instant::now() + patience));
        opened
    }

    /// Waits for devices that are being opened.
    fn wait(&mut self, until: Option<Instant>) {
        while let Some((plan, opened)) = self.opening.next(until) {
            let mut rows = self.rows.iter_mut().zip(&mut self.exports);
            if let Some((row, export)) = rows.find(|(row, _)| row.plan.name == plan.name) {
                (*export, row.failed) = apart(opened);
            }
        }
    }

    /// The first reason why something did not open.
    pub fn failure(&self) -> Option<&Failure> {
        let pools = self.pools.values().find_map(|held| held.failed());
        pools.or_else(|| self.rows.iter().find_map(|row| row.failed.as_ref()))
    }

    /// Tells what is waited for. What did not open is told by the health.
    pub fn tell(&self) {
        for row in self.rows.iter().filter(|row| self.opening.has(&row.plan.name)) {
            let name = row.plan.name.as_str();
            info!(
                event = "export_waits",
                export = name,
                "export '{name}' is served later: {}",
                opening::not_yet().cause()
            );
        }
    }

    /// What is served, in words.
    pub fn describe(&self) -> Vec<(String, String)> {
        let place = |pool: &str| self.pools.get(pool).map_or_else(String::new, |held| held.place().to_string());
        let served = self.rows.iter().zip(&self.exports).filter_map(|(row, export)| Some((row, export.as_ref()?)));
        served.map(|(row, export)| (export.name.clone(), row.plan.in_words(export, place))).collect()
    }

    /// Lets go of everything.
    pub fn close(self) -> Result<(), Failure> {
        drop(self.exports);
        close_all(self.pools)
    }

    /// Serves it.
    pub fn serve(self, listeners: Vec<Listener>, plan: &Plan) -> Result<Daemon, Failure> {
        let mut options = ServerOptions { slow_limit: plan.slow_limit, ..ServerOptions::default() };
        if let Some(threads) = plan.threads {
            options.reactors = usize::from(threads);
        }
        options.max_clients = descriptors::clients(plan.max_clients, options.reactors + self.pools.len());
        let places = self.rows.iter().map(|row| row.plan.name.clone()).zip(self.exports);
        let places = places.filter(|(name, export)| export.is_some() || self.opening.has(name));
        let exports = Exports::in_places(places.collect()).with_default(plan.default_export());
        match Server::start(exports, listeners, options, Box::new(client_notice)) {
            Ok(server) => {
                let daemon = Daemon {
                    server,
                    pools: Mutex::new(self.pools),
                    exports: Mutex::new(self.rows),
                    devices: Mutex::new(()),
                    opening: Mutex::new(Some(self.opening)),
                    since: Instant::now(),
                    health: Mutex::new(Arc::new(Health::new(Vec::new()))),
                    history: Mutex::default(),
                    reload_failure: Mutex::default(),
                    restart_keys: Mutex::default(),
                    started: plan.fixed(),
                    traces: plan.control.as_ref().map(|control| trace::directory(&control.path)),
                };
                // Those that are not served have none; they get it when they are.
                daemon.server.set_limits(&plan.exports.iter().map(|own| (own.name.as_str(), own.limit)).collect());
                Ok(daemon)
            }
            Err(error) => {
                close_all(self.pools)?;
                Err(failure::serve(error))
            }
        }
    }
}

/// Closes pools, so that their next opening has nothing to recover.
fn close_all(pools: BTreeMap<String, Arc<Held>>) -> Result<(), Failure> {
    let mut first = Ok(());
    for held in pools.into_values() {
        if let Ok(pool) = &held.pool {
            first = first.and(pool.clone().close().map_err(failure::pool));
        }
    }
    first
}

/// What is served, and why nothing is: one of them.
fn apart(opened: Result<Export, Failure>) -> (Option<Export>, Option<Failure>) {
    opened.map_or_else(|why| (None, Some(why)), |export| (Some(export), None))
}

/// Opens what an export serves.
fn open_export(
    plan: &ExportPlan,
    passed: Option<Passed>,
    rights: Rights,
    held: impl Fn(&str) -> Option<Arc<Held>>,
) -> Result<Export, Failure> {
    match &plan.what {
        What::Device { spec } => backend::device(plan, spec, passed, rights),
        What::Volume { pool, volume } => {
            let held = held(pool).ok_or_else(|| no_pool(pool))?;
            backend::volume(plan, held.pool()?, volume)
        }
    }
}

/// There is no such pool.
fn no_pool(name: &str) -> Failure {
    Failure::run(format!("the daemon has no pool '{name}'"))
        .fix("ask for its pools: ListPools, or look at its configuration")
}

impl Daemon {
    /// When it began.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// What a look has found.
    pub(crate) fn note_health(&self, health: Health) {
        *locked(&self.health) = Arc::new(health);
    }

    /// What is served and what is wrong, in a line.
    pub(crate) fn status_line(&self) -> String {
        self.health().with(self.server.exports().len())
    }

    /// What is wrong, as the newest look has found it.
    pub(crate) fn health(&self) -> Arc<Health> {
        let newest = locked(&self.health).clone();
        newest.now()
    }

    /// Why the configuration could not be read again.
    pub(crate) fn reload_failure(&self) -> Option<Failure> {
        locked(&self.reload_failure).clone()
    }

    /// The keys of the configuration that count from the next start on; empty when all of it counts.
    pub(crate) fn restart_keys(&self) -> String {
        locked(&self.restart_keys).clone()
    }

    /// How reading the configuration again has ended.
    pub(crate) fn note_reload(&self, failure: Option<Failure>) {
        *locked(&self.reload_failure) = failure;
    }

    /// All pools, by name.
    pub fn pools(&self) -> Vec<Arc<Held>> {
        locked(&self.pools).values().cloned().collect()
    }

    /// One of them.
    pub fn held(&self, name: &str) -> Result<Arc<Held>, Failure> {
        locked(&self.pools).get(name).cloned().ok_or_else(|| no_pool(name))
    }

    /// All exports, also those that are not served.
    pub fn rows(&self) -> Vec<Row> {
        locked(&self.exports).clone()
    }

    /// Sets how fast an export may be, until a configuration says something else.
    pub fn set_limit(&self, name: &str, limit: Option<Limit>) -> Result<(), Failure> {
        self.server.set_limit(name, limit).map_err(failure::serve)
    }

    /// Sets how fast an export may be by its plan.
    fn limit(&self, plan: &ExportPlan) {
        // One that is not served has none; it gets its limit when it is.
        let _ = self.server.set_limit(&plan.name, plan.limit);
    }

    /// Makes the pools durable, for an end that cannot close them.
    pub fn sync(&self) {
        for held in self.pools() {
            if let Ok(pool) = held.pool()
                && let Err(why) = pool.sync()
            {
                let name = held.plan.name.as_str();
                error!(event = "pool_not_durable", pool = name, "pool '{name}': {}", failure::pool(why).in_a_line());
            }
        }
    }

    /// Ends it (D3).
    pub fn stop(self) -> Result<(), Failure> {
        let stopped = self.server.stop().map_err(failure::serve);
        let pools = self.pools.into_inner().unwrap_or_else(PoisonError::into_inner);
        let closed = close_all(pools);
        stopped.and(closed)
    }
}
