//! `sheave top --once`: tables of exports, queues, devices, clients and pools; and texts that the display shares.

use sheave_base::units::{fmt_bytes, fmt_ns};

use sheave_daemon::api::types as t;

use crate::control::device::owner;
use crate::output::{plain, span};

use super::rates::{Board, DeviceRate, ExportRate, PoolRate, Rate, Shares};

/// Largest number of problems that are listed.
pub const MOST_PROBLEMS: usize = 5;
/// Width of the split.
const BAR: usize = 20;

/// Formats everything.
pub fn page(board: &Board) -> String {
    let mut text = format!("{}\n", head(board));
    problems(&board.health, MOST_PROBLEMS).iter().for_each(|(_, line)| text += &format!("{line}\n"));
    text += "\n";
    text += &heading("EXPORT");
    for export in &board.exports {
        let split = not_served(export).unwrap_or_else(|| bar(&export.rate.split, BAR));
        text += &row(&plain(&export.name), numbers(export), &split);
    }
    let attached: Vec<_> = board.exports.iter().filter(|export| export.vhost_user.is_some()).collect();
    if !attached.is_empty() {
        text += &format!("\n{}", vhost_row(VHOST_HEADS.map(str::to_owned)));
        attached.into_iter().flat_map(vhost_cells).for_each(|cells| text += &vhost_row(cells));
    }
    text += &format!("\n{}", heading("QUEUE"));
    for queue in &board.queues {
        text += &row(&queue.queue.to_string(), cells(&queue.rate), &bar(&queue.rate.split, BAR));
    }
    text += &format!("\n{}", device_row(DEVICE_HEADS.map(str::to_owned)));
    board.devices.iter().for_each(|device| text += &device_row(device_cells(device)));
    text += &format!("\n{:8}  {:16}  {:>12}  {:>12}  FROM\n", "CLIENT", "EXPORT", "READ/s", "WRITTEN/s");
    for client in &board.clients {
        let export = plain(client.export.as_deref().unwrap_or("-"));
        let rates = [client.read_bytes_per_second, client.written_bytes_per_second].map(|rate| fmt_bytes(rate as u64));
        text += &format!("{:8}  {export:16}  {:>12}  {:>12}  {}\n", client.id, rates[0], rates[1], plain(&client.peer));
    }
    text += "\nPOOLS\n";
    board.pools.iter().for_each(|pool| text += &format!("{}\n", space(pool)));
    text
}

/// Returns the headings of the columns of [`row`].
fn heading(first: &str) -> String {
    row(first, ["IOPS", "MiB/s", "p50", "p99", "DEPTH"].map(str::to_owned), "SPLIT")
}

fn row(name: &str, [iops, rate, p50, p99, depth]: [String; 5], split: &str) -> String {
    format!("{name:18}  {iops:>8}  {rate:>8}  {p50:>9}  {p99:>9}  {depth:>6}  {split}\n")
}

/// Headings of a table of queues of vhost-user devices.
pub const VHOST_HEADS: [&str; 5] = ["VHOST-USER", "QUEUE", "THREAD", "SIZE", "IN FLIGHT"];

fn vhost_row([name, queue, thread, size, in_flight]: [String; 5]) -> String {
    format!("{name:18}  {queue:>8}  {thread:>8}  {size:>9}  {in_flight:>9}\n")
}

/// Formats the queues of a vhost-user device; a single row without numbers if no virtual machine has attached it.
pub fn vhost_cells(export: &ExportRate) -> Vec<[String; 5]> {
    let Some(device) = &export.vhost_user else { return Vec::new() };
    let queue =
        |queue: &t::VhostQueue| [queue.queue, queue.reactor, queue.size, queue.in_flight].map(|n| n.to_string());
    let mut numbers: Vec<_> = device.running.iter().map(queue).collect();
    if numbers.is_empty() {
        numbers.push(std::array::from_fn(|_| "-".to_owned()));
    }
    let name = plain(&export.name);
    let row = |[queue, thread, size, in_flight]: [String; 4]| [name.clone(), queue, thread, size, in_flight];
    numbers.into_iter().map(row).collect()
}

/// Headings of a table of devices.
pub const DEVICE_HEADS: [&str; 6] = ["DEVICE", "%UTIL", "IN FLIGHT", "IOPS", "MiB/s", "OF"];

fn device_row([name, util, in_flight, iops, rate, owner]: [String; 6]) -> String {
    format!("{name:30}  {util:>6}  {in_flight:>9}  {iops:>8}  {rate:>8}  {owner}\n")
}

/// Formats the cells of a device. Without statistics nothing but the requests in flight is known.
pub fn device_cells(device: &DeviceRate) -> [String; 6] {
    let known = |cell: String| if device.kept { cell } else { "off".into() };
    [
        plain(&device.name),
        known(format!("{:.1}", device.utilization * 100.0)),
        device.in_flight.to_string(),
        known(format!("{:.0}", device.iops)),
        known(format!("{:.1}", device.bytes_per_second / f64::from(1 << 20))),
        owner(device.pool.as_deref(), device.export.as_deref()),
    ]
}

/// Formats the total numbers.
pub fn head(board: &Board) -> String {
    let shown = |shown: usize, total: u64| match total > shown as u64 {
        true => format!("{total} ({shown} shown)"),
        false => total.to_string(),
    };
    let health = match board.health.severity.as_str() {
        // A server of an older version reports no health.
        "" => String::new(),
        severity => format!("; {severity}"),
    };
    format!(
        "exports {}, clients {}, pools {}, threads {}{health}",
        shown(board.exports.len(), board.exports_total),
        shown(board.clients.len(), board.clients_total),
        shown(board.pools.len(), board.pools_total),
        board.reactors
    )
}

/// Formats IOPS, MiB/s, p50, p99 and depth.
pub fn cells(rate: &Rate) -> [String; 5] {
    let ns = |ns: u64| if rate.iops == 0.0 { "-".into() } else { fmt_ns(ns) };
    [
        format!("{:.0}", rate.iops),
        format!("{:.1}", rate.bytes_per_second / f64::from(1 << 20)),
        ns(rate.p50_ns),
        ns(rate.p99_ns),
        format!("{:.1}", rate.depth),
    ]
}

/// Returns the reason why an export is not served.
pub fn not_served(export: &ExportRate) -> Option<String> {
    export.failed.as_ref().map(|why| format!("not served: {}", plain(why)))
}

/// Formats the cells of an export, which are empty if it is not served. Its rates are those of requests, which include
/// requests that needed no I/O on a device.
pub fn numbers(export: &ExportRate) -> [String; 5] {
    if export.failed.is_some() {
        return [const { String::new() }; 5];
    }
    let mut numbers = cells(&export.rate);
    numbers[0] = format!("{:.0}", export.requests_per_second);
    numbers[1] = format!("{:.1}", export.request_bytes_per_second / f64::from(1 << 20));
    numbers
}

/// Formats the most severe problems, and a line with the number of the others. Each line has true if it is critical.
pub fn problems(health: &t::Health, most: usize) -> Vec<(bool, String)> {
    let line = |problem: &t::Problem| {
        let severity = problem.severity.to_uppercase();
        (problem.severity == "critical", format!("{severity}: {}", plain(&problem.cause)))
    };
    let mut lines: Vec<_> = health.problems.iter().take(most).map(line).collect();
    let more = health.problems_total.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push((false, format!("and {more} more: sheave status")));
    }
    lines
}

/// Draws a bar in which the number of letters of each stage is proportional to its time. It is empty without I/O.
pub fn bar(split: &Shares, width: usize) -> String {
    let parts = [('w', split.worker), ('t', split.tag), ('p', split.plugged), ('d', split.driver), ('r', split.reap)];
    let (mut bar, mut until) = (String::new(), 0.0);
    for (letter, part) in parts {
        until += part;
        let end = ((until * width as f64).round() as usize).min(width);
        while bar.len() < end {
            bar.push(letter);
        }
    }
    bar
}

/// Describes the usage of a pool, and the time when it will be full.
pub fn space(pool: &PoolRate) -> String {
    if let Some(why) = &pool.failed {
        return format!("{}: not open: {}", plain(&pool.name), plain(why));
    }
    let used = pool.size_bytes.saturating_sub(pool.free_bytes);
    let full = match pool.full_in_seconds {
        Some(seconds) => format!(", full in {}", span(seconds)),
        None => String::new(),
    };
    let (used, size, free) = (fmt_bytes(used), fmt_bytes(pool.size_bytes), fmt_bytes(pool.free_bytes));
    // Shown if the file system has less free space than the pool may still allocate.
    let host = pool.host_free_bytes.filter(|host| *host < pool.free_bytes);
    let host = host.map_or(String::new(), |host| format!(" ({} in its file system)", fmt_bytes(host)));
    format!("{}: {used} of {size} used, {free} free{host}, {}{full}", plain(&pool.name), pool.state)
}
