//! How much was done for clients: a [`Tally`] for each connection, [`IoCounts`] for reports.
//!
//! Invariants:
//! - K1. Only the reactor of a connection writes to its tally, with a plain load and store. Any thread may read it at
//!   any time: it may see one number of a request before another, and each number only grows.
//! - K2. A connection counts with its export from the moment when it gets the export. When it ends, its numbers are
//!   added to those that the export keeps, under the lock under which they are read, so that the sum of an export never
//!   shrinks while its name is served.

use std::time::Duration;

use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_nbd::session::{Command, Request};

/// What was done for a client, or for all clients of an export since its name is served.
///
/// Requests are counted when they are answered. One that fails counts as an error, and its bytes do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Flushes; a write that has to be durable when it is answered (FUA) is none.
    pub flushes: u64,
    /// Trims.
    pub trims: u64,
    /// Bytes of them.
    pub trimmed_bytes: u64,
    /// Requests to zero a range.
    pub zeroes: u64,
    /// Bytes of them.
    pub zeroed_bytes: u64,
    /// Questions for the status of a range, and hints that a range will be read.
    pub others: u64,
    /// Requests that were answered with an error; they are in none of the numbers above.
    pub errors: u64,
    /// How long requests were held back by a limit of the export.
    pub throttled: Duration,
}

/// The numbers of [`IoCounts`], by their places in a [`Tally`].
#[derive(Clone, Copy)]
enum Of {
    Reads,
    ReadBytes,
    Writes,
    WrittenBytes,
    Flushes,
    Trims,
    TrimmedBytes,
    Zeroes,
    ZeroedBytes,
    Others,
    Errors,
    ThrottledNs,
}

/// Numbers of a tally.
const NUMBERS: usize = Of::ThrottledNs as usize + 1;

/// The counters of one connection (K1).
#[derive(Debug, Default)]
pub(crate) struct Tally([AtomicU64; NUMBERS]);

impl Tally {
    fn add(&self, of: Of, n: u64) {
        let cell = &self.0[of as usize];
        // Relaxed: one writer (K1), and a reader wants each number by itself.
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// A request was carried out.
    pub(crate) fn done(&self, request: &Request) {
        let (ios, bytes) = match request.command {
            Command::Read => (Of::Reads, Some(Of::ReadBytes)),
            Command::Write => (Of::Writes, Some(Of::WrittenBytes)),
            Command::Flush => (Of::Flushes, None),
            Command::Trim => (Of::Trims, Some(Of::TrimmedBytes)),
            Command::WriteZeroes => (Of::Zeroes, Some(Of::ZeroedBytes)),
            Command::Cache | Command::BlockStatus => (Of::Others, None),
        };
        self.add(ios, 1);
        if let Some(bytes) = bytes {
            self.add(bytes, request.len);
        }
    }

    /// A request was answered with an error.
    pub(crate) fn failed(&self) {
        self.add(Of::Errors, 1);
    }

    /// A request was held back for so long.
    pub(crate) fn throttled(&self, time: Duration) {
        self.add(Of::ThrottledNs, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The numbers now.
    pub(crate) fn read(&self) -> IoCounts {
        // Relaxed: as in `add`.
        let of = |of: Of| self.0[of as usize].load(Ordering::Relaxed);
        IoCounts {
            reads: of(Of::Reads),
            read_bytes: of(Of::ReadBytes),
            writes: of(Of::Writes),
            written_bytes: of(Of::WrittenBytes),
            flushes: of(Of::Flushes),
            trims: of(Of::Trims),
            trimmed_bytes: of(Of::TrimmedBytes),
            zeroes: of(Of::Zeroes),
            zeroed_bytes: of(Of::ZeroedBytes),
            others: of(Of::Others),
            errors: of(Of::Errors),
            throttled: Duration::from_nanos(of(Of::ThrottledNs)),
        }
    }
}

impl IoCounts {
    /// Requests that were carried out.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.trims + self.zeroes + self.others
    }
}

impl std::ops::AddAssign for IoCounts {
    fn add_assign(&mut self, other: IoCounts) {
        let all = [
            (&mut self.reads, other.reads),
            (&mut self.read_bytes, other.read_bytes),
            (&mut self.writes, other.writes),
            (&mut self.written_bytes, other.written_bytes),
            (&mut self.flushes, other.flushes),
            (&mut self.trims, other.trims),
            (&mut self.trimmed_bytes, other.trimmed_bytes),
            (&mut self.zeroes, other.zeroes),
            (&mut self.zeroed_bytes, other.zeroed_bytes),
            (&mut self.others, other.others),
            (&mut self.errors, other.errors),
        ];
        all.into_iter().for_each(|(sum, number)| *sum = sum.wrapping_add(number));
        self.throttled = self.throttled.saturating_add(other.throttled);
    }
}
