//! Pools that another host holds or takes over: the daemon waits for them, opens them when that host has died, and
//! gives them up when this host was fenced.
//!
//! The storage decides which host may have a pool, and keeps two hosts apart. A device that *fences* grants its claim
//! to another client only after it has stopped accepting I/O from the previous one
//! ([`Capabilities::fences`](sheave_blk::driver::Capabilities)); it is claimed before anything of the pool is read.
//!
//! Each pool has a thread of its own that tries to take it over or checks its owner, and one for giving it up, because
//! storage may take arbitrarily long to respond: a takeover of one pool succeeds even if the storage of another does
//! not respond. Two tickers start those threads.
//!
//! * S1. A standby daemon never opens a pool if one of its devices does not fence (`PoolPlace::open_fenced`).
//! * S2. When a pool is lost, its exports end before the daemon waits for it again, and no operation begins on it once
//!   it is marked as lost. Operations in progress, such as a copy, are not waited for.
//! * S3. A thread that opens a pool while a reload may run either puts it in place of the entry it was opened for, or
//!   closes it.
//! * S4. A standby daemon owns a pool only as long as its storage confirmed that within the last [`LEASE`]. If storage
//!   is unreachable from this host alone, it grants the pool to another host, and data that this one still returns
//!   (unwritten space, or what is cached in memory) would be stale.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;
use sheave_vol::PoolError;
use tracing::{error, info};

use super::{Daemon, Held, Row, locked};
use crate::failure::{self, Failure};
use crate::rights::Rights;
use crate::ticker::Ticker;

/// Delay between tries to open a pool.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval between checks of ownership. In between, reads that need no device, such as those of unwritten space, are
/// answered as before.
const LOOK: Duration = Duration::from_millis(500);
/// Ownership lease: how long one successful check is valid. Must be shorter than the time after which Ceph gives the
/// lock of an unresponsive client to another (`osd_client_watch_timeout`, 30 s).
const LEASE: Duration = Duration::from_secs(10);

/// The two tickers.
pub(crate) struct Standby([Ticker; 2]);

impl Standby {
    pub(crate) fn start(daemon: &Arc<Daemon>) -> Result<Standby, Failure> {
        let failed =
            |error| Failure::run(format!("cannot start a thread: {error}")).fix("raise the limit of processes");
        let (mut tries, mut looks) = (Tries::new(daemon), Looks::new(daemon));
        let open = Ticker::start("sheave-standby", AGAIN, move || tries.begin()).map_err(failed)?;
        match Ticker::start("sheave-owner", LOOK, move || looks.begin()) {
            Ok(look) => Ok(Standby([open, look])),
            Err(error) => {
                open.stop();
                Err(failed(error))
            }
        }
    }

    /// Stops, after waiting for opens in progress.
    pub(crate) fn stop(self) {
        self.0.into_iter().for_each(Ticker::stop);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    started.map_err(|why| error!(event = "no_thread", "cannot start a thread, and tries again: {why}")).ok()
}

/// Pools that the daemon waits for.
struct Tries {
    daemon: Arc<Daemon>,
    /// By name of the pool: start of the wait, and the thread that tries to open it.
    waited: BTreeMap<String, (Instant, Option<JoinHandle<()>>)>,
}

impl Tries {
    fn new(daemon: &Arc<Daemon>) -> Tries {
        Tries { daemon: daemon.clone(), waited: BTreeMap::new() }
    }

    /// Starts a try for each waiting pool that is not being opened already.
    fn begin(&mut self) {
        let pools = self.daemon.waited_for();
        self.waited.retain(|name, (_, thread)| {
            let tries = thread.as_ref().is_some_and(|thread| !thread.is_finished());
            tries || pools.iter().any(|held| held.plan.name == *name)
        });
        for held in pools {
            let (since, thread) = self.waited.entry(held.plan.name.clone()).or_insert_with(|| (Instant::now(), None));
            if thread.as_ref().is_none_or(|thread| thread.is_finished()) {
                let (daemon, since) = (self.daemon.clone(), *since);
                *thread = spawn("sheave-take-over", move || daemon.take_over(&held, since));
            }
        }
    }
}

impl Drop for Tries {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut self.waited).into_values().filter_map(|(_, thread)| thread);
        // A panic of the thread was already reported.
        threads.for_each(|thread| _ = thread.join());
    }
}

/// Pools that may be lost.
struct Looks {
    daemon: Arc<Daemon>,
    looked_at: Vec<LookedAt>,
    /// Threads that give up pools. Each may wait for clients whose requests the storage does not complete.
    losing: Vec<JoinHandle<()>>,
}

/// A pool, with the thread that checks its owner.
struct LookedAt {
    held: Arc<Held>,
    /// Start of the last check that the storage confirmed.
    own: Arc<Mutex<Instant>>,
    /// Dropping it stops the thread.
    _ends: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Looks {
    fn new(daemon: &Arc<Daemon>) -> Looks {
        Looks { daemon: daemon.clone(), looked_at: Vec::new(), losing: Vec::new() }
    }

    /// Starts checks for new pools, stops those of pools that are gone, and gives up pools whose lease has expired.
    fn begin(&mut self) {
        let pools = self.daemon.losable();
        self.looked_at.retain(|at| pools.iter().any(|held| Arc::ptr_eq(held, &at.held)));
        for held in pools {
            if !self.looked_at.iter().any(|at| Arc::ptr_eq(&held, &at.held)) {
                self.looked_at.extend(LookedAt::begin(&self.daemon, held));
            }
        }
        self.losing.retain(|thread| !thread.is_finished());
        for at in self.looked_at.iter().filter(|at| at.held.plan.standby && !at.held.is_lost()) {
            let silent = locked(&at.own).elapsed();
            if silent > LEASE {
                let silent = silent.as_secs_f64();
                let why = format!("its storage has not answered for {silent:.1} s: another host may have it by now");
                let (daemon, held) = (self.daemon.clone(), at.held.clone());
                // On a thread of its own, so that the other pools are still checked. If none can be started, the next
                // tick tries again.
                self.losing.extend(spawn("sheave-lose", move || daemon.lose(&held, Failure::busy(why))));
            }
        }
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        let looked_at = std::mem::take(&mut self.looked_at).into_iter();
        let mut threads: Vec<_> = looked_at.filter_map(|LookedAt { thread, .. }| thread).collect();
        threads.append(&mut self.losing);
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl LookedAt {
    fn begin(daemon: &Arc<Daemon>, held: Arc<Held>) -> Option<LookedAt> {
        let (ends, told) = channel();
        let own = Arc::new(Mutex::new(Instant::now()));
        // A weak reference, so that the daemon can end while this thread is blocked on storage.
        let (of, daemon, since) = (held.clone(), Arc::downgrade(daemon), own.clone());
        let thread = spawn("sheave-look", move || look(&daemon, &of, &since, &told))?;
        Some(LookedAt { held, own, _ends: ends, thread: Some(thread) })
    }
}

/// Checks the owner of a pool until it is lost, or until the check is stopped.
fn look(daemon: &Weak<Daemon>, held: &Arc<Held>, own: &Mutex<Instant>, told: &Receiver<()>) {
    loop {
        let began = Instant::now();
        match held.look_at_owner() {
            Look::Own => *locked(own) = began,
            Look::Unknown => {}
            Look::Lost(why) => return daemon.upgrade().into_iter().for_each(|daemon| daemon.lose(held, why.clone())),
        }
        if told.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Result of checking who owns a pool.
enum Look {
    /// This host owns it.
    Own,
    /// The storage does not respond, so the owner is unknown for now.
    Unknown,
    /// Another host owns it.
    Lost(Failure),
}

impl Held {
    /// Asks the storage whether this host still owns the pool. Blocks until the storage responds.
    fn look_at_owner(&self) -> Look {
        let pool = match self.pool() {
            Ok(pool) => pool,
            Err(why) => return Look::Lost(why),
        };
        match pool.check_owner() {
            Ok(()) => Look::Own,
            Err(PoolError::Io { status: Status::Offline, .. }) => {
                Look::Lost(Failure::busy("its storage takes nothing more from this host: it was cut off by another"))
            }
            Err(why @ PoolError::Busy { .. }) => Look::Lost(failure::pool(why)),
            Err(_) => Look::Unknown,
        }
    }
}

impl Daemon {
    /// Pools that the daemon is waiting for.
    fn waited_for(&self) -> Vec<Arc<Held>> {
        self.pools().into_iter().filter(|held| held.is_waited_for()).collect()
    }

    /// Open pools that another host can take over.
    fn losable(&self) -> Vec<Arc<Held>> {
        let is = |held: &Arc<Held>| !held.plan.read_only && held.pool().is_ok_and(|pool| pool.fences());
        self.pools().into_iter().filter(is).collect()
    }

    /// Tries to open a pool that the daemon has been waiting for since `since`.
    pub(crate) fn take_over(&self, before: &Arc<Held>, since: Instant) {
        let (opened, name) = (Arc::new(Held::open(&before.plan)), before.plan.name.as_str());
        if let (Some(now), Some(then)) = (opened.failed(), before.failed())
            && now.cause() != then.cause()
        {
            opened.plan.tell_waits(now);
        }
        if !self.replace(before, &opened) || opened.failed().is_some() {
            return; // S3
        }
        let after = since.elapsed().as_secs_f64();
        info!(event = "pool_taken", pool = name, "pool '{name}' is open, after a wait of {after:.1} s");
        for row in self.rows().into_iter().filter(|row| row.failed.is_some()) {
            if row.plan.volume_of(name).is_some()
                && let Err(why) = self.add_export(row.plan.clone(), None, Rights::Own, row.configured)
            {
                self.keep_failure(&row.plan, why);
            }
        }
    }

    /// Replaces the entry `before` by `now`, if it is still in the list.
    fn replace(&self, before: &Arc<Held>, now: &Arc<Held>) -> bool {
        let mut pools = locked(&self.pools);
        let place = pools.get_mut(&before.plan.name).filter(|held| Arc::ptr_eq(held, before));
        place.map(|held| *held = now.clone()).is_some()
    }

    /// Ends the exports of a pool that another host has or may have, and waits for the pool if the daemon stands by
    /// (S2). The turn (D1) is not taken, since its holder may be blocked on the storage. Exports that are being added
    /// are still seen, because the list is locked while they are added.
    fn lose(&self, held: &Arc<Held>, why: Failure) {
        // Pairs with the load in `Held::is_lost`, and with itself: a single caller proceeds.
        if held.lost.swap(true, Ordering::AcqRel) {
            return;
        }
        let name = held.plan.name.as_str();
        let why = why.fix(match held.plan.standby {
            true => "another host has it now; this one waits for it",
            false => {
                "end what has it elsewhere and reload the daemon (SIGHUP); with `standby = true` on both hosts it waits"
            }
        });
        error!(event = "pool_lost", pool = name, "pool '{name}' is lost: {}", why.in_a_line());
        let is_served = |row: &Row| row.failed.is_none() && row.plan.volume_of(name).is_some();
        let served: Vec<Row> = self.rows().into_iter().filter(is_served).collect();
        // In parallel, since each may wait for clients whose requests the storage does not complete.
        std::thread::scope(|scope| {
            for row in &served {
                // The export is taken out even if its clients do not disconnect in time.
                let take = || _ = self.server.take_export(&row.plan.name, true);
                if std::thread::Builder::new().spawn_scoped(scope, take).is_err() {
                    take();
                }
            }
        });
        served.iter().for_each(|row| self.server.forget_export(&row.plan.name));
        locked(&self.exports).iter_mut().filter(|row| is_served(row)).for_each(|row| row.failed = Some(why.clone()));
        self.replace(held, &Arc::new(Held::new(&held.plan, held.at(), Err(why))));
    }
}
