//! Checksums when a pool is opened: some are loaded from the checkpoint, others are computed from the data.
//!
//! Owns the choice of blocks whose checksums are computed. They are the blocks of:
//! - regions that were open;
//! - regions without a page, which a repair leaves in place of a damaged page;
//! - units that the journal names, in pools of programs without [marks](crate::state::sums::marks).
//!
//! All other blocks have exact checksums (S1, G2 of [`regions`](crate::state::sums::regions)).
//!
//! - R1: a block that is marked keeps its mark. A block that matches its old checksum keeps that checksum.
//! - R2: a block that the device cannot read is [unknown](crate::state::sums::unknown) until it is read or written. If
//!   the block kept its old checksum, a write since then would look like damage. Each such block keeps its region open,
//!   so an opening for writing fails if there are more than a few. A read-only opening has no limit.
//! - R3: each block is read once, however many entries of maps name it. Snapshots share units, and a forged map may
//!   name one unit a million times.
//! - R4: a unit in [quarantine](crate::state::quarantine) may have been written before the crash, like any other unit
//!   of its region.

use std::collections::HashMap;
use std::ops::Range;

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::Ordering;

use super::unsure::Unsure;
use crate::device::block_io::BlockIo;
use crate::device::reader::{MAX_UNREADABLE, failed, read_again, read_each};
use crate::device::walk::{self, Bad, Checkpoint, decode, step_down};
use crate::error::PoolError;
use crate::format::BLOCK_SHIFT;
use crate::format::page::sums;
use crate::format::settings::Checksum;
use crate::format::superblock::Geometry;
use crate::format::{BLOCK, MAX_SUMS};
use crate::state::State;
use crate::state::extent_map::Entry;
use crate::state::sums::regions::Regions;
use crate::state::sums::{Sums, crc};

type Page = walk::Page<()>;

/// Note of a rescue about a page that it passes over. All data of the page's regions is then accepted without a check.
const UNCHECKED: &str =
    "the blocks that it has checksums for are unchecked, and those that were marked as bad are not told";

fn refuse(page: &Page, bad: Bad) -> PoolError {
    match bad {
        Bad::Unreadable(status) => failed(status),
        Bad::Damaged(damage) => {
            PoolError::Damaged { what: "a page of checksums".into(), at: page.page.address, why: damage.to_string() }
        }
    }
}

fn no_memory() -> PoolError {
    PoolError::Io {
        what: "making room for the checksums of the pool".into(),
        status: Status::NoMem,
        fix: "Give the program more memory: 1 GiB for each TiB of data with checksums".into(),
    }
}

/// Reads the checksums of the checkpoint, if the pool keeps any.
pub(super) fn load(io: &dyn BlockIo, state: &mut State, unsure: &mut Unsure) -> Result<(), PoolError> {
    if state.sb.checksum == Checksum::None {
        return Ok(());
    }
    let geometry = state.sb.geometry();
    let mut regions = Regions::new(Arc::new(Sums::new(&geometry)), state.sb.marks);
    regions.loaded_root(state.sb.sums, state.sb.sums_level);
    let checkpoint = Checkpoint::of(&state.sb);
    let mut bad = Vec::new();
    let mut pages: Vec<Page> = Page::root(state.sb.sums, state.sb.sums_level, ()).into_iter().collect();
    while pages.first().is_some_and(|page| page.level > 0) {
        pages = step_down(io, &checkpoint, pages, &mut bad, &mut |page, found| {
            claim(state, page)?;
            match found {
                Ok(_) => regions.loaded_index(page.level, page.index, page.page),
                Err(bad) => unsure.pass(refuse(page, bad), UNCHECKED)?,
            }
            Ok(())
        })?;
        drop_beyond(&mut pages, &geometry, unsure)?;
    }
    let mut numbers = [0; MAX_SUMS];
    read_each(io, checkpoint.unit_bytes(), pages, &mut bad, &mut |page, block| {
        claim(state, page)?;
        let expect = page.expect(&checkpoint);
        let found = match decode(block, |block| sums::decode(block, &geometry, &expect, &mut numbers)) {
            Ok(found) => found,
            Err(bad) => return unsure.pass(refuse(page, bad), UNCHECKED),
        };
        regions.make_loaded(page.index).map_err(|_| no_memory())?;
        for (to, from) in regions.sums.arena.node(page.index).unwrap_or_default().iter().skip(1).zip(&numbers) {
            to.store(*from, Ordering::Relaxed); // Relaxed: nobody else is here yet.
        }
        regions.sums.load_marks(page.index, &found.marked);
        regions.loaded(page.index, page.page, found.open);
        Ok(())
    })?;
    state.sums = Some(regions);
    state.bad_copies.extend(bad);
    Ok(())
}

/// Refuses pages for regions beyond the end of the pool, which no program writes: each would take memory for all
/// regions before it, and room in a checkpoint. A rescue ignores these pages.
fn drop_beyond(pages: &mut Vec<Page>, geometry: &Geometry, unsure: &mut Unsure) -> Result<(), PoolError> {
    let is_beyond = |page: &Page| page.index >= geometry.sums_pages(page.level);
    if let Some(page) = pages.iter().find(|page| is_beyond(page)) {
        unsure.pass(refuse(page, Bad::Damaged(sums::beyond_the_pool(page.index))), UNCHECKED)?;
        pages.retain(|page| !is_beyond(page));
    }
    Ok(())
}

fn claim(state: &mut State, page: &Page) -> Result<(), PoolError> {
    let tree = &mut state.tree;
    if tree.pages.claim(page.page, &mut tree.units) {
        return Ok(());
    }
    let why = "two places refer to it".into();
    Err(PoolError::Damaged { what: "a page of checksums".into(), at: page.page.address, why })
}

/// Computes the checksums that the checkpoint lacks. Called after the replay of the journal; `read_only` says that
/// nothing will be written.
pub(super) fn compute(io: &dyn BlockIo, state: &mut State, read_only: bool) -> Result<(), PoolError> {
    let Some(mut regions) = state.sums.take() else { return Ok(()) };
    regions.sums.marks_replayed();
    regions.units_replayed();
    let map = Arc::clone(&state.tree.map);
    let memory = Buf::zeroed(map.geometry.unit_bytes() as usize, BLOCK).map_err(|_| no_memory())?;
    let mut data = Data { io, memory, patience: Patience { left: MAX_UNREADABLE, read_only } };
    let mut looks: HashMap<u64, Look> = HashMap::new();
    for leaf in 1..state.tree.leaves.end() {
        if state.tree.leaves.node(leaf).parents == 0 {
            continue;
        }
        for (slot, word) in map.leaves.node(leaf).unwrap_or_default().iter().enumerate() {
            let entry = Entry(word.load(Ordering::Relaxed)); // Relaxed: nobody else is here yet.
            if !entry.is_alloc() {
                continue;
            }
            let (unit, region) = (entry.phys(), regions.sums.region(entry.phys()));
            let look = looks.entry(region).or_insert_with(|| Look::at(&regions, region));
            if look.is_exact && !regions.is_replayed(unit) {
                continue;
            }
            let computed = match &mut look.computed {
                Some(computed) => computed,
                none => {
                    regions.make(region).map_err(|_| no_memory())?;
                    regions.sums.mark_dirty(region);
                    none.insert(Box::default())
                }
            };
            let first = unit << map.geometry.blocks_shift();
            if !computed.has_all(regions.sums.place(first).1, entry.bits()) {
                data.compute_unit(&regions.sums, computed, first, &|block, count| {
                    map.written_run(leaf, slot, block, count)
                })?;
            }
        }
    }
    // R4: no readable map names these units, but a damaged one may.
    for unit in regions.open_units(state.sb.total_units) {
        if state.tree.units.is_quarantined(unit) {
            let region = regions.sums.region(unit);
            let computed =
                looks.entry(region).or_insert_with(|| Look::at(&regions, region)).computed.get_or_insert_default();
            regions.make(region).map_err(|_| no_memory())?;
            data.compute_unit(&regions.sums, computed, unit << map.geometry.blocks_shift(), &|_, count| (true, count))?;
        }
    }
    regions.settle();
    regions.sums.unknown_regions().into_iter().for_each(|region| regions.hold_open(region));
    state.sums = Some(regions);
    Ok(())
}

/// A region during the computation of checksums.
struct Look {
    /// True if the region's page has its exact checksums, except those of units that the journal names.
    is_exact: bool,
    /// The blocks computed so far, if any.
    computed: Option<Box<Computed>>,
}

impl Look {
    fn at(regions: &Regions, region: u64) -> Look {
        Look { is_exact: regions.is_exact(region), computed: None }
    }
}

/// The computed blocks of a region, one bit per block (R3).
#[derive(Default)]
struct Computed([u64; MAX_SUMS.div_ceil(64)]);

impl Computed {
    /// Returns true if all blocks of a unit that `bits` names are computed. `first` is the place of the unit's first
    /// block in the region. Returns false if `bits` is 0, as it is for units with too many blocks for one word.
    fn has_all(&self, first: usize, bits: u64) -> bool {
        // `bits` is not 0 only for units of at most 16 blocks, a power of two, which begin at multiples of their size:
        // no unit spans two words.
        bits != 0 && self.0[first / 64] >> (first % 64) & bits == bits
    }

    /// Returns the next run in `rest` that is not computed yet, and records it as computed. Leaves in `rest` the part
    /// behind the run.
    fn next(&mut self, rest: &mut Range<usize>) -> Option<Range<usize>> {
        let is_new = |words: &[u64], place: usize| words[place / 64] & 1 << (place % 64) == 0;
        let first = rest.clone().find(|place| is_new(&self.0, *place))?;
        let end = (first..rest.end).find(|place| !is_new(&self.0, *place)).unwrap_or(rest.end);
        (first..end).for_each(|place| self.0[place / 64] |= 1 << (place % 64));
        *rest = end..rest.end;
        Some(first..end)
    }
}

/// Reads data to compute its checksums.
struct Data<'a> {
    io: &'a dyn BlockIo,
    /// Holds one unit.
    memory: Buf,
    patience: Patience,
}

/// Limit of the number of blocks that the device cannot read. Each attempt to read such a block may take seconds.
struct Patience {
    /// Number of unreadable blocks that are still allowed.
    left: usize,
    /// True for a read-only opening, which passes over any number of unreadable blocks. Once `left` is 0, it no longer
    /// reads blocks one by one.
    read_only: bool,
}

impl Patience {
    /// Reads one block of a run that cannot be read as a whole. Returns true if that succeeds.
    fn read(&mut self, io: &dyn BlockIo, at: u64, block: &mut [u8]) -> Result<bool, PoolError> {
        if self.left == 0 && self.read_only {
            return Ok(false);
        }
        let Err(status) = read_again(io, at, block) else { return Ok(true) };
        self.left = self.left.checked_sub(1).ok_or_else(|| unreadable(status))?;
        Ok(false)
    }
}

impl Data<'_> {
    /// Computes the missing checksums of the written blocks of a unit. `first` is the number of the unit's first block
    /// in the pool. `run(at, most)` returns true if block `at` of the unit is written. It also returns the number of
    /// blocks, among the next `most`, that are in the same state.
    fn compute_unit(
        &mut self,
        sums: &Sums,
        computed: &mut Computed,
        first: u64,
        run: &dyn Fn(u32, u32) -> (bool, u32),
    ) -> Result<(), PoolError> {
        let blocks = (self.memory.len() >> BLOCK_SHIFT) as u32;
        let mut at = 0;
        while at < blocks {
            let (written, count) = run(at, blocks - at);
            let block = first + u64::from(at);
            let place = sums.place(block).1;
            let mut rest = place..place + if written { count as usize } else { 0 };
            while let Some(fresh) = computed.next(&mut rest) {
                let at = (block + (fresh.start - place) as u64) << BLOCK_SHIFT;
                let memory = &mut self.memory[..fresh.len() << BLOCK_SHIFT];
                compute_run(self.io, sums, at, memory, &mut self.patience)?;
            }
            at += count;
        }
        Ok(())
    }
}

/// Computes the checksums of a run of blocks. Blocks that the device cannot read are noted as unknown, and keep their
/// old checksums (R2).
fn compute_run(
    io: &dyn BlockIo,
    sums: &Sums,
    at: u64,
    memory: &mut [u8],
    patience: &mut Patience,
) -> Result<(), PoolError> {
    let whole = io.read(at, memory).is_ok();
    for (number, block) in (at >> BLOCK_SHIFT..).zip(memory.chunks_exact_mut(BLOCK)) {
        if sums.is_marked(number) {
            continue;
        }
        if !whole && !patience.read(io, number << BLOCK_SHIFT, block)? {
            sums.set_unknown(number);
            continue;
        }
        let sum = crc(block);
        if sums.get(number) != Some(sum) {
            sums.set(number, sum);
            sums.rebuilt.fetch_add(1, Ordering::Relaxed); // Relaxed: nobody else is here yet.
        }
    }
    Ok(())
}

fn unreadable(status: Status) -> PoolError {
    PoolError::Io {
        what: format!(
            "reading data that was being written when the pool was cut off: more than {MAX_UNREADABLE} blocks"
        ),
        status,
        fix:
            "Check the device and its cables, and try again. Read-only the pool opens: 'sheave volume export POOL#NAME \
              FILE --rescue' takes out all that can be read"
                .into(),
    }
}
