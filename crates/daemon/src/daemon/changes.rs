//! Adding and removing exports while the daemon runs, and changes to volumes that are exported.

use std::sync::{Arc, MutexGuard};

use sheave_drivers::host::Passed;
use sheave_serve::ServeError;
use sheave_vol::{AddOptions, Pool, PoolInfo};
use tracing::{info, warn};

use super::{Daemon, Held, Row, locked, open_export};
use crate::api::types::DeviceId;
use crate::backend;
use crate::config::{ExportPlan, What};
use crate::failure::{self, Failure};
use crate::place::PoolPlace;
use crate::rights::Rights;
use crate::value;

impl Daemon {
    /// Runs `work` while holding the turn of the pool, or of the devices (D1).
    fn in_turn<T>(&self, what: &What, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        match what {
            What::Device { .. } => {
                let _turn = locked(&self.devices);
                work()
            }
            What::Volume { pool, .. } => {
                let held = self.held(pool)?;
                let _turn = held.turn();
                work()
            }
        }
    }

    /// Adds an export for a caller with these `rights`. If the caller passed the open file of a device, its path is not
    /// opened.
    pub fn add_export(
        &self,
        plan: ExportPlan,
        passed: Option<Passed>,
        rights: Rights,
        configured: bool,
    ) -> Result<(), Failure> {
        self.in_turn(&plan.what, || {
            let is_free = |rows: &[Row]| match rows.iter().any(|row| row.plan.name == plan.name && row.failed.is_none())
            {
                true => Err(failure::serve(ServeError::ExportExists { name: plan.name.clone() })),
                false => is_socket_free(&plan, rows),
            };
            let opened = match plan.what {
                // The list of exports is not locked meanwhile, since the storage of a device may take long to respond
                // (D2).
                What::Device { .. } => {
                    is_free(&locked(&self.exports))?;
                    Some(open_export(&plan, passed, rights, |_| None)?)
                }
                What::Volume { .. } => None,
            };
            let mut rows = locked(&self.exports);
            is_free(&rows)?;
            let export = match opened {
                Some(export) => export,
                None => open_export(&plan, None, rights, |name| self.held(name).ok())?,
            };
            rows.retain(|row| row.plan.name != plan.name);
            self.server.put_export(export);
            self.limit(&plan);
            rows.push(Row { plan: plan.clone(), configured, failed: None });
            Ok(())
        })
    }

    /// Tells virtual machines that have attached exports of a volume its new size.
    pub fn size_changed(&self, pool: &str, volume: &str) {
        let is = |row: &&Row| row.failed.is_none() && row.plan.volume_of(pool) == Some(volume);
        self.rows().iter().filter(is).for_each(|row| self.server.size_changed(&row.plan.name));
    }

    /// Removes an export; with `force` even if it has clients.
    pub fn remove_export(&self, name: &str, force: bool) -> Result<(), Failure> {
        loop {
            let found = locked(&self.exports).iter().find(|row| row.plan.name == name).cloned();
            let row = found.ok_or_else(|| failure::serve(ServeError::NoExport { name: name.into() }))?;
            // An export that failed may belong to a pool that does not exist, so there is no turn to take.
            let done = match &row.failed {
                Some(_) => self.remove_row(&row, force),
                None => self.in_turn(&row.plan.what, || self.remove_row(&row, force)),
            }?;
            if done {
                return Ok(());
            }
        }
    }

    /// Removes the export of a row. Returns false if it began or ceased to be served since the caller looked at it.
    fn remove_row(&self, row: &Row, force: bool) -> Result<bool, Failure> {
        let name = row.plan.name.as_str();
        let mut rows = locked(&self.exports);
        let is_still = |now: &&Row| now.plan.name == name && now.failed.is_none() == row.failed.is_none();
        if rows.iter().find(is_still).is_none() {
            return Ok(false);
        }
        if row.failed.is_none() {
            // Unlocked, since disconnecting the clients may take a while.
            drop(rows);
            self.server.take_export(name, force).map_err(failure::serve)?;
            self.server.forget_export(name);
            rows = locked(&self.exports);
        }
        rows.retain(|row| row.plan.name != name);
        Ok(true)
    }

    /// Runs `work` on a pool while holding its turn.
    pub fn change<T>(
        &self,
        pool: &str,
        work: impl FnOnce(&Arc<Held>, &Pool) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let held = self.held(pool)?;
        let _turn = held.turn();
        work(&held, held.pool()?)
    }

    /// Runs `work` on volumes of a pool while holding its turn, without clients of these volumes. Their exports are
    /// taken out, which fails while they have clients unless `force`. Afterwards those whose volumes still exist are
    /// served again.
    pub fn change_alone<T>(
        &self,
        pool: &str,
        volumes: &[&str],
        force: bool,
        work: impl FnOnce(&Arc<Held>, &Pool) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.change(pool, |held, open| {
            let is = |row: &Row| row.plan.volume_of(pool).is_some_and(|volume| volumes.contains(&volume));
            let rows: Vec<Row> = self.rows().into_iter().filter(|row| row.failed.is_none() && is(row)).collect();
            let mut out = Vec::new();
            let mut refused = None;
            for row in &rows {
                match self.server.take_export(&row.plan.name, force) {
                    Ok(()) => out.push(row),
                    Err(error) => {
                        let went = matches!(error, ServeError::StillEnding { .. });
                        out.extend(went.then_some(row));
                        refused = Some(in_use(row, pool, error));
                        break;
                    }
                }
            }
            let done = refused.map_or_else(|| work(held, open), Err);
            out.iter().for_each(|row| self.put_back(&row.plan, open));
            done
        })
    }

    /// Serves an export again that was taken out, or removes it if its volume no longer exists.
    fn put_back(&self, plan: &ExportPlan, pool: &Pool) {
        // Locked first: `lose`, which may run at the same time, then either ran before, and opening fails, or runs
        // after and ends this export as well.
        let mut rows = locked(&self.exports);
        let failed = match open_export(plan, None, Rights::Own, |name| self.held(name).ok()) {
            Ok(export) => {
                self.server.put_export(export);
                return;
            }
            Err(failed) => failed,
        };
        self.server.forget_export(&plan.name);
        let volume = match &plan.what {
            What::Volume { volume, .. } => volume.as_str(),
            What::Device { spec } => spec,
        };
        let is_gone = pool.volume_info(volume).is_err();
        if is_gone {
            rows.retain(|row| row.plan.name != plan.name);
            let name = plan.name.as_str();
            info!(
                event = "export_ended",
                export = name,
                volume,
                "export '{name}' has ended: its volume '{volume}' is gone"
            );
        } else if let Some(row) = rows.iter_mut().find(|row| row.plan.name == plan.name) {
            row.failed = Some(failed);
        }
    }

    /// Adds a device as the last member of a pool. Returns the new location and state of the pool.
    pub fn add_member(
        &self,
        pool: &str,
        spec: &str,
        passed: Option<Passed>,
        rights: Rights,
        overwrite: bool,
    ) -> Result<(PoolPlace, PoolInfo), Failure> {
        // Checked first, because parsing the spec already tests whether a file of that name exists.
        rights.expect(spec, passed.as_ref())?;
        let wrong =
            |why| Failure::usage(format!("{spec}: {why}")).fix("name one file or device, such as file:/srv/more.img");
        let added: PoolPlace = spec.parse().map_err(wrong)?;
        added.refuse_volatile()?;
        if !added.is_one() {
            return Err(Failure::usage(format!("{spec}: one member at a time")).fix("call this once for each"));
        }
        let id = passed.as_ref().map(DeviceId::of).transpose()?;
        self.change(pool, |held, open| {
            let mut at = held.at();
            at.add(&added, id)?;
            let device = backend::open(spec, passed, rights)?;
            let before = open.info().members.len();
            let done = open.add_member(&device, &AddOptions::default().overwrite(overwrite));
            let info = open.info();
            // The device can be a member although making that durable failed. The next commit then makes it durable.
            if info.members.len() > before {
                held.moved(&at);
                // Sets the attribute by path, which a confined process may do even for a file that it can no longer
                // open.
                at.place.leave_hints();
                held.tell_beyond_search();
            }
            done.map(|_| (at.place, info)).map_err(failure::pool)
        })
    }

    /// Renames a volume. Exports of it follow, and so do exports of snapshots that are renamed with it.
    pub fn rename(&self, pool: &str, volume: &str, name: &str) -> Result<(), Failure> {
        self.change(pool, |_, open| {
            open.rename(volume, name).map_err(failure::pool)?;
            for row in locked(&self.exports).iter_mut() {
                let What::Volume { pool: of, volume: what } = &mut row.plan.what else { continue };
                if of != pool {
                    continue;
                }
                if what == volume {
                    *what = name.into();
                } else if let Some((_, own)) = value::split_snapshot(what).filter(|(of, _)| *of == volume)
                    // A snapshot that still exists under its old name belonged to an earlier volume of that name, and
                    // keeps it.
                    && open.volume_info(what).is_err()
                {
                    *what = format!("{name}@{own}");
                }
            }
            Ok(())
        })
    }
}

impl Held {
    /// Returns the members that the next start would not find: the configuration does not name them, and neither hints
    /// nor searched directories lead to them.
    pub(crate) fn beyond_search(&self) -> Vec<String> {
        self.plan.place.does_not_find(&self.place())
    }

    /// Logs a warning about such members while the pool is open and the configuration can still be fixed.
    pub(super) fn tell_beyond_search(&self) {
        let lost = self.beyond_search();
        if lost.is_empty() {
            return;
        }
        let (name, place) = (self.plan.name.as_str(), self.place());
        warn!(
            event = "pool_grown",
            pool = name,
            "pool '{name}' has members that the next start does not find ({}): write path = \"{place}\" into the \
             configuration, or search = with their directories",
            lost.join(", ")
        );
    }

    /// Acquires the turn (D1).
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        locked(&self.turn)
    }
}

/// Fails if another export has the vhost-user socket of `plan`. Two of a configuration differ, but a command may have
/// added one.
fn is_socket_free(plan: &ExportPlan, rows: &[Row]) -> Result<(), Failure> {
    let Some(wanted) = plan.vhost_user.as_ref() else { return Ok(()) };
    let has = |row: &&Row| {
        let own = row.plan.vhost_user.as_ref().is_some_and(|own| own.path == wanted.path);
        own && row.plan.name != plan.name
    };
    match rows.iter().find(has) {
        Some(row) => Err(Failure::run(format!(
            "{} is the vhost-user socket of the export '{}' already",
            wanted.path.display(),
            row.plan.name
        ))
        .fix("choose another path, or remove that export")),
        None => Ok(()),
    }
}

/// The failure for an operation on a volume whose export has clients.
fn in_use(row: &Row, pool: &str, error: ServeError) -> Failure {
    let ServeError::ExportInUse { name, clients } = error else { return failure::serve(error) };
    let volume = row.plan.volume_of(pool).unwrap_or_default();
    let them = if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
    Failure::busy(format!("the volume '{volume}' has {them} through the export '{name}'"))
        .fix("disconnect them (sheave client list), or add --force, which does")
}
