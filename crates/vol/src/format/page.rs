//! Pages: the blocks of the trees that a checkpoint writes.
//!
//! | module | holds |
//! |---|---|
//! | [`leaf`] | entries of a volume's map with their written bits: level 0 |
//! | [`index`] | references to pages one level below: levels 1 to 4 |
//! | [`table`] | volumes: level 0 of the volume table |
//! | [`sums`] | checksums of data: level 0 of their tree |
//! | [`free`] | the list of free units (of no tree) |
//! | [`kept`] | records about what lies behind damaged pages (a list of pages) |
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
pub mod kept;
pub mod label;
pub mod leaf;
pub mod sums;
pub mod table;

use crate::format::block::{Block, Head, identify, open, seal};
use crate::format::damage::{Damage, require};
use crate::format::{BLOCK_BYTES, Child};

/// Reference to a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// Byte address; 0: no page.
    pub address: u64,
    /// The checksum in its header.
    pub checksum: u32,
    /// The unit that has the second copy of the page, at the same place in it; 0: there is none.
    pub second: u32,
}

/// A page that is to be written: its byte address, and the unit of its second copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Byte address.
    pub address: u64,
    /// As in [`PageRef::second`].
    pub second: u32,
}

/// Bits of [`Child::address`] below the address of a page, and above it.
const LOW: u32 = BLOCK_BYTES.ilog2();
const HIGH: u32 = 16 - LOW;

/// The address of a page's second copy, which lies in the unit `second` where the page lies in its own.
pub(crate) fn second_address(address: u64, second: u32, unit_bytes: u64) -> u64 {
    u64::from(second) * unit_bytes + address % unit_bytes
}

impl PageRef {
    /// No page.
    pub const NONE: PageRef = PageRef { address: 0, checksum: 0, second: 0 };

    /// Whether there is no page.
    pub fn is_none(&self) -> bool {
        self.address == 0
    }

    /// The address of the second copy, if the page has one.
    pub fn second_copy(&self, unit_bytes: u64) -> Option<u64> {
        (self.second != 0).then(|| second_address(self.address, self.second, unit_bytes))
    }

    /// Whether this is the page, to the bit. Both copies have the same bytes: the header has the address of the first.
    pub(crate) fn vouches_for(&self, block: &Block) -> bool {
        identify(block).is_ok_and(|(head, sum)| sum == self.checksum && head.address == self.address)
    }

    /// The reference, and the upper 16 bits of the second unit, which have a place of their own.
    pub(crate) fn to_disk(self) -> (Child, u16) {
        let (low, high) = (u64::from(self.second) & ((1 << LOW) - 1), u64::from(self.second) >> LOW);
        let address = self.address | low | (high & ((1 << HIGH) - 1)) << (64 - HIGH);
        (Child { address: address.into(), checksum: self.checksum.into() }, (self.second >> 16) as u16)
    }

    pub(crate) fn from_disk(child: &Child, upper: u16) -> PageRef {
        let word = child.address.get();
        let (low, high) = (word & ((1 << LOW) - 1), word >> (64 - HIGH));
        let address = (word - low) << HIGH >> HIGH;
        let second = low as u32 | (high as u32) << LOW | u32::from(upper) << 16;
        PageRef { address, checksum: child.checksum.get(), second }
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
    /// The unit that gets the second copy; 0: there is none.
    pub second: u32,
    /// Which of its level.
    pub index: u64,
    /// Volume; 0 for the volume table.
    pub owner: u32,
}

impl PagePlace {
    /// The same at this spot, for the page with this index.
    pub fn at(&self, spot: Spot, index: u64) -> PagePlace {
        PagePlace { address: spot.address, second: spot.second, index, ..*self }
    }

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
        PageRef { address: self.address, checksum: seal(block, &head), second: self.second }
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
