//! Walking a tree of metadata pages: a page in its place, and the pages below it.
//!
//! Owns what a place promises of the page in it, and the step from index pages to those that they refer to. Loading,
//! the checksums of an opening and scrubs walk with it, each in its own order: a level at once, or siblings at once.
//! The offline check does not: it has a walk of its own, so that an error in this one does not hide itself.
//!
//! - P1: nothing in a page is believed that its parent's reference does not vouch for.

use sheave_base::status::Status;

use super::block_io::BlockIo;
use super::reader::{Want, read_each};
use crate::error::PoolError;
use crate::format::INDEX_CHILDREN;
use crate::format::block::Block;
use crate::format::damage::Damage;
use crate::format::page::{Expect, PageRef, index};
use crate::format::superblock::{Geometry, Superblock};

/// A checkpoint, as far as its pages are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    pool: [u8; 16],
    generation: u64,
    pub(crate) geometry: Geometry,
}

impl Checkpoint {
    pub(crate) fn of(sb: &Superblock) -> Checkpoint {
        Checkpoint { pool: sb.pool, generation: sb.generation, geometry: sb.geometry() }
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        u64::from(self.geometry.unit_bytes)
    }
}

/// A page in its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<T> {
    pub(crate) page: PageRef,
    pub(crate) level: u16,
    /// Which of its level.
    pub(crate) index: u64,
    /// What the walker knows of it; those below have the same.
    pub(crate) of: T,
}

impl<T> Want for Page<T> {
    fn address(&self) -> u64 {
        self.page.address
    }

    fn second_copy(&self, unit_bytes: u64) -> Option<u64> {
        self.page.second_copy(unit_bytes)
    }

    fn vouches_for(&self, block: &Block) -> bool {
        self.page.vouches_for(block)
    }
}

/// The pages that an index page refers to, by their places in it.
pub(crate) type Children = [PageRef; INDEX_CHILDREN];

impl<T: Copy> Page<T> {
    /// The root of a tree; none if the tree is empty.
    pub(crate) fn root(page: PageRef, level: u16, of: T) -> Option<Page<T>> {
        (!page.is_none()).then_some(Page { page, level, index: 0, of })
    }

    /// What the page must be.
    pub(crate) fn expect(&self, checkpoint: &Checkpoint) -> Expect {
        Expect { pool: checkpoint.pool, generation: checkpoint.generation, page: self.page, index: self.index }
    }

    /// The references in an index page, and how many there are.
    pub(crate) fn children(&self, checkpoint: &Checkpoint, block: &Block) -> Result<(Children, usize), Damage> {
        let mut children = [PageRef::NONE; INDEX_CHILDREN];
        let expect = self.expect(checkpoint);
        let count = index::decode(block, &checkpoint.geometry, &expect, self.level, &mut children)?;
        Ok((children, count))
    }

    /// The pages below an index page that has these references.
    pub(crate) fn below(self, children: &Children) -> impl Iterator<Item = Page<T>> {
        let some = (self.index * INDEX_CHILDREN as u64..).zip(children).filter(|(_, child)| !child.is_none());
        some.map(move |(index, &page)| Page { page, level: self.level - 1, index, of: self.of })
    }
}

/// Why a page gives nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bad {
    Damaged(Damage),
    Unreadable(Status),
}

impl Bad {
    pub(crate) fn words(self) -> String {
        match self {
            Bad::Damaged(damage) => damage.to_string(),
            Bad::Unreadable(status) => format!("it cannot be read: {status}"),
        }
    }
}

/// What decoding a page gives, when the device gave the page.
pub(crate) fn decode<T>(
    block: Result<&Block, Status>,
    how: impl FnOnce(&Block) -> Result<T, Damage>,
) -> Result<T, Bad> {
    how(block.map_err(Bad::Unreadable)?).map_err(Bad::Damaged)
}

/// Hears of an index page that was read: how many references it has, or why it gives none.
pub(crate) type Seen<'a, T> = dyn FnMut(&Page<T>, Result<usize, Bad>) -> Result<(), PoolError> + 'a;

/// Reads index pages in one sweep; all pages below them. Those that give nothing are passed over if `seen` says so.
/// `bad`: as in [`read_each`].
pub(crate) fn step_down<T: Copy>(
    io: &dyn BlockIo,
    checkpoint: &Checkpoint,
    pages: Vec<Page<T>>,
    bad: &mut Vec<u64>,
    seen: &mut Seen<'_, T>,
) -> Result<Vec<Page<T>>, PoolError> {
    let mut below = Vec::new();
    read_each(io, checkpoint.unit_bytes(), pages, bad, &mut |page, block| {
        let found = decode(block, |block| page.children(checkpoint, block));
        seen(page, found.as_ref().map(|(_, count)| *count).map_err(|bad| *bad))?;
        if let Ok((children, _)) = found {
            below.extend(page.below(&children));
        }
        Ok(())
    })?;
    Ok(below)
}
