//! `sheave volume diff`: the extents of a volume as far as they differ from those of another of its pool.

use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::Access;
use sheave_daemon::shapes::extent::ExtentJson;

use super::map::table;
use crate::args::volume::diff::DiffArgs;
use crate::output;
use crate::pool::patience;

/// Does it.
pub fn run(args: &DiffArgs) -> Result<(), Failure> {
    let (before, after) = (&args.before, &args.after);
    if before.pool != after.pool {
        return Err(Failure::usage(format!("{before} and {after} are in different pools"))
            .fix("compare volumes of one pool; cmp compares what sheave volume export writes"));
    }
    let pool = patience::open(&after.pool, Access::Look)?;
    let base = pool.open_volume(&before.name).map_err(failure::pool)?;
    let volume = pool.open_volume(&after.name).map_err(failure::pool)?;
    let size = |name: &str| pool.volume_info(name).map(|info| info.size_bytes).map_err(failure::pool);
    let sizes = (size(&before.name)?, size(&after.name)?);
    let changed = volume.changes_since(&base, 0, u64::MAX).map_err(failure::pool)?;
    let changed: Vec<_> = changed.iter().map(ExtentJson::new).collect();
    drop((base, volume));
    pool.close().map_err(failure::pool)?;
    if args.json {
        return output::json(&changed);
    }
    output::text(&table(&changed));
    if sizes.0 != sizes.1 {
        output::text(&format!("{before} has {} bytes, {after} {}\n", sizes.0, sizes.1));
    }
    Ok(())
}
