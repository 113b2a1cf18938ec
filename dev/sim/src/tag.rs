//! Tagged data: every sector that a run writes names its write, volume and sector.
//!
//! Owns the format of the 512 bytes. A sector read from a volume is zeroes, the data of one certain write, or data of
//! no write: [`identify`] tells the three apart. All 512 bytes depend on the tag, so a sector of which only half was
//! written is data of no write.

use std::fmt;

use crate::disk::SECTOR;
use sheave_base::rng::mix;

/// The content of a sector: 0 for zeroes, else the number of a write.
pub type Value = u32;

const MAGIC: u64 = 0x5348_5641_5447_0001;
const WORD: usize = 8;

/// The content that a sector was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Zero,
    /// The data of one write.
    Written {
        /// Number of the write.
        value: Value,
        /// Number of the volume that the write went to.
        volume: u32,
        /// The sector of that volume.
        sector: u64,
    },
    /// Bytes that no write of the run put anywhere.
    Nobodys,
}

impl Seen {
    /// Returns the number of the write, if the data was written to sector `here`.
    #[must_use]
    pub fn value_at(self, here: u64) -> Option<Value> {
        match self {
            Seen::Zero => Some(0),
            Seen::Written { value, sector, .. } if sector == here => Some(value),
            Seen::Written { .. } | Seen::Nobodys => None,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seen::Zero => write!(out, "zeroes"),
            Seen::Written { value, volume, sector } => {
                write!(out, "what write {value} put into sector {sector} of volume {volume}")
            }
            Seen::Nobodys => write!(out, "bytes that nobody wrote"),
        }
    }
}

/// Fills one sector with the tag.
pub fn fill(seed: u64, value: Value, volume: u32, sector: u64, out: &mut [u8]) {
    if value == 0 {
        return out.fill(0);
    }
    let head = [MAGIC, u64::from(value) << 32 | u64::from(volume), sector];
    let check = mix(seed ^ mix(head[1]) ^ sector);
    for (at, word) in out.chunks_mut(WORD).enumerate() {
        let bits = head.get(at).copied().unwrap_or_else(|| check.wrapping_mul(2 * at as u64 + 1));
        word.copy_from_slice(&bits.to_le_bytes()[..word.len()]);
    }
}

/// Fills a buffer with the tags of the sectors of a volume from `sector` on.
pub fn fill_all(seed: u64, value: Value, volume: u32, sector: u64, out: &mut [u8]) {
    for (at, piece) in out.chunks_mut(SECTOR).enumerate() {
        fill(seed, value, volume, sector + at as u64, piece);
    }
}

/// Returns the content of a sector.
#[must_use]
pub fn identify(seed: u64, bytes: &[u8]) -> Seen {
    let word = |at: usize| {
        let mut word = [0; WORD];
        word.copy_from_slice(&bytes[at * WORD..(at + 1) * WORD]);
        u64::from_le_bytes(word)
    };
    if word(0) != MAGIC {
        return if bytes.iter().all(|&byte| byte == 0) { Seen::Zero } else { Seen::Nobodys };
    }
    let (value, volume, sector) = ((word(1) >> 32) as Value, word(1) as u32, word(2));
    let mut whole = [0; SECTOR];
    fill(seed, value, volume, sector, &mut whole);
    if bytes == whole { Seen::Written { value, volume, sector } } else { Seen::Nobodys }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_says_who_wrote_it() {
        let mut bytes = [0; SECTOR];
        assert_eq!(identify(1, &bytes), Seen::Zero);
        fill(1, 9, 2, 77, &mut bytes);
        let seen = identify(1, &bytes);
        assert_eq!(seen, Seen::Written { value: 9, volume: 2, sector: 77 });
        assert_eq!((seen.value_at(77), seen.value_at(78)), (Some(9), None));
        assert_eq!(identify(2, &bytes), Seen::Nobodys, "another run's");
    }

    #[test]
    fn every_byte_counts() {
        let mut bytes = [0; SECTOR];
        fill(1, 9, 2, 77, &mut bytes);
        for at in 0..SECTOR {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(identify(1, &wrong), Seen::Nobodys, "byte {at}");
            let mut dirt = [0; SECTOR];
            dirt[at] = 1;
            assert_eq!(identify(1, &dirt), Seen::Nobodys, "byte {at}");
        }
    }
}
