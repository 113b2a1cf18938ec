//! `sheave pool info`: how large, how full, and a picture of it.
//!
//! The names of the JSON fields are an interface.

use std::fmt::Write;

use serde::Serialize;
use sheave::base::units::{fmt_bytes, fmt_count};
use sheave::vol::{Checksum, MapDamage, MemberInfo, PoolInfo, VolumeInfo};

use super::place::{Access, PoolPlace};
use super::space;
use crate::args::pool::InfoArgs;
use crate::failure::{self, Failure};
use crate::output;

/// Cells of the picture.
const CELLS: usize = 64;

/// A pool, for programs.
#[derive(Clone, Debug, Serialize)]
pub struct PoolJson {
    /// As it was named.
    pub pool: String,
    /// Identity.
    pub uuid: String,
    /// Bytes of the device that the pool uses.
    pub size_bytes: u64,
    /// Allocation unit.
    pub block_bytes: u64,
    /// Bytes of volumes' data; what several share counts once.
    pub data_bytes: u64,
    /// Superblocks, journal, pages.
    pub metadata_bytes: u64,
    /// What volumes may still take.
    pub free_bytes: u64,
    /// Freed, and back after the next commit.
    pub pending_bytes: u64,
    /// Kept for metadata.
    pub reserve_bytes: u64,
    /// `ok`, `low` or `full`: free space against the low-water mark.
    pub state: &'static str,
    /// Metadata runs short: soon no volume can be created or copied.
    pub metadata_low: bool,
    /// The low-water mark as it was set: `10%`, a number of bytes, or `off`.
    pub low_water: String,
    /// The same in bytes; 0 without one.
    pub low_water_bytes: u64,
    /// Whether what becomes free goes back to the file system or device below: `on`, `off`, `failed`, or `unsupported`
    /// (on, and the device takes nothing back).
    pub discard: &'static str,
    /// The journal.
    pub journal_bytes: u64,
    /// The devices that it is made of, in order.
    pub members: Vec<MemberJson>,
    /// `none` or `crc32c`.
    pub checksum: &'static str,
    /// Volumes and snapshots.
    pub volumes: u32,
    /// Units of volumes that have space; leaves of maps that snapshots share count once.
    pub entries: u64,
    /// Memory that its maps take while it is open.
    pub memory_bytes: u64,
    /// Number of the newest checkpoint.
    pub generation: u64,
    /// This opening replayed the journal.
    pub recovered: bool,
    /// What the file system that holds the pool's files has free: if it is less than `free_bytes`, writes fail before
    /// the pool is full. `null` for devices.
    pub host_free_bytes: Option<u64>,
    /// Volumes that may have lost acknowledged data, because a flush failed; until that is acknowledged.
    pub lost: Vec<String>,
    /// What a pool of an older program lacks, by name: `sheave pool upgrade` gives it that.
    pub upgrades: Vec<&'static str>,
    /// Volumes whose maps are damaged: they do not open, and the pool can only be read.
    pub damaged: Vec<DamageJson>,
}

/// A volume with a damaged map, for programs.
#[derive(Clone, Debug, Serialize)]
pub struct DamageJson {
    /// Its name.
    pub volume: String,
    /// First byte of the first damaged page in the pool.
    pub address: u64,
    /// First byte of the volume whose place that page had.
    pub offset: u64,
    /// How many.
    pub length: u64,
    /// How many pages are damaged.
    pub pages: u64,
    /// What is wrong with the first.
    pub why: String,
}

impl DamageJson {
    /// From what the pool tells.
    pub fn new(volume: &str, damage: &MapDamage) -> Self {
        let MapDamage { at, why, range: (offset, length), pages } = damage.clone();
        Self { volume: volume.to_owned(), address: at, offset, length, pages, why }
    }
}

/// A member, for programs.
#[derive(Clone, Debug, Serialize)]
pub struct MemberJson {
    /// Where it begins in the pool.
    pub start_bytes: u64,
    /// What the pool has of it.
    pub size_bytes: u64,
}

impl MemberJson {
    /// From what the pool tells.
    pub fn new(member: &MemberInfo) -> Self {
        Self { start_bytes: member.start_bytes, size_bytes: member.size_bytes }
    }
}

impl PoolJson {
    /// From what the pool tells.
    pub fn new(place: &PoolPlace, info: &PoolInfo) -> Self {
        Self {
            pool: place.to_string(),
            uuid: info.uuid.clone(),
            size_bytes: info.size_bytes,
            block_bytes: info.unit_bytes,
            data_bytes: info.data_bytes,
            metadata_bytes: info.metadata_bytes,
            free_bytes: info.free_bytes,
            pending_bytes: info.pending_bytes,
            reserve_bytes: info.reserve_bytes,
            state: info.state.name(),
            metadata_low: info.metadata_low,
            low_water: info.low_water.to_string(),
            low_water_bytes: info.low_water_bytes,
            discard: info.discard.name(),
            journal_bytes: info.journal_bytes,
            members: info.members.iter().map(MemberJson::new).collect(),
            checksum: match info.checksum {
                Checksum::None => "none",
                Checksum::Crc32c => "crc32c",
            },
            volumes: info.volumes,
            entries: info.entries,
            memory_bytes: info.memory_bytes,
            generation: info.generation,
            recovered: info.recovered,
            host_free_bytes: place.host_free_bytes(),
            lost: info.lost.clone(),
            upgrades: info.upgrades.iter().map(|upgrade| upgrade.name).collect(),
            damaged: info.damaged.iter().map(|(name, damage)| DamageJson::new(name, damage)).collect(),
        }
    }

    /// A line.
    pub fn in_short(&self) -> String {
        format!(
            "{} in units of {}, {} free, checksums {}",
            fmt_bytes(self.size_bytes),
            fmt_bytes(self.block_bytes),
            fmt_bytes(self.free_bytes),
            self.checksum
        )
    }
}

/// Does it.
pub fn run(args: &InfoArgs) -> Result<(), Failure> {
    let pool = args.pool.open(Access::Look)?;
    let (info, volumes) = (pool.info(), pool.volumes());
    pool.close().map_err(failure::pool)?;
    let json = PoolJson::new(&args.pool, &info);
    if args.json {
        return output::json(&json);
    }
    output::text(&table(&json, &volumes, &space::words(&args.pool, &info)));
    Ok(())
}

fn table(pool: &PoolJson, volumes: &[VolumeInfo], space: &str) -> String {
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
        ("checksums", pool.checksum.to_owned()),
        ("discard", pool.discard.to_owned()),
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

/// What somebody should know or do.
fn notes(pool: &PoolJson, rows: &mut Vec<(&str, String)>) {
    if let Some(free) = pool.host_free_bytes.filter(|free| *free < pool.free_bytes) {
        let free = fmt_bytes(free);
        rows.push((
            "host",
            format!(
                "its file system has {free} free, less than the pool: writes fail when that is used. Free some space \
                 there, or move the pool; deleting volumes gives the file system nothing back"
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
                "these volumes do not open, the others can be read, and nothing can be changed. What a repair would \
                 do: sheave pool check '{place}' --dry-run"
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

/// What the pool's bytes are for; together they are its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    data: u64,
    shared: u64,
    metadata: u64,
    reserve: u64,
    free: u64,
}

impl Use {
    fn of(pool: &PoolJson, volumes: &[VolumeInfo]) -> Self {
        // What is nobody's alone is shared by some.
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

/// A bar with a cell for each 1/64 of the pool, and its legend.
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

/// Shares the cells out: what there is any of gets one at least, and the largest gives what is over or lacking.
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
mod tests;
