//! `sheave volume map`: lists which parts of a volume are data, unwritten or holes, and their positions in the pool.
//!
//! The JSON is an array in the format of `qemu-img map --output=json`, so that programs that read this format can use
//! it: `start`, `length`, `depth` (0), `present`, `zero`, `data`, and `offset` where there is data. There are two
//! additional fields: `unwritten` (allocated without data) and `shared`.

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
mod tests {
    use sheave_vol::{Extent, ExtentKind};

    use super::*;

    fn extents() -> [Extent; 3] {
        [
            Extent::new(0, 8192, ExtentKind::Data).addr(65536).shared(true),
            Extent::new(8192, 57344, ExtentKind::Unwritten).addr(73728),
            Extent::new(65536, 1 << 30, ExtentKind::Hole),
        ]
    }

    #[test]
    fn json_is_that_of_qemu_img_with_two_fields_more() {
        let json = serde_json::to_value(extents().iter().map(ExtentJson::new).collect::<Vec<_>>()).expect("JSON");
        let wanted = serde_json::json!([
            {"start": 0, "length": 8192, "depth": 0, "present": true, "zero": false, "data": true,
             "unwritten": false, "shared": true, "offset": 65536},
            {"start": 8192, "length": 57344, "depth": 0, "present": true, "zero": true, "data": false,
             "unwritten": true, "shared": false, "offset": 73728},
            {"start": 65536, "length": 1 << 30, "depth": 0, "present": false, "zero": true, "data": false,
             "unwritten": false, "shared": false},
        ]);
        assert_eq!(json, wanted);
    }

    #[test]
    fn a_table_with_its_sum() {
        let text = table(&extents().iter().map(ExtentJson::new).collect::<Vec<_>>());
        assert!(text.contains("data, shared") && text.contains("unwritten") && text.contains("hole"), "{text}");
        assert!(text.ends_with("3 extents: 8 KiB of data, 56 KiB unwritten, 1 GiB of holes\n"), "{text}");
    }

    #[test]
    fn a_map_that_comes_in_pieces_is_the_same_map() {
        let mut all = Vec::new();
        for extent in &extents() {
            for at in [0, extent.len / 2] {
                let addr = if extent.kind == ExtentKind::Hole { 0 } else { extent.addr + at };
                let piece = Extent::new(extent.pos + at, extent.len / 2, extent.kind).addr(addr).shared(extent.shared);
                ExtentJson::add(&mut all, ExtentJson::new(&piece));
            }
        }
        assert_eq!(all, extents().iter().map(ExtentJson::new).collect::<Vec<_>>());
        // Adjacent ranges that lie apart in the pool are separate extents.
        let elsewhere = [(0, 0), (4096, 1 << 20)]
            .map(|(pos, addr)| Extent::new(pos, 4096, ExtentKind::Data).addr(addr).shared(true));
        let mut two = Vec::new();
        elsewhere.iter().for_each(|extent| ExtentJson::add(&mut two, ExtentJson::new(extent)));
        assert_eq!(two.len(), 2);
    }
}
