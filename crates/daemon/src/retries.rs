//! Retries of pools and exports that failed to open, for storage, devices and volumes that appear late.
//!
//! The delay between tries grows from [`FIRST`] to [`LONGEST`]. A change of the files that a pool or device is named by
//! triggers a try at once, so a disk that appears late is served within two seconds. Standby pools are not retried here
//! (see `standby`), nor pools on network storage that another host holds: such storage is owned by whoever came first,
//! and a daemon that does not stand by must not take it over.
//!
//! Owns the delays. Each try has a thread of its own, because storage may take arbitrarily long to respond.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sheave_drivers::Reach;
use tracing::error;

use crate::daemon::{Daemon, Held, Row};
use crate::devices::{may_be_silent, reaches};
use crate::failure::Failure;
use crate::look::node_of;
use crate::ticker::Ticker;

/// Interval at which due tries are started.
const TICK: Duration = Duration::from_secs(1);
/// Delay after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// Maximum delay.
const LONGEST: Duration = Duration::from_secs(30);
/// Maximum number of tries at a time, so that thousands of exports of one dead server do not need as many threads.
const MOST: usize = 16;

/// The thread that starts tries.
pub(crate) struct Retries(Ticker);

impl Retries {
    pub(crate) fn start(daemon: &Arc<Daemon>) -> Result<Retries, Failure> {
        let failed =
            |error| Failure::run(format!("cannot start a thread: {error}")).fix("raise the limit of processes");
        let mut tries = Tries { daemon: daemon.clone(), all: BTreeMap::new() };
        Ticker::start("sheave-retry", TICK, move || tries.begin()).map(Retries).map_err(failed)
    }

    /// Stops, after waiting for the tries in progress.
    pub(crate) fn stop(self) {
        self.0.stop();
    }
}

/// A pool or export that is retried.
struct Try {
    since: Instant,
    next: Instant,
    pause: Duration,
    /// Identities, as of the last try, of the files and block devices that the configuration names.
    files: Vec<(u64, u64)>,
    thread: Option<JoinHandle<()>>,
}

impl Try {
    fn new(files: Vec<(u64, u64)>) -> Try {
        let now = Instant::now();
        Try { since: now, next: now + FIRST, pause: FIRST, files, thread: None }
    }

    fn is_under_way(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns true if a try is due, and schedules the next one.
    fn is_due(&mut self, files: Vec<(u64, u64)>) -> bool {
        let now = Instant::now();
        if files != self.files {
            (self.files, self.pause) = (files, FIRST);
        } else if now < self.next {
            return false;
        } else {
            self.pause = (self.pause * 2).min(LONGEST);
        }
        self.next = now + self.pause;
        true
    }
}

/// All retried pools and exports, by `pool` or `export` and name.
struct Tries {
    daemon: Arc<Daemon>,
    all: BTreeMap<(&'static str, String), Try>,
}

/// Returns the identities of those files and block devices in a spec that exist.
fn files_of(spec: &str) -> Vec<(u64, u64)> {
    let identity = |reach: Reach| match reach {
        Reach::Data(path) => std::fs::metadata(path).ok().as_ref().map(node_of),
        _ => None,
    };
    reaches(spec).unwrap_or_default().into_iter().filter_map(identity).collect()
}

/// Returns true if a pool should be retried.
fn is_pool_wanted(held: &Held) -> bool {
    let Some(why) = held.failed() else { return false };
    !(held.plan.standby || why.is_busy() && held.plan.place.may_be_silent())
}

/// Returns true if an export should be retried. One whose device is still being opened since the start should not.
fn is_row_wanted(row: &Row, is_open: impl Fn(&str) -> bool) -> bool {
    let Some(why) = &row.failed else { return false };
    match (row.plan.pool(), row.plan.spec()) {
        (Some(pool), _) => is_open(pool),
        (_, Some(spec)) => !(why.is_busy() && may_be_silent(spec)),
        _ => false,
    }
}

impl Tries {
    fn begin(&mut self) {
        let pools: Vec<_> = self.daemon.pools();
        let is_open = |name: &str| pools.iter().any(|held| held.plan.name == name && held.pool().is_ok());
        let failed: Vec<_> = pools.iter().filter(|held| is_pool_wanted(held)).cloned().collect();
        let rows: Vec<_> = self.daemon.rows().into_iter().filter(|row| is_row_wanted(row, is_open)).collect();
        self.all.retain(|(kind, name), one| {
            let is_wanted = match *kind {
                "pool" => failed.iter().any(|held| held.plan.name == *name),
                _ => rows.iter().any(|row| row.plan.name == *name),
            };
            is_wanted || one.is_under_way()
        });
        for held in failed {
            let files = held.plan.place.identities();
            let daemon = self.daemon.clone();
            self.offer(("pool", held.plan.name.clone()), files, "sheave-open-pool", move |since| {
                daemon.take_over(&held, since);
            });
        }
        for row in rows {
            let daemon = self.daemon.clone();
            let files = row.plan.spec().map_or_else(Vec::new, files_of);
            self.offer(("export", row.plan.name.clone()), files, "sheave-open-exp", move |_| daemon.open_again(&row));
        }
    }

    /// Starts a try on a thread, if it is due and fewer than [`MOST`] are running.
    fn offer(
        &mut self,
        key: (&'static str, String),
        files: Vec<(u64, u64)>,
        thread: &str,
        work: impl FnOnce(Instant) + Send + 'static,
    ) {
        let under_way = self.all.values().filter(|one| one.is_under_way()).count();
        let one = self.all.entry(key).or_insert_with(|| Try::new(files.clone()));
        if one.is_under_way() || under_way >= MOST || !one.is_due(files) {
            return;
        }
        let since = one.since;
        match std::thread::Builder::new().name(thread.into()).spawn(move || work(since)) {
            Ok(thread) => one.thread = Some(thread),
            Err(why) => error!(event = "no_thread", "cannot start a thread, and tries again: {why}"),
        }
    }
}

impl Drop for Tries {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut self.all).into_values().filter_map(|one| one.thread);
        // A panic of the thread was already reported.
        threads.for_each(|thread| _ = thread.join());
    }
}
