//! One block of a verified run: its identity, data that is unique to it, and a checksum over both.
//!
//! | bytes | little-endian |
//! |---|---|
//! | 0..8 | magic `SHEAVEB1` |
//! | 8..16 | run: differs from run to run, so that data of an earlier run is recognised |
//! | 16..24 | address on the device, in bytes |
//! | 24..28 | generation: 1 for the first write of this block in this run |
//! | 28..32 | length of the block |
//! | 32..len-4 | pseudo-random bytes of (run, address, generation) |
//! | len-4..len | CRC-32C over all before it |
//!
//! * I1. Two blocks with different run, address or generation differ in each 512-byte sector, so that a torn write
//!   always shows.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

use sheave_base::rng::Rng;
use sheave_base::zeroes::is_zero;

/// Length of the smallest block that has room for all fields.
pub const MIN_LEN: usize = 512;

const MAGIC: [u8; 8] = *b"SHEAVEB1";
const HEAD: usize = 32;
const CRC: usize = 4;

/// Identity of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Identity of the run that wrote the block.
    pub run: u64,
    /// Offset on the device, in bytes.
    pub address: u64,
    /// Number of times that this run has written the block.
    pub generation: u32,
}

/// The reason why a block is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing but zeroes.
    Zeroes,
    /// Not a block of any run.
    Foreign,
    /// A whole block of another run.
    OtherRun(Identity),
    /// A whole block of this run that belongs elsewhere.
    Misplaced(Identity),
    /// The right block as it was before its last acknowledged write.
    Stale(Identity),
    /// The right block in a generation whose write was not acknowledged.
    Early(Identity),
    /// The right identity with wrong bytes.
    Damaged {
        /// Identity in the head of the block.
        says: Identity,
        /// Index of the first byte that differs from the data that was written.
        from: usize,
        /// Index of the byte after the last one that differs.
        to: usize,
    },
}

/// Fills `block` with the contents of the block `who`.
pub fn seal(block: &mut [u8], who: Identity) {
    debug_assert!(block.len() >= MIN_LEN && block.len().is_multiple_of(8), "blocks are whole sectors");
    let (head, rest) = block.split_at_mut(HEAD);
    head[..8].copy_from_slice(&MAGIC);
    head[8..16].copy_from_slice(&who.run.to_le_bytes());
    head[16..24].copy_from_slice(&who.address.to_le_bytes());
    head[24..28].copy_from_slice(&who.generation.to_le_bytes());
    head[28..32].copy_from_slice(&((HEAD + rest.len()) as u32).to_le_bytes());
    let mut rng = Rng::new(who.run ^ who.address.rotate_left(20) ^ (u64::from(who.generation) << 48));
    for word in rest.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.draw().to_le_bytes());
    }
    let (body, sum) = block.split_at_mut(block.len() - CRC);
    sum.copy_from_slice(&crc(body).to_le_bytes());
}

/// Returns an error unless `block` is exactly the block `expected`.
pub fn check(block: &[u8], expected: Identity) -> Result<(), Finding> {
    let (says, whole) = (identity(block), is_whole(block));
    if whole && says == Some(expected) {
        return Ok(());
    }
    Err(diagnose(block, expected, says, whole))
}

#[cold]
fn diagnose(block: &[u8], expected: Identity, says: Option<Identity>, whole: bool) -> Finding {
    let Some(says) = says else {
        return if is_zero(block) { Finding::Zeroes } else { Finding::Foreign };
    };
    match says {
        _ if !whole => {
            let mut right = vec![0; block.len()];
            seal(&mut right, says);
            let differs = |at: &usize| block[*at] != right[*at];
            let from = (0..block.len()).find(differs).unwrap_or(0);
            let to = (0..block.len()).rfind(differs).map_or(block.len(), |last| last + 1);
            Finding::Damaged { says, from, to }
        }
        _ if says.run != expected.run => Finding::OtherRun(says),
        _ if says.address != expected.address => Finding::Misplaced(says),
        _ if says.generation < expected.generation => Finding::Stale(says),
        _ => Finding::Early(says),
    }
}

/// Returns the identity in the head of a block. Returns `None` if the magic is missing or the length is wrong.
fn identity(block: &[u8]) -> Option<Identity> {
    let word = |at: usize| -> Option<u64> { Some(u64::from_le_bytes(block.get(at..at + 8)?.try_into().ok()?)) };
    if block.get(..8)? != MAGIC {
        return None;
    }
    let (generation, len) = (word(24)? as u32, (word(24)? >> 32) as usize);
    (len == block.len()).then_some(Identity { run: word(8)?, address: word(16)?, generation })
}

/// The kind of data found on a device; the result of [`left`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// This number of bytes was left by a run of this program, or never written: a plain sector, zeroes, or a whole
    /// block of a verified run.
    Ours(usize),
    /// A block of a run begins here. It has this number of bytes, and ends beyond the given ones.
    More(usize),
    /// The data was not written by a run of this program.
    Foreign,
}

/// Length of the longest block that a run writes.
pub const MAX_LEN: usize = 16 << 20;

/// Fills the buffers of a run that is not verified. They are not zero, because layers below might treat zeroes
/// specially. Each sector can be recognised ([`left`]), wherever in a buffer it was.
pub fn fill_plain(buffers: &mut [u8]) {
    for (at, byte) in buffers.iter_mut().enumerate() {
        *byte = (at % PLAIN) as u8 + 1;
    }
}

/// Largest byte in plain buffers. Their bytes count from 1 to this number, again and again.
const PLAIN: usize = 251;

fn is_plain(sector: &[u8]) -> bool {
    let follows = |pair: &[u8]| usize::from(pair[1]) == usize::from(pair[0]) % PLAIN + 1;
    is_zero(sector) || ((1..=PLAIN).contains(&sector[0].into()) && sector.windows(2).all(follows))
}

/// Classifies the beginning of `bytes`. A verified run leaves sealed blocks. Any other run leaves plain sectors, also
/// over parts of sealed blocks. So a sealed block is recognised by its first sector, and each of its other sectors must
/// be sealed or plain.
pub fn left(bytes: &[u8]) -> Left {
    let Some(first) = bytes.get(..MIN_LEN) else { return Left::Foreign };
    if is_plain(first) {
        return Left::Ours(MIN_LEN);
    }
    let word = |at: usize| first[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let len = (word(24) >> 32) as usize;
    if first[..8] != MAGIC || !(MIN_LEN..=MAX_LEN).contains(&len) || !len.is_multiple_of(MIN_LEN) {
        return Left::Foreign;
    }
    let Some(block) = bytes.get(..len) else { return Left::More(len) };
    let mut sealed = vec![0; len];
    seal(&mut sealed, Identity { run: word(8), address: word(16), generation: word(24) as u32 });
    let mut sectors = block.chunks_exact(MIN_LEN).zip(sealed.chunks_exact(MIN_LEN));
    let proven = sectors.next().is_some_and(|(there, sealed)| there == sealed)
        && sectors.all(|(there, sealed)| there == sealed || is_plain(there));
    if proven { Left::Ours(len) } else { Left::Foreign }
}

fn is_whole(block: &[u8]) -> bool {
    match block.split_last_chunk::<CRC>() {
        Some((body, sum)) => crc(body) == u32::from_le_bytes(*sum),
        None => false,
    }
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Identity = Identity { run: 77, address: 1 << 20, generation: 5 };

    fn sealed(who: Identity) -> Vec<u8> {
        let mut block = vec![0xAA; 4096];
        seal(&mut block, who);
        block
    }

    #[test]
    fn a_right_block_is_right() {
        assert_eq!(check(&sealed(WHO), WHO), Ok(()));
        let mut small = vec![0; 512];
        seal(&mut small, WHO);
        assert_eq!(check(&small, WHO), Ok(()));
    }

    #[test]
    fn every_wrong_byte_is_found() {
        let right = sealed(WHO);
        for at in 0..right.len() {
            let mut block = right.clone();
            block[at] ^= 0x10;
            assert!(check(&block, WHO).is_err(), "byte {at} changed and nobody noticed");
        }
    }

    #[test]
    fn findings() {
        assert_eq!(check(&[0; 4096], WHO), Err(Finding::Zeroes));
        assert_eq!(check(&[1; 4096], WHO), Err(Finding::Foreign));
        let other = Identity { run: 78, ..WHO };
        assert_eq!(check(&sealed(other), WHO), Err(Finding::OtherRun(other)));
        let elsewhere = Identity { address: 4096, ..WHO };
        assert_eq!(check(&sealed(elsewhere), WHO), Err(Finding::Misplaced(elsewhere)));
        let old = Identity { generation: 4, ..WHO };
        assert_eq!(check(&sealed(old), WHO), Err(Finding::Stale(old)));
        let early = Identity { generation: 6, ..WHO };
        assert_eq!(check(&sealed(early), WHO), Err(Finding::Early(early)));
    }

    #[test]
    fn a_torn_write_is_damage_from_its_sector_on() {
        let mut block = sealed(WHO);
        block[2048..].copy_from_slice(&sealed(Identity { generation: 4, ..WHO })[2048..]);
        assert_eq!(check(&block, WHO), Err(Finding::Damaged { says: WHO, from: 2048, to: 4096 }));
    }

    #[test]
    fn generations_differ_in_every_sector() {
        let (one, two) = (sealed(WHO), sealed(Identity { generation: 6, ..WHO }));
        for (at, (a, b)) in one.chunks(512).zip(two.chunks(512)).enumerate() {
            assert_ne!(a, b, "sector {at}");
        }
    }

    #[test]
    fn what_a_run_left_proves_itself() {
        let mut block = sealed(WHO);
        block.extend_from_slice(b"more");
        assert_eq!(left(&block), Left::Ours(4096), "wherever it lies");
        assert_eq!(left(&block[..4000]), Left::More(4096));
        assert_eq!(left(&[0; 600]), Left::Ours(512));
        let mut zeroed = block.clone();
        zeroed[1024..2048].fill(0);
        assert_eq!(left(&zeroed), Left::Ours(4096), "a part was discarded");
        let mut plain = vec![0; 16 << 10];
        fill_plain(&mut plain);
        zeroed[2048..3072].copy_from_slice(&plain[9 * 512..11 * 512]);
        assert_eq!(left(&zeroed), Left::Ours(4096), "a later run wrote into it");
        for sector in plain.chunks_exact_mut(512) {
            assert_eq!(left(sector), Left::Ours(512));
            sector[300] ^= 1;
            assert_eq!(left(sector), Left::Foreign);
        }
        for at in (0..4096).step_by(97) {
            let mut other = block.clone();
            other[at] ^= 0x40;
            assert_eq!(left(&other), Left::Foreign, "byte {at}");
        }
        assert_eq!((left(b"text"), left(&[1; 512])), (Left::Foreign, Left::Foreign));
        let mut huge = block;
        huge[28..32].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(left(&huge), Left::Foreign, "no run writes such a block");
    }
}
