//! Counts of plain records, kept once for two readers: their owner, a file of a ring, and the hardware context that
//! carried them out.
//!
//! Owns the counts of one owner on one hardware context ([`RecordStats`]), and the list of owners with a *seat*
//! ([`RecordSeat`](crate::hctx_shared::RecordSeat)) that a reading of the context walks. No I/O is counted twice: the
//! context's own tallies hold requests with bios, and records of owners without a seat.
//!
//! Invariants:
//! - R1: one writer, the ring; readers see each count by itself.
//! - R2: a reading of the hardware context contains the counts of every seat, including closed ones, from the moment
//!   they are made.

use crossbeam_utils::CachePadded;
use sheave_base::sync::atomic::Ordering;
use sheave_base::sync::count::AtomicU64;
use sheave_base::sync::{Arc, Mutex};

use super::split::{Split, SplitCounts, SplitStats, add};
use crate::bio::{Op, SECTOR_SHIFT};

/// Counts of one kind of I/O. Aligned to a cache line, which also takes fewer instructions to index.
#[derive(Debug)]
#[repr(align(64))]
pub struct IoTally {
    bytes: AtomicU64,
    /// I/Os with a longer latency are slow.
    slow_above_ns: AtomicU64,
    split: SplitStats,
}

impl Default for IoTally {
    fn default() -> Self {
        IoTally { bytes: AtomicU64::new(0), slow_above_ns: AtomicU64::new(u64::MAX), split: SplitStats::default() }
    }
}

impl IoTally {
    /// Counts `ios` I/Os with `bytes` in all that share a split. Returns true if they were slow. For the single writer.
    #[inline(always)]
    pub fn note(&self, split: &Split, ios: u64, bytes: u64) -> bool {
        add(&self.bytes, bytes);
        self.split.note(split, ios);
        // Relaxed: the writer's own.
        split.total_ns() > self.slow_above_ns.load(Ordering::Relaxed)
    }

    /// Sets the latency above which I/Os are slow. For the single writer.
    pub fn set_slow_above(&self, ns: u64) {
        // Relaxed: the writer's own.
        self.slow_above_ns.store(ns, Ordering::Relaxed);
    }

    /// Returns the latency above which I/Os are slow.
    pub fn slow_above_ns(&self) -> u64 {
        // Relaxed: a value by itself.
        self.slow_above_ns.load(Ordering::Relaxed)
    }

    /// Returns the number of I/Os for each cell of [`Latencies`](super::Latencies).
    pub fn latencies(&self) -> impl Iterator<Item = u64> {
        self.split.latencies()
    }

    /// Adds the split to `split`. Returns the number of bytes.
    pub fn read(&self, split: &mut SplitCounts) -> u64 {
        self.split.read(split);
        // Relaxed: see `add`.
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Counts of one operation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpCounts {
    /// Requests completed.
    pub ios: u64,
    /// Sectors (512 B) moved.
    pub sectors: u64,
    /// Bios that were merged into another bio's request.
    pub merges: u64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Time of the requests from submission to completion, by stage. Latencies are by the cells of
    /// [`Latencies`](super::Latencies).
    pub split: SplitCounts,
}

impl OpCounts {
    /// Returns the latency in ns below which the fraction `q` (0 to 1) of the requests lies, as the lower bound of its
    /// cell.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        self.split.quantile_ns(q)
    }

    /// Adds the counts of a tally, which has neither merges nor errors.
    pub(super) fn read(&mut self, tally: &IoTally) {
        let before = self.split.ios();
        self.sectors += tally.read(&mut self.split) >> SECTOR_SHIFT;
        self.ios += self.split.ios() - before;
    }

    pub(super) fn add(&mut self, other: &OpCounts) {
        self.ios += other.ios;
        self.sectors += other.sectors;
        self.merges += other.merges;
        self.errors += other.errors;
        self.split.add(&other.split);
    }
}

/// Counts of the plain records of one owner on one hardware context.
#[derive(Debug, Default)]
pub struct RecordStats {
    reads: IoTally,
    writes: IoTally,
}

impl RecordStats {
    /// Returns the counts of reads, or of writes: records have no other operation.
    #[inline(always)]
    pub fn tally(&self, op: Op) -> &IoTally {
        if op == Op::Read { &self.reads } else { &self.writes }
    }
}

#[derive(Debug, Default)]
struct Seats {
    /// Open seats, each with its partition.
    seats: Vec<(u16, Arc<RecordStats>)>,
    /// Sums of closed seats by partition: reads and writes.
    gone: Vec<(u16, Box<[OpCounts; 2]>)>,
}

/// Owners of one hardware context that count their records themselves. Padded, because the lock must not share a cache
/// line with fields that the ring writes.
#[derive(Debug, Default)]
pub(crate) struct Owners(CachePadded<Mutex<Seats>>);

const OPS: [Op; 2] = [Op::Read, Op::Write];

impl Owners {
    fn seats(&self) -> impl std::ops::DerefMut<Target = Seats> + '_ {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn come(&self, part: u16) -> Arc<RecordStats> {
        let records = Arc::new(RecordStats::default());
        self.seats().seats.push((part, Arc::clone(&records)));
        records
    }

    pub(crate) fn go(&self, records: &Arc<RecordStats>) {
        let mut seats = self.seats();
        let Some(at) = seats.seats.iter().position(|(_, have)| Arc::ptr_eq(have, records)) else { return };
        let (part, _) = seats.seats.swap_remove(at);
        let at = seats.gone.iter().position(|(have, _)| *have == part).unwrap_or_else(|| {
            seats.gone.push((part, Box::default()));
            seats.gone.len() - 1
        });
        let gone = &mut seats.gone[at].1;
        OPS.iter().zip(gone.iter_mut()).for_each(|(&op, gone)| gone.read(records.tally(op)));
    }

    /// Adds the counts of all seats whose partition `within` accepts to the sums by operation.
    pub(super) fn read(&self, into: &mut [OpCounts], within: impl Fn(u16) -> bool) {
        let seats = self.seats();
        for (at, &op) in OPS.iter().enumerate() {
            let Some(sum) = into.get_mut(op as usize) else { continue };
            let here = seats.seats.iter().filter(|(part, _)| within(*part));
            here.for_each(|(_, records)| sum.read(records.tally(op)));
            seats.gone.iter().filter(|(part, _)| within(*part)).for_each(|(_, gone)| sum.add(&gone[at]));
        }
    }
}
