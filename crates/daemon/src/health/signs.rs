//! Detection of current problems of pools, exports and certificates.
//!
//! The functions keep no state except [`Memory`]: when a device had its last fault, and since when it has completed
//! nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use sheave_base::status::Status;
use sheave_base::units::fmt_bytes;
use sheave_blk::Device;
use sheave_blk::stats::Faults;
use sheave_serve::Expiry;
use sheave_vol::{DiscardState, PoolInfo, SpaceState};

use crate::daemon::{Held, Row};
use crate::problems::{About, Kind, Problem};
use crate::tls::RENEW;

/// Time after its last fault during which a device counts as faulty.
pub(super) const FAULTY: Duration = Duration::from_secs(60);
/// A device with requests in flight that completes none for this long counts as silent.
pub(super) const SILENT: Duration = Duration::from_secs(5);
/// Maximum number of names in a cause.
const MOST_NAMES: usize = 5;

const MORE_SPACE: &str = "Delete snapshots, or give it more: sheave pool grow";

/// Earlier observations of a device.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    faults: u64,
    last_fault: Option<Instant>,
    /// Number of completed I/Os, and the time since which it has not grown although some were in flight.
    ended: u64,
    silent_since: Option<Instant>,
}

/// Observations of devices, by the pool or export on them.
pub(super) type Memory = BTreeMap<About, DeviceMemory>;

/// A problem that begins now.
pub(super) fn problem(kind: Kind, about: &About, cause: String, fix: impl Into<String>) -> Problem {
    Problem { kind, about: about.clone(), cause, fix: fix.into(), since: Instant::now() }
}

/// Lists some names, and the number of the others.
fn names(all: &[&str]) -> String {
    let some = all.iter().take(MOST_NAMES).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MOST_NAMES) {
        0 => some,
        more => format!("{some} and {more} more"),
    }
}

/// Adds the problems of a device.
pub(super) fn of_device(device: &Device, about: &About, what: &str, memory: &mut Memory, found: &mut Vec<Problem>) {
    let now = Instant::now();
    let Faults { count, last, .. } = device.faults();
    let seen = memory.entry(about.clone()).or_insert_with(|| DeviceMemory {
        // Zero, and not the current count, so that faults before the first check are reported too.
        faults: 0,
        last_fault: None,
        ended: 0,
        silent_since: None,
    });
    if count > seen.faults {
        (seen.faults, seen.last_fault) = (count, Some(now));
    }
    if seen.last_fault.is_some_and(|at| now.duration_since(at) < FAULTY) {
        found.push(problem(
            Kind::DeviceFaults,
            about,
            format!("the device of {what} fails: {count} requests have ended with faults so far, the last: {last}"),
            "Look at the device and the way to it: dmesg, smartctl, the server that has it",
        ));
    }
    let in_flight = device.accounted().total();
    let ended = if in_flight == 0 { seen.ended } else { device.stats().ios() };
    if in_flight == 0 || ended != seen.ended {
        (seen.ended, seen.silent_since) = (ended, None);
        return;
    }
    let silent = now.duration_since(*seen.silent_since.get_or_insert(now));
    if silent >= SILENT {
        let cause = format!("the device of {what} does not answer: {in_flight} requests wait for it");
        found.push(problem(
            Kind::DeviceSilent,
            about,
            cause,
            "See whether the device, or the server that has it, is there; requests go on when it answers",
        ));
    }
}

/// Adds the problem of a pool that is not open, unless it is waited for.
fn of_closed_pool(held: &Held, rows: &[Row], found: &mut Vec<Problem>) {
    let name = held.plan.name.as_str();
    let Some(why) = held.failed().filter(|why| !(held.plan.standby && why.is_busy())) else { return };
    let exports: Vec<_> =
        rows.iter().filter(|row| row.plan.volume_of(name).is_some()).map(|row| row.plan.name.as_str()).collect();
    let served = match exports.len() {
        0 => String::new(),
        1 => format!("; its export {} is not served", names(&exports)),
        n => format!("; {n} exports of it are not served: {}", names(&exports)),
    };
    let fix = why.how_to_mend().unwrap_or("Mend the cause; the daemon tries again by itself");
    let cause = format!("pool '{name}' is not open: {}{served}", why.cause());
    found.push(problem(Kind::PoolFailed, &About::Pool(name.to_owned()), cause, fix));
}

/// Adds the problems with the space of a pool.
fn of_space(name: &str, info: &PoolInfo, host_free: Option<u64>, found: &mut Vec<Problem>) {
    let about = &About::Pool(name.to_owned());
    let mut put = |kind, cause, fix: &str| found.push(problem(kind, about, cause, fix));
    let free = fmt_bytes(info.free_bytes);
    match info.state {
        SpaceState::Full => put(Kind::PoolFull, format!("pool '{name}' is full, and writes to it fail"), MORE_SPACE),
        SpaceState::Low => put(Kind::PoolLow, format!("pool '{name}' is low: {free} are free"), MORE_SPACE),
        _ => {}
    }
    if info.metadata_low {
        let cause = format!("the metadata of pool '{name}' runs short: soon it takes no new volumes and snapshots");
        put(Kind::MetadataLow, cause, "Delete volumes or snapshots");
    }
    const HOST: &str = "Make room in the file system, or give back what is free in the pool: sheave pool trim";
    // `host_full` stays set until the next write to new space, so the free space is checked as well.
    let has_room = host_free.is_some_and(|free| free >= 4 * info.unit_bytes.max(1 << 20));
    if info.host_full && !has_room {
        let cause = format!("the file system that holds pool '{name}' is full, and writes to new space fail");
        put(Kind::HostFull, cause, HOST);
    } else if let Some(host) = host_free
        && host < info.free_bytes
        && host < info.low_water_bytes
    {
        let host = fmt_bytes(host);
        let cause = format!("the file system that holds pool '{name}' has {host} left, and the pool may take {free}");
        put(Kind::HostLow, cause, HOST);
    }
    if let DiscardState::Failed(status) = info.discard {
        let cause = format!("pool '{name}' gives no free space back to its device: a discard has failed: {status}");
        put(Kind::DiscardFailed, cause, "Look at the device; the pool tries again when it is opened the next time");
    }
}

/// Adds the problems with the content of a pool.
fn of_content(name: &str, info: &PoolInfo, found: &mut Vec<Problem>) {
    let about = &About::Pool(name.to_owned());
    let mut put = |kind, cause, fix: &str| found.push(problem(kind, about, cause, fix));
    if let Some(who) = &info.taken_by {
        let cause = format!("pool '{name}' takes no writes, for it is not this daemon's any more: {who}");
        put(Kind::PoolLost, cause, "End the other user or the second path to its bytes, then restart the daemon");
    }
    if let Some(status) = info.degraded {
        let cause = format!("a flush of pool '{name}' has failed, and it takes no writes: {status}");
        put(Kind::PoolDegraded, cause, "Look at its device, then restart the daemon");
    }
    if info.deletes_only {
        let cause = format!("pool '{name}' takes nothing but deletes, for its first checkpoint cannot be written");
        put(Kind::DeletesOnly, cause, "Make room on its host or delete damaged volumes, then restart the daemon");
    }
    if !info.damaged.is_empty() {
        let volumes: Vec<_> = info.damaged.iter().map(|(volume, _)| volume.as_str()).collect();
        let cause = format!("pool '{name}' has damaged maps, and these volumes do not open: {}", names(&volumes));
        put(Kind::VolumesDamaged, cause, "sheave pool check --dry-run tells what a repair would do");
    }
    if !info.lost.is_empty() {
        let volumes: Vec<_> = info.lost.iter().map(String::as_str).collect();
        let cause = format!("these volumes of pool '{name}' may have lost acknowledged data: {}", names(&volumes));
        put(Kind::DataLost, cause, "Check them, then acknowledge it: sheave pool set --acknowledge-loss");
    }
    if info.bad_blocks > 0 {
        let cause = format!("{} blocks of pool '{name}' do not match their checksums", info.bad_blocks);
        put(Kind::BadBlocks, cause, "sheave pool scrub tells which volumes have them; write them anew from a copy");
    }
    if info.bad_copies > 0 {
        let cause = format!("{} blocks of metadata of pool '{name}' have a bad copy and a good one", info.bad_copies);
        put(Kind::BadCopies, cause, "Write the other copies anew: sheave pool scrub; and look at the member");
    }
}

/// Adds all problems of a pool. Returns its state if it is open.
pub(super) fn of_pool(held: &Held, rows: &[Row], memory: &mut Memory, found: &mut Vec<Problem>) -> Option<PoolInfo> {
    let Ok(pool) = held.pool() else {
        of_closed_pool(held, rows, found);
        return None;
    };
    let name = held.plan.name.as_str();
    let info = pool.info();
    of_space(name, &info, held.place().host_free_bytes(), found);
    of_content(name, &info, found);
    of_device(pool.device(), &About::Pool(name.to_owned()), &format!("pool '{name}'"), memory, found);
    Some(info)
}

/// Adds the problem of an export that is not served, unless its pool is not open, which is reported instead.
pub(super) fn of_row(row: &Row, is_pool_open: impl Fn(&str) -> bool, found: &mut Vec<Problem>) {
    let Some(why) = row.failed.as_ref().filter(|_| row.plan.pool().is_none_or(is_pool_open)) else { return };
    let (name, kind) = (row.plan.name.as_str(), if why.is_busy() { Kind::ExportWaits } else { Kind::ExportFailed });
    let fix = why.how_to_mend().unwrap_or("Mend the cause; the daemon tries again by itself");
    let cause = format!("export '{name}' is not served: {}", why.cause());
    found.push(problem(kind, &About::Export(name.to_owned()), cause, fix));
}

/// Adds the problem of an exported device of which a flush has failed.
pub(super) fn of_flush(name: &str, status: Status, found: &mut Vec<Problem>) {
    found.push(problem(
        Kind::FlushFailed,
        &About::Export(name.to_owned()),
        format!("a flush of export '{name}' has failed, and each later one fails too: {status}"),
        "Look at its device, check what clients have written, then end the export and add it again",
    ));
}

/// Adds the problem of a certificate that has expired or soon will.
pub(super) fn of_certificate(expiry: &Expiry, now: SystemTime, found: &mut Vec<Problem>) {
    let path = expiry.path.as_path();
    let about = About::File(path.display().to_string());
    const FIX: &str = "Put a new one there, and reload the daemon (SIGHUP)";
    match expiry.at.duration_since(now) {
        Ok(left) if left < RENEW => {
            let cause = format!("a certificate in {} expires in {}", shown(path), in_days(left));
            found.push(problem(Kind::CertificateExpires, &about, cause, FIX));
        }
        Ok(_) => {}
        Err(since) => {
            let cause = format!("a certificate in {} has expired {} ago", shown(path), in_days(since.duration()));
            found.push(problem(Kind::CertificateExpired, &about, cause, FIX));
        }
    }
}

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}

fn in_days(span: Duration) -> String {
    match span.as_secs() / 3600 {
        0..48 => format!("{} h", span.as_secs() / 3600),
        hours => format!("{} days", hours / 24),
    }
}
