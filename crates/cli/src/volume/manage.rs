//! What changes a volume as a whole: create, resize, rename, snapshot, clone, rollback, delete.
//!
//! Each opens the pool, does one thing that is durable when it returns, and closes. What destroys data asks first.

use serde::Serialize;
use sheave_base::units::fmt_bytes;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::{Access, PoolPlace, VolumePlace};
use sheave_daemon::resize_to;
use sheave_daemon::shapes::volume::VolumeJson;

use crate::args::volume as args;
use crate::control::opened::Opened;
use crate::{confirm, output};

/// What was done, for programs: `{"done": "snapshot", "volume": {...}}`.
#[derive(Serialize)]
struct Done {
    done: &'static str,
    volume: VolumeJson,
}

#[derive(Serialize)]
struct Deleted {
    done: &'static str,
    pool: String,
    deleted: Vec<String>,
    /// Space that came free with it.
    freed_bytes: u64,
}

/// Opens the pool, does `change`, closes, and tells of the volume that came of it.
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

/// `sheave volume create`.
pub fn create(args: &args::CreateArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    let size = args.size.unwrap_or(0);
    if size == 0 && args.max_size.is_none() {
        return Err(Failure::usage("a size of 0 holds nothing")
            .fix("give one such as 20G, or add --max-size 20G for a volume that grows as it is written"));
    }
    one(place, args.json, "created", |pool| pool.create(name, size, args.max_size))
}

/// `sheave volume resize`.
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
        // What writes make of a volume that grows meanwhile is not cut off by a size that nobody has asked for.
        let asked = args.size.is_some().then_some(new);
        pool.resize(name, (asked, args.max_size), args.force, |pool| {
            let now = pool.volume_info(name)?;
            resize_to(pool, name, &now, asked.unwrap_or(now.size_bytes), args.max_size)
        })
    })
}

/// `sheave volume rename`.
pub fn rename(args: &args::RenameArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    one(place, args.json, "renamed", |pool| pool.rename(name, &args.new_name))
}

/// `sheave volume snapshot`.
pub fn snapshot(args: &args::SnapshotArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    one(place, args.json, "snapshot", |pool| pool.snapshot(name, &args.name))
}

/// `sheave volume clone`.
pub fn clone(args: &args::CloneArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    one(place, args.json, "cloned", |pool| pool.clone_volume(name, &args.name))
}

/// `sheave volume rollback`.
pub fn rollback(args: &args::RollbackArgs) -> Result<(), Failure> {
    let VolumePlace { pool: place, name } = &args.volume;
    one(place, args.json, "rolled back", |pool| {
        // Both must be there before anybody is asked about them.
        pool.volume(name)?;
        pool.volume(&args.snapshot)?;
        let what = format!("{} becomes what '{}' is; what was written since is lost", args.volume, args.snapshot);
        confirm::destroy(args.yes, &what)?;
        pool.rollback(name, &args.snapshot, args.force)
    })
}

/// `sheave volume delete`.
pub fn delete(args: &args::DeleteArgs) -> Result<(), Failure> {
    let place = &args.volumes[0].pool;
    if let Some(other) = args.volumes.iter().find(|volume| volume.pool != *place) {
        return Err(Failure::usage(format!("{} is in another pool than {}", other, args.volumes[0]))
            .fix("delete the volumes of each pool with a command of its own"));
    }
    let mut names: Vec<&str> = args.volumes.iter().map(|volume| volume.name.as_str()).collect();
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
    // An empty volume is no loss.
    if written > 0 {
        let hold = if names.len() == 1 { "holds" } else { "hold" };
        let (names, place) = (names.join(", "), pool.place());
        let what = format!("{names} in {place} {hold} {} of data, which is lost", fmt_bytes(written));
        confirm::destroy(args.yes, &what)?;
    }
    pool.delete(names, args.force)
}
