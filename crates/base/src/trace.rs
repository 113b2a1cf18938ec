//! A trace: the last requests of one ring, as entries of 32 bytes in a file that outlives the program.
//!
//! Owns the format of the file. [`writer`] writes it, for one ring; [`reader`] reads a finished file or one that is
//! still written. The conversion of entries (to `blk_io_trace`, to a page for Perfetto) is done elsewhere.
//!
//! ```text
//! byte 0     magic, version, bytes of an entry, capacity, number of the ring, process, wall clock, coarse clock
//! byte 64    number of entries written since the start
//! byte 128   names of the devices, 64 bytes each, by number
//! byte 4096  entries; number n is at n modulo the capacity
//! ```
//!
//! All numbers are in host order. An entry is four words:
//!
//! | word | from bit 0 on |
//! |---|---|
//! | 0 | end of the request, in ns of the coarse clock |
//! | 1 | first sector (48 bits), requests in the device at that time (16) |
//! | 2 | bytes (32), file of the ring (16), device (8), status (8) |
//! | 3 | time in each stage (5 times 12: see [`squeeze`]), operation (4; 0 is no entry) |
//!
//! Invariants:
//! - T1: each file has one writer. It writes entries, then their number; a reader that sees the number sees the
//!   entries.
//! - T2: the content of a file is never trusted: a reader checks, bounds and skips, and does not panic.

pub mod reader;
#[cfg(test)]
mod tests;
pub mod writer;

/// First eight bytes of a file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHVTRACE");
/// Version of the format.
pub const VERSION: u32 = 1;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 32;
/// Bytes before the first entry.
pub const HEADER_BYTES: usize = 4096;
/// Least and largest number of entries in a file (1 GiB).
pub const CAPACITY: std::ops::RangeInclusive<u64> = 1 << 9..=1 << 25;
/// Largest number of entries that a writer writes before it updates the number in the header.
pub const MAX_RUN: usize = 128;
/// Extension of the files' names.
pub const EXTENSION: &str = "trace";

const HEAD_AT: usize = 64;
const NAMES_AT: usize = 128;
const NAME_BYTES: usize = 64;
/// Number of devices in a file that can have a name.
const NAMES: usize = (HEADER_BYTES - NAMES_AT) / NAME_BYTES;

/// Stages of a request, in the order in which it passes them.
pub const STAGES: [&str; 5] = ["worker", "tag", "plugged", "driver", "reap"];

/// Operation of a traced request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TraceOp {
    /// Transfer from the device to memory.
    Read = 1,
    /// Transfer from memory to the device.
    Write = 2,
    /// Makes earlier writes durable.
    Flush = 3,
    /// Tells the device that the content is no longer needed.
    Discard = 4,
    /// Makes a range read as zeroes.
    WriteZeroes = 5,
}

impl TraceOp {
    const ALL: [TraceOp; 5] = [TraceOp::Read, TraceOp::Write, TraceOp::Flush, TraceOp::Discard, TraceOp::WriteZeroes];

    /// Returns the lower-case name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["read", "write", "flush", "discard", "write-zeroes"][self as usize - 1]
    }

    fn from_bits(bits: u64) -> Option<TraceOp> {
        Self::ALL.into_iter().find(|&op| op as u64 == bits)
    }
}

/// Encodes a time in 12 bits: exact below 128 ns, else a floating-point number with eight significant binary digits;
/// the largest value stands for 274 s and more. [`unsqueeze`] returns a time that is too short by at most 1/128.
#[inline]
#[must_use]
pub fn squeeze(ns: u64) -> u64 {
    if ns < 128 {
        return ns;
    }
    let shift = u64::from(56 - ns.leading_zeros());
    if shift > 30 { 0xfff } else { (shift + 1) << 7 | (ns >> shift & 0x7f) }
}

/// Decodes the 12 bits of [`squeeze`] into ns.
#[must_use]
pub fn unsqueeze(bits: u64) -> u64 {
    match bits >> 7 & 0x1f {
        0 => bits & 0x7f,
        place => (bits & 0x7f | 0x80) << (place - 1),
    }
}

/// Common properties of requests that ended together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// Time of the end, by the coarse clock.
    pub ended_ns: u64,
    /// Number of requests in the device at that time, including these.
    pub depth: u16,
    /// File of the ring that they belong to; `u16::MAX` if it is unknown.
    pub file: u16,
    /// Number of the device in the ring.
    pub device: u8,
    /// Number of the status; 0 is success.
    pub status: u8,
    pub op: TraceOp,
    /// Time in each of [`STAGES`], in ns.
    pub stages: [u64; STAGES.len()],
}

impl Common {
    /// Returns the words of an entry, without sector and bytes.
    #[inline]
    fn words(&self) -> [u64; 4] {
        let squeezed = |at: usize| squeeze(self.stages[at]) << (12 * at);
        let stages = squeezed(0) | squeezed(1) | squeezed(2) | squeezed(3) | squeezed(4);
        let whose = u64::from(self.file) << 32 | u64::from(self.device) << 48 | u64::from(self.status) << 56;
        [self.ended_ns, u64::from(self.depth) << 48, whose, stages | (self.op as u64) << 60]
    }
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Properties that it shares with others.
    pub common: Common,
    /// First sector on the device, modulo 2^48.
    pub sector: u64,
    /// Length in bytes.
    pub bytes: u32,
}

impl Entry {
    fn from_words(words: [u64; 4]) -> Option<Entry> {
        let [ended_ns, place, whose, stages] = words;
        Some(Entry {
            common: Common {
                ended_ns,
                depth: (place >> 48) as u16,
                file: (whose >> 32) as u16,
                device: (whose >> 48) as u8,
                status: (whose >> 56) as u8,
                op: TraceOp::from_bits(stages >> 60)?,
                stages: std::array::from_fn(|at| unsqueeze(stages >> (12 * at))),
            },
            sector: place & ((1 << 48) - 1),
            bytes: whose as u32,
        })
    }

    /// Returns the time at which the request began: its end minus all its stages.
    #[must_use]
    pub fn began_ns(&self) -> u64 {
        self.common.ended_ns.saturating_sub(self.latency_ns())
    }

    /// Returns the sum of all stages.
    #[must_use]
    pub fn latency_ns(&self) -> u64 {
        self.common.stages.iter().sum()
    }
}
