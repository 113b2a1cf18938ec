//! What plain records have done, counted once for two readers: for their owner, a file of a ring, and for the hardware
//! context that carried them out.
//!
//! Owns the counts of one owner on one hardware context ([`RecordStats`]), its place among them
//! ([`RecordSeat`](crate::hctx_shared::RecordSeat)), and the list that the context's reading goes through. Nobody owns
//! the counts twice: a context counts by itself what has bios, and the records of owners without a seat.
//!
//! Invariants:
//! - R1: one writer, the ring; readers see each count by itself.
//! - R2: a reading of the hardware context contains what was counted in each seat, those that are gone included; what a
//!   seat counts is in the reading from then on.

use crossbeam_utils::CachePadded;
use sheave_base::sync::atomic::Ordering;
use sheave_base::sync::count::AtomicU64;
use sheave_base::sync::{Arc, Mutex};

use super::split::{Split, SplitCounts, SplitStats, add};
use crate::bio::{Op, SECTOR_SHIFT};

/// Counts of one kind of I/O; a line of their own is also found with fewer instructions.
#[derive(Debug)]
#[repr(align(64))]
pub struct IoTally {
    bytes: AtomicU64,
    /// What takes longer is slow.
    slow_above_ns: AtomicU64,
    split: SplitStats,
}

impl Default for IoTally {
    fn default() -> Self {
        IoTally { bytes: AtomicU64::new(0), slow_above_ns: AtomicU64::new(u64::MAX), split: SplitStats::default() }
    }
}

impl IoTally {
    /// Counts `ios` I/Os of `bytes` together that share a split; whether they were slow. For the one writer.
    #[inline(always)]
    pub fn note(&self, split: &Split, ios: u64, bytes: u64) -> bool {
        add(&self.bytes, bytes);
        self.split.note(split, ios);
        // Relaxed: the writer's own.
        split.total_ns() > self.slow_above_ns.load(Ordering::Relaxed)
    }

    /// What takes longer than this is slow from now on. For the one writer.
    pub fn set_slow_above(&self, ns: u64) {
        // Relaxed: the writer's own.
        self.slow_above_ns.store(ns, Ordering::Relaxed);
    }

    /// What takes longer is slow.
    pub fn slow_above_ns(&self) -> u64 {
        // Relaxed: a value by itself.
        self.slow_above_ns.load(Ordering::Relaxed)
    }

    /// The latencies, by the cells of [`Latencies`](super::Latencies).
    pub fn latencies(&self) -> impl Iterator<Item = u64> {
        self.split.latencies()
    }

    /// Adds what was counted to such sums; how many bytes that were.
    pub fn read(&self, split: &mut SplitCounts) -> u64 {
        self.split.read(split);
        // Relaxed: see `add`.
        self.bytes.load(Ordering::Relaxed)
    }
}

/// What was counted of one operation.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpCounts {
    /// Requests completed.
    pub ios: u64,
    /// Sectors (512 B) moved.
    pub sectors: u64,
    /// Bios that rode along in another bio's request.
    pub merges: u64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Where their time went from submission to completion; the latencies are by the cells of
    /// [`Latencies`](super::Latencies).
    pub split: SplitCounts,
}

impl OpCounts {
    /// The latency in ns below which the fraction `q` (0 to 1) of the requests lies: the smallest of its cell.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        self.split.quantile_ns(q)
    }

    /// Adds what was counted of I/Os that nothing rode along with.
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

/// What the plain records of one owner on one hardware context have done.
#[derive(Debug, Default)]
pub struct RecordStats {
    reads: IoTally,
    writes: IoTally,
}

impl RecordStats {
    /// Reads, or writes: records are nothing else.
    #[inline(always)]
    pub fn tally(&self, op: Op) -> &IoTally {
        if op == Op::Read { &self.reads } else { &self.writes }
    }
}

#[derive(Debug, Default)]
struct Seats {
    /// Each with its partition.
    seats: Vec<(u16, Arc<RecordStats>)>,
    /// What those of a partition have counted that are gone: reads and writes.
    gone: Vec<(u16, Box<[OpCounts; 2]>)>,
}

/// The owners that count their records themselves, of one hardware context. Not on a line that the ring writes.
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

    /// Adds what was counted in the seats of some partitions to these sums of the operations.
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
