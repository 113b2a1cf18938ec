//! `sheave pool watch`: prints the space of a pool and each change of it, until Ctrl-C ends the process or the reader
//! of the output is gone.
//!
//! If a daemon holds the pool, its method `WatchPool` is used. Otherwise the pool does not change: it is opened
//! read-only, and its space is printed once.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::Access;

use crate::args::pool::WatchArgs;
use crate::control::opened::{By, Opened};
use crate::output;

/// Space of a pool as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct SpaceJson {
    state: String,
    metadata_low: bool,
    free_bytes: u64,
    low_water_bytes: u64,
}

/// Runs the command.
pub fn run(args: &WatchArgs) -> Result<(), Failure> {
    let pool = Opened::open(&args.pool, Access::Look)?;
    let By::Them(holder) = pool.by() else {
        let info = pool.info();
        pool.close()?;
        let info = info?;
        let (state, metadata_low) = (info.state, info.metadata_low);
        let space =
            SpaceJson { state, metadata_low, free_bytes: info.free_bytes, low_water_bytes: info.low_water_bytes };
        tell(args, &space)?;
        return Err(Failure::run(format!("no server has {}, so nobody changes it", args.pool))
            .fix("watch a pool that is served; sheave pool info looks at one once"));
    };
    let of = t::OfPool { pool: holder.pool.clone() };
    holder.remote.stream("WatchPool", &of, &mut |reply: Value| {
        let space = serde_json::from_value(reply).map_err(|error| {
            Failure::run(format!("the server's reply is not understood: {error}")).fix("use the same version of sheave")
        })?;
        tell(args, &space)
    })
}

fn tell(args: &WatchArgs, space: &SpaceJson) -> Result<(), Failure> {
    if args.json {
        output::text(&format!("{}\n", serde_json::json!(space)));
        return Ok(());
    }
    let metadata = if space.metadata_low { "; metadata runs short" } else { "" };
    output::text(&format!("{}: {}, {} free{metadata}\n", args.pool, space.state, fmt_bytes(space.free_bytes)));
    Ok(())
}
