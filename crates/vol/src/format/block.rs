//! Metadata blocks: writing the header, and verifying it.
//!
//! Owns the header: identity, address and checksum of a block. [`superblock`](crate::format::superblock),
//! [`journal`](crate::format::journal) and [`page`](crate::format::page) own the content.
//!
//! Invariant B1: [`open`] returns a header only of a block whose checksum, pool, kind and address are right.

use zerocopy::{FromBytes, IntoBytes};

use crate::format::damage::{Damage, require};
use crate::format::{BLOCK, HEADER, Header, MAGIC, VERSION, checksum};

/// Bytes of a block.
pub type Block = [u8; BLOCK];

/// Header of a block, without the fields that [`seal`] fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// One of [`kind`](crate::format::kind).
    pub kind: u16,
    /// Level in a tree; 0 outside of trees.
    pub level: u16,
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Generation of the checkpoint; in a journal block the incarnation.
    pub generation: u64,
    /// Byte address of the block.
    pub address: u64,
    /// Number of the block among its kind: see [`Header`].
    pub index: u64,
    /// Volume that the block is written for, or 0.
    pub owner: u32,
    /// Number of entries, or bytes of records.
    pub count: u32,
}

/// Writes the header in front of the payload, which must be complete. Returns the checksum, for references to the
/// block.
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

/// Verifies the checksum of a block of any pool, kind and address. Returns its header and checksum.
pub fn identify(block: &Block) -> Result<(Head, u32), Damage> {
    let header = Header::ref_from_bytes(&block[..HEADER]).expect("the slice has the size of a header");
    if header.magic != MAGIC {
        let blank = block.iter().all(|&byte| byte == 0);
        return Err(if blank { Damage::Blank } else { Damage::Alien });
    }
    // The checksum comes before the version, because it is at the same place in every version (F1).
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

/// Verifies a block that was read from `address` (B1). Returns its header and checksum. `pool` is `None` if the caller
/// learns the pool from the block.
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

/// Returns an error unless all bytes from `used` on are zero (F2).
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
