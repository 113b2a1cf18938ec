//! What a new process asks before an upgrade, and the checks that refuse one before anything stops.
//!
//! The command calls [`check`] on what the daemon tells.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Resource, getrlimit};
use sheave_vol::members::uuid_text;

use super::STATE_VERSION;
use crate::api::types as t;
use crate::config::{self, ExportPlan, Plan, What};
use crate::daemon::Daemon;
use crate::daemon::upgrades::not_configured;
use crate::failure::Failure;
use crate::look;
use crate::place::{self, PoolPlace};

/// Variables that a new process gets from the old one: those that Sheave, librbd and systemd read.
const KEPT: [&str; 10] = [
    "SHEAVE_RUNTIME_DIR",
    "XDG_RUNTIME_DIR",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "TMPDIR",
    "TZ",
    "CEPH_CONF",
    "CEPH_ARGS",
];

/// Tells a new process about a daemon.
pub(crate) fn tell(daemon: &Daemon) -> t::UpgradePlan {
    let start = daemon.upgrades.start();
    let served = daemon.server.exports();
    let rows = daemon.rows();
    let row = |row: &crate::daemon::Row| t::UpgradeExport {
        name: row.plan.name.clone(),
        clients: served.iter().find(|status| status.name == row.plan.name).map_or(0, |status| status.clients),
        configured: row.configured,
        in_memory: row.plan.spec().is_some_and(place::keeps_in_memory),
        pool: row.plan.pool().map(str::to_owned),
        volume: match &row.plan.what {
            What::Volume { volume, .. } => Some(volume.clone()),
            What::Device { .. } => None,
        },
        spec: row.plan.spec().map(str::to_owned),
        read_only: row.plan.read_only,
    };
    let kept = KEPT.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
    t::UpgradePlan {
        version: env!("CARGO_PKG_VERSION").into(),
        state: STATE_VERSION.into(),
        pid: std::process::id(),
        uid: rustix::process::geteuid().as_raw(),
        config: start.map(|start| start.config.display().to_string()),
        arguments: start.map(|start| start.arguments.clone()).unwrap_or_default(),
        directory: std::env::current_dir().unwrap_or_default().display().to_string(),
        environment: kept.collect(),
        listeners: daemon.bound().iter().map(|listener| listener.asked_for().to_string()).collect(),
        pools: daemon
            .pools()
            .iter()
            .filter_map(|held| {
                let (name, uuid) = (held.plan.name.clone(), held.pool().ok()?.info().uuid);
                Some(t::UpgradePool { name, uuid, paths: held.place().file_paths() })
            })
            .collect(),
        exports: rows.iter().filter(|row| row.failed.is_none()).map(row).collect(),
        clients: daemon.server.clients().len() as u64,
        clients_with_tls: daemon.server.clients_with_tls() as u64,
        descriptors: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        under_way: daemon.upgrades.under_way(),
    }
}

/// Returns the command that starts a new process: this program, with the configuration, the arguments, the directory
/// and the environment of the old one.
pub fn command(old: &t::UpgradePlan, config: &Path) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("serve").arg("--config").arg(config).arg("--take-over").args(&old.arguments);
    KEPT.into_iter().for_each(|name| _ = command.env_remove(name));
    command.envs(old.environment.iter().filter(|(name, _)| KEPT.contains(&name.as_str())));
    // Ctrl-C at the terminal of the command is not meant for the daemon.
    command.current_dir(&old.directory).process_group(0);
    Ok(command)
}

/// Checks whether this program can take over from a daemon with this configuration. Returns every reason why it cannot.
pub fn check(old: &t::UpgradePlan, config: &Path) -> Vec<Failure> {
    let mut refused = Vec::new();
    if old.config.is_none() {
        refused.push(not_configured());
    }
    if old.state > STATE_VERSION.into() {
        refused.push(
            Failure::run(format!(
                "the daemon hands over state of version {}, and this program knows versions up to {STATE_VERSION}",
                old.state
            ))
            .fix(format!("use a sheave that is at least as new as the daemon ({})", old.version)),
        );
    }
    let uid = rustix::process::geteuid().as_raw();
    if old.uid != uid {
        refused.push(
            Failure::run(format!("the daemon runs as user {}, and this command as user {uid}", old.uid))
                .fix(format!("run it as that user: sudo -u '#{}' sheave upgrade", old.uid)),
        );
    }
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if most < old.descriptors {
        let what = format!("the daemon may have {} descriptors, and this command {most}", old.descriptors);
        refused.push(Failure::run(what).fix(format!("raise the limit: ulimit -Hn {}", old.descriptors)));
    }
    refused.extend(old.under_way.first().map(|method| {
        Failure::busy(format!("{method} is under way at the control socket")).fix("wait until it has ended, or end it")
    }));
    refused.extend(old.exports.iter().filter(|export| export.in_memory).map(|export| {
        Failure::run(format!("the export '{}' is in the memory of the daemon, and would be lost", export.name))
            .fix("remove it first (sheave export remove), or restart the daemon")
    }));
    for path in old.pools.iter().flat_map(|pool| &pool.paths) {
        // A file that this process cannot look at is passed over open; opening it then tells what is wrong.
        if let Ok(Some(seen)) = look::seen_at(&Path::new(&old.directory).join(path))
            && let Some(damage) = seen.tag.refused()
        {
            refused.push(
                Failure::run(format!("{path}: this program cannot use the pool: {damage}"))
                    .fix(format!("use a sheave that is at least as new as the daemon ({})", old.version)),
            );
        }
    }
    match config::read(config) {
        Ok(plan) => refused.extend(dropped(old, &plan, config)),
        Err(why) => refused.push(why),
    }
    refused
}

/// Returns what the configuration no longer has, or has otherwise, although it is in use.
pub(crate) fn dropped(old: &t::UpgradePlan, plan: &Plan, config: &Path) -> Vec<Failure> {
    let of = config.display();
    let lacks = |what: String| {
        Failure::usage(format!("{of} no longer has the {what}")).fix("put it back, or take it out of use first")
    };
    let mut refused = Vec::new();
    let another = |what: String| {
        Failure::usage(format!("{of} has another {what}")).fix("leave it as it is, or take it out of use first")
    };
    for pool in &old.pools {
        match plan.pools.iter().find(|one| one.name == pool.name) {
            None => refused.push(lacks(format!("pool '{}', which the daemon has open", pool.name))),
            Some(one) if is_another(&one.place, pool, Path::new(&old.directory)) => {
                refused.push(another(format!("pool at the name '{}', which the daemon has open", pool.name)));
            }
            Some(_) => {}
        }
    }
    for export in old.exports.iter().filter(|export| export.configured && export.clients > 0) {
        let is = |one: &&ExportPlan| one.name == export.name;
        match plan.exports.iter().find(is) {
            None => refused.push(lacks(format!("export '{}', which has {} clients", export.name, export.clients))),
            // The clients would go on with the data of another device.
            Some(new) if !is_same(new, export) => {
                let (name, many) = (&export.name, export.clients);
                refused.push(another(format!("source or mode of the export '{name}', which has {many} clients")));
            }
            Some(_) => {}
        }
    }
    let is_gone = |at: &&String| !plan.listen.iter().any(|address| address.to_string() == **at);
    refused.extend(
        old.listeners.iter().filter(is_gone).map(|at| lacks(format!("address {at}, which clients connect to"))),
    );
    refused
}

/// Returns true if a configuration leads to another pool than the one that is open. A file that this process cannot
/// look at is passed over.
fn is_another(place: &PoolPlace, open: &t::UpgradePool, directory: &Path) -> bool {
    let seen = place.file_paths().into_iter().filter_map(|path| look::seen_at(&directory.join(path)).ok().flatten());
    let named = place.to_string().strip_prefix("uuid:").map(|uuid| uuid.replace('-', "").to_lowercase());
    seen.map(|seen| uuid_text(&seen.tag.pool())).chain(named).any(|uuid| uuid != open.uuid)
}

/// Returns true if an export of a configuration serves what the daemon serves, in the same way.
fn is_same(new: &ExportPlan, served: &t::UpgradeExport) -> bool {
    let source = match &new.what {
        What::Volume { pool, volume } => (Some(pool), Some(volume), None),
        What::Device { spec } => (None, None, Some(spec)),
    };
    source == (served.pool.as_ref(), served.volume.as_ref(), served.spec.as_ref()) && new.read_only == served.read_only
}
