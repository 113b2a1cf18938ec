//! Scrubs the pages of the newest checkpoint: the volume table, the maps of all volumes, the checksums.
//!
//! Owns the order of the [`walk`], from a root down, siblings at once. Pages that volumes share are read once.
//! Checkpoints continue during the walk and reuse old pages. So if a page does not match its parent, it is looked up
//! again from the root down, with commits held off, before it is reported (S1 of [`scrub`](super)). The walk then
//! continues below the page that was found.
//!
//! In a pool with two copies of its metadata both copies are read. If one copy is bad and the other is good, the bad
//! one is rewritten while no checkpoint is in flight: the page is in use at this place then, and nobody else writes to
//! it.

use std::collections::{HashMap, HashSet};

use sheave_base::status::Status;

use super::{AT_ONCE, Run, Stop, place};
use crate::device::sweep::Sweep;
use crate::device::walk::{self, Checkpoint, Children};
use crate::finding::{Finding, FindingKind};
use crate::format::block::Block;
use crate::format::damage::Damage;
use crate::format::page::{PageRef, leaf, sums, table};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, INDEX_CHILDREN, MAX_LEAF_ENTRIES, MAX_LEAF_WORDS, MAX_SUMS};

/// Number of pages read at once: those below one index page.
const BATCH: usize = INDEX_CHILDREN;
const CHILDREN_SHIFT: u32 = INDEX_CHILDREN.ilog2();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tree {
    Table,
    Sums,
    Map(u32),
}

/// A page, and the one that refers to it.
type Page = walk::Page<PageRef>;

/// Result of a look at a page: for an intact index page its references, for another intact page `None`, else a
/// description of the defect.
type Looked = Result<Option<Box<Children>>, Wrong>;

/// A page that was looked at again, and a copy of it that was bad.
type Again = (Page, Looked, Option<Mended>);

/// A copy of a page that was bad while the other was good.
struct Mended {
    at: u64,
    /// Address of the good copy.
    other: u64,
    /// Reason why it was not rewritten.
    failed: Option<Status>,
}

struct Wrong {
    words: String,
    unreadable: bool,
}

impl Run<'_> {
    pub(super) fn trees(&mut self) -> Result<(), Stop> {
        let mut sweep = [Sweep::new(BATCH)?, Sweep::new(BATCH)?];
        let mut seen = HashSet::new();
        let maps: Vec<Tree> = self.pool.lock().table.iter().map(|vol| Tree::Map(vol.id)).collect();
        for tree in [Tree::Table, Tree::Sums].into_iter().chain(maps) {
            self.tree(tree, &mut sweep, &mut seen)?;
        }
        Ok(())
    }

    /// Returns the root of a tree in the newest checkpoint, and its level.
    fn root(&self, tree: Tree, sb: &Superblock) -> Option<(PageRef, u16)> {
        let root = match tree {
            Tree::Table => (sb.table, sb.table_level),
            Tree::Sums => (sb.sums, sb.sums_level),
            Tree::Map(id) => self.pool.lock().table.get(id).map(|vol| (vol.root, vol.root_level))?,
        };
        Some(root).filter(|(page, _)| !page.is_none())
    }

    fn tree(&mut self, tree: Tree, sweep: &mut [Sweep; 2], seen: &mut HashSet<PageRef>) -> Result<(), Stop> {
        let [sweep, second] = sweep;
        let unit_bytes = u64::from(self.pool.geometry.unit_bytes);
        let sb = self.superblock()?;
        let Some((page, level)) = self.root(tree, &sb) else { return Ok(()) };
        let mut groups = vec![vec![Page { page, level, index: 0, of: PageRef::NONE }]];
        while let Some(mut group) = groups.pop() {
            group.retain(|page| seen.insert(page.page));
            if group.is_empty() {
                continue;
            }
            group.sort_unstable_by_key(|page| page.page.address);
            self.wait()?;
            let addresses: Vec<u64> = group.iter().map(|page| page.page.address).collect();
            sweep.read(&*self.pool.io, &addresses);
            let seconds: Vec<u64> = group.iter().filter_map(|page| page.page.second_copy(unit_bytes)).collect();
            second.read(&*self.pool.io, &seconds);
            let both = seconds.len() == group.len();
            let (mut suspects, mut good) = (Vec::new(), Vec::new());
            for (at, page) in group.iter().enumerate() {
                let second = !both || second.block(at).is_ok_and(|block| page.page.vouches_for(block));
                match look(tree, &sb, page, sweep.block(at)) {
                    Ok(children) if second => good.push((*page, children)),
                    _ => suspects.push(*page),
                }
            }
            for some in suspects.chunks(AT_ONCE) {
                for (page, looked, copy) in self.look_again(tree, &sb, some)? {
                    match copy {
                        Some(Mended { failed: None, .. }) => self.report.mended_copies += 1,
                        Some(copy) => self.found(copy.finding()),
                        None => {}
                    }
                    match looked {
                        Ok(children) => good.push((page, children)),
                        Err(wrong) => {
                            // Forgotten, so that the page is reported for each volume that has it.
                            seen.remove(&page.page);
                            seen.remove(&page.of);
                            let finding = self.page_finding(tree, &page, &wrong);
                            self.found(finding);
                        }
                    }
                }
            }
            groups.extend(good.iter().filter_map(|(page, children)| Some(below(page, children.as_ref()?))));
            self.read_metadata(group.len() + seconds.len())?;
        }
        Ok(())
    }

    /// Reads pages again as the newest checkpoint has them, while no checkpoint is in flight. Pages that the newest
    /// checkpoint no longer has are left out.
    fn look_again(&self, tree: Tree, then: &Superblock, pages: &[Page]) -> Result<Vec<Again>, Stop> {
        self.pool.between_commits(|| {
            let sb = self.superblock()?;
            let mut known = HashMap::new();
            let mut looked = Vec::new();
            for page in pages {
                let now = match self.reference(tree, &sb, page, &mut known) {
                    Some(now) => now,
                    // The volume is deleted, but the checkpoint still has it.
                    None if sb.generation == then.generation => page.page,
                    None => continue,
                };
                let page = Page { page: now, ..*page };
                let (block, copy) = self.mend(&page);
                looked.push((page, look(tree, &sb, &page, block.as_ref().map_err(|status| *status)), copy));
            }
            Ok(looked)
        })
    }

    /// Returns the reference that the newest checkpoint has in a page's place.
    fn reference(
        &self,
        tree: Tree,
        sb: &Superblock,
        page: &Page,
        known: &mut HashMap<(u16, u64), Option<Box<Children>>>,
    ) -> Option<PageRef> {
        let (mut now, mut level) = self.root(tree, sb)?;
        let above = |level: u16| page.index >> (CHILDREN_SHIFT * u32::from(level - page.level));
        if page.level > level || above(level) != 0 {
            return None;
        }
        while level > page.level {
            let upper = Page { page: now, level, index: above(level), of: PageRef::NONE };
            let children = known.entry((level, upper.index));
            let children = children.or_insert_with(|| self.one(tree, sb, &upper).ok().flatten()).as_ref()?;
            level -= 1;
            now = children[above(level) as usize & (INDEX_CHILDREN - 1)];
            if now.is_none() {
                return None;
            }
        }
        Some(now)
    }

    /// Reads one page and decodes it.
    fn one(&self, tree: Tree, sb: &Superblock, page: &Page) -> Looked {
        let block = self.mend(page).0;
        look(tree, sb, page, block.as_ref().map_err(|status| *status))
    }

    /// Reads a page. If one of its two copies is bad and the other is good, rewrites the bad one. Called while commits
    /// are held off.
    fn mend(&self, page: &Page) -> (Result<Block, Status>, Option<Mended>) {
        let at = page.page.address;
        let first = self.read(at);
        let Some(second_at) = page.page.second_copy(u64::from(self.pool.geometry.unit_bytes)) else {
            return (first, None);
        };
        let second = self.read(second_at);
        let is_good = |block: &Result<Block, Status>| block.as_ref().is_ok_and(|block| page.page.vouches_for(block));
        let (good, other, bad) = match (is_good(&first), is_good(&second)) {
            (true, true) => {
                self.pool.lock().bad_copies.remove(&at);
                return (first, None);
            }
            (false, false) => return (first, None),
            (true, false) => (first, at, second_at),
            (false, true) => (second, second_at, at),
        };
        let failed = good.as_ref().map_or(None, |block| self.write_anew(&page.page, bad, block).err());
        let mut state = self.pool.lock();
        match failed {
            None => _ = state.bad_copies.remove(&at),
            Some(_) => _ = state.bad_copies.insert(at),
        }
        (good, Some(Mended { at: bad, other, failed }))
    }

    fn read(&self, at: u64) -> Result<Block, Status> {
        let mut block = [0; BLOCK];
        self.pool.io.read(at, &mut block).map(|()| block)
    }

    /// Rewrites a copy of a page, and reads it back: a device may accept a write and keep nothing.
    fn write_anew(&self, page: &PageRef, at: u64, block: &Block) -> Result<(), Status> {
        if self.pool.check_writable("writing a copy of a page anew").is_err() {
            return Err(Status::Invalid);
        }
        // Another opening may have the pool and use this place (O1 of `owner`).
        self.pool.look(None)?;
        self.pool.io.write(at, block)?;
        self.pool.flush()?;
        if page.vouches_for(&self.read(at)?) { Ok(()) } else { Err(Status::IoErr) }
    }

    fn page_finding(&self, tree: Tree, page: &Page, wrong: &Wrong) -> Finding {
        let (kind, what) = match (tree, page.level) {
            (Tree::Table, 0) => (FindingKind::TablePage, "page of the volume table".into()),
            (Tree::Table, level) => {
                (FindingKind::TablePage, format!("index page of level {level} of the volume table"))
            }
            (Tree::Sums, 0) => (FindingKind::SumsPage, "page of checksums".into()),
            (Tree::Sums, level) => (FindingKind::SumsPage, format!("index page of level {level} of the checksums")),
            (Tree::Map(_), 0) => (FindingKind::MapPage, "page of a map".into()),
            (Tree::Map(_), level) => (FindingKind::MapPage, format!("index page of level {level} of a map")),
        };
        let kind = if wrong.unreadable { FindingKind::Unreadable } else { kind };
        let mut place = place(what, page.page.address);
        if let Tree::Map(id) = tree {
            let geometry = self.pool.geometry;
            let bytes = geometry.units_below(page.level).saturating_mul(u64::from(geometry.unit_bytes));
            let pos = page.index.saturating_mul(bytes);
            let state = self.pool.lock();
            let vol = state.table.get(id);
            place.volume = Some(vol.map_or_else(|| format!("number {id}"), |vol| vol.name.clone()));
            place.range = vol.map(|vol| (pos, bytes.min(vol.core.size().saturating_sub(pos))));
        }
        Finding {
            kind,
            place,
            means: format!(
                "{}. The open pool has what it says in memory; closed, or after a crash, it would not open again",
                wrong.words
            ),
            repair: Some(
                "Export the volumes while the pool is open, then see what sheave pool check --dry-run says".into(),
            ),
        }
    }
}

impl Mended {
    fn finding(&self) -> Finding {
        let why = self.failed.map_or_else(String::new, |status| format!(": {status}"));
        Finding {
            kind: FindingKind::PageCopy,
            place: place("copy of a page of metadata", self.at),
            means: format!(
                "it is damaged or cannot be read, and was not written anew{why}. The other copy, at byte {}, is good, \
                 so nothing is lost",
                self.other
            ),
            repair: Some("Scrub the pool while it is open for writing; if that fails too, see to the device".into()),
        }
    }
}

/// Returns the pages that an index page refers to.
fn below(page: &Page, children: &Children) -> Vec<Page> {
    page.below(children).map(|child| Page { of: page.page, ..child }).collect()
}

/// Decodes a page that was read, or describes its defect.
fn look(tree: Tree, sb: &Superblock, page: &Page, block: Result<&Block, Status>) -> Looked {
    let block =
        block.map_err(|status| Wrong { words: format!("the page cannot be read: {status}"), unreadable: true })?;
    decode(tree, sb, page, block)
        .map_err(|damage| Wrong { words: format!("the page is damaged: {damage}"), unreadable: false })
}

fn decode(tree: Tree, sb: &Superblock, page: &Page, block: &Block) -> Result<Option<Box<Children>>, Damage> {
    let checkpoint = Checkpoint::of(sb);
    if page.level > 0 {
        return Ok(Some(Box::new(page.children(&checkpoint, block)?.0)));
    }
    let (geometry, expect) = (checkpoint.geometry, page.expect(&checkpoint));
    match tree {
        Tree::Table => _ = table::decode(block, &geometry, &expect, &mut Vec::new())?,
        Tree::Sums => _ = sums::decode(block, &geometry, &expect, &mut [0; MAX_SUMS])?,
        Tree::Map(_) => {
            let (mut entries, mut written) = ([0; MAX_LEAF_ENTRIES], [0; MAX_LEAF_WORDS]);
            leaf::decode(block, &geometry, &expect, &mut entries, &mut written)?;
        }
    }
    Ok(None)
}
