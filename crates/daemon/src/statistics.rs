//! `GetStatistics`: the counters of exports, rings, pools and devices.
//!
//! Owns the limit of a reply. Counts nothing itself, and waits for no I/O.
//!
//! T1. A reply lists at most [`MOST`] exports, pools, clients and devices each, and has their total numbers.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::SystemTime;

use sheave_blk::stats::{Latencies, SplitCounts, Stage};
use sheave_iomap::io_stats::{IoCounts, IoKind, KindCounts};
use sheave_serve::{Client, ExportStatus};
use sheave_vol::Pool;

use crate::api::types as t;
use crate::config::What;
use crate::daemon::{Daemon, Held, Row};
use crate::device_statistics;

/// Maximum number of exports, pools, clients and devices in a reply, each (T1).
const MOST: usize = 256;

/// Reads all counters.
pub(super) fn read(daemon: &Daemon) -> t::Statistics {
    let uptime_ns = u64::try_from(daemon.since().elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (served, rows, clients, pools) =
        (daemon.server.exports(), daemon.rows(), daemon.server.clients(), daemon.pools());
    let failed: Vec<&Row> = rows.iter().filter(|row| row.failed.is_some()).collect();
    let busiest = busiest(daemon, &served, MOST - failed.len().min(MOST / 2));
    let reactors = daemon.server.reactors();
    let unserved = failed.iter().map(|row| failed_export(row, reactors));
    let listed = busiest.iter().map(|(status, io)| export(status, &rows, io, reactors));
    let mut devices = device_statistics::all(daemon);
    if devices.len() > MOST {
        let answered: HashMap<&str, u64> =
            served.iter().map(|status| (status.name.as_str(), status.counts.answered())).collect();
        // The devices of pools first.
        devices.sort_by_key(|device| {
            Reverse(device.export().map_or(u64::MAX, |export| answered.get(export).copied().unwrap_or(0)))
        });
    }
    t::Statistics {
        uptime_ns,
        reactors: reactors as u64,
        queues: daemon.server.queues().iter().enumerate().map(|(at, group)| queue(at, &group.counts())).collect(),
        exports_total: (served.len() + failed.len()) as u64,
        exports: listed.chain(unserved).take(MOST).collect(),
        pools_total: pools.len() as u64,
        pools: pools.iter().map(|held| pool(held)).take(MOST).collect(),
        clients_total: clients.len() as u64,
        clients: self::clients(clients.into_iter().take(MOST)),
        devices_total: devices.len() as u64,
        devices: devices.iter().take(MOST).map(|device| device.read(daemon)).collect(),
        health: daemon.health().told(),
    }
}

/// Statistics of a pool; zeroes if it is not open.
fn pool(held: &Held) -> t::PoolStatistics {
    let (info, name) = (held.pool().map(Pool::info), held.plan.name.clone());
    match info {
        Ok(info) => t::PoolStatistics {
            name,
            size_bytes: info.size_bytes,
            data_bytes: info.data_bytes,
            metadata_bytes: info.metadata_bytes,
            free_bytes: info.free_bytes,
            state: info.state.name().into(),
            host_free_bytes: held.place().host_free_bytes(),
            lost_if_killed: info.no_recent,
            failed: None,
        },
        Err(why) => t::PoolStatistics {
            name,
            size_bytes: 0,
            data_bytes: 0,
            metadata_bytes: 0,
            free_bytes: 0,
            state: "closed".into(),
            host_free_bytes: None,
            lost_if_killed: None,
            failed: Some(held.failed().unwrap_or(&why).cause().to_owned()),
        },
    }
}

/// Statistics of an export that is not served.
fn failed_export(row: &Row, reactors: usize) -> t::ExportStatistics {
    let (pool, volume) = of_volume(row);
    t::ExportStatistics {
        name: row.plan.name.clone(),
        pool,
        volume,
        size_bytes: 0,
        clients: 0,
        failed_requests: 0,
        requests: t::RequestCounts::default(),
        failed: row.failed.as_ref().map(|why| why.cause().to_owned()),
        vhost_user: row.plan.vhost_user.as_ref().map(|plan| plan.row(None, reactors)),
        errors: 0,
        kinds: Vec::new(),
    }
}

/// Returns pool and volume of an export, or `None` for a device.
fn of_volume(row: &Row) -> (Option<String>, Option<String>) {
    match &row.plan.what {
        What::Volume { pool, volume } => (Some(pool.clone()), Some(volume.clone())),
        What::Device { .. } => (None, None),
    }
}

/// Returns the `most` exports with the most requests, in descending order. Among equals, those that were served first
/// come first.
fn busiest<'a>(daemon: &Daemon, served: &'a [ExportStatus], most: usize) -> Vec<(&'a ExportStatus, IoCounts)> {
    let mut groups: HashMap<_, _> = daemon.server.io_groups().into_iter().collect();
    let mut found: Vec<_> = served.iter().map(|status| (status, groups.remove(&status.name))).collect();
    found.sort_by_key(|(status, _)| Reverse(status.counts.answered()));
    found.truncate(most);
    found.into_iter().map(|(status, group)| (status, group.map(|group| group.counts()).unwrap_or_default())).collect()
}

fn export(status: &ExportStatus, rows: &[Row], io: &IoCounts, reactors: usize) -> t::ExportStatistics {
    let row = rows.iter().find(|row| row.plan.name == status.name);
    let (pool, volume) = row.map_or((None, None), of_volume);
    let plan = row.and_then(|row| row.plan.vhost_user.as_ref());
    let counts = &status.counts;
    t::ExportStatistics {
        name: status.name.clone(),
        pool,
        volume,
        size_bytes: status.size_bytes,
        clients: status.clients,
        failed_requests: counts.errors,
        requests: t::RequestCounts {
            reads: counts.reads,
            read_bytes: counts.read_bytes,
            writes: counts.writes,
            written_bytes: counts.written_bytes,
            others: counts.flushes + counts.trims + counts.zeroes + counts.others,
        },
        failed: None,
        vhost_user: plan.map(|plan| plan.row(status.vhost_user.as_ref(), reactors)),
        errors: io.errors(),
        kinds: kinds(io),
    }
}

fn queue(number: usize, io: &IoCounts) -> t::QueueStatistics {
    t::QueueStatistics { queue: number as u64, errors: io.errors(), kinds: kinds(io) }
}

/// Returns the kinds of I/O that occurred.
fn kinds(io: &IoCounts) -> Vec<t::KindStatistics> {
    let kinds = IoKind::ALL.into_iter().map(|kind| (kind, io.kind(kind)));
    kinds.filter(|(_, counts)| counts.ios > 0).map(|(kind, counts)| of_kind(kind, counts)).collect()
}

fn of_kind(kind: IoKind, counts: &KindCounts) -> t::KindStatistics {
    let cells = counts.split.latency.iter().enumerate().filter(|(_, ios)| **ios > 0);
    t::KindStatistics {
        kind: kind.name().into(),
        ios: counts.ios,
        bytes: counts.bytes,
        time_ns: counts.split.time_ns,
        stages: stages(&counts.split),
        latencies: cells
            .map(|(cell, &ios)| t::LatencyCell { from_ns: *Latencies::values(cell).start(), ios })
            .collect(),
    }
}

fn stages(split: &SplitCounts) -> t::SplitRow {
    t::SplitRow {
        worker_ns: split.ns(Stage::Worker),
        tag_ns: split.ns(Stage::Tag),
        plugged_ns: split.ns(Stage::Plugged),
        driver_ns: split.ns(Stage::Driver),
        reap_ns: split.ns(Stage::Reap),
    }
}

/// Converts clients for a reply.
pub(super) fn clients(clients: impl IntoIterator<Item = Client>) -> Vec<t::ClientRow> {
    let now = SystemTime::now();
    let row = |client: Client| t::ClientRow {
        id: client.id,
        peer: client.peer,
        export: client.export,
        connected_seconds: now.duration_since(client.since).unwrap_or_default().as_secs(),
        read_bytes: client.counts.read_bytes,
        written_bytes: client.counts.written_bytes,
        failed_requests: client.counts.errors,
    };
    clients.into_iter().map(row).collect()
}
