//! `sheave volume map`: which parts of a volume are data, unwritten or holes, and where on the pool they lie.
//!
//! The JSON is an array in the shape of `qemu-img map --output=json`, so that what reads that reads this: `start`,
//! `length`, `depth` (0), `present`, `zero`, `data`, and `offset` where there is data. Two fields more: `unwritten`
//! (space without data) and `shared`.

use serde::Serialize;
use sheave::base::units::fmt_bytes;
use sheave::vol::{Extent, ExtentKind};

use crate::args::volume::MapArgs;
use crate::failure::{self, Failure};
use crate::output;
use crate::pool::place::Access;

#[derive(Debug, Serialize, PartialEq, Eq)]
pub(super) struct ExtentJson {
    start: u64,
    length: u64,
    depth: u32,
    present: bool,
    zero: bool,
    data: bool,
    unwritten: bool,
    shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
}

impl ExtentJson {
    /// From what the volume tells.
    pub(super) fn new(extent: &Extent) -> Self {
        let data = extent.kind == ExtentKind::Data;
        let present = extent.kind != ExtentKind::Hole;
        Self {
            start: extent.pos,
            length: extent.len,
            depth: 0,
            present,
            zero: !data,
            data,
            unwritten: extent.kind == ExtentKind::Unwritten,
            shared: extent.shared,
            offset: present.then_some(extent.addr),
        }
    }
}

/// Does it.
pub fn run(args: &MapArgs) -> Result<(), Failure> {
    let place = &args.volume;
    let pool = place.pool.open(Access::Look)?;
    let size = pool.volume_info(&place.name).map_err(failure::pool)?.size_bytes;
    let len = args.length.unwrap_or(u64::MAX).min(size.saturating_sub(args.offset));
    if len == 0 {
        return Err(Failure::usage(format!(
            "--offset {} is at or beyond the end of {place}, {size} bytes",
            args.offset
        ))
        .fix("leave --offset out to see all of it"));
    }
    let volume = pool.open_volume(&place.name).map_err(failure::pool)?;
    let extents = volume.extents(args.offset, len).map_err(failure::pool)?;
    drop(volume);
    pool.close().map_err(failure::pool)?;
    if args.json {
        return output::json(&extents.iter().map(ExtentJson::new).collect::<Vec<_>>());
    }
    output::text(&table(&extents));
    Ok(())
}

/// As text: a line an extent, and sums.
pub(super) fn table(extents: &[Extent]) -> String {
    use std::fmt::Write;
    let mut text = format!("{:>18}  {:>18}  {:>10}  {:>18}  STATE\n", "OFFSET", "LENGTH", "", "ON THE POOL");
    let mut sum = [0u64; 3];
    for extent in extents {
        let (state, which) = match extent.kind {
            ExtentKind::Data => ("data", 0),
            ExtentKind::Unwritten => ("unwritten", 1),
            ExtentKind::Hole => ("hole", 2),
        };
        sum[which] += extent.len;
        let place = if extent.kind == ExtentKind::Hole { "-".to_owned() } else { extent.addr.to_string() };
        let shared = if extent.shared { ", shared" } else { "" };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{:>18}  {:>18}  {:>10}  {place:>18}  {state}{shared}",
            extent.pos,
            extent.len,
            fmt_bytes(extent.len)
        );
    }
    let [data, unwritten, hole] = sum.map(fmt_bytes);
    let _ = writeln!(text, "{} extents: {data} of data, {unwritten} unwritten, {hole} of holes", extents.len());
    text
}

#[cfg(test)]
mod tests;
