//! `sheave pool set`: changes what can be changed of a pool.

use serde::Serialize;

use super::place::Access;
use super::space;
use crate::args::pool::SetArgs;
use crate::failure::{self, Failure};
use crate::output;

/// What became of it, for programs.
#[derive(Serialize)]
struct Changed {
    pool: String,
    low_water: String,
    low_water_bytes: u64,
    state: &'static str,
    discard: &'static str,
    /// Volumes that may have lost data.
    lost: Vec<String>,
}

/// Does it.
pub fn run(args: &SetArgs) -> Result<(), Failure> {
    let pool = args.pool.open(Access::Change)?;
    if let Err(refused) = space::check_low_water(args.low_water, pool.info().size_bytes) {
        pool.close().map_err(failure::pool)?;
        return Err(refused);
    }
    let acknowledged = if args.acknowledge_loss { pool.acknowledge_loss() } else { Ok(()) };
    let set = acknowledged.and_then(|()| args.low_water.map_or(Ok(()), |mark| pool.set_low_water(mark)));
    let set = set.and_then(|()| args.discard.map_or(Ok(()), |discard| pool.set_discard(discard.is_on())));
    let set = set.map_err(failure::pool);
    let info = pool.info();
    let closed = pool.close().map_err(failure::pool);
    set.and(closed)?;
    if args.json {
        return output::json(&Changed {
            pool: args.pool.to_string(),
            low_water: info.low_water.to_string(),
            low_water_bytes: info.low_water_bytes,
            state: info.state.name(),
            discard: info.discard.name(),
            lost: info.lost,
        });
    }
    output::text(&format!("{}: {}\n", args.pool, space::words(&args.pool, &info)));
    Ok(())
}
