//! `sheave volume diff`: the extents in which a volume differs from another of its pool.

use sheave_daemon::failure::Failure;
use sheave_daemon::place::Access;
use sheave_load::signals;

use super::map::table;
use crate::args::volume::diff::DiffArgs;
use crate::control::opened::Opened;
use crate::output;
use crate::progress::Progress;

/// Runs the command.
pub fn run(args: &DiffArgs) -> Result<(), Failure> {
    let (before, after) = (&args.before, &args.after);
    if before.pool != after.pool {
        return Err(Failure::usage(format!("{before} and {after} are in different pools"))
            .fix("compare volumes of one pool; cmp compares what sheave volume export writes"));
    }
    let stop = signals::stop_flag()?;
    let pool = Opened::open(&after.pool, Access::Look)?;
    let compare = || {
        let sizes = (pool.volume(&before.name)?.size_bytes, pool.volume(&after.name)?.size_bytes);
        let mut progress = Progress::new("compare", args.progress, args.json, Some(sizes.1));
        let changed = pool.changes(&after.name, &before.name, sizes.1, &mut progress, &stop)?;
        progress.finish();
        Ok((sizes, changed))
    };
    let compared: Result<_, Failure> = compare();
    pool.close()?;
    let (sizes, changed) = compared?;
    if args.json {
        return output::json(&changed);
    }
    output::text(&table(&changed));
    if sizes.0 != sizes.1 {
        output::text(&format!("{before} has {} bytes, {after} {}\n", sizes.0, sizes.1));
    }
    Ok(())
}
