//! Tagged data: every sector that a run writes says who wrote it, where and when.
//!
//! Owns the 512 bytes. Whatever comes back from a volume is zeroes, or the sector of one certain write, or nobody's:
//! [`identify`] says which. All 512 bytes are a function of the tag, so half a sector is nobody's either.

use std::fmt;

use crate::disk::SECTOR;
use sheave_base::rng::mix;

/// What a sector may hold: 0 is zeroes, any other number is that of a write.
pub type Value = u32;

const MAGIC: u64 = 0x5348_5641_5447_0001;
const WORD: usize = 8;

/// What a sector was found to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Zeroes.
    Zero,
    /// What a write put there.
    Written {
        /// Number of the write.
        value: Value,
        /// The volume it went to.
        volume: u32,
        /// The sector of that volume.
        sector: u64,
    },
    /// Neither: nobody has written this.
    Nobodys,
}

impl Seen {
    /// The value, for a sector that lies here.
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

/// Fills a sector.
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

/// Fills memory that goes to a volume from `sector` on.
pub fn fill_all(seed: u64, value: Value, volume: u32, sector: u64, out: &mut [u8]) {
    for (at, piece) in out.chunks_mut(SECTOR).enumerate() {
        fill(seed, value, volume, sector + at as u64, piece);
    }
}

/// Says what a sector holds.
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
mod tests;
