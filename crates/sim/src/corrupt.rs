//! Damage: one metadata block of a pool is changed, and the pool must notice or not need it.
//!
//! Owns the finding of metadata blocks in an image and the kinds of damage. Opening a damaged pool may fail, with a
//! message; or it may succeed, and then everything is as it was, or volumes whose maps are damaged are named, do not
//! open, and all others are as they were. It never serves what a damaged block says.

use std::fmt;

use sheave_vol::format::{BLOCK, Header, JOURNAL_PAYLOAD, JournalHead, MAGIC, kind};
use sheave_vol::{CheckReport, Pool, PoolError};

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
    /// Its first byte.
    pub address: u64,
    /// One of [`kind`].
    pub kind: u16,
    /// Generation, or incarnation of the journal.
    pub generation: u64,
    /// Number; of a journal block its sequence number.
    pub index: u64,
    /// Of a journal block: sequence number of the first block of its commit.
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
            _ => "block",
        };
        write!(out, "{name} {} of generation {} at byte {}", self.index, self.generation, self.address)
    }
}

/// What is done to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// One bit is flipped.
    Flip,
    /// It is all zero.
    Zero,
    /// It is random bytes.
    Noise,
    /// It holds what belongs to another block.
    Swap,
    /// One of its sectors is zero.
    Tear,
}

impl Harm {
    /// All kinds.
    pub const ALL: [Harm; 5] = [Harm::Flip, Harm::Zero, Harm::Noise, Harm::Swap, Harm::Tear];
}

/// Blocks that look like metadata, where they say that they are.
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

/// Changes a block.
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

/// What became of a damaged pool.
#[derive(Debug)]
pub enum Verdict {
    /// It does not open, and says why; what `check` finds.
    Refused(PoolError, CheckReport),
    /// It opens without these volumes, for reading, and the others are there.
    Partly(Vec<String>, CheckReport),
    /// It opens, and everything is there.
    Unharmed(CheckReport),
}

/// Opens what was damaged. An error is what must not be: wrong data, or damage that `check` does not see.
pub fn judge(setup: &Setup, image: &Image, model: &Model) -> Result<Verdict, String> {
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
            drop(pool);
            if opened.image().hash() != image.hash() {
                return Err("a pool with a damaged map was written to".into());
            }
            Ok(Verdict::Partly(damaged, report))
        }
    }
}

/// A pool with damaged maps opens none of those volumes and takes no change, and check names each of them.
fn refuses(pool: &Pool, damaged: &[String], report: &CheckReport) -> Result<(), String> {
    for name in damaged {
        match pool.open_volume(name) {
            Err(PoolError::DamagedMap { volume, .. }) if volume == *name => {}
            other => return Err(format!("'{name}' has a damaged map, and opening it says {other:?}")),
        }
        let named = report.findings.iter().any(|finding| finding.place.volume.as_ref() == Some(name));
        if !named {
            return Err(format!("'{name}' has a damaged map, and check finds {:?}", report.findings));
        }
    }
    match pool.create_volume("one-more", 1 << 20) {
        Err(PoolError::DamagedMap { .. }) => Ok(()),
        other => Err(format!("a pool with damaged maps makes a volume: {other:?}")),
    }
}
