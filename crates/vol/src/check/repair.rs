//! Carries out a repair: writes the model, in which the findings are already mended, as the pool.
//!
//! Owns the writes. Their order is the same as in a checkpoint. First a bad superblock slot is rewritten, with the same
//! state as in the good slot. Then all pages are written into units that nothing uses. After a flush, both superblock
//! slots are written, one after the other, with a new incarnation, so that the journal is not replayed again. Until the
//! first slot is complete, the pool is as it was, and the repair can be started anew. A repair needs free units for one
//! copy of all metadata.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

use super::model::{Leaf, Model, Node};
use crate::device::block_io::BlockIo;
use crate::error::PoolError;
use crate::format::block::Block;
use crate::format::page::index::{Sink, build_upper};
use crate::format::page::table::VolumeEntry;
use crate::format::page::{PagePlace, PageRef, Spot, index, label, leaf, second_address, table};
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{BLOCK, BLOCK_BYTES, INDEX_CHILDREN};

/// Input of a repair, besides the model.
pub(super) struct Repair<'a> {
    pub io: &'a dyn BlockIo,
    /// The newest superblock.
    pub sb: &'a Superblock,
    /// True if the other superblock is damaged or cannot be read. It is rewritten first: a slot that cannot be read now
    /// might be read the next time, and be newer.
    pub alone: bool,
    /// First sequence number that no journal block has.
    pub next_seq: u64,
    /// Copies of pages to write: the address, and the content.
    pub copies: &'a [(u64, Box<Block>)],
    /// Members whose label must be written.
    pub labels: &'a [usize],
    /// True for a unit in use by data, metadata of the newest superblock, or the pool itself.
    pub used: &'a dyn Fn(u64) -> bool,
    /// True if the pool gets a second copy of each page.
    pub doubles: bool,
}

/// Places pages in free units, and writes them.
struct Pages<'a> {
    io: &'a dyn BlockIo,
    used: &'a dyn Fn(u64) -> bool,
    unit_bytes: u64,
    next_unit: u64,
    first_unit: u64,
    total_units: u64,
    /// Next free page. The next field is the end of the unit that is being filled.
    page: u64,
    end: u64,
    /// Unit with the second copies of the pages in the unit that is being filled; 0 in a pool with one copy of its
    /// metadata.
    second: u32,
    paired: bool,
    /// First unit of each member.
    members: Vec<u64>,
    /// Units that hold the new pages.
    taken: HashSet<u64>,
    /// First write that failed.
    failed: Option<(u64, sheave_base::status::Status)>,
}

impl Sink for Pages<'_> {
    fn allocate(&mut self) -> Option<Spot> {
        if self.page == self.end {
            let unit = self.free(self.next_unit..self.total_units)?;
            self.next_unit = unit + 1;
            self.taken.insert(unit);
            if self.paired {
                let second = self.partner(unit)?;
                self.taken.insert(second);
                self.second = second as u32;
            }
            self.page = unit * self.unit_bytes;
            self.end = self.page + self.unit_bytes;
        }
        self.page += BLOCK_BYTES;
        Some(Spot { address: self.page - BLOCK_BYTES, second: self.second })
    }

    fn page(&mut self, address: u64, block: &Block) {
        let second = self.paired.then(|| second_address(address, self.second, self.unit_bytes));
        for at in [Some(address), second].into_iter().flatten() {
            if self.failed.is_none() {
                self.failed = self.io.write(at, block).err().map(|status| (at, status));
            }
        }
    }
}

impl<'a> Pages<'a> {
    fn new(repair: &Repair<'a>, geometry: &Geometry) -> Pages<'a> {
        let unit_bytes = u64::from(geometry.unit_bytes);
        Pages {
            io: repair.io,
            used: repair.used,
            unit_bytes,
            next_unit: geometry.first_unit,
            first_unit: geometry.first_unit,
            total_units: geometry.total_units,
            page: 0,
            end: 0,
            second: 0,
            paired: geometry.paired,
            members: repair.sb.members.iter().map(|(start, _)| start / unit_bytes).collect(),
            taken: HashSet::new(),
            failed: None,
        }
    }

    fn free(&self, mut units: Range<u64>) -> Option<u64> {
        units.find(|unit| !(self.used)(*unit) && !self.taken.contains(unit))
    }

    /// Returns a free unit for second copies: on another member if possible, else half the pool away, else any free
    /// unit.
    fn partner(&self, unit: u64) -> Option<u64> {
        let ends = self.members.iter().skip(1).copied().chain([self.total_units]);
        let mut others = self.members.iter().copied().zip(ends).filter(|(start, end)| !(*start..*end).contains(&unit));
        let far = (unit + self.total_units / 2) % self.total_units;
        others
            .find_map(|(start, end)| self.free(start.max(self.first_unit)..end))
            .or_else(|| self.free(far.max(self.first_unit)..self.total_units))
            .or_else(|| self.free(self.first_unit..self.total_units))
    }
}

fn failed(at: u64, status: sheave_base::status::Status) -> PoolError {
    PoolError::Io {
        what: format!("writing the repaired metadata at byte {at}"),
        status,
        fix: "The pool is as it was before. Mend the device and repair again".into(),
    }
}

fn full() -> PoolError {
    PoolError::Full { what: "there is no free unit to write repaired metadata to".into() }
}

impl Repair<'_> {
    /// Rewrites the bad copies of pages in place, from the good ones. A crash during this leaves the good copies
    /// intact.
    pub fn write_copies(&self) -> Result<(), PoolError> {
        for (at, block) in self.copies {
            self.io.write(*at, &block[..]).map_err(|status| failed(*at, status))?;
        }
        if self.copies.is_empty() { Ok(()) } else { self.io.flush().map_err(|status| failed(0, status)) }
    }

    /// Writes the model. Returns the new superblock.
    pub fn write(&self, model: &Model) -> Result<Superblock, PoolError> {
        let flush = |io: &dyn BlockIo| io.flush().map_err(|status| failed(0, status));
        let mut block = [0; BLOCK];
        let mut generation = self.sb.generation + 1;
        if self.alone {
            let other = self.sb.stand_by();
            let at = other.encode(&mut block);
            self.io.write(at, &block).map_err(|status| failed(at, status))?;
            flush(self.io)?;
            generation = generation.max(other.generation + 1);
        }
        let mut pages = Pages::new(self, &model.geometry);
        let place = PagePlace { pool: self.sb.pool, generation, address: 0, second: 0, index: 0, owner: 0 };
        let entries = self.maps(model, &place, &mut pages).ok_or_else(full)?;
        let (root, level) = volume_table(&entries, &place, &mut pages).ok_or_else(full)?;
        // The unit of a label holds nothing else, and neither does the unit of a copy of the superblock: no page may
        // stay there.
        let unit = |at: u64| at / u64::from(model.geometry.unit_bytes);
        let must_leave = |at: u64| {
            if self.doubles {
                return true;
            }
            let labels = self.sb.members[1..].iter().map(|(start, _)| *start);
            labels.chain(self.sb.copies).any(|fixed| fixed != 0 && unit(fixed) == unit(at))
        };
        let (sums, sums_level) = model.sums.write(self.io, self.sb, &place, &mut pages, &must_leave)?;
        if let Some((at, status)) = pages.failed {
            return Err(failed(at, status));
        }
        let mut new = Superblock {
            generation,
            clean: true,
            incarnation: self.sb.incarnation + 1,
            replay_seq: self.next_seq.max(self.sb.replay_seq),
            next_volume: model.next_volume,
            table: root,
            table_level: level,
            volumes: entries.len() as u32,
            sums,
            sums_level,
            kept: PageRef::NONE,
            paired: self.sb.paired || self.doubles,
            ..self.sb.clone()
        };
        new.keep_twins();
        for &number in self.labels {
            let at = label::encode(&mut block, self.sb, number);
            self.io.write(at, &block).map_err(|status| failed(at, status))?;
        }
        flush(self.io)?;
        let twin = new.twin();
        for sb in [&new, &twin] {
            let at = sb.encode(&mut block);
            self.io.write(at, &block).map_err(|status| failed(at, status))?;
            // The copies are copies of the newer superblock.
            if sb.generation == twin.generation {
                let copies = twin.encode_copies();
                copies
                    .iter()
                    .try_for_each(|(at, block)| self.io.write(*at, block).map_err(|status| failed(*at, status)))?;
            }
            flush(self.io)?;
        }
        Ok(twin)
    }

    /// Writes all maps. Returns the volumes' entries with their roots. Nodes and leaves that related volumes share are
    /// written once.
    fn maps(&self, model: &Model, place: &PagePlace, pages: &mut Pages<'_>) -> Option<Vec<VolumeEntry>> {
        let mut leaves: HashMap<(u32, *const Leaf), PageRef> = HashMap::new();
        let mut nodes: HashMap<(u32, *const Node), PageRef> = HashMap::new();
        let mut block = [0; BLOCK];
        let mut entries = Vec::with_capacity(model.volumes.len());
        for (&id, vol) in &model.volumes {
            let family = vol.entry.family;
            let last = vol.map.nodes.keys().next_back().map_or(0, |last| last + 1);
            let mut level1 = vec![PageRef::NONE; last as usize];
            for (&number, node) in &vol.map.nodes {
                if let Some(&page) = nodes.get(&(family, Rc::as_ptr(node))) {
                    level1[number as usize] = page;
                    continue;
                }
                let mut children = [PageRef::NONE; INDEX_CHILDREN];
                let first = number * INDEX_CHILDREN as u64;
                for ((child, leaf), at) in children.iter_mut().zip(&node.leaves).zip(first..) {
                    let Some(leaf) = leaf else { continue };
                    if let Some(&page) = leaves.get(&(family, Rc::as_ptr(leaf))) {
                        *child = page;
                        continue;
                    }
                    let place = PagePlace { owner: id, ..place.at(pages.allocate()?, at) };
                    *child = leaf::encode(&mut block, &model.geometry, &place, &leaf.entries, &leaf.written);
                    pages.page(place.address, &block);
                    leaves.insert((family, Rc::as_ptr(leaf)), *child);
                }
                let place = PagePlace { owner: id, ..place.at(pages.allocate()?, number) };
                level1[number as usize] = index::encode(&mut block, &place, 1, &children);
                pages.page(place.address, &block);
                nodes.insert((family, Rc::as_ptr(node)), level1[number as usize]);
            }
            let place = PagePlace { owner: id, ..*place };
            let (root, root_level) = build_upper(pages, &place, 1, 1, &level1)?;
            entries.push(VolumeEntry { root, root_level, ..vol.entry.clone() });
        }
        Some(entries)
    }
}

/// Writes the volume table. Returns its root and level.
fn volume_table(entries: &[VolumeEntry], place: &PagePlace, pages: &mut Pages<'_>) -> Option<(PageRef, u16)> {
    let mut block = [0; BLOCK];
    let mut level0 = Vec::new();
    let mut rest = entries;
    while !rest.is_empty() {
        let place = place.at(pages.allocate()?, level0.len() as u64);
        let (page, count) = table::encode(&mut block, &place, rest);
        pages.page(place.address, &block);
        level0.push(page);
        rest = &rest[count..];
    }
    build_upper(pages, place, 0, 0, &level0)
}
