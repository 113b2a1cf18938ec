//! Threads that take over pools of other hosts, and that check whether open pools still belong to this host. Their work
//! is in `daemon::standby`.
//!
//! Each pool has a thread of its own for either task, and one for giving it up, because storage may take arbitrarily
//! long to respond: a takeover of one pool succeeds even if the storage of another does not respond. Two tickers start
//! those threads.
//!
//! A standby daemon owns a pool only as long as its storage confirmed that within the last [`LEASE`]. If storage is
//! unreachable from this host alone, it grants the pool to another host, and data that this one still returns
//! (unwritten space, or what is cached in memory) would be stale.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::error;

use crate::daemon::{Daemon, Held, Look, locked};
use crate::failure::Failure;
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
