//! Commands that change a volume as a whole: create, resize, rename, snapshot, clone, rollback, delete.
//!
//! Each command opens the pool, makes one change that is durable when it returns, and closes the pool. Commands that
//! destroy data ask for confirmation first.

use serde::Serialize;
use sheave_base::units::fmt_bytes;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::{Access, PoolPlace, VolumePlace};
use sheave_daemon::resize_to;
use sheave_daemon::shapes::volume::VolumeJson;
use sheave_daemon::value;

use crate::args::volume::{self as args, several};
use crate::control::opened::Opened;
use crate::{confirm, output};

/// Result as JSON: `{"done": "snapshot", "volume": {...}}`.
#[derive(Serialize)]
struct Done {
    done: &'static str,
    volume: VolumeJson,
}

#[derive(Serialize)]
struct Together<'a> {
    done: &'static str,
    pool: String,
    at: &'a str,
    volumes: Vec<VolumeJson>,
}

#[derive(Serialize)]
struct Deleted {
    done: &'static str,
    pool: String,
    deleted: Vec<String>,
    freed_bytes: u64,
}

/// Opens the pool, makes the change, closes the pool, and prints the volume.
fn one(
    place: &PoolPlace,
    json: bool,
    done: &'static str,
    change: impl FnOnce(&Opened) -> Result<VolumeJson, Failure>,
) -> Result<(), Failure> {
    let pool = Opened::open(place, Access::Change)?;
    let outcome = change(&pool);
    let closed = pool.close();
    let volume = outcome?;
    closed?;
    if json {
        return output::json(&Done { done, volume });
    }
    output::text(&format!("{done}: {}\n", volume.in_short()));
    Ok(())
}

/// Runs `sheave volume create`.
pub fn create(args: &args::CreateArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    let size = args.size.unwrap_or(0);
    if size == 0 && args.max_size.is_none() {
        return Err(Failure::usage("a size of 0 holds nothing")
            .fix("give one such as 20G, or add --max-size 20G for a volume that grows as it is written"));
    }
    one(place, args.json, "created", |pool| pool.create(name, size, args.max_size))
}

/// Runs `sheave volume resize`.
pub fn resize(args: &args::ResizeArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    one(place, args.json, "resized", |pool| {
        let now = pool.volume(name)?;
        let new = args.size.as_ref().map_or(Ok(now.size_bytes), |size| size.of(now.size_bytes)).map_err(|why| {
            Failure::usage(format!("{}: {why}", args.volume)).fix("give the whole size instead, such as 20G")
        })?;
        if new < now.size_bytes {
            let (from, to) = (fmt_bytes(now.size_bytes), fmt_bytes(new));
            let what = format!("{} shrinks from {from} to {to}; what lies beyond is lost", args.volume);
            confirm::destroy(args.yes, &what)?;
        }
        // Without --size the size is not set. Writes may extend a growing volume meanwhile, which must not be undone.
        let asked = args.size.is_some().then_some(new);
        pool.resize(name, (asked, args.max_size), args.force, |pool| {
            let now = pool.volume_info(name)?;
            resize_to(pool, name, &now, asked.unwrap_or(now.size_bytes), args.max_size)
        })
    })
}

/// Runs `sheave volume rename`.
pub fn rename(args: &args::RenameArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    let new = value::snapshot_of(name, &args.new_name);
    one(place, args.json, "renamed", |pool| pool.rename(name, &new))
}

/// Runs `sheave volume snapshot`.
pub fn snapshot(args: &args::SnapshotArgs) -> Result<(), Failure> {
    let (first, more) = (&args.volume, &args.more);
    if let Some(at) = &args.at {
        return together(args, at);
    }
    let own = value::split_snapshot(&first.name);
    let (volume, name) = match (&more[..], own) {
        ([], Some((volume, _))) => (volume, first.name.clone()),
        ([name], _) if !name.contains('#') => {
            let name = value::snapshot_name(name)
                .map_err(|why| Failure::usage(format!("snapshot '{name}': {why}")).fix("choose another name"))?;
            (first.name.as_str(), value::snapshot_of(&first.name, &name))
        }
        ([], None) => {
            return Err(Failure::usage(format!("the snapshot of {first} has no name"))
                .fix(format!("'{first}@monday' makes the snapshot {}@monday", first.name)));
        }
        _ => {
            return Err(Failure::usage("several volumes are frozen, and their snapshots have no name")
                .fix("add --at monday: each gets a snapshot VOLUME@monday, all of one moment"));
        }
    };
    one(&first.pool, args.json, "snapshot", |pool| pool.snapshot(volume, &name))
}

/// Creates snapshots of several volumes at the same moment.
fn together(args: &args::SnapshotArgs, at: &str) -> Result<(), Failure> {
    let (place, names) = (&args.volume.pool, several::names(&args.volume, &args.more, "freeze")?);
    let pool = Opened::open(place, Access::Change)?;
    let outcome = pool.snapshot_together(&names, at);
    let closed = pool.close();
    let volumes = outcome?;
    closed?;
    if args.json {
        return output::json(&Together { done: "snapshots", pool: place.to_string(), at, volumes });
    }
    let made: Vec<_> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    output::text(&format!("snapshots: {}; of one moment\n", made.join(", ")));
    Ok(())
}

/// Runs `sheave volume clone`.
pub fn clone(args: &args::CloneArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    one(place, args.json, "cloned", |pool| pool.clone_volume(name, &args.name))
}

/// Runs `sheave volume rollback`.
pub fn rollback(args: &args::RollbackArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    one(place, args.json, "rolled back", |pool| {
        // The names are checked first, so that the user is not asked to confirm an operation on names that do not
        // exist.
        pool.volume(name)?;
        let snapshot = value::snapshot_of(name, &args.snapshot);
        pool.volume(&snapshot)?;
        let what = format!("{} becomes what '{snapshot}' is; what was written since is lost", args.volume);
        confirm::destroy(args.yes, &what)?;
        pool.rollback(name, &snapshot, args.force)
    })
}

/// Runs `sheave volume delete`.
pub fn delete(args: &args::DeleteArgs) -> Result<(), Failure> {
    let (place, given) = (&args.volume.pool, several::names(&args.volume, &args.more, "delete")?);
    let mut names: Vec<&str> = given.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let pool = Opened::open(place, Access::Change)?;
    let outcome = delete_all(&pool, &names, args);
    let closed = pool.close();
    let freed_bytes = outcome?;
    closed?;
    if args.json {
        let deleted = names.iter().map(ToString::to_string).collect();
        return output::json(&Deleted { done: "deleted", pool: place.to_string(), deleted, freed_bytes });
    }
    output::text(&format!("deleted: {}; {} came free\n", names.join(", "), fmt_bytes(freed_bytes)));
    Ok(())
}

fn delete_all(pool: &Opened, names: &[&str], args: &args::DeleteArgs) -> Result<u64, Failure> {
    let infos = names.iter().map(|name| pool.volume(name)).collect::<Result<Vec<_>, _>>()?;
    let written: u64 = infos.iter().map(|info| info.written_bytes).sum();
    // No confirmation is needed if there is no data to lose.
    if written > 0 {
        let hold = if names.len() == 1 { "holds" } else { "hold" };
        let (names, place) = (names.join(", "), pool.place());
        let what = format!("{names} in {place} {hold} {} of data, which is lost", fmt_bytes(written));
        confirm::destroy(args.yes, &what)?;
    }
    pool.delete(names, args.force)
}
