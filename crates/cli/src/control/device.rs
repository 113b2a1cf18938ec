//! `sheave device`: devices under a daemon, and the switch of their statistics.

use serde_json::json;
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::failure::Failure;

use super::commands::{connect, done};
use crate::args::control::{DeviceArgs, DeviceCommand};
use crate::output::{self, plain};

/// Runs the command.
pub fn run(args: &DeviceArgs) -> Result<(), Failure> {
    let remote = connect(args.control.as_deref())?;
    match &args.command {
        DeviceCommand::List { json } => {
            let all: t::Statistics = remote.call("GetStatistics", &t::Nothing {})?;
            if *json {
                return output::json(&json!({ "devices": all.devices, "devices_total": all.devices_total }));
            }
            let mut text =
                line(["NAME", "STATISTICS", "IN FLIGHT", "READ", "WRITTEN", "ERRORS", "OF"].map(str::to_owned));
            all.devices.iter().for_each(|device| text += &row(device));
            let more = all.devices_total.saturating_sub(all.devices.len() as u64);
            if more > 0 {
                text += &format!("and {more} more\n");
            }
            output::text(&text);
            Ok(())
        }
        DeviceCommand::Statistics { state, device, json } => {
            let kept = state.is_on();
            let set = t::SetDeviceStatistics { device: device.clone(), kept };
            let t::DevicesSet { devices } = remote.call("SetDeviceStatistics", &set)?;
            let word = if kept { "on" } else { "off" };
            let words: String =
                devices.iter().map(|device| format!("statistics {word}: {}\n", plain(device))).collect();
            done(*json, &json!({ "done": "switched", "kept": kept, "devices": devices }), &words)
        }
    }
}

/// Returns the name of the pool or export that stands on a device.
pub fn owner(pool: Option<&str>, export: Option<&str>) -> String {
    match (pool, export) {
        (Some(pool), _) => format!("pool {}", plain(pool)),
        (None, export) => format!("export {}", plain(export.unwrap_or_default())),
    }
}

fn row(device: &t::DeviceStatistics) -> String {
    let bytes = |name: &str| {
        let of = device.operations.iter().filter(|one| one.operation == name);
        fmt_bytes(of.map(|one| one.bytes).sum())
    };
    line([
        plain(&device.name),
        if device.kept { "on" } else { "off" }.into(),
        device.in_flight().to_string(),
        bytes("read"),
        bytes("write"),
        device.errors().to_string(),
        owner(device.pool.as_deref(), device.export.as_deref()),
    ])
}

fn line([name, statistics, in_flight, read, written, errors, owner]: [String; 7]) -> String {
    format!("{name:30}  {statistics:10}  {in_flight:>9}  {read:>9}  {written:>9}  {errors:>6}  {owner}\n")
}
