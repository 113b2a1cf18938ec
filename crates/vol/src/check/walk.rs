//! Reads everything that the superblock reaches: the volume table, and the map of every volume.
//!
//! Owns the walk. All pages are [read ahead](super::ahead), each once however many volumes share it. A page that is
//! damaged or cannot be read becomes a finding for every volume that it concerns. In the model it becomes a hole, which
//! is what a repair would make of it.

use std::collections::HashMap;
use std::rc::Rc;

use super::model::{Leaf, Map, Model, Node, Vol};
use super::report::Progress;
use super::sums::{Says, Sums};
use crate::device::block_io::BlockIo;
use crate::error::PoolError;
use crate::finding::{Finding, FindingKind, Place};
use crate::format::block::{Block, identify};
use crate::format::damage::Damage;
use crate::format::page::table::VolumeEntry;
use crate::format::page::{Expect, PageRef, index, leaf, sums, table};
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{BLOCK, INDEX_CHILDREN};

/// Reason why a page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    Damaged(Damage),
    Unreadable(sheave_base::status::Status),
}

impl Bad {
    pub(super) fn words(self) -> String {
        match self {
            Bad::Damaged(damage) => format!("the page is damaged: {damage}"),
            Bad::Unreadable(status) => format!("the page cannot be read: {status}"),
        }
    }
}

/// Stands for a page that was not read ahead. This does not occur, because both walks follow the same references.
const NOT_READ: Bad = Bad::Unreadable(sheave_base::status::Status::Invalid);

/// Number used as the family of checksums, which belong to no volume.
const SUMS: u32 = u32::MAX;
/// Number used as the family of records that are kept beside damaged maps.
pub(super) const KEPT: u32 = u32::MAX - 1;

/// Position of a page: its reference, level and index.
pub(super) type Key = (PageRef, u16, u64);

pub(super) struct Walk<'a> {
    pub(super) io: &'a dyn BlockIo,
    pub(super) sb: &'a Superblock,
    pub(super) geometry: Geometry,
    pub findings: Vec<Finding>,
    pub notes: Vec<String>,
    /// Family, level and index of each page, by address.
    pub pages: HashMap<u64, (u32, u16, u64)>,
    nodes: HashMap<Key, Rc<Node>>,
    pub(super) leaves: HashMap<Key, Result<Rc<Leaf>, Bad>>,
    pub(super) indexes: HashMap<Key, Result<Box<[PageRef; INDEX_CHILDREN]>, Bad>>,
    pub(super) tables: HashMap<Key, (Vec<VolumeEntry>, Option<Bad>)>,
    pub(super) sums_read: HashMap<Key, Result<Says, Bad>>,
    /// Unit of the second copies for each unit of pages, in a pool with two copies.
    pub partners: HashMap<u64, u32>,
    /// Copies that are bad while the other is good.
    pub bad_copies: Vec<BadCopy>,
}

/// A bad copy of a page, and its correct content.
pub(super) struct BadCopy {
    pub at: u64,
    pub block: Box<Block>,
    /// Address of the good copy.
    other: u64,
    bad: Bad,
}

impl BadCopy {
    pub fn finding(&self) -> Finding {
        Finding {
            kind: FindingKind::PageCopy,
            place: Place { what: "copy of a page of metadata".into(), address: Some(self.at), ..Place::default() },
            means: format!("{}. The other copy, at byte {}, is good, so nothing is lost", self.bad.words(), self.other),
            repair: Some("Write it anew from the other copy".into()),
        }
    }
}

impl<'a> Walk<'a> {
    pub fn new(io: &'a dyn BlockIo, sb: &'a Superblock) -> Walk<'a> {
        Walk {
            io,
            sb,
            geometry: sb.geometry(),
            findings: Vec::new(),
            notes: Vec::new(),
            pages: HashMap::new(),
            nodes: HashMap::new(),
            leaves: HashMap::new(),
            indexes: HashMap::new(),
            tables: HashMap::new(),
            sums_read: HashMap::new(),
            partners: HashMap::new(),
            bad_copies: Vec::new(),
        }
    }

    /// Walks everything the superblock reaches.
    pub fn read(&mut self, progress: &mut Progress<'_>) -> Result<Model, PoolError> {
        self.read_ahead(progress)?;
        let mut model = Model::new(self.geometry, self.sb.next_volume, self.sb.journal_blocks);
        let mut entries = Vec::new();
        if !self.sb.table.is_none() {
            self.table(self.sb.table, self.sb.table_level, 0, &mut entries);
        }
        let lost = self.findings.len();
        if lost == 0 && entries.len() != self.sb.volumes as usize {
            self.findings.push(Finding {
                kind: FindingKind::Totals,
                place: Place { what: "superblock".into(), address: Some(self.sb.slot()), ..Place::default() },
                means: format!("it counts {} volumes, and the table has {}", self.sb.volumes, entries.len()),
                repair: Some("Count them anew".into()),
            });
        }
        model.sums = Sums::of(self.sb);
        if !self.sb.sums.is_none() {
            self.sums(self.sb.sums, self.sb.sums_level, 0, &mut model.sums);
        }
        for entry in entries {
            let map = self.map(&entry, model.new_map());
            model.volumes.insert(entry.id, Vol { entry, map });
        }
        Ok(model)
    }

    /// Returns the good one of a page's two copies, or the first if neither is good. If only one is good, records the
    /// other as bad.
    pub(super) fn of_both(
        &mut self,
        page: PageRef,
        first: Result<Block, Bad>,
        second: Result<Block, Bad>,
    ) -> Result<Block, Bad> {
        let Some(at) = page.second_copy(u64::from(self.geometry.unit_bytes)) else { return first };
        let is_good = |block: &Result<Block, Bad>| block.as_ref().is_ok_and(|block| page.vouches_for(block));
        let why = |block: &Result<Block, Bad>| match block {
            Err(bad) => *bad,
            Ok(block) => Bad::Damaged(identify(block).err().unwrap_or(Damage::Foreign)),
        };
        let (good, bad) = match (is_good(&first), is_good(&second)) {
            (true, false) => {
                (first, BadCopy { at, block: Box::new([0; BLOCK]), other: page.address, bad: why(&second) })
            }
            (false, true) => {
                (second, BadCopy { at: page.address, block: Box::new([0; BLOCK]), other: at, bad: why(&first) })
            }
            _ => return first,
        };
        if let Ok(block) = &good {
            self.bad_copies.push(BadCopy { block: Box::new(*block), ..bad });
        }
        good
    }

    pub(super) fn expect(&self, page: PageRef, index: u64) -> Expect {
        Expect { pool: self.sb.pool, generation: self.sb.generation, page, index }
    }

    /// Returns the references of an index page, which was read ahead.
    fn children(&mut self, page: PageRef, level: u16, index: u64) -> Result<Box<[PageRef; INDEX_CHILDREN]>, Bad> {
        self.indexes.get(&(page, level, index)).cloned().unwrap_or(Err(NOT_READ))
    }

    pub(super) fn decode_index(
        &self,
        block: &Block,
        page: PageRef,
        level: u16,
        index: u64,
    ) -> Result<Box<[PageRef; INDEX_CHILDREN]>, Bad> {
        let mut children = Box::new([PageRef::NONE; INDEX_CHILDREN]);
        let expect = self.expect(page, index);
        index::decode(block, &self.geometry, &expect, level, &mut children).map_err(Bad::Damaged)?;
        Ok(children)
    }

    pub(super) fn decode_table(
        &self,
        block: &Block,
        page: PageRef,
        index: u64,
        entries: &mut Vec<VolumeEntry>,
    ) -> Result<(), Bad> {
        table::decode(block, &self.geometry, &self.expect(page, index), entries).map(drop).map_err(Bad::Damaged)
    }

    pub(super) fn decode_leaf(&self, block: &Block, page: PageRef, index: u64) -> Result<Leaf, Bad> {
        let mut leaf = Leaf::new(&self.geometry);
        let expect = self.expect(page, index);
        leaf::decode(block, &self.geometry, &expect, &mut leaf.entries, &mut leaf.written).map_err(Bad::Damaged)?;
        leaf.generation = identify(block).map_err(Bad::Damaged)?.0.generation;
        Ok(leaf)
    }

    /// Appends the volumes under a page of the table to `out`.
    fn table(&mut self, page: PageRef, level: u16, index: u64, out: &mut Vec<VolumeEntry>) {
        self.claim(page, 0, level, index, None);
        let bad = if level == 0 {
            let (entries, bad) =
                self.tables.get(&(page, level, index)).cloned().unwrap_or((Vec::new(), Some(NOT_READ)));
            out.extend(entries);
            bad
        } else {
            match self.children(page, level, index) {
                Ok(children) => {
                    for (at, child) in (index * INDEX_CHILDREN as u64..).zip(children.iter()) {
                        if !child.is_none() {
                            self.table(*child, level - 1, at, out);
                        }
                    }
                    None
                }
                Err(bad) => Some(bad),
            }
        };
        if let Some(bad) = bad {
            self.findings.push(Finding {
                kind: FindingKind::TablePage,
                place: Place {
                    what: "page of the volume table".into(),
                    address: Some(page.address),
                    ..Place::default()
                },
                means: format!("{}. The volumes in it have lost their names and maps", bad.words()),
                repair: Some("Go on without these volumes; the space that only they had becomes free".into()),
            });
        }
    }

    /// Walks the pages of data checksums, and keeps those that are intact.
    fn sums(&mut self, page: PageRef, level: u16, index: u64, whole: &mut Sums) {
        self.claim(page, SUMS, level, index, None);
        let bad = if index >= self.geometry.sums_pages(level) {
            Some(Bad::Damaged(sums::beyond_the_pool(index)))
        } else if level == 0 {
            let read = self.sums_read.get(&(page, level, index)).copied().unwrap_or(Err(NOT_READ));
            read.map(|says| whole.keep(index, page, says)).err()
        } else {
            match self.children(page, level, index) {
                Ok(children) => {
                    let children = (index * INDEX_CHILDREN as u64..).zip(children.iter());
                    children
                        .filter(|(_, child)| !child.is_none())
                        .for_each(|(at, child)| self.sums(*child, level - 1, at, whole));
                    None
                }
                Err(bad) => Some(bad),
            }
        };
        if let Some(bad) = bad {
            self.findings.push(Finding {
                kind: FindingKind::SumsPage,
                place: Place { what: "page of checksums".into(), address: Some(page.address), ..Place::default() },
                means: format!(
                    "{}. The data it belongs to cannot be verified, and which of that was told bad is not known",
                    bad.words()
                ),
                repair: Some("Compute its checksums anew from the data, as it is, at the next opening".into()),
            });
        }
    }

    /// Fills `map`, which has no entries, with the map of a volume.
    fn map(&mut self, entry: &VolumeEntry, mut map: Map) -> Map {
        if !entry.root.is_none() {
            self.subtree(entry, entry.root, entry.root_level, 0, &mut map);
        }
        map
    }

    fn subtree(&mut self, entry: &VolumeEntry, page: PageRef, level: u16, index: u64, map: &mut Map) {
        self.claim(page, entry.family, level, index, Some(entry));
        let children = match self.children(page, level, index) {
            Ok(children) => children,
            Err(bad) => {
                Rc::make_mut(&mut map.lost).push(self.findings.len());
                return self.lost(entry, page, level, index, bad);
            }
        };
        if level > 1 {
            for (at, child) in (index * INDEX_CHILDREN as u64..).zip(children.iter()) {
                if !child.is_none() {
                    self.subtree(entry, *child, level - 1, at, map);
                }
            }
            return;
        }
        let key = (page, level, index);
        // Only nodes without a damaged leaf are stored. The others are examined for each volume, so that each volume is
        // named in a finding.
        if let Some(node) = self.nodes.get(&key) {
            map.nodes.insert(index, node.clone());
            return;
        }
        let mut node = Node::new();
        let mut whole = true;
        for (slot, child) in children.iter().enumerate().filter(|(_, child)| !child.is_none()) {
            let at = index * INDEX_CHILDREN as u64 + slot as u64;
            self.claim(*child, entry.family, 0, at, Some(entry));
            match self.leaf(*child, at) {
                Ok(leaf) => node.leaves[slot] = Some(leaf).filter(|leaf| leaf.entries.iter().any(|&phys| phys != 0)),
                Err(bad) => {
                    whole = false;
                    Rc::make_mut(&mut map.lost).push(self.findings.len());
                    self.lost(entry, *child, 0, at, bad);
                }
            }
        }
        let node = Rc::new(node);
        if whole {
            self.nodes.insert(key, node.clone());
        }
        if node.leaves.iter().any(Option::is_some) {
            map.nodes.insert(index, node);
        }
    }

    /// Returns a leaf, which was read ahead.
    fn leaf(&self, page: PageRef, index: u64) -> Result<Rc<Leaf>, Bad> {
        self.leaves.get(&(page, 0, index)).cloned().unwrap_or(Err(NOT_READ))
    }

    /// Reports a page of a volume's map as lost, together with the part of the volume that it mapped.
    fn lost(&mut self, entry: &VolumeEntry, page: PageRef, level: u16, index: u64, bad: Bad) {
        let below = self.geometry.units_below(level);
        let unit = u64::from(self.geometry.unit_bytes);
        let pos = index.saturating_mul(below).saturating_mul(unit);
        let len = below.saturating_mul(unit).min(entry.size.saturating_sub(pos));
        let kind = match bad {
            Bad::Damaged(_) => FindingKind::MapPage,
            Bad::Unreadable(_) => FindingKind::Unreadable,
        };
        let what = if level == 0 { "page of a map".into() } else { format!("index page of level {level} of a map") };
        self.findings.push(Finding {
            kind,
            place: Place {
                what,
                address: Some(page.address),
                volume: Some(entry.name.clone()),
                range: Some((pos, len)),
            },
            means: format!("{}. Where the volume's data of this range lies is not known any more", bad.words()),
            repair: Some("Make the range a hole, which reads as zeroes. Its data is lost".into()),
        });
    }

    /// Records the owner of a page. Reports a page that belongs to two families, or is at two places of a tree.
    pub(super) fn claim(&mut self, page: PageRef, family: u32, level: u16, index: u64, entry: Option<&VolumeEntry>) {
        if page.second != 0 {
            let unit = page.address / u64::from(self.geometry.unit_bytes);
            let partner = *self.partners.entry(unit).or_insert(page.second);
            if partner != page.second {
                let means = format!(
                    "its second copy is said to be in unit {}, those of other pages of its unit in unit {partner}",
                    page.second
                );
                self.shared_wrongly(page, entry, means, "Write all pages and their copies to new places");
            }
        }
        let claim = (family, level, index);
        let earlier = *self.pages.entry(page.address).or_insert(claim);
        if earlier == claim {
            return;
        }
        let (other, other_level, other_index) = earlier;
        let means = format!(
            "it is used as page {index} of level {level} here, and as page {other_index} of level {other_level} {}",
            if other == 0 {
                "of the volume table".into()
            } else if other == SUMS {
                "of the checksums".into()
            } else if other == KEPT {
                "of what is kept beside damaged maps".into()
            } else {
                format!("of a relative of volume {other}")
            }
        );
        self.shared_wrongly(page, entry, means, "Keep it where it says that it belongs, give each family a copy");
    }

    fn shared_wrongly(&mut self, page: PageRef, entry: Option<&VolumeEntry>, means: String, repair: &str) {
        self.findings.push(Finding {
            kind: FindingKind::SharedWrongly,
            place: Place {
                what: "page of metadata".into(),
                address: Some(page.address),
                volume: entry.map(|entry| entry.name.clone()),
                range: None,
            },
            means,
            repair: Some(repair.into()),
        });
    }
}
