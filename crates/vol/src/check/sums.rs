//! Checksums of data during a check: finds the intact pages of checksums, and what the journal records about regions.
//!
//! Owns the result of a repair for them. Checksums are not compared with data here: that needs a read of all data, and
//! is the task of a scrub. After a repair, a block that was reported bad, or has rotted unread, must not count as good:
//!
//! - S1: the intact page of a region is kept as it is, unless the journal has records of the region. Then the page also
//!   gets the marks of these records and the flag that the region is open, because the `INTENT` record is gone after
//!   the repair.
//! - S2: a region without an intact page has no page after the repair. The next opening computes its checksums, like
//!   those of open regions. If the region has marks it gets an open page, because marks are stored nowhere else.
//! - S3: if records of the journal are missing, any region may have been written, so all regions become open. Marks are
//!   kept.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::block_io::BlockIo;
use crate::device::reader::read_again;
use crate::error::PoolError;
use crate::format::page::index::{Sink, build_upper};
use crate::format::page::sums::{self, Marked, RegionState};
use crate::format::page::{Expect, PagePlace, PageRef};
use crate::format::record::Record;
use crate::format::settings::Checksum;
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{BLOCK, MAX_SUMS};

/// State of a region in its page, without the checksums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Says {
    /// True if the region has marks.
    marked: bool,
    /// True if the page has `SUMS_OPEN`.
    open: bool,
}

impl Says {
    pub fn of(region: &RegionState) -> Says {
        Says { marked: region.marked != Marked::default(), open: region.open }
    }
}

/// An intact page.
#[derive(Clone, Copy, Debug)]
struct Kept {
    page: PageRef,
    says: Says,
}

/// Marks of a region in the journal: blocks reported bad, and blocks that are good again.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    bad: Marked,
    good: Marked,
}

/// Checksums of a pool; empty if the pool keeps none.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    keeps: bool,
    /// True if the programs that used the pool supported marks.
    knows_marks: bool,
    /// Intact pages, by region.
    pages: BTreeMap<u64, Kept>,
    opened: BTreeSet<u64>,
    /// Number of open regions: those whose pages are open, and those that `INTENT` records opened.
    open: u64,
    marks: BTreeMap<u64, Change>,
    /// True if any region may have been written (S3).
    all_open: bool,
}

impl Sums {
    pub fn of(sb: &Superblock) -> Sums {
        Sums { keeps: sb.checksum != Checksum::None, knows_marks: sb.marks, ..Sums::default() }
    }

    /// Adds the intact page of a region.
    pub fn keep(&mut self, region: u64, page: PageRef, says: Says) {
        self.open += u64::from(says.open);
        self.pages.insert(region, Kept { page, says });
    }

    /// Returns the number of open regions, as opening the pool counts them.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// Called if records of the journal are missing (S3).
    pub fn open_all(&mut self) {
        self.all_open = true;
    }

    /// Applies a record of the journal to the regions.
    pub fn replay(&mut self, geometry: &Geometry, record: &Record) {
        if !self.keeps {
            return;
        }
        let region = |unit: u64| unit / geometry.region_units();
        match *record {
            Record::Intent { first, count } => {
                for region in first..(first + count).min(geometry.regions(geometry.total_units)) {
                    let is_open = self.pages.get(&region).is_some_and(|kept| kept.says.open);
                    self.open += u64::from(self.opened.insert(region) && !is_open);
                }
            }
            Record::Mark { bad, first, count } => self.replay_mark(geometry, first..first + count, bad),
            // Programs without marks copied units to regions that were not open.
            Record::Set { phys, .. } if phys != 0 && !self.knows_marks => _ = self.opened.insert(region(phys)),
            Record::Run { phys, count, .. } if phys != 0 && !self.knows_marks => {
                self.opened.extend(region(phys)..=region(phys + count - 1));
            }
            _ => {}
        }
    }

    fn replay_mark(&mut self, geometry: &Geometry, blocks: std::ops::Range<u64>, bad: bool) {
        let (unit_blocks, region_units) = (geometry.unit_blocks as u64, geometry.region_units());
        let mut at = blocks.start;
        while at < blocks.end {
            let unit = at / unit_blocks;
            let end = blocks.end.min((unit + 1) * unit_blocks);
            let change = self.marks.entry(unit / region_units).or_default();
            let (to, from) =
                if bad { (&mut change.bad, &mut change.good) } else { (&mut change.good, &mut change.bad) };
            let first = unit % region_units * unit_blocks;
            for place in (at..end).map(|block| (first + block % unit_blocks) as usize) {
                to[place / 64] |= 1 << (place % 64);
                from[place / 64] &= !(1 << (place % 64));
            }
            at = end;
        }
    }

    /// Writes the pages that a repair changes, and the index pages above all pages, to `sink`. Returns the root and its
    /// level. Other pages stay where they are, unless `must_leave` is true for their address.
    pub fn write(
        &self,
        io: &dyn BlockIo,
        sb: &Superblock,
        place: &PagePlace,
        sink: &mut dyn Sink,
        must_leave: &dyn Fn(u64) -> bool,
    ) -> Result<(PageRef, u16), PoolError> {
        let full = || PoolError::Full { what: "there is no free unit to write repaired checksums to".into() };
        let kept = self.pages.iter().filter(|(_, kept)| kept.says.marked || !self.all_open);
        let mut pages: BTreeMap<u64, PageRef> = kept.map(|(region, kept)| (*region, kept.page)).collect();
        let mut changed: BTreeSet<u64> = self.opened.iter().chain(self.marks.keys()).copied().collect();
        let moved = pages.iter().filter(|(_, page)| self.all_open || must_leave(page.address));
        changed.extend(moved.map(|(region, _)| *region));
        let (geometry, mut block, mut numbers) = (sb.geometry(), [0; BLOCK], [0; MAX_SUMS]);
        for region in changed {
            numbers.fill(0);
            let old = match pages.get(&region) {
                Some(&page) => Some(read(io, sb, page, region, &mut numbers)?),
                None => None,
            };
            let marked = self.marked(region, old.as_ref());
            if old.is_none() && marked == Marked::default() {
                continue; // S2
            }
            let open = old.is_none_or(|old| old.open) || self.all_open || self.opened.contains(&region);
            let place = PagePlace { owner: 0, ..place.at(sink.allocate().ok_or_else(full)?, region) };
            let page = sums::encode(&mut block, &geometry, &place, open, &numbers, &marked);
            sink.page(place.address, &block);
            pages.insert(region, page);
        }
        let count = pages.keys().next_back().map_or(0, |last| last + 1);
        let pages: Vec<PageRef> = (0..count).map(|at| pages.get(&at).copied().unwrap_or_default()).collect();
        build_upper(sink, &PagePlace { owner: 0, ..*place }, 0, 1, &pages).ok_or_else(full)
    }

    /// Returns the marks of a region after the journal's marks have been applied.
    fn marked(&self, region: u64, old: Option<&RegionState>) -> Marked {
        let mut marked = old.map(|old| old.marked).unwrap_or_default();
        if let Some(change) = self.marks.get(&region) {
            for (word, (bad, good)) in marked.iter_mut().zip(change.bad.iter().zip(&change.good)) {
                *word = (*word | bad) & !good;
            }
        }
        marked
    }
}

/// Reads an intact page again.
fn read(
    io: &dyn BlockIo,
    sb: &Superblock,
    page: PageRef,
    region: u64,
    numbers: &mut [u32; MAX_SUMS],
) -> Result<RegionState, PoolError> {
    let mut block = [0; BLOCK];
    let (what, at) = ("a page of checksums", page.address);
    let read = read_again(io, at, &mut block);
    // The second copy is read if the first one is not good.
    let second = page.second_copy(u64::from(sb.unit_bytes)).filter(|_| read.is_err() || !page.vouches_for(&block));
    second.map_or(read, |second| read_again(io, second, &mut block)).map_err(|status| PoolError::Io {
        what: format!("reading {what} at byte {at}"),
        status,
        fix: "The pool is as it was before. Check the device and its cables, and repair again".into(),
    })?;
    let expect = Expect { pool: sb.pool, generation: sb.generation, page, index: region };
    sums::decode(&block, &sb.geometry(), &expect, numbers).map_err(|damage| PoolError::Damaged {
        what: what.into(),
        at,
        why: damage.to_string(),
    })
}
