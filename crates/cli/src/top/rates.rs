//! What happened between two readings of a daemon's statistics.
//!
//! R1. A number that became smaller, or that the earlier reading did not have (its export was not among those that a
//! reply tells), counts as no change: no picture shows what was done before somebody looked.

use std::collections::VecDeque;

use serde::Serialize;
use sheave_daemon::api::types as t;

/// Over how many readings the space of pools is looked at: what a pool takes comes in steps.
const SPACE_READINGS: usize = 60;

/// Readings.
pub struct History {
    last: t::Statistics,
    /// When, and the pools then; the oldest first.
    pools: VecDeque<(u64, Vec<t::PoolStatistics>)>,
}

/// Where the time of I/O went, in parts that add up to 1; all 0 without I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    pub worker: f64,
    pub tag: f64,
    pub plugged: f64,
    pub driver: f64,
    pub reap: f64,
}

/// How fast I/O was.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rate {
    pub iops: f64,
    pub bytes_per_second: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    /// In flight on average.
    pub depth: f64,
    pub split: Shares,
}

/// One kind of I/O.
#[derive(Clone, Debug, Serialize)]
pub struct KindRate {
    pub kind: String,
    #[serde(flatten)]
    pub rate: Rate,
}

/// An export.
#[derive(Clone, Debug, Serialize)]
pub struct ExportRate {
    pub name: String,
    pub pool: Option<String>,
    pub volume: Option<String>,
    pub size_bytes: u64,
    pub clients: u32,
    /// Since it is served: I/Os that ended with an error, and requests that were answered with one.
    pub errors: u64,
    pub failed_requests: u64,
    /// Why it is not served.
    pub failed: Option<String>,
    /// Requests of clients that were answered, and the bytes of reads and writes among them: also what no device was
    /// asked for, such as reads of holes, which is in no other rate.
    pub requests_per_second: f64,
    pub request_bytes_per_second: f64,
    #[serde(flatten)]
    pub rate: Rate,
    pub kinds: Vec<KindRate>,
}

/// The ring of a reactor.
#[derive(Clone, Debug, Serialize)]
pub struct QueueRate {
    pub queue: u64,
    /// Since the start: I/Os that ended with an error.
    pub errors: u64,
    #[serde(flatten)]
    pub rate: Rate,
    pub kinds: Vec<KindRate>,
}

/// A client.
#[derive(Clone, Debug, Serialize)]
pub struct ClientRate {
    pub id: u64,
    pub peer: String,
    pub export: Option<String>,
    pub read_bytes_per_second: f64,
    pub written_bytes_per_second: f64,
    pub failed_requests: u64,
}

/// A pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolRate {
    pub name: String,
    pub size_bytes: u64,
    pub free_bytes: u64,
    /// `ok`, `low` or `full`; `closed` of a pool that is not open.
    pub state: String,
    /// Why it is not open.
    pub failed: Option<String>,
    /// What the file system that holds its files has free.
    pub host_free_bytes: Option<u64>,
    /// How much less is free each second, over the last readings.
    pub fills_bytes_per_second: f64,
    /// When it is full if that goes on.
    pub full_in_seconds: Option<u64>,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Board {
    pub seconds: f64,
    pub reactors: u64,
    pub queues: Vec<QueueRate>,
    pub exports: Vec<ExportRate>,
    pub exports_total: u64,
    pub clients: Vec<ClientRate>,
    pub clients_total: u64,
    pub pools: Vec<PoolRate>,
    pub pools_total: u64,
    /// Everything that is wrong.
    pub health: t::Health,
}

impl History {
    /// From a first reading on.
    pub fn new(first: t::Statistics) -> History {
        let pools = VecDeque::from([(first.uptime_ns, first.pools.clone())]);
        History { last: first, pools }
    }

    /// What happened from the last reading to this one.
    pub fn next(&mut self, now: t::Statistics) -> Board {
        let seconds = between(self.last.uptime_ns, now.uptime_ns);
        let mut exports: Vec<_> = now.exports.iter().map(|export| self.export(export, seconds)).collect();
        exports.sort_by(|a, b| a.name.cmp(&b.name));
        let board = Board {
            seconds,
            reactors: now.reactors,
            queues: now.queues.iter().map(|queue| self.queue(queue, seconds)).collect(),
            exports,
            exports_total: now.exports_total,
            clients: now.clients.iter().map(|client| self.client(client, seconds)).collect(),
            clients_total: now.clients_total,
            pools: now.pools.iter().map(|pool| self.pool(pool, now.uptime_ns)).collect(),
            pools_total: now.pools_total,
            health: now.health.clone(),
        };
        self.pools.push_back((now.uptime_ns, now.pools.clone()));
        if self.pools.len() > SPACE_READINGS {
            self.pools.pop_front();
        }
        self.last = now;
        board
    }

    fn export(&self, now: &t::ExportStatistics, seconds: f64) -> ExportRate {
        let before = self.last.exports.iter().find(|export| export.name == now.name);
        let (rate, kinds) = rates(before.map(|before| &*before.kinds), &now.kinds, seconds);
        ExportRate {
            name: now.name.clone(),
            pool: now.pool.clone(),
            volume: now.volume.clone(),
            size_bytes: now.size_bytes,
            clients: now.clients,
            errors: now.errors,
            failed_requests: now.failed_requests,
            failed: now.failed.clone(),
            requests_per_second: before.map_or(0.0, |before| requests(before, now).0 as f64 / seconds),
            request_bytes_per_second: before.map_or(0.0, |before| requests(before, now).1 as f64 / seconds),
            rate,
            kinds,
        }
    }

    fn queue(&self, now: &t::QueueStatistics, seconds: f64) -> QueueRate {
        let before = self.last.queues.iter().find(|queue| queue.queue == now.queue);
        let (rate, kinds) = rates(before.map(|before| &*before.kinds), &now.kinds, seconds);
        QueueRate { queue: now.queue, errors: now.errors, rate, kinds }
    }

    fn client(&self, now: &t::ClientRow, seconds: f64) -> ClientRate {
        let before = self.last.clients.iter().find(|client| client.id == now.id).unwrap_or(now);
        ClientRate {
            id: now.id,
            peer: now.peer.clone(),
            export: now.export.clone(),
            read_bytes_per_second: now.read_bytes.saturating_sub(before.read_bytes) as f64 / seconds,
            written_bytes_per_second: now.written_bytes.saturating_sub(before.written_bytes) as f64 / seconds,
            failed_requests: now.failed_requests,
        }
    }

    fn pool(&self, now: &t::PoolStatistics, at: u64) -> PoolRate {
        let had = |(when, pools): &(u64, Vec<t::PoolStatistics>)| {
            Some((*when, pools.iter().find(|pool| pool.name == now.name)?.free_bytes))
        };
        let oldest = self.pools.iter().find_map(had);
        let taken = oldest.map_or(0.0, |(when, free)| free.saturating_sub(now.free_bytes) as f64 / between(when, at));
        PoolRate {
            name: now.name.clone(),
            size_bytes: now.size_bytes,
            free_bytes: now.free_bytes,
            state: now.state.clone(),
            failed: now.failed.clone(),
            host_free_bytes: now.host_free_bytes,
            fills_bytes_per_second: taken,
            full_in_seconds: (taken > 0.0).then(|| (now.free_bytes as f64 / taken) as u64),
        }
    }
}

/// The requests between two readings, and the bytes of reads and writes among them (R1).
fn requests(before: &t::ExportStatistics, now: &t::ExportStatistics) -> (u64, u64) {
    let (before, now) = (&before.requests, &now.requests);
    let all = |counts: &t::RequestCounts| counts.reads + counts.writes + counts.others;
    let bytes = |counts: &t::RequestCounts| counts.read_bytes + counts.written_bytes;
    (all(now).saturating_sub(all(before)), bytes(now).saturating_sub(bytes(before)))
}

/// All kinds together, and each; nothing of what the earlier reading did not have (R1).
fn rates(before: Option<&[t::KindStatistics]>, now: &[t::KindStatistics], seconds: f64) -> (Rate, Vec<KindRate>) {
    let (mut all, mut kinds) = (Change::default(), Vec::new());
    for kind in now {
        let Some(before) = before else { continue };
        let change = Change::between(before.iter().find(|had| had.kind == kind.kind), kind);
        kinds.push(KindRate { kind: kind.kind.clone(), rate: change.rate(seconds) });
        all.add(&change);
    }
    (all.rate(seconds), kinds)
}

/// Seconds between two times; never 0, by which rates are divided.
fn between(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns.saturating_sub(from_ns) as f64 / 1e9).max(1e-6)
}

/// What was done between two readings.
#[derive(Default)]
struct Change {
    ios: u64,
    bytes: u64,
    time_ns: u64,
    stages: [u64; 5],
    /// By the smallest latency of a cell.
    latencies: std::collections::BTreeMap<u64, u64>,
}

/// The times in the stages, in order.
fn stages(split: &t::SplitRow) -> [u64; 5] {
    [split.worker_ns, split.tag_ns, split.plugged_ns, split.driver_ns, split.reap_ns]
}

impl Change {
    fn between(before: Option<&t::KindStatistics>, now: &t::KindStatistics) -> Change {
        let less = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0));
        let had = before.map(|before| stages(&before.stages)).unwrap_or_default();
        let mut latencies: std::collections::BTreeMap<u64, u64> =
            now.latencies.iter().map(|cell| (cell.from_ns, cell.ios)).collect();
        for cell in before.map_or(&[][..], |before| &before.latencies) {
            if let Some(ios) = latencies.get_mut(&cell.from_ns) {
                *ios = ios.saturating_sub(cell.ios);
            }
        }
        let mut parts = stages(&now.stages);
        parts.iter_mut().zip(had).for_each(|(ns, had)| *ns = ns.saturating_sub(had));
        Change {
            ios: less(now.ios, before.map(|before| before.ios)),
            bytes: less(now.bytes, before.map(|before| before.bytes)),
            time_ns: less(now.time_ns, before.map(|before| before.time_ns)),
            stages: parts,
            latencies,
        }
    }

    fn add(&mut self, other: &Change) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.time_ns += other.time_ns;
        self.stages.iter_mut().zip(other.stages).for_each(|(sum, ns)| *sum += ns);
        for (from, ios) in &other.latencies {
            *self.latencies.entry(*from).or_default() += ios;
        }
    }

    fn rate(&self, seconds: f64) -> Rate {
        let total: u64 = self.stages.iter().sum();
        let share = |at: usize| if total == 0 { 0.0 } else { self.stages[at] as f64 / total as f64 };
        Rate {
            iops: self.ios as f64 / seconds,
            bytes_per_second: self.bytes as f64 / seconds,
            p50_ns: self.quantile(0.5),
            p99_ns: self.quantile(0.99),
            depth: self.time_ns as f64 / 1e9 / seconds,
            split: Shares { worker: share(0), tag: share(1), plugged: share(2), driver: share(3), reap: share(4) },
        }
    }

    /// The smallest latency of the cell in which this part of the I/Os ends.
    fn quantile(&self, part: f64) -> u64 {
        let total: u64 = self.latencies.values().sum();
        let rank = ((total as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (from, ios) in &self.latencies {
            seen += ios;
            if seen >= rank {
                return *from;
            }
        }
        0
    }
}
