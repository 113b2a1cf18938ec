//! The threads that open pools which another host has had, and that look whether pools are still this host's. What they
//! do is in `daemon::standby`.
//!
//! Each pool has a thread of its own for either, and one to be let go of, for storage may take as long as it likes to
//! answer: a pool that is taken over is served though the storage of another is silent. Two tickers start those
//! threads.
//!
//! A daemon that stands by has a pool for as long as its storage has told so within [`LEASE`]. Storage that is silent
//! to this host alone gives the pool to another, and what this one still answers (reads of space that was never
//! written, or that it has in memory) would be of the past.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::error;

use crate::daemon::{Daemon, Held, Look, locked};
use crate::failure::Failure;
use crate::ticker::Ticker;

/// The pause between two tries to open a pool.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause between two looks whose a pool is. Until then what needs no device, reads of space that was never written,
/// is answered as before.
const LOOK: Duration = Duration::from_millis(500);
/// How long the word of the storage that a pool is this host's lasts: less than the time after which Ceph gives the
/// lock of a client that it does not hear of to another (`osd_client_watch_timeout`, 30 s).
const LEASE: Duration = Duration::from_secs(10);

/// The threads.
pub(crate) struct Standby([Ticker; 2]);

impl Standby {
    /// Begins.
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

    /// Ends all. A pool that is being opened is opened first.
    pub(crate) fn stop(self) {
        self.0.into_iter().for_each(Ticker::stop);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    started.map_err(|why| error!(event = "no_thread", "cannot start a thread, and tries again: {why}")).ok()
}

/// Pools that are waited for.
struct Tries {
    daemon: Arc<Daemon>,
    /// By the pool's name: since when it is waited for, and the thread that tries to open it.
    waited: BTreeMap<String, (Instant, Option<JoinHandle<()>>)>,
}

impl Tries {
    fn new(daemon: &Arc<Daemon>) -> Tries {
        Tries { daemon: daemon.clone(), waited: BTreeMap::new() }
    }

    /// Tries to open each pool that is waited for and is not being opened.
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
        // A thread that has panicked has said so.
        threads.for_each(|thread| _ = thread.join());
    }
}

/// Pools that may be lost.
struct Looks {
    daemon: Arc<Daemon>,
    looked_at: Vec<LookedAt>,
    /// The threads that let go of pools: each waits for clients whose requests the storage does not answer.
    losing: Vec<JoinHandle<()>>,
}

/// A pool with the thread that looks at it.
struct LookedAt {
    held: Arc<Held>,
    /// When a look began that its storage has answered.
    own: Arc<Mutex<Instant>>,
    /// Dropped to end the thread.
    _ends: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Looks {
    fn new(daemon: &Arc<Daemon>) -> Looks {
        Looks { daemon: daemon.clone(), looked_at: Vec::new(), losing: Vec::new() }
    }

    /// Looks at each pool that has come, at none that has gone, and lets go of those whose storage is silent.
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
                // A thread for each: the other pools are looked at meanwhile. Without one it is tried again.
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
        // The daemon ends without a thread that waits for silent storage.
        let (of, daemon, since) = (held.clone(), Arc::downgrade(daemon), own.clone());
        let thread = spawn("sheave-look", move || look(&daemon, &of, &since, &told))?;
        Some(LookedAt { held, own, _ends: ends, thread: Some(thread) })
    }
}

/// Looks at a pool until it is lost, or until nobody wants to know any more.
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
