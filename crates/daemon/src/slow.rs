//! `ListSlowIos`: the slow I/Os that reactors recorded.
//!
//! Owns the names: a volume is shown as `POOL#VOLUME`, a device by the name of its export. `sheave_iomap::slow` decides
//! what is recorded.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sheave_blk::stats::Split;
use sheave_iomap::slow::Place;
use sheave_serve::SlowRequest;

use crate::api::types as t;
use crate::config::What;
use crate::daemon::{Daemon, Row};

/// Returns the recorded I/Os, from the given sequence numbers on.
pub(super) fn list(daemon: &Daemon, list: &t::ListSlow) -> t::SlowRows {
    let reading = daemon.server.slow_ios(list.since.as_deref().unwrap_or_default());
    let (rows, now) = (daemon.rows(), SystemTime::now());
    t::SlowRows {
        ios: reading.slow.iter().map(|slow| row(slow, &rows, now)).collect(),
        next: reading.next,
        lost: reading.lost,
        limit_ns: ns(daemon.server.slow_limit()),
    }
}

fn row(slow: &SlowRequest, rows: &[Row], now: SystemTime) -> t::SlowRow {
    let io = &slow.io;
    let (offset, on_device) = match io.place {
        Place::File(at) => (at, false),
        Place::Device(at) => (at, true),
    };
    let Split { worker_ns, tag_ns, plugged_ns, driver_ns, reap_ns } = io.split;
    let ended = now.checked_sub(slow.age).and_then(|ended| ended.duration_since(UNIX_EPOCH).ok());
    t::SlowRow {
        reactor: slow.reactor as u64,
        number: io.number,
        export: slow.export.clone(),
        kind: io.kind.name().into(),
        offset,
        on_device,
        length: io.len,
        ios: io.ios,
        ended_ms: ended.map_or(0, |ended| u64::try_from(ended.as_millis()).unwrap_or(u64::MAX)),
        latency_ns: io.latency_ns(),
        split: t::SplitRow { worker_ns, tag_ns, plugged_ns, driver_ns, reap_ns },
        longest: io.split.longest().name().into(),
        depth: io.depth,
        beside: io.beside.activities().map(|activity| activity.name().to_owned()).collect(),
        slow_above_ns: io.slow_above_ns,
        usual_p999_ns: (io.usual_p999_ns != 0).then_some(io.usual_p999_ns),
        explained: io.explain(&name(slow.export.as_deref(), rows)),
    }
}

/// Returns the name of the volume or device behind an export.
fn name(export: Option<&str>, rows: &[Row]) -> String {
    let Some(export) = export else { return "what is served no more".into() };
    match rows.iter().find(|row| row.plan.name == export).map(|row| &row.plan.what) {
        Some(What::Volume { pool, volume }) => format!("{pool}#{volume}"),
        _ => export.into(),
    }
}

fn ns(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}
