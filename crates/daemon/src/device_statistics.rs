//! Statistics of the devices that pools and exports stand on, and their switch.
//!
//! Owns the names of devices, by which clients tell them apart. The block layer counts; volumes have no devices of
//! their own, so that each device is listed once, below its pool or below its export.
//!
//! * N1. A device is called by its spec, without secrets. Two of the same pool or export with the same spec get a
//!   number: no two devices of a list have the same owner and name.

use std::collections::HashSet;

use sheave_blk::Device;
use sheave_blk::bio::Op;
use sheave_drivers::spec::masked;
use sheave_vol::Pool;

use crate::api::types as t;
use crate::daemon::{Daemon, locked};
use crate::failure::Failure;

/// The pool or export that stands on a device.
#[derive(Clone, Debug)]
enum Owner {
    Pool(String),
    Export(String),
}

/// A device of one queue.
#[derive(Debug)]
pub(crate) struct Counted {
    device: Device,
    /// Unique within its owner (N1).
    name: String,
    owner: Owner,
}

/// Returns all devices: those of pools, in the order of their names, then those of exports, as they are served.
pub(crate) fn all(daemon: &Daemon) -> Vec<Counted> {
    let mut all = Vec::new();
    for held in daemon.pools() {
        // The devices of a pool that is not open count nothing.
        if let Ok(device) = held.pool().map(Pool::device) {
            all.extend(parts(device, &Owner::Pool(held.plan.name.clone())));
        }
    }
    let rows = daemon.rows();
    let of_devices: HashSet<&str> =
        rows.iter().filter(|row| row.plan.pool().is_none()).map(|row| row.plan.name.as_str()).collect();
    for export in daemon.server.devices() {
        if of_devices.contains(export.name.as_str()) {
            all.extend(parts(&export.device, &Owner::Export(export.name.clone())));
        }
    }
    all
}

/// Returns the devices that one device consists of, with their names (N1).
fn parts(device: &Device, owner: &Owner) -> Vec<Counted> {
    let mut parts: Vec<Counted> = Vec::new();
    for device in device.by_queue() {
        let spec = masked(device.name());
        let is_taken = |name: &str| parts.iter().any(|part| part.name == name);
        let name = match is_taken(&spec) {
            true => (2..).map(|number| format!("{spec} ({number})")).find(|name| !is_taken(name)).unwrap_or(spec),
            false => spec,
        };
        parts.push(Counted { device, name, owner: owner.clone() });
    }
    parts
}

impl Counted {
    /// Returns the export that stands on it, or `None` for the device of a pool.
    pub(crate) fn export(&self) -> Option<&str> {
        match &self.owner {
            Owner::Pool(_) => None,
            Owner::Export(export) => Some(export),
        }
    }

    /// Returns the key of its counter among those of its queue.
    fn key(&self) -> String {
        match &self.owner {
            Owner::Pool(name) => format!("pool {name}"),
            Owner::Export(name) => format!("export {name}"),
        }
    }

    /// Reads its counters.
    pub(crate) fn read(&self, daemon: &Daemon) -> t::DeviceStatistics {
        let (stats, in_flight) = (self.device.stats(), self.device.in_flight());
        let operation = |op: Op| {
            let counts = stats.op(op);
            t::DeviceOperation {
                operation: op.name().into(),
                ios: counts.ios,
                bytes: counts.sectors << 9,
                merges: counts.merges,
                errors: counts.errors,
                time_ns: counts.split.time_ns,
            }
        };
        let (pool, export) = match self.owner.clone() {
            Owner::Pool(pool) => (Some(pool), None),
            Owner::Export(export) => (None, Some(export)),
        };
        t::DeviceStatistics {
            name: self.name.clone(),
            pool,
            export,
            kept: self.device.keeps_stats(),
            operations: Op::ALL.into_iter().map(operation).collect(),
            busy_ns: locked(&daemon.busy).advance(&self.device, &self.key(), &stats),
            in_flight_reads: in_flight.reads,
            in_flight_writes: in_flight.writes,
            in_flight_others: in_flight.other,
        }
    }
}

/// Brings the busy times of all devices up to date. Called every few seconds.
pub(crate) fn keep_up(daemon: &Daemon) {
    for counted in all(daemon) {
        let stats = counted.device.stats();
        locked(&daemon.busy).advance(&counted.device, &counted.key(), &stats);
    }
    locked(&daemon.busy).forget_closed();
}

/// Turns statistics of the devices that `wanted` names on or off, and returns their names.
pub(crate) fn set(daemon: &Daemon, wanted: &t::SetDeviceStatistics) -> Result<t::DevicesSet, Failure> {
    let mut devices = Vec::new();
    for counted in all(daemon) {
        // A file may be called by its path. That of a pool's file in the working directory is `file:./NAME`.
        let path = counted.name.strip_prefix("file:").unwrap_or(&counted.name);
        let is_meant = |named| [&counted.name, path, path.trim_start_matches("./")].contains(&named);
        if wanted.device.as_deref().is_none_or(is_meant) {
            counted.device.set_stats(wanted.kept);
            devices.push(counted.name);
        }
    }
    if let (Some(named), true) = (&wanted.device, devices.is_empty()) {
        let what = format!("no pool and no export stands on a device '{named}'");
        return Err(Failure::run(what).fix("see the names of devices: sheave device list"));
    }
    Ok(t::DevicesSet { devices })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_owner_with_the_same_spec_get_numbers() {
        let device = crate::devices::open_device("linear:over=ram:size=1M+ram:size=2M+ram:size=1M").expect("a device");
        let parts = parts(&device, &Owner::Pool("tank".into()));
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["ram:size=1M", "ram:size=2M", "ram:size=1M (2)"]);
    }
}
