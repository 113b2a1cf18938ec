//! What I/O on files is told apart by: reads, writes, and what is neither.
//!
//! Owns the kinds and their names. Counted in `io_stats`, told of in `slow`.

use sheave_blk::bio::Op;

/// What I/O on files is told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum IoKind {
    /// From the file to memory.
    Read = 0,
    /// From memory to the file.
    Write = 1,
    /// Syncs, holes, zeroes.
    Other = 2,
}

/// How many kinds there are.
pub const NR_IO_KINDS: usize = 3;

impl IoKind {
    /// Every kind, in the order of its value.
    pub const ALL: [IoKind; NR_IO_KINDS] = [IoKind::Read, IoKind::Write, IoKind::Other];

    /// Lower-case name for reports.
    pub fn name(self) -> &'static str {
        match self {
            IoKind::Read => "read",
            IoKind::Write => "write",
            IoKind::Other => "other",
        }
    }
}

impl From<Op> for IoKind {
    #[inline(always)]
    fn from(op: Op) -> IoKind {
        match op {
            Op::Read => IoKind::Read,
            Op::Write => IoKind::Write,
            _ => IoKind::Other,
        }
    }
}
