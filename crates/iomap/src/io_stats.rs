//! Statistics of I/O on files: what each ring has done on each file, to be read by any thread.
//!
//! Owns the counts of one ring on one file ([`IoCell`], made when the file is attached), and groups of them: a file has
//! one with a cell for each ring that has it, a ring has one with a cell for each file. A cell that goes leaves its
//! counts in its groups. Does not read the clock: the ring brings the split of each I/O, or of many that share one. Nor
//! does it count plain records, which the block layer counts once for the file and the device ([`RecordStats`]).
//!
//! Invariants:
//! - I1: a cell has one writer, the ring that has the file attached; its counts are plain loads and stores on lines of
//!   their own. Readers see each count by itself.
//! - I2: a reading of a group contains all that its cells have counted, those that have gone included; what a cell
//!   counts is in the reading of its group from then on.

use sheave_base::identity::unique;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::sync::{Arc, Mutex};
use sheave_blk::bio::Op;
use sheave_blk::stats::{IoTally, LATENCY_CELLS, RecordStats, Split, SplitCounts};

use crate::slow::{FlightRecorder, SlowIo};

pub use crate::io_kind::{IoKind, NR_IO_KINDS};

/// What one ring has done on one file.
#[derive(Debug)]
pub struct IoCell {
    /// I/O with a slot of the ring.
    kinds: [IoTally; NR_IO_KINDS],
    errors: AtomicU64,
    /// Plain records, which the hardware context counts here.
    records: Option<Arc<RecordStats>>,
    /// Where the ring keeps those that were slow.
    recorder: Option<Arc<FlightRecorder>>,
}

impl IoCell {
    fn new(records: Option<Arc<RecordStats>>, recorder: Option<Arc<FlightRecorder>>) -> IoCell {
        IoCell { kinds: Default::default(), errors: AtomicU64::new(0), records, recorder }
    }

    #[cfg(test)]
    pub(crate) fn alone() -> IoCell {
        IoCell::new(None, None)
    }

    /// Counts an I/O of the ring's slots; whether it was slow. For the ring alone (I1).
    pub fn note(&self, kind: IoKind, split: &Split, bytes: u64) -> bool {
        self.note_run(kind, split, (1, bytes))
    }

    /// As [`IoCell::note`], of so many I/Os that share a split, with so many bytes.
    pub fn note_run(&self, kind: IoKind, split: &Split, (ios, bytes): (u64, u64)) -> bool {
        self.kinds[kind as usize].note(split, ios, bytes)
    }

    /// Counts an error of an I/O that is counted beside it. For the ring alone (I1).
    #[cold]
    pub fn note_error(&self) {
        // Relaxed, both: one writer (I1).
        self.errors.store(self.errors.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The latencies of one kind until now, by the cells of [`Latencies`](sheave_blk::stats::Latencies).
    pub(crate) fn latencies(&self, kind: IoKind) -> impl Iterator<Item = u64> {
        let mut counts = [0; LATENCY_CELLS];
        for tally in self.tallies(kind) {
            counts.iter_mut().zip(tally.latencies()).for_each(|(sum, n)| *sum += n);
        }
        counts.into_iter()
    }

    /// What takes longer than this is slow from now on. For the ring alone (I1).
    pub(crate) fn set_slow_above(&self, kind: IoKind, ns: u64) {
        self.tallies(kind).for_each(|tally| tally.set_slow_above(ns));
    }

    /// From which latency on an I/O of this kind counts as slow.
    pub fn slow_above_ns(&self, kind: IoKind) -> u64 {
        self.kinds[kind as usize].slow_above_ns()
    }

    /// The tallies of one kind: of slots, and of plain records.
    fn tallies(&self, kind: IoKind) -> impl Iterator<Item = &IoTally> {
        let records = self.records.as_ref().and_then(|records| match kind {
            IoKind::Read => Some(records.tally(Op::Read)),
            IoKind::Write => Some(records.tally(Op::Write)),
            IoKind::Other => None,
        });
        std::iter::once(&self.kinds[kind as usize]).chain(records)
    }

    fn read(&self, into: &mut IoCounts) {
        for (&kind, sum) in IoKind::ALL.iter().zip(&mut into.kinds) {
            for tally in self.tallies(kind) {
                sum.bytes += tally.read(&mut sum.split);
            }
            sum.ios = sum.split.ios();
        }
        // Relaxed: a count by itself.
        into.errors += self.errors.load(Ordering::Relaxed);
    }
}

/// What was counted of one kind of I/O.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KindCounts {
    /// I/Os that ended. One over several mappings that went to its device in pieces counts as one.
    pub ios: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Where their time went.
    pub split: SplitCounts,
}

/// A reading of an [`IoGroup`].
#[derive(Clone, Debug, Default)]
pub struct IoCounts {
    kinds: [KindCounts; NR_IO_KINDS],
    errors: u64,
}

impl IoCounts {
    /// The counts of one kind.
    pub fn kind(&self, kind: IoKind) -> &KindCounts {
        &self.kinds[kind as usize]
    }

    /// Adds another reading.
    pub fn add(&mut self, other: &IoCounts) {
        for (sum, kind) in self.kinds.iter_mut().zip(&other.kinds) {
            sum.ios += kind.ios;
            sum.bytes += kind.bytes;
            sum.split.add(&kind.split);
        }
        self.errors += other.errors;
    }

    /// I/Os that ended with an error.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// I/Os of all kinds.
    pub fn ios(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.ios).sum()
    }
}

#[derive(Debug, Default)]
struct Members {
    cells: Vec<Arc<IoCell>>,
    /// What the cells have counted that are gone.
    gone: Option<Box<IoCounts>>,
}

/// Cells that belong together: of one file, or of one ring.
#[derive(Debug)]
pub struct IoGroup {
    id: u64,
    members: Mutex<Members>,
}

impl Default for IoGroup {
    fn default() -> Self {
        IoGroup { id: unique(), members: Mutex::default() }
    }
}

impl IoGroup {
    fn members(&self) -> impl std::ops::DerefMut<Target = Members> + '_ {
        self.members.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A number that no other group of the process has: by it a [`SlowIo`] says whose it is.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The slow I/Os on this file that the rings keep which have it open, the oldest first. Any thread may ask.
    pub fn slow_ios(&self) -> Vec<SlowIo> {
        let mut recorders: Vec<Arc<FlightRecorder>> = Vec::new();
        for recorder in self.members().cells.iter().filter_map(|cell| cell.recorder.as_ref()) {
            if !recorders.iter().any(|have| Arc::ptr_eq(have, recorder)) {
                recorders.push(Arc::clone(recorder));
            }
        }
        let mut ios: Vec<_> = recorders.iter().flat_map(|recorder| recorder.read(0).ios).collect();
        ios.retain(|io| io.file == self.id);
        ios.sort_by_key(|io| io.ended);
        ios
    }

    /// All that was counted so far. Any thread may ask.
    pub fn counts(&self) -> IoCounts {
        let members = self.members();
        let mut sum = members.gone.as_deref().cloned().unwrap_or_default();
        members.cells.iter().for_each(|cell| cell.read(&mut sum));
        sum
    }

    fn leave(&self, cell: &Arc<IoCell>) {
        let mut members = self.members();
        if let Some(at) = members.cells.iter().position(|have| Arc::ptr_eq(have, cell)) {
            members.cells.swap_remove(at);
            cell.read(members.gone.get_or_insert_default());
        }
    }
}

/// What a ring brings to the files that it opens: the group of its cells, and its flight recorder.
#[derive(Clone, Debug)]
pub struct RingIo {
    /// The group.
    pub group: Arc<IoGroup>,
    /// The recorder.
    pub recorder: Arc<FlightRecorder>,
}

/// A ring's cell in its groups, until it is dropped.
#[derive(Debug)]
pub struct IoSeat {
    cell: Arc<IoCell>,
    groups: Vec<Arc<IoGroup>>,
}

impl IoSeat {
    /// A cell in these groups, with the counts of plain records if there are some, and the ring's recorder.
    #[must_use]
    pub fn new(
        records: Option<Arc<RecordStats>>,
        recorder: Option<Arc<FlightRecorder>>,
        groups: impl IntoIterator<Item = Arc<IoGroup>>,
    ) -> IoSeat {
        let cell = IoCell::new(records, recorder);
        if let Some(recorder) = &cell.recorder {
            IoKind::ALL.into_iter().for_each(|kind| cell.set_slow_above(kind, recorder.limit_ns()));
        }
        let cell = Arc::new(cell);
        let groups: Vec<_> = groups.into_iter().collect();
        groups.iter().for_each(|group| group.members().cells.push(Arc::clone(&cell)));
        IoSeat { cell, groups }
    }

    /// The cell, for the ring to count in.
    #[inline(always)]
    pub fn cell(&self) -> &IoCell {
        &self.cell
    }
}

impl Drop for IoSeat {
    fn drop(&mut self) {
        self.groups.iter().for_each(|group| group.leave(&self.cell));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
