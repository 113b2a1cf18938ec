//! Shared parts of the fuzzers: blocks made of the fuzzer's bytes, and a pool to damage.
//!
//! Owns no target: each target is a program in `dev/fuzz/src/bin`. `cargo xtask fuzz` builds and runs them. Every block
//! is tried unchanged and sealed. A sealed block has the right checksum, address and pool, so that the fuzzer reaches
//! the code behind these checks without guessing them.

pub mod image;

use sheave_vol::block::Block;
use sheave_vol::format::{BLOCK, MAGIC, MAX_MEMBERS, VERSION, checksum};
use sheave_vol::page::{Expect, PageRef};
use sheave_vol::superblock::{Geometry, Superblock};
use sheave_vol::{Checksum, LowWater};

/// Identifier of the pool to which sealed blocks belong.
pub const POOL: [u8; 16] = *b"sheave fuzz pool";
/// Address of sealed blocks.
pub const ADDRESS: u64 = 64 << 20;

/// Returns one of the geometries with which a decoder is tried. The first byte chooses it.
pub fn geometry(data: &[u8]) -> Geometry {
    let shift = 12 + u32::from(data.first().copied().unwrap_or(0) % 9);
    Geometry::new(1 << shift, 1 << 16, 16)
}

/// Returns a block that begins with these bytes; the rest is zero.
pub fn block(data: &[u8]) -> Block {
    let mut block = [0; BLOCK];
    let len = data.len().min(BLOCK);
    block[..len].copy_from_slice(&data[..len]);
    block
}

/// Returns a valid block of this kind that belongs to the pool and address which [`expect`] names.
pub fn sealed(data: &[u8], kind: u16, address: u64) -> Block {
    let mut block = block(data);
    block[..4].copy_from_slice(&MAGIC);
    block[4..6].copy_from_slice(&kind.to_le_bytes());
    block[6..8].copy_from_slice(&VERSION.to_le_bytes());
    block[14..16].fill(0);
    block[16..32].copy_from_slice(&POOL);
    block[40..48].copy_from_slice(&address.to_le_bytes());
    seal(&mut block);
    block
}

/// Writes the right checksum into the block.
pub fn seal(block: &mut Block) {
    let sum = checksum(block);
    block[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the reference to a block that its parent would have.
pub fn expect(block: &Block) -> Expect {
    let mut index = [0; 8];
    index.copy_from_slice(&block[48..56]);
    let checksum = u32::from_le_bytes([block[8], block[9], block[10], block[11]]);
    let page = PageRef { address: ADDRESS, checksum, second: 0 };
    Expect { pool: POOL, generation: u64::MAX, page, index: u64::from_le_bytes(index) }
}

/// Returns the superblock of a pool that has `members` members of 64 MiB.
pub fn superblock(replay_seq: u64, journal_blocks: u32, members: u64) -> Superblock {
    const MEMBER: u64 = 64 << 20;
    let mut labels = [0; MAX_MEMBERS];
    (1..members as usize).for_each(|number| labels[number] = 3);
    Superblock {
        pool: POOL,
        generation: 4,
        compat: 0,
        ro_compat: 0,
        clean: false,
        unit_bytes: 65536,
        checksum: Checksum::None,
        marks: false,
        identities: true,
        total_units: members * MEMBER / 65536,
        journal_blocks,
        next_volume: 9,
        incarnation: 1,
        replay_seq,
        table: PageRef::NONE,
        table_level: 0,
        volumes: 0,
        created: 0,
        members: (0..members).map(|number| (number * MEMBER, MEMBER)).collect(),
        labels,
        sums: PageRef::NONE,
        sums_level: 0,
        low_water: LowWater::Off,
        lost: Default::default(),
        owner: [1; 16],
        labels_at: 1,
        copies: [0; 2],
        paired: false,
        kept: PageRef::NONE,
    }
}
