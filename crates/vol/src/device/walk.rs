//! Walking a tree of metadata pages: a page in its place, and the pages below it.
//!
//! Owns the expected properties of a page in its place, and the step from index pages to their children. Used by
//! loading, by the checksums of an opening, and by scrubs. Each of them has an order of its own: one level after the
//! other, or one group of siblings after the other. The offline check has a separate walk, so that an error in this one
//! cannot hide itself.
//!
//! - P1: the content of a page is used only if the page matches the reference of its parent.

use sheave_base::status::Status;

use super::block_io::BlockIo;
use super::reader::{Want, read_each};
use crate::error::PoolError;
use crate::format::INDEX_CHILDREN;
use crate::format::block::Block;
use crate::format::damage::Damage;
use crate::format::page::{Expect, PageRef, index};
use crate::format::superblock::{Geometry, Superblock};

/// Properties of a checkpoint that its pages are verified against.
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

/// A page with its place in a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<T> {
    pub(crate) page: PageRef,
    pub(crate) level: u16,
    /// Number of the page within its level.
    pub(crate) index: u64,
    /// Data of the caller, which the pages below inherit.
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

/// References in an index page, by position.
pub(crate) type Children = [PageRef; INDEX_CHILDREN];

impl<T: Copy> Page<T> {
    /// Returns the root page of a tree; `None` if the tree is empty.
    pub(crate) fn root(page: PageRef, level: u16, of: T) -> Option<Page<T>> {
        (!page.is_none()).then_some(Page { page, level, index: 0, of })
    }

    pub(crate) fn expect(&self, checkpoint: &Checkpoint) -> Expect {
        Expect { pool: checkpoint.pool, generation: checkpoint.generation, page: self.page, index: self.index }
    }

    /// Decodes an index page. Returns its references and their number.
    pub(crate) fn children(&self, checkpoint: &Checkpoint, block: &Block) -> Result<(Children, usize), Damage> {
        let mut children = [PageRef::NONE; INDEX_CHILDREN];
        let expect = self.expect(checkpoint);
        let count = index::decode(block, &checkpoint.geometry, &expect, self.level, &mut children)?;
        Ok((children, count))
    }

    /// Returns the pages that `children` refer to.
    pub(crate) fn below(self, children: &Children) -> impl Iterator<Item = Page<T>> {
        let some = (self.index * INDEX_CHILDREN as u64..).zip(children).filter(|(_, child)| !child.is_none());
        some.map(move |(index, &page)| Page { page, level: self.level - 1, index, of: self.of })
    }
}

/// Reason why a page cannot be used.
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

/// Decodes a page with `how` if it could be read.
pub(crate) fn decode<T>(
    block: Result<&Block, Status>,
    how: impl FnOnce(&Block) -> Result<T, Damage>,
) -> Result<T, Bad> {
    how(block.map_err(Bad::Unreadable)?).map_err(Bad::Damaged)
}

/// Receiver of the result for each index page: the number of its references, or the reason why it cannot be used. An
/// error from the receiver ends the walk.
pub(crate) type Seen<'a, T> = dyn FnMut(&Page<T>, Result<usize, Bad>) -> Result<(), PoolError> + 'a;

/// Reads index pages in one sweep and returns all pages below them. Skips a page that cannot be used if `seen` returns
/// `Ok` for it. [`read_each`] describes `bad`.
pub(crate) fn step_down<T: Copy + Sync>(
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
