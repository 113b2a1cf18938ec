//! Pages: the blocks of the trees that a checkpoint writes.
//!
//! | module | holds |
//! |---|---|
//! | [`leaf`] | entries of a volume's map with their written bits: level 0 |
//! | [`index`] | references to pages one level below: levels 1 to 4 |
//! | [`table`] | volumes: level 0 of the volume table |
//! | [`sums`] | checksums of data: level 0 of their tree |
//! | [`free`] | the list of free units (of no tree) |
//! | [`label`] | the label of a further member (of no tree) |
//!
//! Owns [`PageRef`] and [`Expect`]: what a reader knows of a page before it reads it. The volume table is a tree whose
//! root the superblock names; each volume's map is a tree whose root its entry in the table names. The page with index
//! `i` of level `l` has the pages `256 i .. 256 i + 256` of level `l - 1` below it.
//!
//! Invariants:
//! - P1: a page is accepted only with the checksum that its parent has for it. So whatever the superblock reaches is
//!   what the checkpoint wrote, to the bit; a lost write, an old page in the right place is [`Damage::Stale`].
//! - P2: an accepted page refers only to units and pages inside the pool.
//! - P3: pages may be shared between volumes (leaves and index pages of level 1, after a snapshot): the header's owner
//!   is the volume that it was written for and not compared.

pub mod free;
pub mod index;
pub mod label;
pub mod leaf;
pub mod sums;
pub mod table;

use crate::format::Child;
use crate::format::block::{Block, Head, open, seal};
use crate::format::damage::{Damage, require};

/// Reference to a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// Byte address; 0: no page.
    pub address: u64,
    /// The checksum in its header.
    pub checksum: u32,
}

impl PageRef {
    /// No page.
    pub const NONE: PageRef = PageRef { address: 0, checksum: 0 };

    /// Whether there is no page.
    pub fn is_none(&self) -> bool {
        self.address == 0
    }

    pub(crate) fn to_disk(self) -> Child {
        Child { address: self.address.into(), checksum: self.checksum.into() }
    }

    pub(crate) fn from_disk(child: &Child) -> PageRef {
        PageRef { address: child.address.get(), checksum: child.checksum.get() }
    }
}

/// Where a page to be written goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Of the checkpoint that writes it.
    pub generation: u64,
    /// Byte address.
    pub address: u64,
    /// Which of its level.
    pub index: u64,
    /// Volume; 0 for the volume table.
    pub owner: u32,
}

impl PagePlace {
    fn seal(&self, block: &mut Block, kind: u16, level: u16, count: usize) -> PageRef {
        let head = Head {
            kind,
            level,
            pool: self.pool,
            generation: self.generation,
            address: self.address,
            index: self.index,
            owner: self.owner,
            count: count as u32,
        };
        PageRef { address: self.address, checksum: seal(block, &head) }
    }
}

/// What is known of a page before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Generation of the superblock: no page is newer.
    pub generation: u64,
    /// The reference to it.
    pub page: PageRef,
    /// Which of its level.
    pub index: u64,
}

impl Expect {
    fn open(&self, block: &Block, kind: u16, level: u16) -> Result<Head, Damage> {
        let (head, sum) = open(block, kind, Some(&self.pool), self.page.address)?;
        if sum != self.page.checksum {
            return Err(Damage::Stale { generation: head.generation });
        }
        require(head.generation <= self.generation, "generation", head.generation, "is later than the superblock's")?;
        require(head.level == level, "level", head.level, "is not the level of its place in the tree")?;
        require(head.index == self.index, "index", head.index, "is not its place in the tree")?;
        Ok(head)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
