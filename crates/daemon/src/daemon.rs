//! The daemon: its open pools, their exports, and the server.
//!
//! * D1. Every change to the volumes of a pool, or to its exports, holds the pool's turn ([`Held::turn`]). So no export
//!   of a volume begins while the volume is rolled back, and concurrent changes are serialized. The turn is acquired
//!   before the lock of the list of exports, never after.
//! * D2. A pool or export that cannot be opened is kept together with the reason, and nothing else waits for it. A
//!   reload tries again. At the start, exports of devices that a server has are opened in parallel with the rest, and
//!   served once they are open.
//! * D3. The daemon closes its pools only after the last client was disconnected, so that all acknowledged writes are
//!   in them.
//! * D4. A client that names no export gets the first one of the configuration, or none while that one is not served: a
//!   client that reconnects never finds another disk in place of its own.

mod changes;
pub(crate) mod late;
mod reload;
pub(crate) mod standby;
pub(crate) mod upgrades;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_drivers::host::Passed;
use sheave_drivers::spec;
use sheave_serve::{
    Address, DefaultExport, Export, Exports, Limit, Listener, Notice, Origin as From, Parcel, Server, ServerOptions,
};
use sheave_vol::Pool;
use tracing::{error, info, warn};

use self::late::Opening;
use self::upgrades::Upgrades;
use crate::api::types::DeviceId;
use crate::busy::BusyTimes;
use crate::config::{ExportPlan, Plan, PoolPlan, What};
use crate::failure::{self, Failure};
use crate::history::History;
use crate::log::CLIENT;
use crate::look::node_of;
use crate::place::{Access, PoolPlace};
use crate::problems::Health;
use crate::rights::Rights;
use crate::{backend, confine, descriptors, trace};

/// Time to wait for a pool that another process holds, and the interval between attempts.
const BUSY_WAIT: Duration = Duration::from_secs(2);
const BUSY_AGAIN: Duration = Duration::from_millis(20);

pub struct Daemon {
    pub server: Server,
    pools: Mutex<BTreeMap<String, Arc<Held>>>,
    exports: Mutex<Vec<Row>>,
    /// Serializes changes to exports of devices (D1).
    devices: Mutex<()>,
    /// Exports that were still being opened when the server started; taken by the thread that serves them later.
    opening: Mutex<Option<Opening>>,
    /// When it was started, or the first of the daemons that it has taken over from in turn.
    since: Instant,
    /// Addresses of the listeners that the daemon was given, and has not bound itself.
    passed: Vec<Address>,
    pub(crate) upgrades: Upgrades,
    health: Mutex<Arc<Health>>,
    /// Statistics of the last hour, for the status page.
    pub(crate) history: Mutex<History>,
    /// Busy times of the devices under pools and exports.
    pub(crate) busy: Mutex<BusyTimes>,
    /// Reason why the last reload failed.
    reload_failure: Mutex<Option<Failure>>,
    /// Keys that changed in the last reload, and take effect at the next start only.
    restart_keys: Mutex<String>,
    /// Settings that a reload cannot change, with their values at the start.
    started: Vec<(&'static str, String)>,
    /// Directory for traces, if there is one.
    pub traces: Option<PathBuf>,
}

/// The part of a daemon that outlives an upgrade that has failed.
pub(crate) struct Origin {
    pub(crate) since: Instant,
    pub(crate) passed: Vec<Address>,
    pub(crate) upgrades: Upgrades,
}

impl Origin {
    /// The origin of a daemon that begins now.
    pub(crate) fn new(listeners: &[Listener], upgrades: Upgrades) -> Origin {
        let passed = listeners.iter().map(|listener| listener.asked_for().clone()).collect();
        Origin { since: Instant::now(), passed, upgrades }
    }
}

/// A daemon that was taken apart for an upgrade.
pub(crate) struct Apart {
    /// The plan by which it can be put together again, and the exports beside it.
    pub(crate) plan: Plan,
    pub(crate) added: Vec<ExportPlan>,
    pub(crate) parcel: Parcel,
    /// Limits that were set while the daemon ran, by the name of their export; none removes the limit.
    pub(crate) limits: Vec<(String, Option<Limit>)>,
    /// Latency above which an I/O is slow, if it was set while the daemon ran.
    pub(crate) slow_limit: Option<Duration>,
    /// Names of the pools that are open, and of the exports that are served.
    pub(crate) pools: Vec<String>,
    pub(crate) exports: Vec<String>,
    pub(crate) origin: Origin,
}

/// A pool of the configuration, open or not.
pub struct Held {
    /// The pool's entry in the configuration.
    pub plan: PoolPlan,
    /// Current members.
    at: Mutex<At>,
    pool: Result<Pool, Failure>,
    /// Set when another host has the pool, or may have it. No new operation begins on it.
    lost: AtomicBool,
    turn: Mutex<()>,
}

/// Location of a pool: the configured members and those added since.
#[derive(Clone, Debug)]
struct At {
    place: PoolPlace,
    devices: Vec<DeviceId>,
}

impl At {
    fn of(whole: PoolPlace) -> At {
        let devices = ids(&whole);
        At { place: whole.spelled(), devices }
    }

    /// Adds a member; `id` is its identity, if it was passed as an open file.
    fn add(&mut self, added: &PoolPlace, id: Option<DeviceId>) -> Result<(), Failure> {
        // As in `PoolPlace::with`: a path within a nested spec must be written as a spec.
        let nested = self.place.to_string().contains("over=");
        let named = match added.file_spec() {
            Some((path, options)) if options.is_empty() && !path.contains([',', '+', '"']) && !nested => path,
            Some((path, options)) => format!("file:{}{options}", spec::quoted(&path)),
            None => added.to_string(),
        };
        let unclear = |why| Failure::usage(format!("{added}: {why}")).fix("add it by a path without such signs");
        self.place = format!("{}+{named}", self.place).parse().map_err(unclear)?;
        match id {
            // Commands find the daemon by the identities of all members. If one has none, as a device of a server, the
            // list is left empty.
            None => self.devices = ids(&self.place),
            Some(_) if self.devices.is_empty() => {}
            Some(id) => self.devices.push(id),
        }
        Ok(())
    }
}

impl DeviceId {
    /// Returns the identity of an open file or block device.
    fn of(passed: &Passed) -> Result<DeviceId, Failure> {
        let meta = passed.file.metadata().map_err(|error| Failure::run(format!("looking at the file: {error}")))?;
        let (device, inode) = node_of(&meta);
        Ok(DeviceId { device, inode })
    }
}

/// Identities by which other processes recognise the members of a pool.
fn ids(place: &PoolPlace) -> Vec<DeviceId> {
    place.identities().into_iter().map(|(device, inode)| DeviceId { device, inode }).collect()
}

/// An export, served or failed.
#[derive(Clone, Debug)]
pub struct Row {
    pub plan: ExportPlan,
    /// True if it comes from the configuration, false if a control method added it.
    pub configured: bool,
    /// Reason why it is not served.
    pub failed: Option<Failure>,
}

/// Locks a mutex, ignoring poisoning. The data under these mutexes is consistent between any two statements, so a panic
/// of another holder does no harm.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs an event that a client caused, with the client's identity.
fn client_notice(notice: &Notice<'_>) {
    let (event, client, export) = match notice {
        Notice::Server(what) => return warn!(target: CLIENT, event = "server", "{what}"),
        Notice::Dropped { client, .. } => ("client_dropped", client, client.export.as_deref()),
        Notice::Denied { client, .. } => ("front_end_refused", client, client.export.as_deref()),
        Notice::Refused { client, export } => ("client_refused", client, Some(*export)),
    };
    let (mut uid, mut gid, mut process, mut address) = (None, None, None, None);
    match client.who.origin {
        From::Process { pid, uid: of, gid: group } => (process, uid, gid) = (pid, Some(of), Some(group)),
        From::Address(from) => address = Some(from.to_string()),
        From::Unknown => {}
    }
    let certificate = client.who.certificate.first();
    let (id, peer) = (client.id, client.peer.as_str());
    warn!(target: CLIENT, event, client = id, export, peer, pid = process, uid, gid, address, certificate, "{notice}");
}

impl Plan {
    /// Settings that a reload cannot change, by key, as text that can be compared.
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

    /// Export for clients that name none (D4). Exports added by a command are for clients that name them.
    fn default_export(&self) -> DefaultExport {
        self.exports.first().map_or(DefaultExport::Nobody, |first| DefaultExport::Named(first.name.clone()))
    }
}

impl PoolPlan {
    /// Logs that the daemon waits for this pool, and why. The health reports that it is not open.
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

    /// A pool that is opened later, by another thread.
    fn waiting(plan: &PoolPlan) -> Held {
        Held::unopened(plan, Failure::busy("it is being opened"))
    }

    fn unopened(plan: &PoolPlan, why: Failure) -> Held {
        Held::new(plan, At { place: plan.place.clone(), devices: Vec::new() }, Err(why))
    }

    fn new(plan: &PoolPlan, at: At, pool: Result<Pool, Failure>) -> Held {
        Held { plan: plan.clone(), at: Mutex::new(at), pool, lost: AtomicBool::new(false), turn: Mutex::new(()) }
    }

    /// Location as it is written in specs, including members that were added since the pool was opened.
    pub fn place(&self) -> PoolPlace {
        self.at().place
    }

    /// Identities of the members.
    pub fn devices(&self) -> Vec<DeviceId> {
        self.at().devices
    }

    fn at(&self) -> At {
        locked(&self.at).clone()
    }

    /// Records a new location. The caller holds the turn (D1).
    fn moved(&self, at: &At) {
        locked(&self.at).clone_from(at);
    }

    /// Returns true if `plan` means this pool: an identical entry, or one that names any of its members.
    fn is(&self, plan: &PoolPlan) -> bool {
        let Self { plan: own, .. } = self;
        *plan == *own || (&plan.name, plan.read_only) == (&own.name, own.read_only) && self.has(plan)
    }

    /// Returns true if all members that `plan` names, or that its UUID leads to, belong to this pool.
    fn has(&self, plan: &PoolPlan) -> bool {
        let devices = self.devices();
        let mut named = ids(&plan.place);
        if named.is_empty() {
            named = plan.place.whole().map_or_else(|_| Vec::new(), |whole| ids(&whole));
        }
        !named.is_empty() && named.iter().all(|id| devices.contains(id))
    }

    /// Returns the open pool, or the reason why there is none.
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

    /// Returns the reason why the pool is not open.
    pub fn failed(&self) -> Option<&Failure> {
        self.pool.as_ref().err()
    }

    /// Returns true if the pool was open and no longer belongs to this host. Operations on it should end soon.
    pub(crate) fn is_lost(&self) -> bool {
        // Acquire, with the exchange in `Daemon::lose`: a thread that sees the flag also sees the log entry with the
        // reason.
        self.lost.load(Ordering::Acquire)
    }

    /// Returns true if the pool is not open and the daemon stands by for it.
    fn is_waited_for(&self) -> bool {
        self.plan.standby && self.failed().is_some()
    }
}

/// Opens a pool. Retries for a while if it is in use, because the kernel ring of a daemon that was killed keeps its
/// files open for a moment longer than the daemon lives, and its successor may start at once. A standby pool is tried
/// once here, and again later.
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

/// Opens every pool on a thread of its own, so that none waits for the recovery of another.
fn open_all(plans: &[PoolPlan]) -> Vec<Held> {
    std::thread::scope(|scope| {
        let open = |plan| std::thread::Builder::new().spawn_scoped(scope, move || Held::open(plan));
        let threads: Vec<_> = plans.iter().map(open).collect();
        let held = threads.into_iter().zip(plans).map(|(thread, plan)| match thread {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Held::unopened(plan, Failure::run("opening it ended by a bug")))
            }
            // No thread could be started, so the pool is opened on this one.
            Err(_) => Held::open(plan),
        });
        held.collect()
    })
}

/// Open pools and exports, before they are served.
pub struct Opened {
    pools: BTreeMap<String, Arc<Held>>,
    rows: Vec<Row>,
    /// Parallel to `rows`.
    exports: Vec<Option<Export>>,
    opening: Opening,
}

impl Opened {
    /// Opens every pool and export of `plan` that can be opened (D2). Standby pools are opened later by threads of
    /// their own, since another host may have them or their storage may not respond. Devices of servers are waited for
    /// until all have opened or failed, at most for `patience`.
    /// `added` are exports that are not in the configuration.
    pub fn new(plan: &Plan, patience: Option<Duration>, added: &[ExportPlan]) -> Opened {
        let opening = Opening::begin(plan);
        let (waited, now): (Vec<_>, Vec<_>) = plan.pools.iter().cloned().partition(|plan| plan.standby);
        let waited = waited.iter().map(Held::waiting);
        let pools: BTreeMap<_, _> =
            open_all(&now).into_iter().chain(waited).map(|held| (held.plan.name.clone(), Arc::new(held))).collect();
        let (mut rows, mut exports) = (Vec::new(), Vec::new());
        let configured = plan.exports.iter().map(|plan| (plan, true));
        for (plan, configured) in configured.chain(added.iter().map(|plan| (plan, false))) {
            let opened = match opening.has(&plan.name) {
                true => Err(late::not_yet()),
                false => open_export(plan, None, Rights::Own, |name| pools.get(name).cloned()),
            };
            let (export, failed) = apart(opened);
            rows.push(Row { plan: plan.clone(), configured, failed });
            exports.push(export);
        }
        let mut opened = Opened { pools, rows, exports, opening };
        opened.wait(patience.map(|patience| Instant::now() + patience));
        opened
    }

    /// Waits for devices that are being opened, at most until `until`.
    fn wait(&mut self, until: Option<Instant>) {
        while let Some((plan, opened)) = self.opening.next(until) {
            let mut rows = self.rows.iter_mut().zip(&mut self.exports);
            if let Some((row, export)) = rows.find(|(row, _)| row.plan.name == plan.name) {
                (*export, row.failed) = apart(opened);
            }
        }
    }

    /// Returns the first reason why something did not open.
    pub fn failure(&self) -> Option<&Failure> {
        let pools = self.pools.values().find_map(|held| held.failed());
        pools.or_else(|| self.rows.iter().find_map(|row| row.failed.as_ref()))
    }

    /// Returns the reason why this pool is not open.
    pub(crate) fn pool_failure(&self, name: &str) -> Option<Failure> {
        let missing = || Failure::usage(format!("the configuration has no pool '{name}' any more"));
        self.pools.get(name).map_or_else(|| Some(missing()), |held| held.failed().cloned())
    }

    /// Returns the reason why this export is not served. An export whose device has not answered yet will be.
    pub(crate) fn export_failure(&self, name: &str) -> Option<Failure> {
        let row = self.rows.iter().find(|row| row.plan.name == name)?;
        row.failed.clone().filter(|_| !self.opening.has(name))
    }

    /// Logs the exports that are served later. The health reports those that failed.
    pub fn tell(&self) {
        for row in self.rows.iter().filter(|row| self.opening.has(&row.plan.name)) {
            let name = row.plan.name.as_str();
            info!(
                event = "export_waits",
                export = name,
                "export '{name}' is served later: {}",
                late::not_yet().cause()
            );
        }
    }

    /// Returns name and description of each export that is served.
    pub fn describe(&self) -> Vec<(String, String)> {
        let place = |pool: &str| self.pools.get(pool).map_or_else(String::new, |held| held.place().to_string());
        let served = self.rows.iter().zip(&self.exports).filter_map(|(row, export)| Some((row, export.as_ref()?)));
        served.map(|(row, export)| (export.name.clone(), row.plan.in_words(export, place))).collect()
    }

    /// Closes everything without serving it.
    pub fn close(self) -> Result<(), Failure> {
        drop(self.exports);
        close_all(self.pools)
    }

    /// Starts the server, which serves nobody until [`Server::go_on_with`] is called.
    pub(crate) fn serve(self, listeners: Vec<Listener>, plan: &Plan, origin: Origin) -> Result<Daemon, Failure> {
        let mut options = ServerOptions { slow_limit: plan.slow_limit, ..ServerOptions::default() };
        if let Some(threads) = plan.threads {
            options.reactors = usize::from(threads);
        }
        let devices = plan.exports.iter().filter_map(|export| export.vhost_user.as_ref());
        let devices = devices.map(|device| descriptors::of_device(device.queues(options.reactors))).sum();
        let users = options.reactors + self.pools.len();
        options.max_clients = descriptors::clients(plan.max_clients, users, devices);
        let places = self.rows.iter().map(|row| row.plan.name.clone()).zip(self.exports);
        let places = places.filter(|(name, export)| export.is_some() || self.opening.has(name));
        let exports = Exports::in_places(places.collect()).with_default(plan.default_export());
        match Server::start_suspended(exports, listeners, options, Box::new(client_notice)) {
            Ok(server) => {
                let daemon = Daemon {
                    server,
                    pools: Mutex::new(self.pools),
                    exports: Mutex::new(self.rows),
                    devices: Mutex::new(()),
                    opening: Mutex::new(Some(self.opening)),
                    since: origin.since,
                    passed: origin.passed,
                    upgrades: origin.upgrades,
                    health: Mutex::new(Arc::new(Health::new(Vec::new()))),
                    history: Mutex::default(),
                    busy: Mutex::default(),
                    reload_failure: Mutex::default(),
                    restart_keys: Mutex::default(),
                    started: plan.fixed(),
                    traces: plan.control.as_ref().map(|control| trace::directory(&control.path)),
                };
                // Only exports that are served get their limit here; the others get it when they are.
                let rows = daemon.rows();
                daemon.server.set_limits(&rows.iter().map(|row| (row.plan.name.as_str(), row.plan.limit)).collect());
                Ok(daemon)
            }
            Err(error) => {
                close_all(self.pools)?;
                Err(failure::serve(error))
            }
        }
    }
}

/// Closes the pools cleanly, so that opening them the next time needs no recovery.
fn close_all(pools: BTreeMap<String, Arc<Held>>) -> Result<(), Failure> {
    let mut first = Ok(());
    for held in pools.into_values() {
        if let Ok(pool) = &held.pool {
            first = first.and(pool.clone().close().map_err(failure::pool));
        }
    }
    first
}

/// Splits a result into the export or the failure.
fn apart(opened: Result<Export, Failure>) -> (Option<Export>, Option<Failure>) {
    opened.map_or_else(|why| (None, Some(why)), |export| (Some(export), None))
}

/// Opens the volume or device of an export.
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

fn no_pool(name: &str) -> Failure {
    Failure::run(format!("the daemon has no pool '{name}'"))
        .fix("ask for its pools: ListPools, or look at its configuration")
}

impl Daemon {
    /// Time at which the daemon started.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Stores the result of the latest health check.
    pub(crate) fn note_health(&self, health: Health) {
        *locked(&self.health) = Arc::new(health);
    }

    /// One line with the number of exports and what is wrong.
    pub(crate) fn status_line(&self) -> String {
        self.health().with(self.server.exports().len())
    }

    /// Problems found by the latest health check.
    pub(crate) fn health(&self) -> Arc<Health> {
        let newest = locked(&self.health).clone();
        newest.now()
    }

    /// Reason why the last reload failed.
    pub(crate) fn reload_failure(&self) -> Option<Failure> {
        locked(&self.reload_failure).clone()
    }

    /// Configuration keys whose new values take effect at the next start; empty if none.
    pub(crate) fn restart_keys(&self) -> String {
        locked(&self.restart_keys).clone()
    }

    /// Stores the result of a reload.
    pub(crate) fn note_reload(&self, failure: Option<Failure>) {
        *locked(&self.reload_failure) = failure;
    }

    /// All pools, ordered by name.
    pub fn pools(&self) -> Vec<Arc<Held>> {
        locked(&self.pools).values().cloned().collect()
    }

    /// Returns the pool of the configuration that is called `name`.
    pub fn held(&self, name: &str) -> Result<Arc<Held>, Failure> {
        locked(&self.pools).get(name).cloned().ok_or_else(|| no_pool(name))
    }

    /// All exports, including those that are not served.
    pub fn rows(&self) -> Vec<Row> {
        locked(&self.exports).clone()
    }

    /// Sets the rate limit of an export; a reload with another limit overrides it.
    pub fn set_limit(&self, name: &str, limit: Option<Limit>) -> Result<(), Failure> {
        self.server.set_limit(name, limit).map_err(failure::serve)
    }

    /// Sets the rate limit that the plan has for the export.
    fn limit(&self, plan: &ExportPlan) {
        // Fails for an export that is not served, which gets its limit when it is.
        let _ = self.server.set_limit(&plan.name, plan.limit);
    }

    /// Makes the pools durable, for an exit that cannot close them.
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

    /// Returns the listeners that the daemon has bound itself.
    pub(crate) fn bound(&self) -> Vec<&Listener> {
        self.server.listeners().iter().filter(|listener| !self.passed.contains(listener.asked_for())).collect()
    }

    /// Takes the daemon apart for an upgrade. The server is suspended, and nothing else uses the daemon. `base` is the
    /// plan of its start.
    pub(crate) fn take_apart(self, base: &Plan) -> Result<Apart, Failure> {
        let (slow_limit, served) = (self.server.slow_limit(), self.server.exports());
        let rows = self.exports.into_inner().unwrap_or_else(PoisonError::into_inner);
        let pools = self.pools.into_inner().unwrap_or_else(PoisonError::into_inner);
        let of = |row: &Row| served.iter().find(|status| status.name == row.plan.name);
        let is_changed = |row: &&Row| of(row).is_some_and(|status| status.limit != row.plan.limit);
        let limit = |row: &Row| of(row).and_then(|status| status.limit).or(row.plan.limit);
        let set = |row: &Row| (row.plan.name.clone(), of(row).and_then(|status| status.limit));
        let limits = rows.iter().filter(is_changed).map(set).collect();
        let names = pools.values().filter(|held| held.failed().is_none()).map(|held| held.plan.name.clone()).collect();
        let now = |row: &Row| ExportPlan { limit: limit(row), ..row.plan.clone() };
        let (configured, added): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.configured);
        let plan = Plan {
            pools: pools.values().map(|held| held.plan.clone()).collect(),
            exports: configured.into_iter().map(|row| row.plan.clone()).collect(),
            ..base.clone()
        };
        let added = added.into_iter().map(now).collect();
        let origin = Origin { since: self.since, passed: self.passed, upgrades: self.upgrades };
        let parcel = self.server.take_out().map_err(failure::serve)?;
        if let Err(why) = close_all(pools) {
            // The journal has everything, and opening the pool replays it.
            error!(event = "pool_not_closed", "before the upgrade: {}", why.in_a_line());
        }
        let exports = served.into_iter().map(|status| status.name).collect();
        let slow_limit = (slow_limit != base.slow_limit).then_some(slow_limit);
        Ok(Apart { plan, added, parcel, limits, slow_limit, pools: names, exports, origin })
    }

    /// Stops the server, then closes the pools (D3).
    pub fn stop(self) -> Result<(), Failure> {
        let stopped = self.server.stop().map_err(failure::serve);
        let pools = self.pools.into_inner().unwrap_or_else(PoisonError::into_inner);
        let closed = close_all(pools);
        stopped.and(closed)
    }
}
