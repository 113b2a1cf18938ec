//! Kinds of I/O on files: reads, writes, and everything else.
//!
//! Owns the kinds and their names. `io_stats` counts by them, `slow` reports them.

use sheave_blk::bio::Op;

/// Kind of an I/O on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum IoKind {
    /// Transfer from the file to memory.
    Read = 0,
    /// Transfer from memory to the file.
    Write = 1,
    /// Syncs, holes, zeroes.
    Other = 2,
}

/// Number of kinds.
pub const NR_IO_KINDS: usize = 3;

impl IoKind {
    /// Every kind, in the order of its value.
    pub const ALL: [IoKind; NR_IO_KINDS] = [IoKind::Read, IoKind::Write, IoKind::Other];

    /// Returns the lower-case name for reports.
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
