//! Opens again what could not be opened: pools whose storage appears late, and exports whose device or volume does.
//!
//! A pool or export that failed is tried again after a pause that grows from [`FIRST`] to [`LONGEST`], and at
//! once when the files that it is named by have changed: a disk that comes late is served within two seconds. What the
//! daemon stands by for is not tried here (`standby`), nor what another host has: the storage of a network tells two
//! hosts apart by who came first, and a daemon that was not told to take over does not.
//!
//! Owns the pauses. Each try has a thread of its own, for storage may take as long as it likes to answer.

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

/// How often it is looked what is due.
const TICK: Duration = Duration::from_secs(1);
/// The pause after the first failure.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(30);
/// Tries under way at a time, so that thousands of exports of one silent server cost no thousand threads.
const MOST: usize = 16;

/// The thread that begins tries.
pub(crate) struct Retries(Ticker);

impl Retries {
    /// Begins.
    pub(crate) fn start(daemon: &Arc<Daemon>) -> Result<Retries, Failure> {
        let failed =
            |error| Failure::run(format!("cannot start a thread: {error}")).fix("raise the limit of processes");
        let mut tries = Tries { daemon: daemon.clone(), all: BTreeMap::new() };
        Ticker::start("sheave-retry", TICK, move || tries.begin()).map(Retries).map_err(failed)
    }

    /// Ends it. What is being opened is opened first.
    pub(crate) fn stop(self) {
        self.0.stop();
    }
}

/// Something that is tried again.
struct Try {
    since: Instant,
    next: Instant,
    pause: Duration,
    /// The files that a pool was named by, at the last try.
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

    /// Whether it is to be tried now; the next time is later then.
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

/// All of them, by `pool` or `export` and the name.
struct Tries {
    daemon: Arc<Daemon>,
    all: BTreeMap<(&'static str, String), Try>,
}

/// The files and block devices that are there of those that a spec names.
fn files_of(spec: &str) -> Vec<(u64, u64)> {
    let identity = |reach: Reach| match reach {
        Reach::Data(path) => std::fs::metadata(path).ok().as_ref().map(node_of),
        _ => None,
    };
    reaches(spec).unwrap_or_default().into_iter().filter_map(identity).collect()
}

/// Whether a pool is to be opened again.
fn is_pool_wanted(held: &Held) -> bool {
    let Some(why) = held.failed() else { return false };
    !(held.plan.standby || why.is_busy() && held.plan.place.may_be_silent())
}

/// Whether an export is to be opened again. One whose device is being opened since the start is not.
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

    /// Does it on a thread, if it is due and nothing keeps it waiting.
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
        // A thread that has panicked has said so.
        threads.for_each(|thread| _ = thread.join());
    }
}
