//! Differences between two readings of a daemon's statistics.
//!
//! R1. A counter counts as unchanged if it has decreased, or if the earlier reading does not have it (its export was
//! not among those in the reply). So activity before the first reading is never shown.

use std::collections::VecDeque;

use serde::Serialize;
use sheave_daemon::api::types as t;

/// Number of readings over which the change of free space is averaged, because pools allocate in steps.
const SPACE_READINGS: usize = 60;

/// Earlier readings.
pub struct History {
    last: t::Statistics,
    /// The times of earlier readings, and the pools at these times; the oldest first.
    pools: VecDeque<(u64, Vec<t::PoolStatistics>)>,
}

/// Shares of each stage in the time of I/O. The sum is 1, or 0 without I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    pub worker: f64,
    pub tag: f64,
    pub plugged: f64,
    pub driver: f64,
    pub reap: f64,
}

/// Rates and latencies of I/O.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rate {
    pub iops: f64,
    pub bytes_per_second: f64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    /// Average number of I/Os in flight.
    pub depth: f64,
    pub split: Shares,
}

/// Rates of one kind of I/O.
#[derive(Clone, Debug, Serialize)]
pub struct KindRate {
    pub kind: String,
    #[serde(flatten)]
    pub rate: Rate,
}

/// Rates of an export.
#[derive(Clone, Debug, Serialize)]
pub struct ExportRate {
    pub name: String,
    pub pool: Option<String>,
    pub volume: Option<String>,
    pub size_bytes: u64,
    pub clients: u32,
    /// Totals since the export began to be served: failed I/Os, and below it requests that were answered with an error.
    pub errors: u64,
    pub failed_requests: u64,
    /// The reason why the export is not served.
    pub failed: Option<String>,
    /// The vhost-user device.
    pub vhost_user: Option<t::VhostUser>,
    /// Rates of answered requests, and of the bytes of reads and writes among them. They include requests that needed
    /// no I/O on a device, such as reads of holes; no other rate includes those.
    pub requests_per_second: f64,
    pub request_bytes_per_second: f64,
    #[serde(flatten)]
    pub rate: Rate,
    pub kinds: Vec<KindRate>,
}

/// Rates of the ring of a reactor.
#[derive(Clone, Debug, Serialize)]
pub struct QueueRate {
    pub queue: u64,
    /// Number of failed I/Os since the start.
    pub errors: u64,
    #[serde(flatten)]
    pub rate: Rate,
    pub kinds: Vec<KindRate>,
}

/// Rates of a client.
#[derive(Clone, Debug, Serialize)]
pub struct ClientRate {
    pub id: u64,
    pub peer: String,
    pub export: Option<String>,
    pub read_bytes_per_second: f64,
    pub written_bytes_per_second: f64,
    pub failed_requests: u64,
}

/// Space of a pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolRate {
    pub name: String,
    pub size_bytes: u64,
    pub free_bytes: u64,
    /// `ok`, `low` or `full`; `closed` if the pool is not open.
    pub state: String,
    /// The reason why the pool is not open.
    pub failed: Option<String>,
    /// Free bytes of the file system that has the pool's files.
    pub host_free_bytes: Option<u64>,
    /// Number of bytes by which the free space decreases per second, averaged over the last readings.
    pub fills_bytes_per_second: f64,
    /// Time in seconds until the pool is full at that rate.
    pub full_in_seconds: Option<u64>,
}

/// Rates of a device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceRate {
    pub name: String,
    /// The pool or the export that stands on it.
    pub pool: Option<String>,
    pub export: Option<String>,
    /// Statistics are kept. Without them, all rates are 0.
    pub kept: bool,
    /// Share of the time in which it had at least one request, 0 to 1.
    pub utilization: f64,
    /// Requests that the driver has at the moment.
    pub in_flight: u32,
    pub in_flight_reads: u32,
    pub in_flight_writes: u32,
    /// Completed requests per second: of all operations, reads, and writes.
    pub iops: f64,
    pub reads_per_second: f64,
    pub writes_per_second: f64,
    /// Bytes per second of reads and writes, and of each.
    pub bytes_per_second: f64,
    pub read_bytes_per_second: f64,
    pub written_bytes_per_second: f64,
    /// Failed requests since it was opened.
    pub errors: u64,
}

/// Everything that is displayed.
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
    pub devices: Vec<DeviceRate>,
    pub devices_total: u64,
    /// Current problems.
    pub health: t::Health,
}

impl History {
    /// Makes a history with a first reading.
    pub fn new(first: t::Statistics) -> History {
        let pools = VecDeque::from([(first.uptime_ns, first.pools.clone())]);
        History { last: first, pools }
    }

    /// Returns the differences between the last reading and this one.
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
            devices: now.devices.iter().map(|device| self.device(device, seconds)).collect(),
            devices_total: now.devices_total,
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
            vhost_user: now.vhost_user.clone(),
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

    fn device(&self, now: &t::DeviceStatistics, seconds: f64) -> DeviceRate {
        let key = |device: &t::DeviceStatistics| (device.name.clone(), device.pool.clone(), device.export.clone());
        let before = self.last.devices.iter().find(|had| key(had) == key(now)).unwrap_or(now);
        let rate = |operation: Option<&str>, value: fn(&t::DeviceOperation) -> u64| {
            let sum = |device: &t::DeviceStatistics| {
                let of = device.operations.iter().filter(|one| operation.is_none_or(|name| one.operation == name));
                of.map(value).sum::<u64>()
            };
            sum(now).saturating_sub(sum(before)) as f64 / seconds
        };
        let [reads_per_second, writes_per_second] = ["read", "write"].map(|name| rate(Some(name), |one| one.ios));
        let [read, written] = ["read", "write"].map(|name| rate(Some(name), |one| one.bytes));
        DeviceRate {
            name: now.name.clone(),
            pool: now.pool.clone(),
            export: now.export.clone(),
            kept: now.kept,
            // The time of the reading is not exactly that of each device's counters.
            utilization: (now.busy_ns.saturating_sub(before.busy_ns) as f64 / 1e9 / seconds).min(1.0),
            in_flight: now.in_flight(),
            in_flight_reads: now.in_flight_reads,
            in_flight_writes: now.in_flight_writes,
            iops: rate(None, |one| one.ios),
            reads_per_second,
            writes_per_second,
            bytes_per_second: read + written,
            read_bytes_per_second: read,
            written_bytes_per_second: written,
            errors: now.errors(),
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

/// Returns the number of requests between two readings, and the bytes of reads and writes among them (R1).
fn requests(before: &t::ExportStatistics, now: &t::ExportStatistics) -> (u64, u64) {
    let (before, now) = (&before.requests, &now.requests);
    let all = |counts: &t::RequestCounts| counts.reads + counts.writes + counts.others;
    let bytes = |counts: &t::RequestCounts| counts.read_bytes + counts.written_bytes;
    (all(now).saturating_sub(all(before)), bytes(now).saturating_sub(bytes(before)))
}

/// Returns the rates of all kinds together, and those of each kind. Kinds that the earlier reading does not have are
/// left out (R1).
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

/// Returns the seconds between two times; never 0, because rates are divided by it.
fn between(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns.saturating_sub(from_ns) as f64 / 1e9).max(1e-6)
}

/// Activity between two readings.
#[derive(Default)]
struct Change {
    ios: u64,
    bytes: u64,
    time_ns: u64,
    stages: [u64; 5],
    /// Number of I/Os for each bucket of latencies, keyed by the smallest latency of the bucket.
    latencies: std::collections::BTreeMap<u64, u64>,
}

/// Returns the times of the stages, in order.
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

    /// Returns the lower bound of the bucket that contains this quantile.
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
