//! All metrics except those of I/O.

use std::sync::Arc;

use sheave_serve::{ExportStatus, IoCounts, VhostUserStatus};
use sheave_vol::SpaceState;

use super::page::{MOST_NAMED, Page};
use super::{detail, devices};
use crate::config::What;
use crate::daemon::{Daemon, Held, Row};
use crate::device_statistics;
use crate::problems::{Health, MOST_PROBLEMS};

/// Renders the page.
pub(super) fn page(daemon: &Daemon, is_open: bool) -> String {
    let mut page = Page { text: String::new(), is_open };
    let version = (env!("CARGO_PKG_VERSION").to_owned(), 1);
    page.family("sheave_version", "gauge", "The version of the daemon, as a label.", "version", &[version]);
    page.single("sheave_uptime_seconds", "Seconds since it began.", daemon.since().elapsed().as_secs());
    page.single("sheave_reactors", "Threads that serve.", daemon.server.reactors() as u64);
    page.single("sheave_clients", "Connected clients.", daemon.server.clients().len() as u64);
    let (rows, served) = (daemon.rows(), daemon.server.exports());
    exports(&mut page, &rows, &served);
    requests(&mut page, &served);
    vhost_user(&mut page, &served);
    let groups = daemon.server.io_groups();
    detail::families(&mut page, groups.iter().map(|(export, group)| (export.as_str(), group.counts())));
    pools(&mut page, &daemon.pools());
    let counted = device_statistics::all(daemon);
    devices::families(&mut page, counted.iter().map(|device| device.read(daemon)));
    health(&mut page, &daemon.health());
    page.text + if is_open { "# EOF\n" } else { "" }
}

fn exports(page: &mut Page, rows: &[Row], served: &[ExportStatus]) {
    page.single("sheave_exports", "Exports, also those that are not served.", rows.len() as u64);
    let up: Vec<_> = rows.iter().map(|row| (row.plan.name.clone(), u64::from(row.failed.is_none()))).collect();
    page.family("sheave_export_up", "gauge", "Whether an export is served.", "export", &up);
    page.head("sheave_export_volume", "gauge", "Which volume an export is, as labels.");
    for row in rows.iter().take(MOST_NAMED) {
        if let What::Volume { pool, volume } = &row.plan.what {
            let labels = [("export", row.plan.name.as_str()), ("pool", pool), ("volume", volume)];
            page.value("sheave_export_volume", &labels, 1);
        }
    }
    let of = |value: fn(&ExportStatus) -> u64| {
        served.iter().map(|export| (export.name.clone(), value(export))).collect::<Vec<_>>()
    };
    let clients = of(|export| export.clients.into());
    page.family("sheave_export_clients", "gauge", "Clients that have an export.", "export", &clients);
    let refused = of(|export| export.refused);
    let help = "Clients that asked for an export which they may not open.";
    page.family("sheave_export_refused_clients", "counter", help, "export", &refused);
    page.family("sheave_export_size_bytes", "gauge", "Bytes of an export.", "export", &of(|export| export.size_bytes));
}

/// The vhost-user devices of exports that have one.
pub(super) fn vhost_user(page: &mut Page, served: &[ExportStatus]) {
    type Value = fn(&VhostUserStatus) -> u64;
    let families: [(&str, &str, Value); 3] = [
        ("sheave_vhost_attached", "Whether a virtual machine has attached an export.", |device| {
            u64::from(device.client.is_some())
        }),
        ("sheave_vhost_running_queues", "Queues that a virtual machine has set up.", |device| {
            device.running.len() as u64
        }),
        ("sheave_vhost_in_flight", "Requests in flight in the queues.", |device| {
            device.running.iter().map(|queue| u64::from(queue.in_flight)).sum()
        }),
    ];
    for (name, help, value) in families {
        let of = |export: &ExportStatus| Some((export.name.clone(), value(export.vhost_user.as_ref()?)));
        page.family(name, "gauge", help, "export", &served.iter().filter_map(of).collect::<Vec<_>>());
    }
}

/// Requests of clients, since each export began to be served.
pub(super) fn requests(page: &mut Page, served: &[ExportStatus]) {
    type Value = fn(&IoCounts) -> u64;
    let families: [(&str, &str, Value); 11] = [
        ("sheave_export_reads", "Reads that were answered.", |counts| counts.reads),
        ("sheave_export_read_bytes", "Bytes that were read.", |counts| counts.read_bytes),
        ("sheave_export_writes", "Writes that were answered.", |counts| counts.writes),
        ("sheave_export_written_bytes", "Bytes that were written.", |counts| counts.written_bytes),
        ("sheave_export_flushes", "Flushes that were answered.", |counts| counts.flushes),
        ("sheave_export_trims", "Trims that were answered.", |counts| counts.trims),
        ("sheave_export_trimmed_bytes", "Bytes that were trimmed.", |counts| counts.trimmed_bytes),
        ("sheave_export_zeroes", "Requests to zero a range that were answered.", |counts| counts.zeroes),
        ("sheave_export_zeroed_bytes", "Bytes that were zeroed.", |counts| counts.zeroed_bytes),
        ("sheave_export_other_requests", "Questions for a map, and hints to cache.", |counts| counts.others),
        ("sheave_export_failed_requests", "Requests that were answered with an error.", |counts| counts.errors),
    ];
    for (name, help, value) in families {
        let values: Vec<_> = served.iter().map(|export| (export.name.clone(), value(&export.counts))).collect();
        page.family(name, "counter", help, "export", &values);
    }
}

/// Current problems. The value of a problem is its severity, 1 or 2.
fn health(page: &mut Page, health: &Health) {
    page.single("sheave_health", "The worst problem: 0 none, 1 a warning, 2 critical.", health.severity() as u64);
    page.head("sheave_problem", "gauge", "A problem, as labels: 1 a warning, 2 critical.");
    for problem in health.problems.iter().take(MOST_PROBLEMS) {
        let (kind, severity) = problem.kind.words();
        let (about, name) = problem.about.words();
        page.value("sheave_problem", &[("kind", kind), ("about", about), ("name", name)], severity as u64);
    }
}

fn pools(page: &mut Page, pools: &[Arc<Held>]) {
    let up: Vec<_> = pools.iter().map(|held| (held.plan.name.clone(), u64::from(held.failed().is_none()))).collect();
    page.family("sheave_pool_open", "gauge", "Whether a pool is open.", "pool", &up);
    let open = pools.iter().filter_map(|held| Some((held.plan.name.clone(), held.pool().ok()?.info())));
    let infos: Vec<_> = open.collect();
    type Value = fn(&sheave_vol::PoolInfo) -> u64;
    let families: [(&str, &str, &str, Value); 21] = [
        ("sheave_pool_size_bytes", "gauge", "Bytes of a pool.", |info| info.size_bytes),
        ("sheave_pool_data_bytes", "gauge", "Bytes of volumes' data.", |info| info.data_bytes),
        ("sheave_pool_metadata_bytes", "gauge", "Bytes of metadata.", |info| info.metadata_bytes),
        ("sheave_pool_free_bytes", "gauge", "Bytes that volumes may still take.", |info| info.free_bytes),
        ("sheave_pool_pending_bytes", "gauge", "Bytes that come free with the next commit.", |info| info.pending_bytes),
        ("sheave_pool_memory_bytes", "gauge", "Memory of its maps.", |info| info.memory_bytes),
        ("sheave_pool_volumes", "gauge", "Volumes and snapshots.", |info| info.volumes.into()),
        ("sheave_pool_low", "gauge", "Its space is low, or used up.", |info| u64::from(info.state != SpaceState::Ok)),
        ("sheave_pool_full", "gauge", "Its space is used up.", |info| u64::from(info.state == SpaceState::Full)),
        ("sheave_pool_degraded", "gauge", "A flush has failed, or another has the pool.", |info| {
            u64::from(info.degraded.is_some() || info.taken_by.is_some())
        }),
        ("sheave_pool_checksum_errors", "counter", "Blocks that did not match.", |info| info.checksum_errors),
        ("sheave_pool_bad_blocks", "gauge", "Blocks that do not match their checksums.", |info| info.bad_blocks),
        ("sheave_pool_bad_copies", "gauge", "Blocks of metadata with a bad copy and a good one.", |info| {
            info.bad_copies
        }),
        ("sheave_pool_metadata_low", "gauge", "Its metadata runs short.", |info| u64::from(info.metadata_low)),
        ("sheave_pool_lost", "gauge", "Volumes that may have lost data.", |info| info.lost.len() as u64),
        ("sheave_pool_damaged", "gauge", "Volumes with damaged maps.", |info| info.damaged.len() as u64),
        ("sheave_pool_recovered", "gauge", "Its last opening was after a crash.", |info| u64::from(info.recovered)),
        ("sheave_pool_times_full", "counter", "How often it became full.", |info| info.times_full),
        ("sheave_pool_times_metadata_low", "counter", "How often its metadata ran short.", |info| {
            info.times_metadata_low
        }),
        ("sheave_pool_host_refusals", "counter", "Writes that found the file system below full.", |info| {
            info.host_refusals
        }),
        ("sheave_pool_device_faults", "counter", "Requests that its devices have failed.", |info| {
            info.device_faults.count
        }),
    ];
    let host_free = pools.iter().filter_map(|held| Some((held.plan.name.clone(), held.place().host_free_bytes()?)));
    let host_free: Vec<_> = host_free.collect();
    let (name, help) = ("sheave_pool_host_free_bytes", "Bytes that the file system of a pool's files has free.");
    page.family(name, "gauge", help, "pool", &host_free);
    for (name, kind, help, value) in families {
        let values: Vec<_> = infos.iter().map(|(pool, info)| (pool.clone(), value(info))).collect();
        page.family(name, kind, help, "pool", &values);
    }
}
