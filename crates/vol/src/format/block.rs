//! A metadata block: sealing it with its header, and opening it again.
//!
//! Owns the header: who it is, where it lies, that it is whole. What is in the block is the matter of
//! [`superblock`](crate::format::superblock), [`journal`](crate::format::journal) and [`page`](crate::format::page).
//!
//! Invariant B1: [`open`] gives a header only of a block whose checksum, pool, kind and own address are right.

use zerocopy::{FromBytes, IntoBytes};

use crate::format::damage::{Damage, require};
use crate::format::{BLOCK, HEADER, Header, MAGIC, VERSION, checksum};

/// A block's bytes.
pub type Block = [u8; BLOCK];

/// What the header of a block to be written says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// One of [`kind`](crate::format::kind).
    pub kind: u16,
    /// Level in a tree.
    pub level: u16,
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Checkpoint or incarnation.
    pub generation: u64,
    /// Where it goes.
    pub address: u64,
    /// Which one it is.
    pub index: u64,
    /// Volume, or 0.
    pub owner: u32,
    /// What is in it.
    pub count: u32,
}

/// Puts the header before the payload, which is there already. The checksum, for who refers to the block.
pub fn seal(block: &mut Block, head: &Head) -> u32 {
    let mut header = Header {
        magic: MAGIC,
        kind: head.kind.into(),
        version: VERSION.into(),
        checksum: 0.into(),
        level: head.level.into(),
        reserved: 0.into(),
        pool: head.pool,
        generation: head.generation.into(),
        address: head.address.into(),
        index: head.index.into(),
        owner: head.owner.into(),
        count: head.count.into(),
    };
    block[..HEADER].copy_from_slice(header.as_bytes());
    let sum = checksum(block);
    header.checksum = sum.into();
    block[..HEADER].copy_from_slice(header.as_bytes());
    sum
}

/// The header and checksum of a block that is whole, of any pool, kind and place.
pub fn identify(block: &Block) -> Result<(Head, u32), Damage> {
    let header = Header::ref_from_bytes(&block[..HEADER]).expect("the slice has the size of a header");
    if header.magic != MAGIC {
        let blank = block.iter().all(|&byte| byte == 0);
        return Err(if blank { Damage::Blank } else { Damage::Alien });
    }
    let (stored, computed) = (header.checksum.get(), checksum(block));
    if stored != computed {
        return Err(Damage::Checksum { stored, computed });
    }
    match header.version.get() {
        VERSION => {}
        0 => return Err(Damage::field("version", 0u64, "no format has")),
        version => return Err(Damage::TooNew { version }),
    }
    require(header.reserved.get() == 0, "reserved", header.reserved.get(), "must be 0")?;
    let head = Head {
        kind: header.kind.get(),
        level: header.level.get(),
        pool: header.pool,
        generation: header.generation.get(),
        address: header.address.get(),
        index: header.index.get(),
        owner: header.owner.get(),
        count: header.count.get(),
    };
    Ok((head, stored))
}

/// The header and checksum of a block of this kind and pool that was read from `address` (B1). `pool` is `None` when
/// that is what the block is to tell.
pub fn open(block: &Block, kind: u16, pool: Option<&[u8; 16]>, address: u64) -> Result<(Head, u32), Damage> {
    let (head, sum) = identify(block)?;
    if pool.is_some_and(|pool| *pool != head.pool) {
        return Err(Damage::Foreign);
    }
    if head.kind != kind {
        return Err(Damage::Kind { found: head.kind, wanted: kind });
    }
    if head.address != address {
        return Err(Damage::Misplaced { says: head.address });
    }
    Ok((head, sum))
}

/// All bytes from `used` on are zero (F2).
pub(crate) fn require_zero_tail(payload: &[u8], used: usize) -> Result<(), Damage> {
    let rest = payload.get(used..).unwrap_or_default();
    match rest.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => Err(Damage::field("tail", rest[at], "must be 0: nothing is kept there")),
    }
}

#[cfg(all(test, not(shuttle)))]
pub(crate) mod samples;
#[cfg(all(test, not(shuttle)))]
mod tests;
