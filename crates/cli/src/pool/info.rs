//! `sheave pool info`: size and usage of a pool, with a chart.
//!
//! The names of the JSON fields are an interface.

use std::fmt::Write;

use sheave_base::units::{fmt_bytes, fmt_count};
use sheave_daemon::failure::Failure;
use sheave_daemon::place::Access;
use sheave_daemon::shapes::pool::{DamageJson, PoolJson};
use sheave_daemon::shapes::volume::VolumeJson;

use crate::args::pool::InfoArgs;
use crate::control::opened::Opened;
use crate::output;
use crate::space;

/// Width of the chart.
const CELLS: usize = 64;

/// Runs the command.
pub fn run(args: &InfoArgs) -> Result<(), Failure> {
    let pool = Opened::open(&args.pool, Access::Look)?;
    let told = pool.info().and_then(|info| Ok((info, pool.volumes()?)));
    pool.close()?;
    let (info, volumes) = told?;
    if args.json {
        return output::json(&info);
    }
    output::text(&table(&info, &volumes, &space::words(&args.pool, &info)));
    Ok(())
}

fn table(pool: &PoolJson, volumes: &[VolumeJson], space: &str) -> String {
    let snapshots = volumes.iter().filter(|volume| volume.snapshot).count();
    let promised: u64 = volumes.iter().filter(|volume| !volume.snapshot).map(|volume| volume.size_bytes).sum();
    let mut rows = vec![
        ("pool", pool.pool.clone()),
        ("identity", pool.uuid.clone()),
        ("size", format!("{} in units of {}", fmt_bytes(pool.size_bytes), fmt_bytes(pool.block_bytes))),
        (
            "volumes",
            format!("{} and {snapshots} snapshots, of {} in all", volumes.len() - snapshots, fmt_bytes(promised)),
        ),
        ("free", format!("{} ({} %)", fmt_bytes(pool.free_bytes), percent(pool.free_bytes, pool.size_bytes))),
        ("space", space.to_owned()),
        ("entries", format!("{}, {} of memory", fmt_count(pool.entries), fmt_bytes(pool.memory_bytes))),
        ("journal", fmt_bytes(pool.journal_bytes)),
        ("checksums", pool.checksum.clone()),
        ("metadata", if pool.metadata_copies == 2 { "two copies".into() } else { "one copy".into() }),
        ("discard", pool.discard.clone()),
        ("checkpoint", pool.generation.to_string()),
    ];
    if pool.members.len() > 1 {
        let sizes: Vec<String> = pool.members.iter().map(|member| fmt_bytes(member.size_bytes)).collect();
        rows.insert(3, ("members", format!("{}: {}", sizes.len(), sizes.join(", "))));
    }
    notes(pool, &mut rows);
    let mut text = String::new();
    for (name, value) in rows {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{name:>13}  {value}");
    }
    text.push_str(&picture(&Use::of(pool, volumes)));
    text
}

/// Adds notes about things that need attention.
fn notes(pool: &PoolJson, rows: &mut Vec<(&str, String)>) {
    if let Some(free) = pool.host_free_bytes.filter(|free| *free < pool.free_bytes) {
        let free = fmt_bytes(free);
        let back = match (pool.discard.as_str(), &pool.pool) {
            ("on", _) => "what deleted volumes had goes back to it".to_owned(),
            ("unsupported", _) => "deleting volumes gives it nothing back".to_owned(),
            (_, place) => format!("what deleted volumes had goes back to it by: sheave pool trim '{place}'"),
        };
        rows.push((
            "host",
            format!(
                "its file system has {free} free, less than the pool: writes fail when that is used. Free some space \
                 there, or move the pool; {back}"
            ),
        ));
    }
    if pool.pending_bytes > 0 {
        rows.push(("coming free", fmt_bytes(pool.pending_bytes)));
    }
    if !pool.lost.is_empty() {
        let (names, place) = (pool.lost.join(", "), &pool.pool);
        rows.push((
            "may have lost",
            format!(
                "{names}: a flush failed, so writes that had ended may be gone. Check or restore them, then: \
                 sheave pool set '{place}' --acknowledge-loss"
            ),
        ));
    }
    for found in &pool.damaged {
        let DamageJson { volume, address, why, pages, .. } = found;
        let more = if *pages > 1 { format!(", and {} more pages", pages - 1) } else { String::new() };
        rows.push(("damaged", format!("volume {volume}: the page of its map at byte {address}: {why}{more}")));
    }
    if !pool.damaged.is_empty() {
        let place = &pool.pool;
        rows.push((
            "until mended",
            format!(
                "these volumes do not open, the others go on{}. {} are kept for them: sheave volume delete gives that \
                 back. What a repair would do: sheave pool check '{place}' --dry-run",
                if pool.deletes_only { ", read-only" } else { "" },
                fmt_bytes(pool.quarantined_bytes)
            ),
        ));
    }
    if pool.bad_copies > 0 {
        rows.push((
            "bad copies",
            format!(
                "{} blocks of metadata have a bad copy and a good one. sheave pool scrub '{}' writes it anew; see to \
                 the device",
                pool.bad_copies, pool.pool
            ),
        ));
    }
    for name in &pool.upgrades {
        let place = &pool.pool;
        rows.push((
            "lacks",
            format!("{name}: an older sheave made it. What that means: sheave pool upgrade '{place}' --dry-run"),
        ));
    }
    if pool.recovered {
        rows.push(("note", "it was not closed the last time; its journal was replayed".to_owned()));
    }
}

fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100 / u128::from(whole.max(1))) as u64
}

/// Bytes of a pool for each use. Their sum is the size of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    data: u64,
    shared: u64,
    metadata: u64,
    reserve: u64,
    free: u64,
}

impl Use {
    fn of(pool: &PoolJson, volumes: &[VolumeJson]) -> Self {
        // Data that belongs to more than one volume is shared.
        let unique: u64 = volumes.iter().map(|volume| volume.unique_bytes).sum();
        let shared = pool.data_bytes.saturating_sub(unique);
        let free = pool.free_bytes + pool.pending_bytes;
        Self {
            data: pool.data_bytes - shared,
            shared,
            metadata: pool.metadata_bytes,
            reserve: pool.reserve_bytes,
            free,
        }
    }
}

/// Draws a bar with a cell for each 1/64 of the pool, and its legend.
fn picture(used: &Use) -> String {
    let parts = [
        ('#', "data", used.data),
        ('S', "shared", used.shared),
        ('m', "metadata", used.metadata),
        ('r', "reserve", used.reserve),
        ('.', "free", used.free),
    ];
    let total: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
    let mut bar = String::new();
    for ((sign, ..), cells) in parts.iter().zip(cells(&parts.map(|(_, _, bytes)| bytes), total)) {
        bar.extend(std::iter::repeat_n(*sign, cells));
    }
    let mut text = format!("{:>13}  [{bar}]\n", "use");
    for (sign, name, bytes) in parts {
        let _ = writeln!(text, "{:>15} {sign} {name:9} {:>10}  {:>3} %", "", fmt_bytes(bytes), percent(bytes, total));
    }
    text
}

/// Distributes the cells. Every part that is not empty gets at least one, and the largest part absorbs the rounding.
fn cells(parts: &[u64; 5], total: u64) -> [usize; 5] {
    let share = |bytes: u64| match bytes {
        0 => 0,
        some => ((u128::from(some) * CELLS as u128 / u128::from(total)) as usize).max(1),
    };
    let mut cells = parts.map(share);
    let sum: usize = cells.iter().sum();
    if let Some(largest) = cells.iter_mut().max() {
        *largest = (*largest + CELLS).saturating_sub(sum);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_add_up_and_nothing_is_invisible() {
        for parts in [
            [1, 0, 0, 0, 1_000_000],
            [1 << 40, 1, 1, 1, 1],
            [5, 5, 5, 5, 5],
            [0, 0, 8192, 0, 1 << 50],
            [u64::MAX / 8, u64::MAX / 8, 1, 0, u64::MAX / 8],
        ] {
            let cells = cells(&parts, parts.iter().sum());
            assert_eq!(cells.iter().sum::<usize>(), CELLS, "{parts:?}");
            for (bytes, cells) in parts.iter().zip(cells) {
                assert_eq!(*bytes > 0, cells > 0, "{parts:?}");
            }
        }
    }

    #[test]
    fn a_bar_with_its_legend() {
        let used = Use { data: 32 << 20, shared: 16 << 20, metadata: 1 << 20, reserve: 1 << 20, free: 14 << 20 };
        let text = picture(&used);
        let bar = format!("[{}{}mr{}]", "#".repeat(32), "S".repeat(16), ".".repeat(14));
        assert!(text.contains(&bar), "{text}");
        assert!(text.contains("S shared") && text.contains("16 MiB   25 %"), "{text}");
        assert_eq!(text.lines().count(), 6);
    }
}
