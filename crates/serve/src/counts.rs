//! Counts of requests and bytes: a [`Tally`] for each client, [`IoCounts`] for reports.
//!
//! Invariants:
//! - K1. A tally has a part for each session of the client, one for an NBD connection and one for each queue of a
//!   vhost-user device. Only the reactor of the session writes to it, with a plain load and store. Any thread may read
//!   it at any time: it may see one counter of a request updated before another, and each counter only grows.
//! - K2. A connection counts with its export from the moment when it gets the export. At its end its counters are added
//!   to those that the export keeps, under the lock that readers take, so that the sum of an export never shrinks while
//!   its name is served.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_nbd::session::Command;

/// Counts of a client, or of all clients of an export since its name is served.
///
/// A request counts when it is answered. A failed one counts as an error only, and its bytes do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IoCounts {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Number of flushes. A write with FUA does not count as one.
    pub flushes: u64,
    /// Number of trims.
    pub trims: u64,
    /// Bytes trimmed.
    pub trimmed_bytes: u64,
    /// Number of requests to zero a range.
    pub zeroes: u64,
    /// Bytes zeroed.
    pub zeroed_bytes: u64,
    /// Number of BLOCK_STATUS requests, and hints that a range will be read.
    pub others: u64,
    /// Number of requests that were answered with an error. No other counter includes them.
    pub errors: u64,
    /// Total time for which requests were held back by a limit of the export.
    pub throttled: Duration,
}

/// Index of each counter of [`IoCounts`] in a [`Tally`].
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

const NUMBERS: usize = Of::ThrottledNs as usize + 1;

/// The counters of one client (K1).
#[derive(Debug)]
pub(crate) struct Tally(Box<[Part]>);

/// The counters of one session.
#[derive(Debug, Default)]
pub(crate) struct Part([AtomicU64; NUMBERS]);

impl Tally {
    pub(crate) fn new(parts: usize) -> Tally {
        Tally((0..parts).map(|_| Part::default()).collect())
    }

    /// Makes the counters of a client with so many sessions that has these counts already.
    pub(crate) fn from(parts: usize, counts: &IoCounts) -> Tally {
        let tally = Tally::new(parts.max(1));
        let first = &tally.0[0];
        let throttled = u64::try_from(counts.throttled.as_nanos()).unwrap_or(u64::MAX);
        let numbers = [
            (Of::Reads, counts.reads),
            (Of::ReadBytes, counts.read_bytes),
            (Of::Writes, counts.writes),
            (Of::WrittenBytes, counts.written_bytes),
            (Of::Flushes, counts.flushes),
            (Of::Trims, counts.trims),
            (Of::TrimmedBytes, counts.trimmed_bytes),
            (Of::Zeroes, counts.zeroes),
            (Of::ZeroedBytes, counts.zeroed_bytes),
            (Of::Others, counts.others),
            (Of::Errors, counts.errors),
            (Of::ThrottledNs, throttled),
        ];
        numbers.into_iter().for_each(|(of, number)| first.add(of, number));
        tally
    }

    /// Returns the part of a session.
    #[inline]
    pub(crate) fn part(&self, number: usize) -> &Part {
        &self.0[number]
    }

    /// Returns the sum of all parts.
    pub(crate) fn read(&self) -> IoCounts {
        let mut sum = IoCounts::default();
        self.0.iter().for_each(|part| sum += part.read());
        sum
    }
}

impl Part {
    #[inline]
    fn add(&self, of: Of, n: u64) {
        let cell = &self.0[of as usize];
        // Relaxed: one writer (K1), and a reader wants each number by itself.
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Counts a successful request of `len` bytes.
    #[inline]
    pub(crate) fn done(&self, command: Command, len: u64) {
        let (ios, bytes) = match command {
            Command::Read => (Of::Reads, Some(Of::ReadBytes)),
            Command::Write => (Of::Writes, Some(Of::WrittenBytes)),
            Command::Flush => (Of::Flushes, None),
            Command::Trim => (Of::Trims, Some(Of::TrimmedBytes)),
            Command::WriteZeroes => (Of::Zeroes, Some(Of::ZeroedBytes)),
            Command::Cache | Command::BlockStatus => (Of::Others, None),
        };
        self.add(ios, 1);
        if let Some(bytes) = bytes {
            self.add(bytes, len);
        }
    }

    pub(crate) fn failed(&self) {
        self.add(Of::Errors, 1);
    }

    /// Adds the time for which a request was held back.
    pub(crate) fn throttled(&self, time: Duration) {
        self.add(Of::ThrottledNs, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn read(&self) -> IoCounts {
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
    /// Returns the number of successful requests.
    #[must_use]
    pub fn answered(&self) -> u64 {
        let all = [self.reads, self.writes, self.flushes, self.trims, self.zeroes, self.others];
        all.into_iter().fold(0, u64::wrapping_add)
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
