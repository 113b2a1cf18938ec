//! `sheave pool set`: changes settings of a pool.

use serde::Serialize;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::Access;

use crate::args::pool::SetArgs;
use crate::control::opened::Opened;
use crate::output;
use crate::space;

/// Result as JSON.
#[derive(Serialize)]
struct Changed {
    pool: String,
    low_water: String,
    low_water_bytes: u64,
    state: String,
    discard: String,
    /// Volumes that may have lost data.
    lost: Vec<String>,
}

/// Runs the command.
pub fn run(args: &SetArgs) -> Result<(), Failure> {
    let pool = Opened::open(&args.pool, Access::Change)?;
    let set = pool.info().and_then(|info| {
        sheave_daemon::value::check_low_water(args.low_water, info.size_bytes)?;
        pool.set(args.low_water, args.discard.map(|discard| discard.is_on()), args.acknowledge_loss)
    });
    let closed = pool.close();
    let info = set?;
    closed?;
    if args.json {
        return output::json(&Changed {
            pool: args.pool.to_string(),
            low_water: info.low_water,
            low_water_bytes: info.low_water_bytes,
            state: info.state,
            discard: info.discard,
            lost: info.lost,
        });
    }
    output::text(&format!("{}: {}\n", args.pool, space::words(&args.pool, &info)));
    Ok(())
}
