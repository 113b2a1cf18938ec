//! `sheave status`: the state of all servers of this machine on one screen. Their health is the exit code.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::failure::Failure;

use super::commands::attached;
use super::remote::Remote;
use crate::args::StatusArgs;
use crate::output;
use crate::output::{plain, span};

/// Largest number of pools, and of exports, that are listed. Those with problems come first.
const MOST_ROWS: usize = 12;

/// The reply of `GetStatus`.
#[derive(Debug, Serialize, Deserialize)]
struct Server {
    version: String,
    pid: u64,
    uptime_seconds: u64,
    listeners: Vec<String>,
}

/// State of a server.
#[derive(Debug, Serialize)]
struct ServerStatus {
    #[serde(flatten)]
    server: Server,
    control: String,
    health: t::Health,
    pools: Vec<t::PoolStatistics>,
    pools_total: u64,
    exports: Vec<ExportState>,
    exports_total: u64,
    clients: u64,
}

/// An export without its statistics.
#[derive(Debug, Serialize)]
struct ExportState {
    name: String,
    pool: Option<String>,
    volume: Option<String>,
    size_bytes: u64,
    clients: u32,
    vhost_user: Option<t::VhostUser>,
    failed: Option<String>,
}

/// The complete output.
#[derive(Debug, Serialize)]
struct Status {
    /// The highest severity among the servers.
    severity: String,
    servers: Vec<ServerStatus>,
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let status = read(args.control.as_deref()).map_err(|why| why.with_code(UNKNOWN))?;
    if args.json {
        output::json(&status)?;
    } else {
        output::text(&text(&status));
    }
    match code(&status.severity) {
        0 => Ok(()),
        code => Err(Failure::reported().with_code(code)),
    }
}

/// Exit code if no server could be queried.
const UNKNOWN: u8 = 3;

/// Returns the exit code of a severity, which is the one of Nagios checks.
fn code(severity: &str) -> u8 {
    match severity {
        "ok" => 0,
        "warning" => 1,
        _ => 2,
    }
}

fn read(control: Option<&Path>) -> Result<Status, Failure> {
    let remotes = match control {
        Some(path) => vec![Remote::only(Some(path))?],
        None => Remote::all()?,
    };
    let servers = remotes.iter().map(server).collect::<Result<Vec<_>, _>>()?;
    let worst = servers.iter().map(|server| server.health.severity.as_str()).max_by_key(|severity| code(severity));
    Ok(Status { severity: worst.unwrap_or("ok").to_owned(), servers })
}

fn server(remote: &Remote) -> Result<ServerStatus, Failure> {
    let server: Server = remote.call("GetStatus", &t::Nothing {})?;
    let told: t::Statistics = remote.call("GetStatistics", &t::Nothing {})?;
    let state = |export: t::ExportStatistics| ExportState {
        name: export.name,
        pool: export.pool,
        volume: export.volume,
        size_bytes: export.size_bytes,
        clients: export.clients,
        vhost_user: export.vhost_user,
        failed: export.failed,
    };
    Ok(ServerStatus {
        server,
        control: remote.socket().display().to_string(),
        health: told.health,
        pools: told.pools,
        pools_total: told.pools_total,
        exports: told.exports.into_iter().map(state).collect(),
        exports_total: told.exports_total,
        clients: told.clients_total,
    })
}

fn text(status: &Status) -> String {
    let parts: Vec<String> = status.servers.iter().map(of_server).collect();
    parts.join("\n")
}

fn of_server(status: &ServerStatus) -> String {
    let Server { version, pid, uptime_seconds, listeners } = &status.server;
    let mut text = format!("health   {}\n", words(&status.health));
    for problem in &status.health.problems {
        let since = span(problem.since_seconds);
        text += &format!("\n  {}, for {since}: {}\n", problem.severity, plain(&problem.cause));
        text += &format!("    fix: {}\n", plain(&problem.fix));
    }
    let more = status.health.problems_total.saturating_sub(status.health.problems.len() as u64);
    if more > 0 {
        text += &format!("\n  and {more} more\n");
    }
    if !status.health.problems.is_empty() {
        text += "\n";
    }
    text += &format!(
        "server   process {pid}, version {version}, up {}, clients {}\n",
        span(*uptime_seconds),
        status.clients
    );
    text += &format!("control  {}\n", status.control);
    let attached = status.exports.iter().filter(|export| export.vhost_user.is_some()).count();
    let at = match (listeners.as_slice(), attached) {
        ([], 0) => "no address".into(),
        ([], _) => "vhost-user sockets of exports".into(),
        (_, _) => listeners.join(", "),
    };
    text += &format!("at       {at}\n");
    text + &pools(status) + &exports(status)
}

/// Returns the health in words.
fn words(health: &t::Health) -> String {
    let of = |severity: &str| health.problems.iter().filter(|problem| problem.severity == severity).count();
    match (of("critical"), of("warning")) {
        (0, 0) => "ok".into(),
        (critical, warning) => format!("{}: critical {critical}, warnings {warning}", health.severity),
    }
}

fn pools(status: &ServerStatus) -> String {
    let mut all: Vec<_> = status.pools.iter().collect();
    all.sort_by_key(|pool| (pool.failed.is_none(), pool.state == "ok"));
    let rows = all.iter().take(MOST_ROWS).map(|pool| match &pool.failed {
        Some(_) => [plain(&pool.name), "not open".into(), "-".into(), "-".into(), "-".into()],
        None => {
            let used = pool.size_bytes.saturating_sub(pool.free_bytes);
            let host = pool.host_free_bytes.map_or("-".into(), fmt_bytes);
            [plain(&pool.name), pool.state.clone(), fmt_bytes(used), fmt_bytes(pool.free_bytes), host]
        }
    });
    let mut text = table(["POOL", "STATE", "USED", "FREE", "HOST FREE"], rows.collect(), status.pools_total);
    for (pool, why) in all.iter().take(MOST_ROWS).filter_map(|pool| Some((pool, pool.lost_if_killed.as_ref()?))) {
        let (name, why) = (plain(&pool.name), plain(why));
        text += &format!("{name}: a kill of the server would lose writes that were not flushed: {why}\n");
    }
    text
}

fn exports(status: &ServerStatus) -> String {
    let mut all: Vec<_> = status.exports.iter().collect();
    all.sort_by_key(|export| export.failed.is_none());
    let rows = all.iter().take(MOST_ROWS).map(|export| {
        let state = if export.failed.is_some() { "not served" } else { "served" };
        let what = match (&export.pool, &export.volume) {
            (Some(pool), Some(volume)) => plain(&format!("{pool}#{volume}")),
            _ => "a device".into(),
        };
        let what = match &export.vhost_user {
            Some(device) => format!("{what}, {}", attached(device)),
            None => what,
        };
        let size = if export.failed.is_some() { "-".into() } else { fmt_bytes(export.size_bytes) };
        [plain(&export.name), state.into(), size, export.clients.to_string(), what]
    });
    table(["EXPORT", "STATE", "SIZE", "CLIENTS", "WHAT"], rows.collect(), status.exports_total)
}

/// Formats a table with aligned columns. Returns an empty text if there are no rows.
fn table(heads: [&str; 5], rows: Vec<[String; 5]>, total: u64) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let more = total.saturating_sub(rows.len() as u64);
    let rows: Vec<_> = std::iter::once(heads.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut text = String::from("\n");
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect::<Vec<_>>();
        text += &format!("{}\n", cells.join("  ").trim_end());
    }
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    text
}
