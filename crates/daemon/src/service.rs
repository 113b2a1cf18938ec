//! The methods of `io.sheave.Control`.
//!
//! Each method parses its parameters, checks that the caller is allowed, and does its work. Methods that run long are
//! in [`copies`](crate::copies).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sheave::File as _;
use sheave_drivers::host::Passed;
use sheave_drivers::spec;
use sheave_serve::{Allow, Limit};
use sheave_varlink::{Call, CallError, Failed, Service};
use sheave_vol::Pool;
use tracing::{info, warn};

use crate::api::types::{self as t, IDL, INTERFACE};
use crate::check;
use crate::config::{ExportPlan, What};
use crate::daemon::{Daemon, Held, Row};
use crate::delete::delete_all;
use crate::device_statistics;
use crate::failure::{self, Failure};
use crate::log::CONTROL;
use crate::resize_to;
use crate::rights::Rights;
use crate::shapes::extent::ExtentJson;
use crate::shapes::pool::PoolJson;
use crate::shapes::volume::VolumeJson;
use crate::slow;
use crate::statistics;
use crate::together;
use crate::trace;
use crate::upgrade;
use crate::value;
use crate::value::check_low_water;
use crate::vhost_user::VhostUserPlan;

/// Maximum number of extents in a reply; bounds its memory.
const MAX_EXTENTS: usize = 4096;
/// Maximum length of the range that one reply covers.
const MAX_MAP: u64 = 16 << 30;
/// Time limit for the comparison in one reply, excluding the batch in progress. A client can so show the progress of a
/// long comparison, and stop it.
const MAX_COMPARE: Duration = Duration::from_millis(200);
/// Maximum number of volumes in a call of `DeleteVolumes`.
const MAX_DELETED: usize = 1024;

/// Implements the methods.
pub struct Control {
    pub(super) daemon: Arc<Daemon>,
}

/// Result of a method.
pub(super) type Reply = Result<Value, CallError>;

impl From<Failure> for CallError {
    fn from(failure: Failure) -> CallError {
        let fix = failure.how_to_mend().map(str::to_owned);
        let refused = t::Refused { kind: failure.word().into(), cause: failure.cause().into(), fix };
        Failed::Own { error: format!("{INTERFACE}.Refused"), parameters: json!(refused) }.into()
    }
}

impl Service for Control {
    fn about(&self) -> [&str; 3] {
        ["sheave", env!("CARGO_PKG_VERSION"), "docs/operate/serve.md"]
    }

    fn interfaces(&self) -> &[(&str, &str)] {
        &[(INTERFACE, IDL)]
    }

    fn call(&self, call: &mut Call<'_>) -> Reply {
        let reply = self.answer_alone(call);
        audit(call, &reply);
        reply
    }

    fn notice(&self, text: &str) {
        warn!(target: CONTROL, event = "control", "{text}");
    }
}

impl Control {
    /// Dispatches a call. No call that changes or copies something runs beside an upgrade.
    fn answer_alone(&self, call: &mut Call<'_>) -> Reply {
        let name = call.method.rsplit_once('.').map_or("", |(_, name)| name).to_owned();
        let _under_way = match LOOKS.contains(&name.as_str())
            || ["PlanUpgrade", "BeginUpgrade", "WatchPool"].contains(&name.as_str())
        {
            true => None,
            false => Some(self.daemon.upgrades.begins(&name)?),
        };
        self.answer(call)
    }

    /// Dispatches a call.
    fn answer(&self, call: &mut Call<'_>) -> Reply {
        let method = call.method.clone();
        match method.rsplit_once('.').map_or("", |(_, name)| name) {
            "GetStatus" => look(call, |t::Nothing {}| self.status()),
            "ListPools" => look(call, |t::Nothing {}| self.pools()),
            "ListExports" => look(call, |t::Nothing {}| self.exports()),
            "ListClients" => look(call, |t::Nothing {}| self.clients()),
            "GetHealth" => look(call, |t::Nothing {}| object(self.daemon.health().told())),
            "GetStatistics" => look(call, |t::Nothing {}| object(statistics::read(&self.daemon))),
            "ListSlowIos" => look(call, |list| object(slow::list(&self.daemon, &list))),
            "SetSlowLimit" => change(call, |t::SetSlowLimit { limit_ns }| {
                self.daemon.server.set_slow_limit(Duration::from_nanos(limit_ns));
                Ok(json!({}))
            }),
            "SetDeviceStatistics" => change(call, |set| object(device_statistics::set(&self.daemon, &set)?)),
            "StartTrace" => {
                change(call, |start| object(trace::start(&self.daemon.server, self.daemon.traces.as_deref(), &start)?))
            }
            "StopTrace" => change(call, |t::Nothing {}| done(trace::stop(&self.daemon.server))),
            "GetPoolInfo" => look(call, |of: t::OfPool| self.pool_info(&of.pool)),
            "ListVolumes" => look(call, |of: t::OfPool| self.volumes(&of.pool)),
            "GetVolume" => look(call, |of: t::OfVolume| self.volume(&of.pool, &of.volume)),
            "MapVolume" => look(call, |map| self.map(&map)),
            // For administrators, because it reads the data that a copy moved.
            "CompareVolumes" => change(call, |compare| self.compare(&compare)),
            "UpgradePool" => change(call, |upgrade| self.upgrade(&upgrade)),
            "AddExport" => {
                let fds = call.take_fds();
                let rights = Rights::of_user(call.peer.uid);
                change(call, |add| self.add_export(add, fds, rights))
            }
            "LimitExport" => change(call, |limit| self.limit_export(&limit)),
            "RemoveExport" => change(call, |t::RemoveExport { name, force }| {
                done(self.daemon.remove_export(&name, force.unwrap_or(false)))
            }),
            "DisconnectClient" => {
                change(call, |t::Disconnect { id }| done(self.daemon.server.disconnect(id).map_err(failure::serve)))
            }
            "PlanUpgrade" => change(call, |t::Nothing {}| object(upgrade::plan::tell(&self.daemon))),
            "BeginUpgrade" => {
                let fds = call.take_fds();
                let rights = Rights::of_user(call.peer.uid);
                change(call, |t::Nothing {}| done(self.begin_upgrade(fds, rights)))
            }
            "GrowPool" => {
                let fds = call.take_fds();
                let rights = Rights::of_user(call.peer.uid);
                change(call, |grow| self.grow(&grow, fds, rights))
            }
            "SetPool" => change(call, |set| self.set_pool(&set)),
            "CreateVolume" => change(call, |create| self.create(&create)),
            "ResizeVolume" => change(call, |resize| self.resize(&resize)),
            "RenameVolume" => change(call, |t::Named { pool, volume, name }| {
                self.daemon.rename(&pool, &volume, &name)?;
                self.volume(&pool, &name)
            }),
            "CreateSnapshot" => change(call, |named: t::Named| self.copy(&named, Pool::snapshot)),
            "CreateSnapshots" => change(call, |together| self.snapshot_together(&together)),
            "CloneVolume" => change(call, |named: t::Named| self.copy(&named, Pool::clone_volume)),
            "RollbackVolume" => change(call, |rollback| self.rollback(&rollback)),
            "DeleteVolumes" => change(call, |delete| self.delete(&delete)),
            "WatchPool" => self.watch(call),
            "ImportVolume" => self.import(call),
            "ExportVolume" => self.export(call),
            "ExportDiff" => self.export_diff(call),
            "ImportDiff" => self.import_diff(call),
            "ScrubPool" => self.scrub(call),
            "TrimPool" => self.trim(call),
            _ => Err(Failed::no_method(&method).into()),
        }
    }
}

/// Methods that change nothing, which need no entry in the log.
const LOOKS: [&str; 11] = [
    "GetStatus",
    "ListPools",
    "ListExports",
    "ListClients",
    "GetStatistics",
    "ListSlowIos",
    "GetPoolInfo",
    "ListVolumes",
    "GetVolume",
    "MapVolume",
    "GetHealth",
];
/// Methods that return data of a volume.
const READ_OUT: [&str; 3] = ["ExportVolume", "ExportDiff", "CompareVolumes"];

/// Logs calls that changed something or read out a volume, and those that were refused for lack of rights. Other failed
/// calls changed nothing, or reported what they changed.
fn audit(call: &Call<'_>, reply: &Reply) {
    let (method, peer) = (call.method.as_str(), call.peer);
    let name = method.rsplit_once('.').map_or("", |(_, name)| name);
    if LOOKS.contains(&name) || name == "PlanUpgrade" && reply.is_ok() {
        return;
    }
    let (uid, gid, pid) = (peer.uid, peer.gid, peer.pid);
    match reply {
        Ok(_) if READ_OUT.contains(&name) => {
            let parameters = call.what();
            info!(event = "read_out", method, uid, gid, pid, %parameters, "read out by the control socket");
        }
        Ok(_) => {
            info!(event = "changed", method, uid, gid, pid, parameters = %call.what(), "changed by the control socket");
        }
        Err(CallError::Failed(Failed::Service { error: "PermissionDenied", .. })) => {
            warn!(target: CONTROL, event = "control_refused", method, uid, gid, pid, parameters = %call.what(),
                "refused at the control socket: user {uid} may look, and change nothing");
        }
        Err(_) => {}
    }
}

/// Runs a method that everybody may call.
fn look<P: DeserializeOwned>(call: &Call<'_>, work: impl FnOnce(P) -> Result<Value, Failure>) -> Reply {
    Ok(work(call.parameters()?)?)
}

/// Runs a method that changes something or reads data, which only administrators may call.
fn change<P: DeserializeOwned>(call: &Call<'_>, work: impl FnOnce(P) -> Result<Value, Failure>) -> Reply {
    call.admin_only()?;
    look(call, work)
}

fn done(outcome: Result<(), Failure>) -> Result<Value, Failure> {
    outcome.map(|()| json!({}))
}

fn object<T: Serialize>(value: T) -> Result<Value, Failure> {
    serde_json::to_value(value).map_err(|error| Failure::run(format!("a reply cannot be written: {error}")))
}

/// Returns a volume as `sheave volume info --json` shows it.
pub(super) fn volume_json(held: &Held, pool: &Pool, name: &str) -> Result<Value, Failure> {
    let info = pool.volume_info(name).map_err(failure::pool)?;
    object(VolumeJson::new(&held.place(), &info))
}

/// Returns the file that was passed with a call, if any.
fn passed(fds: Vec<OwnedFd>) -> Result<Option<Passed>, Failure> {
    let mut fds = fds.into_iter().map(File::from);
    match (fds.next(), fds.next(), fds.next()) {
        (None, ..) => Ok(None),
        (Some(file), Some(lock), None) => Ok(Some(Passed { file, lock })),
        _ => Err(Failure::usage("a file comes as two descriptors").fix("open the file twice, and pass both; or none")),
    }
}

impl Control {
    pub fn new(daemon: Arc<Daemon>) -> Control {
        Control { daemon }
    }

    fn status(&self) -> Result<Value, Failure> {
        let listeners = self.daemon.server.listeners().iter();
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": self.daemon.since().elapsed().as_secs(),
            "listeners": listeners.map(|listener| listener.address().to_string()).collect::<Vec<_>>(),
        }))
    }

    fn pools(&self) -> Result<Value, Failure> {
        let row = |held: &Arc<Held>| t::PoolRow {
            name: held.plan.name.clone(),
            place: spec::masked(&held.place().to_string()),
            read_only: held.plan.read_only,
            devices: held.devices(),
            failed: held.failed().map(|why| why.cause().to_owned()),
            fix: held.failed().and_then(Failure::how_to_mend).map(str::to_owned),
        };
        object(t::Pools { pools: self.daemon.pools().iter().map(row).collect() })
    }

    fn exports(&self) -> Result<Value, Failure> {
        let served = self.daemon.server.exports();
        let served: BTreeMap<&str, _> = served.iter().map(|status| (status.name.as_str(), status)).collect();
        let row = |row: &Row| {
            let status = served.get(row.plan.name.as_str());
            let (pool, volume, spec) = match row.plan.what.clone() {
                What::Volume { pool, volume } => (Some(pool), Some(volume), None),
                What::Device { spec } => (None, None, Some(spec::masked(&spec))),
            };
            t::ExportRow {
                name: row.plan.name.clone(),
                pool,
                volume,
                spec,
                read_only: status.map_or(row.plan.read_only, |status| status.read_only),
                size_bytes: status.map_or(0, |status| status.size_bytes),
                clients: status.map_or(0, |status| status.clients),
                limit: status.and_then(|status| status.limit).map(|limit| limit.to_string()),
                allow: check::in_words(&row.plan.allow),
                vhost_user: row.plan.vhost_user.as_ref().map(|plan| {
                    plan.row(status.and_then(|status| status.vhost_user.as_ref()), self.daemon.server.reactors())
                }),
                failed: row.failed.as_ref().map(Failure::in_a_line),
            }
        };
        object(t::ExportRows { exports: self.daemon.rows().iter().map(row).collect() })
    }

    fn clients(&self) -> Result<Value, Failure> {
        object(t::ClientRows { clients: statistics::clients(self.daemon.server.clients()) })
    }

    fn pool_info(&self, name: &str) -> Result<Value, Failure> {
        let held = self.daemon.held(name)?;
        let info = PoolJson::new(&held.place(), &held.pool()?.info());
        Ok(json!({ "info": object(info)? }))
    }

    fn volumes(&self, name: &str) -> Result<Value, Failure> {
        let held = self.daemon.held(name)?;
        let volumes = held.pool()?.volumes();
        let volumes: Vec<_> = volumes.iter().map(|info| VolumeJson::new(&held.place(), info)).collect();
        Ok(json!({ "volumes": object(volumes)? }))
    }

    fn volume(&self, pool: &str, name: &str) -> Result<Value, Failure> {
        let held = self.daemon.held(pool)?;
        Ok(json!({ "volume": volume_json(&held, held.pool()?, name)? }))
    }

    fn compare(&self, compare: &t::Compare) -> Result<Value, Failure> {
        let held = self.daemon.held(&compare.pool)?;
        let pool = held.pool()?;
        let size = pool.volume_info(&compare.volume).map_err(failure::pool)?.size_bytes;
        let open = |name: &str| pool.open_volume(name).map_err(failure::pool);
        let (volume, since) = (open(&compare.volume)?, open(&compare.since)?);
        let end = compare.offset_bytes.saturating_add(compare.length_bytes).min(size);
        let (step, mut at, mut extents) = (pool.unit_bytes() * 512, compare.offset_bytes, Vec::new());
        let last = end.min(at.saturating_add(MAX_MAP));
        let begun = Instant::now();
        let is_over = || begun.elapsed() >= MAX_COMPARE;
        while at < last && extents.len() < MAX_EXTENTS {
            let len = step.min(last - at);
            // At least one batch, so that each call makes progress.
            let mut go_on = |upto| upto == compare.offset_bytes || !is_over();
            let found = volume.differences_since(&since, at, len, &mut go_on).map_err(failure::pool)?;
            extents.extend(found.extents.iter().map(ExtentJson::new));
            let whole = found.upto >= at + len;
            at = found.upto;
            if at >= volume.size_bytes() {
                // The volume ends here, or was shrunk.
                at = end;
            }
            if !whole || is_over() {
                break;
            }
        }
        Ok(json!({ "extents": object(extents)?, "next_bytes": (at < end).then_some(at) }))
    }

    fn upgrade(&self, upgrade: &t::Upgrade) -> Result<Value, Failure> {
        let upgrades = self.daemon.change(&upgrade.pool, |_, pool| match upgrade.dry_run {
            Some(true) => Ok(pool.upgrades()),
            _ => pool.upgrade().map_err(failure::pool),
        })?;
        let part = |part: &&sheave_vol::Upgrade| json!({ "name": part.name, "lacks": part.lacks, "gives": part.gives });
        Ok(json!({ "upgrades": upgrades.iter().map(part).collect::<Vec<_>>() }))
    }

    fn map(&self, map: &t::Map) -> Result<Value, Failure> {
        let held = self.daemon.held(&map.pool)?;
        let pool = held.pool()?;
        let size = pool.volume_info(&map.volume).map_err(failure::pool)?.size_bytes;
        let end = map.offset_bytes.saturating_add(map.length_bytes).min(size);
        let volume = pool.open_volume(&map.volume).map_err(failure::pool)?;
        let (step, mut at, mut extents) = (pool.unit_bytes() * 512, map.offset_bytes, Vec::new());
        let last = end.min(at.saturating_add(MAX_MAP));
        while at < last && extents.len() < MAX_EXTENTS {
            let len = step.min(last - at);
            let found = volume.extents(at, len).map_err(failure::pool)?;
            let covered: u64 = found.iter().map(|extent| extent.len).sum();
            extents.extend(found.iter().map(ExtentJson::new));
            if covered < len {
                // The volume was shrunk.
                at = end;
                break;
            }
            at += len;
        }
        Ok(json!({ "extents": object(extents)?, "next_bytes": (at < end).then_some(at) }))
    }

    fn limit_export(&self, wanted: &t::LimitExport) -> Result<Value, Failure> {
        let wrong = |why| Failure::usage(why).fix("write iops=1000,bps=100M,burst=200ms, or leave it out for no limit");
        let limit = wanted.limit.as_deref().map(str::parse::<Limit>).transpose().map_err(wrong)?;
        done(self.daemon.set_limit(&wanted.name, limit))
    }

    fn add_export(&self, add: t::AddExport, mut fds: Vec<OwnedFd>, rights: Rights) -> Result<Value, Failure> {
        let vhost_user = VhostUserPlan::of_call(&add, &mut fds, rights)?;
        let what = match (add.pool, add.volume, add.spec) {
            (Some(pool), Some(volume), None) => What::Volume { pool, volume },
            (None, None, Some(spec)) => What::Device { spec },
            _ => return Err(Failure::usage("an export has either pool and volume, or spec").fix("give one of them")),
        };
        let name = value::export_name(&add.name).map_err(|why| Failure::usage(why).fix("choose another"))?;
        let read_only = add.read_only.unwrap_or(false);
        let plan = ExportPlan { name, what, read_only, limit: None, allow: Allow::All, vhost_user };
        let passed = passed(fds)?;
        if passed.is_some() && !matches!(plan.what, What::Device { .. }) {
            return Err(
                Failure::usage("a file came with an export of a volume").fix("pass it with the spec of a device")
            );
        }
        done(self.daemon.add_export(plan, passed, rights, false))
    }

    /// Begins an upgrade. The new process gets all files and clients, and is one that the daemon may end: so it is
    /// started by somebody who has the daemon's rights.
    fn begin_upgrade(&self, mut fds: Vec<OwnedFd>, rights: Rights) -> Result<(), Failure> {
        if let Rights::Of { uid } = rights {
            let cause = format!("user {uid} has not the rights of the daemon, which an upgrade passes on");
            return Err(Failure::run(cause).fix("run the upgrade as the daemon's own user"));
        }
        let (Some(socket), true) = (fds.pop(), fds.is_empty()) else {
            return Err(Failure::run("the socket of the new process did not come with the call")
                .fix("use sheave upgrade; if that was used, the daemon may have no more descriptors (ulimit -n)"));
        };
        self.daemon.upgrades.ask(socket.into())
    }

    fn grow(&self, grow: &t::Grow, fds: Vec<OwnedFd>, rights: Rights) -> Result<Value, Failure> {
        let overwrite = grow.overwrite.unwrap_or(false);
        let (place, info) = self.daemon.add_member(&grow.pool, &grow.spec, passed(fds)?, rights, overwrite)?;
        let info = PoolJson::new(&place, &info);
        let beyond_search = self.daemon.held(&grow.pool)?.beyond_search();
        object(t::Grown { place: place.to_string(), beyond_search, info })
    }

    fn set_pool(&self, set: &t::SetPool) -> Result<Value, Failure> {
        let wrong = |why| Failure::usage(format!("low_water: {why}")).fix("write 10%, 5G or off");
        let mark = set.low_water.as_deref().map(value::low_water).transpose().map_err(wrong)?;
        self.daemon.change(&set.pool, |_, pool| {
            check_low_water(mark, pool.info().size_bytes)?;
            if set.acknowledge_loss == Some(true) {
                pool.acknowledge_loss().map_err(failure::pool)?;
            }
            set.discard.map_or(Ok(()), |on| pool.set_discard(on)).map_err(failure::pool)?;
            mark.map_or(Ok(()), |mark| pool.set_low_water(mark)).map_err(failure::pool)
        })?;
        self.pool_info(&set.pool)
    }

    fn create(&self, create: &t::Create) -> Result<Value, Failure> {
        let t::Create { pool, volume, size_bytes, max_size_bytes } = create;
        self.daemon.change(pool, |_, open| {
            match max_size_bytes {
                Some(most) => open.create_growing_volume(volume, *size_bytes, *most),
                None => open.create_volume(volume, *size_bytes),
            }
            .map(drop)
            .map_err(failure::pool)
        })?;
        self.volume(pool, volume)
    }

    fn copy(
        &self,
        named: &t::Named,
        copy: impl FnOnce(&Pool, &str, &str) -> Result<(), sheave_vol::PoolError>,
    ) -> Result<Value, Failure> {
        let t::Named { pool, volume, name } = named;
        self.daemon.change(pool, |_, open| copy(open, volume, name).map_err(failure::pool))?;
        self.volume(pool, name)
    }

    fn snapshot_together(&self, wanted: &t::Together) -> Result<Value, Failure> {
        let t::Together { pool, volumes, at } = wanted;
        let made = self.daemon.change(pool, |held, open| {
            let names = together::snapshot_all(open, volumes, at)?;
            let volumes = names.iter().map(|name| volume_json(held, open, name));
            volumes.collect::<Result<Vec<_>, _>>()
        })?;
        Ok(json!({ "volumes": made }))
    }

    fn resize(&self, resize: &t::Resize) -> Result<Value, Failure> {
        let t::Resize { pool, volume, size_bytes, max_size_bytes, force } = resize;
        let apply = |open: &Pool| {
            let now = open.volume_info(volume).map_err(failure::pool)?;
            let new = size_bytes.unwrap_or(now.size_bytes);
            resize_to(open, volume, &now, new, *max_size_bytes).map_err(failure::pool)
        };
        let held = self.daemon.held(pool)?;
        let now = held.pool()?.volume_info(volume).map_err(failure::pool)?;
        if size_bytes.is_some_and(|new| new < now.size_bytes) {
            self.daemon.change_alone(pool, &[volume], force.unwrap_or(false), |_, open| apply(open))?;
        } else {
            // If the volume has grown meanwhile, the new size would now cut off data, so it is refused.
            self.daemon.change(pool, |_, open| {
                let then = open.volume_info(volume).map_err(failure::pool)?;
                if size_bytes.is_some_and(|new| new < then.size_bytes) {
                    return Err(Failure::busy(format!("the size of '{volume}' was changed meanwhile")).fix("try again"));
                }
                apply(open)
            })?;
        }
        self.daemon.size_changed(pool, volume);
        self.volume(pool, volume)
    }

    fn rollback(&self, rollback: &t::Rollback) -> Result<Value, Failure> {
        let t::Rollback { pool, volume, snapshot, force } = rollback;
        let back = |open: &Pool| open.rollback(volume, snapshot).map_err(failure::pool);
        self.daemon.change_alone(pool, &[volume], force.unwrap_or(false), |_, open| back(open))?;
        self.volume(pool, volume)
    }

    fn delete(&self, delete: &t::Delete) -> Result<Value, Failure> {
        let t::Delete { pool, volumes, force } = delete;
        if volumes.is_empty() || volumes.len() > MAX_DELETED {
            return Err(Failure::usage(format!("1 to {MAX_DELETED} volumes are deleted at a time"))
                .fix("name them in several calls"));
        }
        let names: BTreeSet<&str> = volumes.iter().map(String::as_str).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let in_part = |why: &Failure| {
            let pool = pool.as_str();
            warn!(event = "deleted_in_part", pool, "volumes of pool '{pool}' were deleted: {}", why.in_a_line());
        };
        let freed_bytes = self
            .daemon
            .change_alone(pool, &names, force.unwrap_or(false), |_, open| delete_all(open, &names, in_part))?;
        object(t::Freed { freed_bytes })
    }
}
