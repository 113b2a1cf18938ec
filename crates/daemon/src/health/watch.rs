//! Checks for problems twice a second, and logs those that begin and end.
//!
//! Owns the record of what was logged. A check may block on the storage of a pool, so it has a thread of its own; all
//! others read the latest [`Health`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use sheave_iomap::io_stats::IoCounts;
use sheave_vol::PoolInfo;
use tracing::{error, info, warn};

use super::signs::{self, Memory, problem};
use crate::daemon::{Daemon, Held, locked};
use crate::device_statistics;
use crate::problems::{About, Health, Kind, Problem, Severity};
use crate::systemd;
use crate::ticker::Ticker;

/// Interval between checks.
const TICK: Duration = Duration::from_millis(500);
/// A problem whose cause changes is logged again after this time.
const AGAIN: Duration = Duration::from_secs(60);

/// The thread that checks, and its state.
pub(crate) struct Watch {
    watcher: Arc<Mutex<Watcher>>,
    ticker: Ticker,
}

impl Watch {
    /// Checks once, then starts a thread that checks periodically.
    pub(crate) fn start(daemon: &Arc<Daemon>) -> std::io::Result<Watch> {
        let watcher: Arc<Mutex<Watcher>> = Arc::default();
        look(&watcher, daemon);
        let (own, of) = (watcher.clone(), daemon.clone());
        let tick = move || {
            look(&own, &of);
            remember(&of);
        };
        Ok(Watch { watcher, ticker: Ticker::start("sheave-health", TICK, tick)? })
    }

    /// Returns the state, for threads that end before the check does.
    pub(crate) fn looker(&self) -> Arc<Mutex<Watcher>> {
        self.watcher.clone()
    }

    pub(crate) fn stop(self) {
        self.ticker.stop();
    }
}

/// Checks now, unless another thread is checking.
pub(crate) fn look(watcher: &Mutex<Watcher>, daemon: &Daemon) {
    if let Ok(mut watcher) = watcher.try_lock() {
        let health = watcher.look(daemon, false);
        daemon.note_health(health);
    }
}

/// Checks after a reload, whose caller waits for the result. Changes are logged without delay.
pub(crate) fn look_after_reload(watcher: &Mutex<Watcher>, daemon: &Daemon) {
    let health = locked(watcher).look(daemon, true);
    daemon.note_health(health);
}

/// Records a sample for the history on the status page, and the busy times of devices.
fn remember(daemon: &Daemon) {
    let mut history = locked(&daemon.history);
    if history.is_due() {
        let mut ios = IoCounts::default();
        daemon.server.queues().iter().for_each(|queue| ios.add(&queue.counts()));
        let free = |held: &Arc<Held>| Some((held.plan.name.clone(), held.pool().ok()?.info().free_bytes));
        let pools: Vec<_> = daemon.pools().iter().filter_map(free).collect();
        history.take(&daemon.server.exports(), ios, &pools);
        drop(history);
        device_statistics::keep_up(daemon);
    }
}

/// A problem that was logged, and when it was logged last.
#[derive(Debug)]
struct Told {
    problem: Problem,
    at: Instant,
}

/// Counters of conditions that may be over before the next check (H3).
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    times_full: u64,
    times_metadata_low: u64,
    host_refusals: u64,
    checksum_errors: u64,
}

impl Counts {
    fn of(info: &PoolInfo) -> Counts {
        Counts {
            times_full: info.times_full,
            times_metadata_low: info.times_metadata_low,
            host_refusals: info.host_refusals,
            checksum_errors: info.checksum_errors,
        }
    }
}

/// Record of what earlier checks found and logged.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    told: BTreeMap<(Kind, About), Told>,
    memory: Memory,
    counts: BTreeMap<String, Counts>,
    /// Status text that systemd was last given.
    status: String,
}

impl Watcher {
    /// Checks everything, and logs what began and ended. With `at_once`, changed causes are logged without delay.
    pub(crate) fn look(&mut self, daemon: &Daemon, at_once: bool) -> Health {
        let mut found = Vec::new();
        let (rows, pools) = (daemon.rows(), daemon.pools());
        self.counts.retain(|name, _| pools.iter().any(|held| held.plan.name == *name));
        let mut open = Vec::new();
        for held in &pools {
            if let Some(info) = signs::of_pool(held, &rows, &mut self.memory, &mut found) {
                self.passed(&held.plan.name, &info, &mut found);
                open.push(held.plan.name.as_str());
            }
        }
        rows.iter().for_each(|row| signs::of_row(row, |pool| open.contains(&pool), &mut found));
        let is_volume = |name: &str| rows.iter().any(|row| row.plan.name == name && row.plan.pool().is_some());
        for export in daemon.server.devices().iter().filter(|export| !is_volume(&export.name)) {
            let about = About::Export(export.name.clone());
            let what = format!("export '{}'", export.name);
            signs::of_device(&export.device, &about, &what, &mut self.memory, &mut found);
            if let Some(status) = export.flush_failed {
                signs::of_flush(&export.name, status, &mut found);
            }
        }
        let now = SystemTime::now();
        let mut expiries: Vec<_> = daemon.server.listeners().iter().flat_map(|listener| listener.expiries()).collect();
        expiries.sort_by(|a, b| a.path.cmp(&b.path));
        expiries.dedup();
        expiries.iter().for_each(|expiry| signs::of_certificate(expiry, now, &mut found));
        if let Some(why) = daemon.reload_failure() {
            let fix = why.how_to_mend().unwrap_or("Mend the configuration, and reload the daemon (SIGHUP)");
            let cause = format!("the configuration stays as it was: {}", why.cause());
            found.push(problem(Kind::ReloadFailed, &About::Server, cause, fix));
        }
        let keys = daemon.restart_keys();
        if !keys.is_empty() {
            let cause = format!("the daemon runs with another value of {keys} than the configuration has");
            found.push(problem(Kind::RestartNeeded, &About::Server, cause, "Restart the daemon"));
        }
        self.memory.retain(|about, _| match about {
            About::Pool(name) => open.contains(&name.as_str()),
            About::Export(name) => rows.iter().any(|row| row.plan.name == *name && row.failed.is_none()),
            _ => false,
        });
        let health = Health::new(self.tell(found, at_once));
        self.tell_systemd(daemon, &health);
        health
    }

    /// Logs conditions that began and ended since the last check, for which no problem is found (H3).
    fn passed(&mut self, name: &str, info: &PoolInfo, found: &mut [Problem]) {
        let now = Counts::of(info);
        let before = self.counts.insert(name.to_owned(), now).unwrap_or_default();
        let about = About::Pool(name.to_owned());
        let is_there = |kind: Kind| {
            let key = (kind, about.clone());
            self.told.contains_key(&key) || found.iter().any(|problem| problem.key() == (kind, &about))
        };
        let momentary: [(Kind, u64, String); 4] = [
            (
                Kind::PoolFull,
                now.times_full.saturating_sub(before.times_full),
                format!("pool '{name}' was full for a moment, and writes to it may have failed"),
            ),
            (
                Kind::MetadataLow,
                now.times_metadata_low.saturating_sub(before.times_metadata_low),
                format!("the metadata of pool '{name}' ran short for a moment"),
            ),
            (
                Kind::HostFull,
                now.host_refusals.saturating_sub(before.host_refusals),
                format!("the file system that holds pool '{name}' was full for a moment, and writes failed"),
            ),
            (
                Kind::BadBlocks,
                now.checksum_errors.saturating_sub(before.checksum_errors),
                format!("blocks of pool '{name}' did not match their checksums, and were written anew since"),
            ),
        ];
        for (kind, times, cause) in momentary {
            if times > 0 && !is_there(kind) {
                let passed = problem(kind, &about, cause, "It is over; see what came before it in the log");
                say(&passed);
                over(&passed, "");
            }
        }
    }

    /// Logs the problems that began and ended. Returns all current ones, with the times at which they began.
    fn tell(&mut self, found: Vec<Problem>, at_once: bool) -> Vec<Problem> {
        let now = Instant::now();
        let mut problems = Vec::with_capacity(found.len());
        for mut one in found {
            match self.told.get_mut(&(one.kind, one.about.clone())) {
                Some(told) => {
                    one.since = told.problem.since;
                    let is_other = (&one.cause, &one.fix) != (&told.problem.cause, &told.problem.fix);
                    if is_other && (at_once || now.duration_since(told.at) >= AGAIN) {
                        say(&one);
                        told.at = now;
                        told.problem = one.clone();
                    }
                }
                None => {
                    say(&one);
                    self.told.insert((one.kind, one.about.clone()), Told { problem: one.clone(), at: now });
                }
            }
            problems.push(one);
        }
        self.told.retain(|(kind, about), told| {
            let is_there = problems.iter().any(|problem| problem.key() == (*kind, about));
            if !is_there {
                over(&told.problem, &format!(", after {:.1} s", told.problem.since.elapsed().as_secs_f64()));
            }
            is_there
        });
        problems
    }

    /// Updates the status text of systemd if it has changed.
    fn tell_systemd(&mut self, daemon: &Daemon, health: &Health) {
        let status = health.with(daemon.server.exports().len());
        if status != self.status {
            systemd::status(&status);
            self.status = status;
        }
    }
}

/// Logs that a problem began. Problems of a reload are skipped, since the reload logs them itself.
fn say(problem: &Problem) {
    if matches!(problem.kind, Kind::ReloadFailed | Kind::RestartNeeded) {
        return;
    }
    let (event, text) = (problem.kind.name(), problem.in_a_line());
    match (&problem.about, problem.kind.severity()) {
        (About::Pool(name), Severity::Critical) => error!(event, pool = name.as_str(), "{text}"),
        (About::Pool(name), _) => warn!(event, pool = name.as_str(), "{text}"),
        (About::Export(name), Severity::Critical) => error!(event, export = name.as_str(), "{text}"),
        (About::Export(name), _) => warn!(event, export = name.as_str(), "{text}"),
        (_, Severity::Critical) => error!(event, "{text}"),
        (..) => warn!(event, "{text}"),
    }
}

/// Logs that a problem is over.
fn over(problem: &Problem, after: &str) {
    let (kind, cause) = (problem.kind.name(), &problem.cause);
    match &problem.about {
        About::Pool(name) => info!(event = "over", problem = kind, pool = name.as_str(), "over{after}: {cause}"),
        About::Export(name) => info!(event = "over", problem = kind, export = name.as_str(), "over{after}: {cause}"),
        _ => info!(event = "over", problem = kind, "over{after}: {cause}"),
    }
}
