//! Pages: the blocks of the trees that a checkpoint writes.
//!
//! | module | holds |
//! |---|---|
//! | [`leaf`] | entries of a volume's map with their written bits: level 0 |
//! | [`index`] | references to pages one level below: levels 1 to 4 |
//! | [`table`] | volumes: level 0 of the volume table |
//! | [`sums`] | checksums of data: level 0 of their tree |
//! | [`free`] | the list of free units (of no tree) |
//! | [`kept`] | records about entries on damaged pages of maps (a list of pages) |
//! | [`label`] | the label of each member but the first (of no tree) |
//!
//! Owns [`PageRef`] and [`Expect`], against which a reader verifies a page. The volume table is a tree whose root the
//! superblock names; each volume's map is a tree whose root its entry in the table names. The page with index `i` of
//! level `l` has the pages `256 i .. 256 i + 256` of level `l - 1` below it.
//!
//! Invariants:
//! - P1: a page is accepted only with the checksum that its parent has for it. So every page that can be reached from
//!   the superblock is exactly what the checkpoint wrote. A lost write, which leaves an older page at the address, is
//!   reported as [`Damage::Stale`].
//! - P2: an accepted page refers only to units and pages inside the pool.
//! - P3: volumes may share pages (leaves and index pages of level 1, after a snapshot). The owner in the header is the
//!   volume for which the page was first written, and readers do not compare it.

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
    /// Byte address; 0 if there is no page.
    pub address: u64,
    /// Checksum in the page's header.
    pub checksum: u32,
    /// Unit of the second copy, which lies at the same offset within its unit; 0 if there is none.
    pub second: u32,
}

/// Place of a page to be written, and of its second copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Byte address.
    pub address: u64,
    /// Unit of the second copy, as in [`PageRef::second`].
    pub second: u32,
}

/// Unused bits of [`Child::address`]: `LOW` of them below the page's address, which is a multiple of 4 KiB, and `HIGH`
/// above it. Together they hold the lower 16 bits of [`PageRef::second`].
const LOW: u32 = BLOCK_BYTES.ilog2();
const HIGH: u32 = 16 - LOW;

/// Returns the address of the second copy of the page at `address`: the same offset within the unit `second`.
pub(crate) fn second_address(address: u64, second: u32, unit_bytes: u64) -> u64 {
    u64::from(second) * unit_bytes + address % unit_bytes
}

impl PageRef {
    /// Reference to no page.
    pub const NONE: PageRef = PageRef { address: 0, checksum: 0, second: 0 };

    /// Returns true if there is no page.
    pub fn is_none(&self) -> bool {
        self.address == 0
    }

    /// Returns the address of the second copy, if the page has one.
    pub fn second_copy(&self, unit_bytes: u64) -> Option<u64> {
        (self.second != 0).then(|| second_address(self.address, self.second, unit_bytes))
    }

    /// Returns true if `block` is exactly the page that is referred to. Both copies have the same bytes, so the header
    /// of either has the address of the first.
    pub(crate) fn vouches_for(&self, block: &Block) -> bool {
        identify(block).is_ok_and(|(head, sum)| sum == self.checksum && head.address == self.address)
    }

    /// Returns the reference as it is stored, and the upper 16 bits of `second`, which are stored elsewhere in the
    /// page.
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

/// Header fields of a page to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Generation of the checkpoint that writes the page.
    pub generation: u64,
    /// Byte address.
    pub address: u64,
    /// Unit of the second copy; 0 if there is none.
    pub second: u32,
    /// Number of the page within its level.
    pub index: u64,
    /// Volume for which the page is written; 0 for the volume table.
    pub owner: u32,
}

impl PagePlace {
    /// Returns a copy for the page with number `index`, which goes to `spot`.
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

/// Expected properties of a page that is about to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Generation of the superblock: no page is newer.
    pub generation: u64,
    /// Reference to the page.
    pub page: PageRef,
    /// Number of the page within its level.
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
