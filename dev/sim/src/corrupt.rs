//! Damage: one metadata block of a pool is changed, and the pool must detect it or not need the block.
//!
//! Owns the search for metadata blocks in an image, and the kinds of damage. Opening a damaged pool may fail with a
//! message. Or it succeeds, and then everything is as it was, or the volumes with damaged maps are named and do not
//! open, and all others are as they were. The pool never acts on the contents of a damaged block.

use std::fmt;

use sheave_base::status::Status;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_vol::format::{BLOCK, Header, JOURNAL_PAYLOAD, JournalHead, MAGIC, kind};
use sheave_vol::{CheckReport, ExtentKind, Pool, PoolError, Volume};

use crate::check::check_image;
use crate::disk::{DiskOptions, Image, SECTOR, SimDisk};
use crate::model::Model;
use crate::observe::observe;
use crate::setup::Setup;
use sheave_base::rng::Rng;

const SECTORS: u64 = (BLOCK / SECTOR) as u64;

/// A metadata block as its header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaBlock {
    /// Address of its first byte.
    pub address: u64,
    /// One of [`kind`].
    pub kind: u16,
    /// Generation, or incarnation of the journal.
    pub generation: u64,
    /// Number; for a journal block its sequence number.
    pub index: u64,
    /// For a journal block, the sequence number of the first block of its commit.
    pub first: u64,
}

impl fmt::Display for MetaBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            kind::SUPERBLOCK => "superblock",
            kind::JOURNAL => "journal block",
            kind::LEAF => "leaf",
            kind::INDEX => "index page",
            kind::TABLE => "table page",
            kind::LABEL => "label",
            kind::SUPERBLOCK_COPY => "copy of the superblock",
            _ => "block",
        };
        write!(out, "{name} {} of generation {} at byte {}", self.index, self.generation, self.address)
    }
}

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// One bit is flipped.
    Flip,
    /// The block is zeroed.
    Zero,
    /// The block is filled with random bytes.
    Noise,
    /// The block gets the contents of another metadata block.
    Swap,
    /// One of its sectors is zeroed.
    Tear,
}

impl Harm {
    pub const ALL: [Harm; 5] = [Harm::Flip, Harm::Zero, Harm::Noise, Harm::Swap, Harm::Tear];
}

/// Returns the blocks that begin with the magic number, as their headers describe them.
#[must_use]
pub fn meta_blocks(image: &Image) -> Vec<MetaBlock> {
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    let head_at = size_of::<Header>();
    debug_assert_eq!(head_at + size_of::<JournalHead>() + JOURNAL_PAYLOAD, BLOCK);
    image
        .pages()
        .filter(|(_, page)| page.starts_with(&MAGIC))
        .map(|(at, page)| MetaBlock {
            address: at * BLOCK as u64,
            kind: u16::from_le_bytes([page[4], page[5]]),
            generation: number(&page[..], GENERATION_AT),
            index: number(&page[..], INDEX_AT),
            first: number(&page[..], head_at),
        })
        .collect()
}

const GENERATION_AT: usize = std::mem::offset_of!(Header, generation);
const INDEX_AT: usize = std::mem::offset_of!(Header, index);

/// Damages a block.
pub fn harm(image: &mut Image, block: &MetaBlock, harm: Harm, all: &[MetaBlock], rng: &mut Rng) {
    let sector = block.address / SECTOR as u64;
    let mut bytes = vec![0; BLOCK];
    image.read(sector, &mut bytes);
    let before = bytes.clone();
    match harm {
        Harm::Flip => bytes[rng.below(BLOCK as u64) as usize] ^= 1 << rng.below(8),
        Harm::Zero => bytes.fill(0),
        Harm::Noise => bytes.iter_mut().for_each(|byte| *byte = rng.draw() as u8),
        Harm::Swap => {
            let others: Vec<&MetaBlock> = all.iter().filter(|other| other.address != block.address).collect();
            image.read(rng.pick(&others).address / SECTOR as u64, &mut bytes);
        }
        Harm::Tear => {
            let at = rng.below(SECTORS) as usize * SECTOR;
            bytes[at..at + SECTOR].fill(0);
        }
    }
    if bytes == before {
        bytes[0] ^= 1; // a sector that was zero anyhow
    }
    image.write(sector, &bytes);
}

/// The outcome of opening a damaged pool.
#[derive(Debug)]
pub enum Verdict {
    /// The pool does not open. Holds its error and the report of `check`.
    Refused(PoolError, CheckReport),
    /// The pool opens for reading without the named volumes, and the others are intact. Holds the report of `check`
    /// too.
    Partly(Vec<String>, CheckReport),
    /// The pool opens, and everything is intact. Holds the report of `check`.
    Unharmed(CheckReport),
}

/// Damage that goes away: the block, and the image with the block intact.
pub type Passing<'a> = Option<(&'a MetaBlock, &'a Image)>;

/// Opens a damaged pool. Returns an error for a forbidden outcome: wrong data, or damage that `check` does not find.
///
/// With `passing`, a pool that opens in part is used while the block is damaged. Then the block is restored, and
/// nothing may be missing.
pub fn judge(setup: &Setup, image: &Image, model: &Model, passing: Passing<'_>) -> Result<Verdict, String> {
    let disk = |image: &Image| SimDisk::new(image.clone(), DiskOptions { lie: None, ..setup.disk.clone() });
    let report = check_image(image).map_err(|error| format!("check fails instead of telling: {error}"))?;
    let opened = disk(image);
    match Pool::open(&opened.device(), &setup.open_options()) {
        Err(error) if report.is_clean() => Err(format!("the pool does not open ({error}), and check finds nothing")),
        Err(error) => Ok(Verdict::Refused(error, report)),
        Ok(pool) => {
            let found = observe(&pool, &opened.image(), setup.seed)?;
            let damaged: Vec<String> = pool.info().damaged.into_iter().map(|(name, _)| name).collect();
            model
                .settle_but(&found, &damaged)
                .map_err(|why| format!("wrong data is served (check finds {:?}): {why}", report.findings))?;
            if damaged.is_empty() {
                return Ok(Verdict::Unharmed(report));
            }
            refuses(&pool, &damaged, &report)?;
            let noise = use_others(&pool, &damaged);
            drop(pool);
            let mut used = opened.image();
            for (at, len) in noise {
                (at / SECTOR as u64..(at + len) / SECTOR as u64).for_each(|sector| used.write(sector, &[0xA5; SECTOR]));
            }
            if let Some((block, whole)) = passing {
                let mut healed = used.clone();
                let mut bytes = vec![0; BLOCK];
                whole.read(block.address / SECTOR as u64, &mut bytes);
                healed.write(block.address / SECTOR as u64, &bytes);
                holds(setup, &disk(&healed), model, &[], |_| Ok(()))
                    .map_err(|why| format!("when the block is whole again: {why}"))?;
            }
            holds(setup, &disk(&used), model, &damaged, |pool| delete_all(pool, &damaged))
                .map_err(|why| format!("when the damaged volumes are deleted: {why}"))?;
            Ok(Verdict::Partly(damaged, report))
        }
    }
}

/// Checks that the pool neither opens nor copies a volume with a damaged map, and that `check` names each.
fn refuses(pool: &Pool, damaged: &[String], report: &CheckReport) -> Result<(), String> {
    for name in damaged {
        match pool.open_volume(name) {
            Err(PoolError::DamagedMap { volume, .. }) if volume == *name => {}
            other => return Err(format!("'{name}' has a damaged map, and opening it says {other:?}")),
        }
        match pool.snapshot(name, "never") {
            Err(PoolError::DamagedMap { .. }) => {}
            other => return Err(format!("'{name}' has a damaged map, and copying it says {other:?}")),
        }
        let named = report.findings.iter().any(|finding| finding.place.volume.as_ref() == Some(name));
        if !named {
            return Err(format!("'{name}' has a damaged map, and check finds {:?}", report.findings));
        }
    }
    Ok(())
}

/// Prefix of the names of volumes that are made while a map is damaged.
const MADE: &str = "made-meanwhile";

/// Uses a pool with damaged maps: clones every intact volume and writes to its data, and fills all space through a new
/// volume. Returns the ranges of the disk that these writes went to.
fn use_others(pool: &Pool, damaged: &[String]) -> Vec<(u64, u64)> {
    let mut places = Vec::new();
    let mut volumes = pool.volumes();
    volumes.retain(|info| !damaged.contains(&info.name));
    for (number, info) in volumes.iter().enumerate() {
        let name = format!("{MADE}-{number}");
        if pool.clone_volume(&info.name, &name).is_err() {
            continue;
        }
        let Ok(volume) = pool.open_volume(&name) else { continue };
        let extents = volume.extents(0, volume.size_bytes()).unwrap_or_default();
        for extent in extents.into_iter().filter(|extent| extent.kind == ExtentKind::Data) {
            write(&volume, extent.pos & !(BLOCK as u64 - 1), &mut places);
        }
    }
    let new = format!("{MADE}-new");
    if pool.create_volume(&new, 1 << 30).is_ok()
        && let Ok(volume) = pool.open_volume(&new)
    {
        let mut at = 0;
        while at < volume.size_bytes() && write(&volume, at, &mut places) {
            at += pool.info().unit_bytes;
        }
    }
    let _ = pool.sync();
    places
}

/// Allocates the space of one block of the volume as a write does, but writes no data. Appends the range on the disk to
/// `places`. Returns true if it succeeded.
fn write(volume: &Volume, at: u64, places: &mut Vec<(u64, u64)>) -> bool {
    let (len, token) = (BLOCK as u64, MayBlock::on_worker());
    if at + len > volume.size_bytes() {
        return false;
    }
    let Ok(piece) = volume.map_blocking(at, len, Intent::Write, &token) else { return false };
    volume.begin_write(&piece);
    places.push((piece.addr, len.min(piece.len)));
    if piece.len < len || piece.flags.any(MapFlags::SUMMED) {
        volume.abort_write(&piece);
        return volume.end_write(WriteDone::new(at, len, Status::IoErr, &[piece]), &token).is_ok();
    }
    volume.end_write(WriteDone::new(at, len, Status::Ok, &[piece]), &token).is_ok()
}

/// Applies `change` to the pool, then checks that all volumes except `but` are as the model says.
fn holds(
    setup: &Setup,
    disk: &SimDisk,
    model: &Model,
    but: &[String],
    change: impl Fn(&Pool) -> Result<(), String>,
) -> Result<(), String> {
    let pool = Pool::open(&disk.device(), &setup.open_options()).map_err(|error| error.to_string())?;
    change(&pool)?;
    let mut found = observe(&pool, &disk.image(), setup.seed)?;
    found.retain(|name, _| !name.starts_with(MADE));
    model.settle_but(&found, but)?;
    pool.close().map_err(|error| error.to_string())?;
    let report = check_image(&disk.image()).map_err(|error| error.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(format!("check finds {:?}", report.findings)) }
}

fn delete_all(pool: &Pool, names: &[String]) -> Result<(), String> {
    for name in names {
        pool.delete(name).map_err(|error| format!("deleting '{name}': {error}"))?;
    }
    let info = pool.info();
    if info.damaged.is_empty() && info.quarantined_bytes == 0 && !info.deletes_only {
        return Ok(());
    }
    Err(format!("no volume has a damaged map, and the pool is not as others: {info:?}"))
}
