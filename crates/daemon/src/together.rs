//! Snapshots of several volumes at the same moment, each called `VOLUME@SNAPSHOT`.

use sheave_vol::Pool;

use crate::failure::{self, Failure};
use crate::value;

/// Returns the names of the snapshots called `at` of these volumes.
///
/// # Errors
///
/// One of `volumes` is a snapshot, for whose own snapshots there is no such name; or a name is invalid.
pub fn names(volumes: &[String], at: &str) -> Result<Vec<String>, Failure> {
    let name = |volume: &String| {
        if value::split_snapshot(volume).is_some() {
            return Err(Failure::usage(format!("'{volume}' is a snapshot, and is frozen already"))
                .fix("name its volume; one snapshot of a snapshot is made without --at"));
        }
        let name = format!("{volume}@{at}");
        value::volume_name(&name).map_err(|why| {
            Failure::usage(format!("snapshot '{name}': {why}")).fix("choose another name behind the '@'")
        })
    };
    volumes.iter().map(name).collect()
}

/// Creates all snapshots or none, and returns their names.
///
/// # Errors
///
/// The errors of the pool, and of [`names`].
pub fn snapshot_all(pool: &Pool, volumes: &[String], at: &str) -> Result<Vec<String>, Failure> {
    let names = names(volumes, at)?;
    let pairs: Vec<_> = volumes.iter().map(String::as_str).zip(names.iter().map(String::as_str)).collect();
    pool.snapshot_together(&pairs).map_err(|why| failure::pool(why).but("no snapshot was made"))?;
    Ok(names)
}
