//! `sheave volume map`: lists which parts of a volume are data, unwritten or holes, and their positions in the pool.
//!
//! The JSON is an array in the format of `qemu-img map --output=json`, so that programs for that can read it: `start`,
//! `length`, `depth` (0), `present`, `zero`, `data`, and `offset` where there is data. There are two additional fields:
//! `unwritten` (allocated without data) and `shared`.

use sheave_base::units::fmt_bytes;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::Access;
use sheave_daemon::shapes::extent::ExtentJson;

use crate::args::volume::MapArgs;
use crate::control::opened::Opened;
use crate::output;

/// Runs the command.
pub fn run(args: &MapArgs) -> Result<(), Failure> {
    let place = &args.volume;
    let pool = Opened::open(&place.pool, Access::Look)?;
    let extents = extents(&pool, args);
    pool.close()?;
    let extents = extents?;
    if args.json {
        return output::json(&extents);
    }
    output::text(&table(&extents));
    Ok(())
}

fn extents(pool: &Opened, args: &MapArgs) -> Result<Vec<ExtentJson>, Failure> {
    let place = &args.volume;
    let size = pool.volume(&place.name)?.size_bytes;
    let len = args.length.unwrap_or(u64::MAX).min(size.saturating_sub(args.offset));
    if len == 0 {
        return Err(Failure::usage(format!(
            "--offset {} is at or beyond the end of {place}, {size} bytes",
            args.offset
        ))
        .fix("leave --offset out to see all of it"));
    }
    pool.map(&place.name, args.offset, len)
}

/// Formats a line for each extent, and sums.
pub(super) fn table(extents: &[ExtentJson]) -> String {
    use std::fmt::Write;
    let mut text = format!("{:>18}  {:>18}  {:>10}  {:>18}  STATE\n", "OFFSET", "LENGTH", "", "ON THE POOL");
    let mut sum = [0u64; 3];
    for extent in extents {
        let (state, which) = match (extent.data, extent.present) {
            (true, _) => ("data", 0),
            (false, true) => ("unwritten", 1),
            (false, false) => ("hole", 2),
        };
        sum[which] += extent.length;
        let place = extent.offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string());
        let shared = if extent.shared { ", shared" } else { "" };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{:>18}  {:>18}  {:>10}  {place:>18}  {state}{shared}",
            extent.start,
            extent.length,
            fmt_bytes(extent.length)
        );
    }
    let [data, unwritten, hole] = sum.map(fmt_bytes);
    let _ = writeln!(text, "{} extents: {data} of data, {unwritten} unwritten, {hole} of holes", extents.len());
    text
}

#[cfg(test)]
mod tests;
