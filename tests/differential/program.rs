//! A program: batches of symbolic SQEs, the same for every ring that runs it.
//!
//! Pointers and descriptors are symbols ([`Word`], [`FdRef`]) because each ring has memory and file tables of its own;
//! [`Image`] turns them into raw SQEs for one ring. The program also determines which CQEs must arrive before the next
//! batch may start ([`Program::awaited`]) and which orders are promised ([`Program::order_pairs`]).
//!
//! - I1: every batch is quiet before the next starts, except for timeouts that nothing has ended yet.
//! - I2: two operations that may run at the same time never touch the same bytes of the device or of memory.

use std::collections::HashSet;
use std::fmt;

use crate::abi::{RawSqe, flag, op};

/// Bytes of the device under test.
pub const DEVICE_BYTES: u64 = 256 << 10;
/// Bytes of one logical block.
pub const BLOCK: u64 = 512;
/// Bytes of plain memory that operations may read and write. Twice the device, so one read can ask for more than all.
pub const ARENA_BYTES: u64 = 1 << 20;
/// Bytes of each registered buffer; slot 2 stays empty.
pub const FIXED_BYTES: [u64; 2] = [128 << 10, 16 << 10];
/// Registered files: slot 0 and 2 hold the device, slot 1 is empty, slot 3 is outside.
pub const FIXED_FILES: [bool; 3] = [true, false, true];

/// A 64-bit field of an SQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Value(u64),
    /// Offset into the arena.
    Arena(u64),
    /// Registered buffer and offset from its start (may lie outside).
    Fixed(usize, i64),
    /// The n-th vector of the program.
    Vector(usize),
    /// The n-th time of the program.
    Time(usize),
}

/// The `fd` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdRef {
    /// The device under test.
    Device,
    /// The ring itself (MSG_RING).
    Ring,
    Raw(i32),
}

/// Properties of an operation beyond its fields, from the generator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nature {
    /// True if the operation fails before it is queued: it posts at once and fails the whole chain.
    pub rejected: bool,
    /// True if the operation may stay pending for ever (a long or counted timeout), and with it the rest of its chain.
    pub pending: bool,
    /// True for a FALLOCATE that fails when it runs. The kernel does not count that as a failure (links continue, a
    /// skipped CQE stays skipped), Sheave does. Such an operation has no soft link and no skipped CQE, so that there is
    /// one right answer.
    pub fails_softly: bool,
    /// True if the operation, and all that is chained to it, completes within the submit.
    pub instant: bool,
}

/// One symbolic SQE.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: FdRef,
    pub off: Word,
    pub addr: Word,
    pub len: u32,
    pub op_flags: u32,
    pub user_data: u64,
    pub buf_index: u16,
    pub personality: u16,
    pub splice: u32,
    pub addr3: u64,
    pub pad: u64,
    pub nature: Nature,
}

impl Op {
    pub fn new(opcode: u8, user_data: u64) -> Self {
        Op {
            opcode,
            flags: 0,
            ioprio: 0,
            fd: FdRef::Raw(-1),
            off: Word::Value(0),
            addr: Word::Value(0),
            len: 0,
            op_flags: 0,
            user_data,
            buf_index: 0,
            personality: 0,
            splice: 0,
            addr3: 0,
            pad: 0,
            nature: Nature::default(),
        }
    }

    pub fn linked(&self) -> bool {
        self.flags & flag::ANY_LINK != 0
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ud={:<3} {}", self.user_data, op::name(self.opcode))?;
        if op::name(self.opcode) == "UNKNOWN" {
            write!(f, "({})", self.opcode)?;
        }
        write!(f, " fd={:?} off={:?} addr={:?} len={}", self.fd, self.off, self.addr, self.len)?;
        if self.flags != 0 {
            write!(f, " flags={}", flag::names(self.flags))?;
        }
        let small = [
            ("op_flags", u64::from(self.op_flags)),
            ("ioprio", u64::from(self.ioprio)),
            ("buf_index", u64::from(self.buf_index)),
            ("personality", u64::from(self.personality)),
            ("splice", u64::from(self.splice)),
            ("addr3", self.addr3),
            ("pad", self.pad),
        ];
        for (name, value) in small {
            if value != 0 {
                write!(f, " {name}={value:#x}")?;
            }
        }
        Ok(())
    }
}

/// Shape of a run: sizes of the ring, and the time at which CQEs are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub entries: u32,
    pub cq_entries: u32,
    /// True to leave every CQE in the ring until all batches are submitted, so that the CQ overflows.
    pub hoard: bool,
}

/// Batches of SQEs with the vectors and times that they point to.
#[derive(Clone, Debug)]
pub struct Program {
    pub seed: u64,
    pub shape: Shape,
    pub vectors: Vec<Vec<(Word, u64)>>,
    pub times: Vec<(i64, i64)>,
    pub batches: Vec<Vec<Op>>,
}

impl Program {
    pub fn len(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    /// Returns the chains of a batch as ranges of indices.
    pub fn chains(batch: &[Op]) -> Vec<std::ops::Range<usize>> {
        let mut chains = Vec::new();
        let mut start = 0;
        for (i, op) in batch.iter().enumerate() {
            if !op.linked() || i + 1 == batch.len() {
                chains.push(start..i + 1);
                start = i + 1;
            }
        }
        chains
    }

    /// Returns the user data of each CQE that a batch certainly produces, and true if it may produce others too.
    pub fn awaited(batch: &[Op]) -> (Vec<u64>, bool) {
        let mut certain = Vec::new();
        let mut others = false;
        for chain in Self::chains(batch) {
            let ops = &batch[chain];
            let silent = ops.iter().any(|op| op.flags & flag::SKIP != 0);
            let rejected = ops.iter().any(|op| op.nature.rejected);
            let pending = ops.iter().any(|op| op.nature.pending) && !rejected;
            if silent || pending || ops.iter().any(|op| op.opcode == op::MSG_RING) {
                others = true;
            }
            if pending || (silent && rejected) {
                continue;
            }
            // After an SQE that skips its CQE nothing is certain: if it fails, the rest of the chain is silent.
            let telling = ops.iter().take_while(|op| op.flags & flag::SKIP == 0);
            certain.extend(telling.map(|op| op.user_data));
        }
        (certain, others)
    }

    /// Returns pairs (a, b) of user data: every ring must post the two in the order in which the kernel did.
    ///
    /// Order is promised within a chain, across a drain, and in a batch that completes within its submit. A chain with
    /// a rejected SQE is posted at once, so it has no order relative to the chains around it.
    pub fn order_pairs(&self) -> Vec<(u64, u64)> {
        let mut pairs = Vec::new();
        let mut seen = HashSet::new();
        for batch in &self.batches {
            let chains = Self::chains(batch);
            if batch.iter().all(|op| op.nature.instant) {
                let all = 0..batch.len();
                pairs.extend(
                    all.clone()
                        .flat_map(|a| all.clone().map(move |b| (a, b)))
                        .filter(|(a, b)| a < b)
                        .map(|(a, b)| (batch[a].user_data, batch[b].user_data)),
                );
                continue;
            }
            for chain in &chains {
                for a in chain.clone() {
                    pairs.extend((a + 1..chain.end).map(|b| (batch[a].user_data, batch[b].user_data)));
                }
            }
            let plain = |c: &std::ops::Range<usize>| !batch[c.clone()].iter().any(|op| op.nature.rejected);
            for (d, drain) in chains.iter().enumerate() {
                if !plain(drain) || !batch[drain.clone()].iter().any(|op| op.flags & flag::DRAIN != 0) {
                    continue;
                }
                for other in chains.iter().enumerate().filter(|(o, c)| *o != d && plain(c)).map(|(_, c)| c) {
                    for a in drain.clone() {
                        pairs.extend(other.clone().map(|b| (batch[a].user_data, batch[b].user_data)));
                    }
                }
            }
        }
        pairs.retain(|pair| pair.0 != pair.1 && seen.insert(*pair));
        pairs
    }

    /// Returns the program as text, one SQE per line.
    pub fn describe(&self) -> String {
        let mut out = format!("seed {} {:?}\n", self.seed, self.shape);
        for (n, batch) in self.batches.iter().enumerate() {
            out += &format!("  batch {n}\n");
            for op in batch {
                out += &format!("    {op}");
                for word in [op.off, op.addr] {
                    match word {
                        Word::Vector(v) => out += &format!(" {:?}", self.vectors[v]),
                        Word::Time(t) => out += &format!(" {:?}", self.times[t]),
                        _ => {}
                    }
                }
                out.push('\n');
            }
        }
        out
    }
}

/// Addresses and descriptors that the symbols of a program stand for on one ring.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub arena: u64,
    pub fixed: [u64; 2],
    pub device_fd: i32,
    pub ring_fd: i32,
}

/// A program with its vectors and times laid out for one ring. Must outlive the run: the SQEs point into it.
pub struct Image {
    places: Places,
    vectors: Vec<Box<[[u64; 2]]>>,
    times: Vec<[i64; 2]>,
}

impl Image {
    pub fn new(program: &Program, places: Places) -> Self {
        let mut image = Image { places, vectors: Vec::new(), times: Vec::new() };
        image.times = program.times.iter().map(|&(sec, nsec)| [sec, nsec]).collect();
        for vector in &program.vectors {
            image.vectors.push(vector.iter().map(|&(base, len)| [image.word(base), len]).collect());
        }
        image
    }

    fn word(&self, word: Word) -> u64 {
        match word {
            Word::Value(value) => value,
            Word::Arena(offset) => self.places.arena + offset,
            Word::Fixed(slot, offset) => self.places.fixed[slot].wrapping_add_signed(offset),
            Word::Vector(n) => self.vectors[n].as_ptr() as u64,
            Word::Time(n) => self.times[n].as_ptr() as u64,
        }
    }

    pub fn sqe(&self, op: &Op) -> RawSqe {
        RawSqe {
            opcode: op.opcode,
            flags: op.flags,
            ioprio: op.ioprio,
            fd: match op.fd {
                FdRef::Device => self.places.device_fd,
                FdRef::Ring => self.places.ring_fd,
                FdRef::Raw(fd) => fd,
            },
            off: self.word(op.off),
            addr: self.word(op.addr),
            len: op.len,
            op_flags: op.op_flags,
            user_data: op.user_data,
            buf_index: op.buf_index,
            personality: op.personality,
            splice: op.splice,
            addr3: op.addr3,
            pad: op.pad,
        }
    }
}
