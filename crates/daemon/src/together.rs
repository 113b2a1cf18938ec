//! Snapshots of several volumes at one moment, each called `VOLUME@SNAPSHOT`.

use sheave_vol::Pool;

use crate::failure::{self, Failure};
use crate::value;

/// The names of the snapshots called `at` of these volumes.
///
/// # Errors
///
/// One of them is a snapshot, whose own snapshots have no such names; or a name cannot be.
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

/// Makes them: all, or none. Their names.
///
/// # Errors
///
/// The pool's, or those of [`names`].
pub fn snapshot_all(pool: &Pool, volumes: &[String], at: &str) -> Result<Vec<String>, Failure> {
    let names = names(volumes, at)?;
    let pairs: Vec<_> = volumes.iter().map(String::as_str).zip(names.iter().map(String::as_str)).collect();
    pool.snapshot_together(&pairs).map_err(|why| failure::pool(why).but("no snapshot was made"))?;
    Ok(names)
}
