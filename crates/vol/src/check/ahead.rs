//! Reads ahead: fetches every page that the walk will need, in sweeps.
//!
//! Owns the order of reads: the volume table, then index pages, then all leaves and pages of checksums, each level
//! sorted by address and many at once. Does not report damage: a page is stored decoded, or with the reason why it is
//! bad, and the walk reports that in its own order. So the findings are those of a walk that reads one page at a time.
//!
//! - A1: a page with several references, all of which name the same place in a tree, is read once. Each reference leads
//!   to a lower level, so the reading ends whatever the pages contain.
//! - A2: all leaves are known before the first leaf is read. From then on the progress has an exact total.

use std::collections::HashSet;
use std::rc::Rc;

use super::report::Progress;
use super::sums::Says;
use super::walk::{Bad, Key, Walk};
use crate::device::sweep::Sweep;
use crate::error::PoolError;
use crate::format::block::Block;
use crate::format::page::sums;
use crate::format::page::table::VolumeEntry;
use crate::format::{BLOCK_BYTES, INDEX_CHILDREN, MAX_SUMS};

/// Largest number of pages in a sweep (4 MiB).
const BATCH: usize = 1024;

/// Tree that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Tree {
    Table,
    Sums,
    Map,
}

type Want = (Tree, Key);

impl Walk<'_> {
    /// Reads every page that the superblock reaches.
    pub(super) fn read_ahead(&mut self, progress: &mut Progress<'_>) -> Result<(), PoolError> {
        let failed = |status| PoolError::Io {
            what: "checking the pool".into(),
            status,
            fix: "Give the program more memory".into(),
        };
        let mut ahead =
            Ahead { sweep: Sweep::new(BATCH).map_err(failed)?, wanted: HashSet::new(), waiting: Vec::new() };
        let mut seconds = if self.sb.paired { Some(Sweep::new(BATCH).map_err(failed)?) } else { None };
        let roots = [(Tree::Table, self.sb.table, self.sb.table_level), (Tree::Sums, self.sb.sums, self.sb.sums_level)];
        for (tree, page, level) in roots.into_iter().filter(|(_, page, _)| !page.is_none()) {
            ahead.want((tree, (page, level, 0)), progress);
        }
        // The table refers to the roots of maps, and index pages refer to leaves.
        while let Some(wants) = ahead
            .next(|(tree, _)| *tree == Tree::Table)
            .or_else(|| ahead.next(|(_, (_, level, _))| *level > 0))
            .or_else(|| ahead.next(|_| true))
        {
            for some in wants.chunks(BATCH) {
                let addresses: Vec<u64> = some.iter().map(|(_, (page, ..))| page.address).collect();
                ahead.sweep.read(self.io, &addresses);
                if let Some(seconds) = &mut seconds {
                    let unit_bytes = u64::from(self.geometry.unit_bytes);
                    let second = |(_, (page, ..)): &Want| page.second_copy(unit_bytes).unwrap_or(page.address);
                    seconds.read(self.io, &some.iter().map(second).collect::<Vec<_>>());
                }
                for (at, &want) in some.iter().enumerate() {
                    let mut block = ahead.sweep.block(at).map_err(Bad::Unreadable).copied();
                    if let Some(seconds) = &seconds {
                        block = self.of_both(want.1.0, block, seconds.block(at).map_err(Bad::Unreadable).copied());
                    }
                    for below in self.take(want, block) {
                        ahead.want(below, progress);
                    }
                }
                progress.done(some.len() as u64 * BLOCK_BYTES);
            }
        }
        Ok(())
    }

    /// Stores a page that was read for the walk. Returns the pages that it refers to.
    fn take(&mut self, (tree, key): Want, block: Result<Block, Bad>) -> Vec<Want> {
        let (page, level, index) = key;
        if level > 0 {
            let read = block.and_then(|block| self.decode_index(&block, page, level, index));
            let mut below = Vec::new();
            if let Ok(children) = &read {
                let indexes = index.saturating_mul(INDEX_CHILDREN as u64)..;
                let some = indexes.zip(children.iter()).filter(|(_, child)| !child.is_none());
                below.extend(some.map(|(at, child)| (tree, (*child, level - 1, at))));
            }
            self.indexes.insert(key, read);
            return below;
        }
        match tree {
            Tree::Table => {
                let mut entries: Vec<VolumeEntry> = Vec::new();
                let read = block.and_then(|block| self.decode_table(&block, page, index, &mut entries));
                let roots = entries.iter().filter(|entry| !entry.root.is_none());
                let roots = roots.map(|entry| (Tree::Map, (entry.root, entry.root_level, 0))).collect();
                self.tables.insert(key, (entries, read.err()));
                roots
            }
            Tree::Sums => {
                let expect = self.expect(page, index);
                let decode = |block: Block| sums::decode(&block, &self.geometry, &expect, &mut [0; MAX_SUMS]);
                let read = block.and_then(|block| decode(block).map_err(Bad::Damaged));
                self.sums_read.insert(key, read.map(|state| Says::of(&state)));
                Vec::new()
            }
            Tree::Map => {
                let read = block.and_then(|block| self.decode_leaf(&block, page, index)).map(Rc::new);
                self.leaves.insert(key, read);
                Vec::new()
            }
        }
    }
}

/// Pages that are still to be read.
struct Ahead {
    sweep: Sweep,
    wanted: HashSet<Want>,
    waiting: Vec<Want>,
}

impl Ahead {
    fn want(&mut self, want: Want, progress: &mut Progress<'_>) {
        if self.wanted.insert(want) {
            self.waiting.push(want);
            progress.more(BLOCK_BYTES);
        }
    }

    /// Takes the waiting pages of one kind, in the order of their addresses. Returns `None` if there are none.
    fn next(&mut self, kind: impl Fn(&Want) -> bool) -> Option<Vec<Want>> {
        let (mut now, later): (Vec<Want>, Vec<Want>) = std::mem::take(&mut self.waiting).into_iter().partition(kind);
        self.waiting = later;
        now.sort_unstable_by_key(|(_, (page, ..))| page.address);
        Some(now).filter(|now| !now.is_empty())
    }
}
