//! `sheave export` and `sheave client`: exports of a daemon, and their clients.

use std::os::fd::{AsFd, BorrowedFd};

use serde_json::{Value, json};
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::VolumePlace;

use super::passed::{Passed, PassedSocket};
use super::remote::{Remote, nodes};
use crate::args::control::{ClientArgs, ClientCommand, ExportArgs, ExportCommand, LimitArg};
use crate::output::{self, plain};

/// Runs `sheave export`.
pub fn export(args: &ExportArgs) -> Result<(), Failure> {
    match &args.command {
        ExportCommand::List { json } => {
            let rows: t::ExportRows = connect(args.control.as_deref())?.call("ListExports", &t::Nothing {})?;
            if *json {
                return output::json(&rows);
            }
            let mut text = line(["NAME", "SIZE", "CLIENTS", "WHAT"]);
            for row in rows.exports {
                let what = match (&row.pool, &row.volume, &row.spec) {
                    (Some(pool), Some(volume), _) => format!("{pool}#{volume}"),
                    (.., spec) => spec.clone().unwrap_or_default(),
                };
                let read_only = if row.read_only { ", read-only" } else { "" };
                let attached =
                    row.vhost_user.as_ref().map_or(String::new(), |device| format!(", {}", attached(device)));
                let failed = row.failed.map_or(String::new(), |why| format!("; not served: {why}"));
                let clients = row.clients.to_string();
                let limit = row.limit.map_or(String::new(), |limit| format!(", {limit}"));
                let what = format!("{what}{read_only}{limit}{attached}{failed}");
                text += &line([&row.name, &fmt_bytes(row.size_bytes), &clients, &what]);
            }
            output::text(&text);
            Ok(())
        }
        ExportCommand::Add { spec, name, read_only, vhost_user, json } => {
            let remote = connect(args.control.as_deref())?;
            let add = added(&remote, spec, name.as_deref(), *read_only)?;
            let passed = match &add.spec {
                Some(spec) => Passed::open(spec, *read_only)?,
                None => Passed::default(),
            };
            let socket = PassedSocket::bind(vhost_user)?;
            let add = t::AddExport {
                spec: passed.spec.clone().or(add.spec),
                vhost_user: socket.as_ref().map(|socket| socket.path.clone()),
                vhost_queues: vhost_user.queues.map(u64::from),
                vhost_in_order: vhost_user.in_order.then_some(true),
                ..add
            };
            // The socket comes after the files.
            let files = passed.files.iter().map(AsFd::as_fd);
            let fds: Vec<BorrowedFd<'_>> = files.chain(socket.as_ref().map(|socket| socket.fd.as_fd())).collect();
            let Value::Object(_) = remote.call_with("AddExport", &add, &fds)? else { return Ok(()) };
            passed.keep();
            socket.into_iter().for_each(PassedSocket::keep);
            done(*json, &json!({ "done": "added", "export": add.name }), &format!("export added: {}\n", add.name))
        }
        ExportCommand::Limit { name, limit, json } => {
            let remote = connect(args.control.as_deref())?;
            if let Some(limit) = limit {
                let limit = match limit {
                    LimitArg::Off => None,
                    LimitArg::On(limit) => Some(limit.to_string()),
                };
                let Value::Object(_) = remote.call("LimitExport", &t::LimitExport { name: name.clone(), limit })?
                else {
                    return Ok(());
                };
            }
            let rows: t::ExportRows = remote.call("ListExports", &t::Nothing {})?;
            let Some(row) = rows.exports.into_iter().find(|row| row.name == *name) else {
                return Err(Failure::run(format!("there is no export '{name}'")).fix("see sheave export list"));
            };
            let words = format!("{name}: {}\n", row.limit.as_deref().unwrap_or("no limit"));
            let what = if limit.is_some() { "limited" } else { "shown" };
            done(*json, &json!({ "done": what, "export": name, "limit": row.limit }), &words)
        }
        ExportCommand::Remove { name, force, json } => {
            let remove = t::RemoveExport { name: name.clone(), force: Some(*force) };
            let Value::Object(_) = connect(args.control.as_deref())?.call("RemoveExport", &remove)? else {
                return Ok(());
            };
            done(*json, &json!({ "done": "removed", "export": name }), &format!("export removed: {name}\n"))
        }
    }
}

/// Describes the vhost-user device of an export.
pub fn attached(device: &t::VhostUser) -> String {
    let socket = plain(&device.socket);
    match device.client {
        Some(client) => {
            format!("vhost-user at {socket} (client {client}, queues {} of {})", device.running.len(), device.queues)
        }
        None => format!("vhost-user at {socket} (queues {})", device.queues),
    }
}

/// Prints the result, as JSON or text.
pub fn done(as_json: bool, value: &Value, words: &str) -> Result<(), Failure> {
    if as_json {
        return output::json(value);
    }
    output::text(words);
    Ok(())
}

/// Builds the request for an export of a volume or a device. The pool of a volume is given as its location or as its
/// name in the daemon.
fn added(remote: &Remote, spec: &str, name: Option<&str>, read_only: bool) -> Result<t::AddExport, Failure> {
    let read_only = Some(read_only);
    let Some((pool, volume)) = spec.rsplit_once('#').filter(|_| !std::path::Path::new(spec).exists()) else {
        let name = name.ok_or_else(|| Failure::usage("an export of a device wants a name").fix("add --name NAME"))?;
        return Ok(t::AddExport { name: name.into(), spec: Some(spec.into()), read_only, ..t::AddExport::default() });
    };
    let pools: t::Pools = remote.call("ListPools", &t::Nothing {})?;
    let named = |row: &&t::PoolRow| row.name == pool;
    let found = match pools.pools.iter().find(named) {
        Some(row) => row.name.clone(),
        None => {
            let place: VolumePlace = spec.parse().map_err(|why| Failure::usage(format!("{spec}: {why}")))?;
            let wanted = place.pool.identities();
            let has = |row: &&t::PoolRow| !wanted.is_empty() && wanted.iter().all(|id| nodes(row).contains(id));
            let found = pools.pools.iter().find(has).map(|row| row.name.clone());
            found.ok_or_else(|| {
                Failure::run(format!("{} does not hold the pool {pool}", remote.describe()))
                    .fix("add the pool to its configuration and send it SIGHUP")
            })?
        }
    };
    let name = name.unwrap_or(volume).to_owned();
    let (pool, volume) = (Some(found), Some(volume.into()));
    Ok(t::AddExport { name, pool, volume, read_only, ..t::AddExport::default() })
}

/// Runs `sheave client`.
pub fn client(args: &ClientArgs) -> Result<(), Failure> {
    let remote = connect(args.control.as_deref())?;
    match &args.command {
        ClientCommand::List { json } => {
            let rows: t::ClientRows = remote.call("ListClients", &t::Nothing {})?;
            if *json {
                return output::json(&rows);
            }
            let mut text = client_line(["ID", "SINCE", "READ", "WRITTEN", "EXPORT", "FROM"]);
            for row in rows.clients {
                let (id, since) = (row.id.to_string(), format!("{} s", row.connected_seconds));
                let (read, written) = (fmt_bytes(row.read_bytes), fmt_bytes(row.written_bytes));
                let export = row.export.as_deref().unwrap_or("-");
                text += &client_line([&id, &since, &read, &written, export, &row.peer]);
            }
            output::text(&text);
            Ok(())
        }
        ClientCommand::Disconnect { ids, json } => {
            let mut words = String::new();
            for id in ids {
                let Value::Object(_) = remote.call("DisconnectClient", &t::Disconnect { id: *id })? else {
                    return Ok(());
                };
                words += &format!("client disconnected: {id}\n");
            }
            done(*json, &json!({ "done": "disconnected", "clients": ids }), &words)
        }
    }
}

/// Connects to the daemon at `named`. Without a name, connects to the only daemon.
pub fn connect(named: Option<&std::path::Path>) -> Result<Remote, Failure> {
    let remote = Remote::only(named)?;
    remote.be_patient();
    Ok(remote)
}

fn client_line([id, since, read, written, export, from]: [&str; 6]) -> String {
    format!("{id:8}  {since:>9}  {read:>9}  {written:>9}  {export:16}  {from}\n")
}

fn line([a, b, c, d]: [&str; 4]) -> String {
    format!("{a:16}  {b:>9}  {c:>8}  {d}\n")
}
