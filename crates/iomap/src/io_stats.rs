//! Statistics of I/O on files: counts of each ring on each file, readable by any thread.
//!
//! Owns the kinds of I/O and their names, the counts of one ring on one file ([`IoCell`], made when the file is
//! attached), and groups of them: a file's group has a cell for each ring that has the file open, a ring's group has a
//! cell for each file. The counts of a dropped cell stay in its groups. Does not read the clock: the ring passes the
//! stage times of each I/O, or of several I/Os that have the same. Plain records are not counted here: the block layer
//! counts them once for file and device ([`RecordStats`]).
//!
//! Invariants:
//! - I1: a cell has one writer, the ring that has the file attached; its counts are plain loads and stores on lines of
//!   their own. Readers see each count by itself, not a consistent set.
//! - I2: a reading of a group contains all counts of its cells, dropped ones included, up to the time of the reading.

use sheave_base::identity::unique;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::sync::{Arc, Mutex};
use sheave_blk::bio::Op;
use sheave_blk::stats::{IoTally, LATENCY_CELLS, RecordStats, Split, SplitCounts};

use crate::slow::{FlightRecorder, SlowIo};

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

/// Counts of one ring on one file.
#[derive(Debug)]
pub struct IoCell {
    /// I/O that used a slot of the ring.
    kinds: [IoTally; NR_IO_KINDS],
    errors: AtomicU64,
    /// Plain records, counted by the hardware context.
    records: Option<Arc<RecordStats>>,
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

    /// Counts one I/O that used a slot. Returns true if it was slow. For the ring alone (I1).
    pub fn note(&self, kind: IoKind, split: &Split, bytes: u64) -> bool {
        self.note_run(kind, split, (1, bytes))
    }

    /// Counts `ios` I/Os that share the stage times `split` and have `bytes` bytes in all. Returns true if they were
    /// slow. For the ring alone (I1).
    pub fn note_run(&self, kind: IoKind, split: &Split, (ios, bytes): (u64, u64)) -> bool {
        self.kinds[kind as usize].note(split, ios, bytes)
    }

    /// Counts an error; the I/O itself is counted by [`IoCell::note`]. For the ring alone (I1).
    #[cold]
    pub fn note_error(&self) {
        // Relaxed, both: one writer (I1).
        self.errors.store(self.errors.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the latency counts of one kind, by the cells of [`Latencies`](sheave_blk::stats::Latencies).
    pub(crate) fn latencies(&self, kind: IoKind) -> impl Iterator<Item = u64> {
        let mut counts = [0; LATENCY_CELLS];
        for tally in self.tallies(kind) {
            counts.iter_mut().zip(tally.latencies()).for_each(|(sum, n)| *sum += n);
        }
        counts.into_iter()
    }

    /// Sets the latency above which I/O of this kind is slow. For the ring alone (I1).
    pub(crate) fn set_slow_above(&self, kind: IoKind, ns: u64) {
        self.tallies(kind).for_each(|tally| tally.set_slow_above(ns));
    }

    /// Returns the latency above which I/O of this kind counts as slow.
    pub fn slow_above_ns(&self, kind: IoKind) -> u64 {
        self.kinds[kind as usize].slow_above_ns()
    }

    /// Returns two tallies of one kind: that of slots, then that of plain records.
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

/// Counts of one kind of I/O.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KindCounts {
    /// Number of I/Os that ended. An I/O over several mappings that went to its device in pieces counts as one.
    pub ios: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Time spent in each stage.
    pub split: SplitCounts,
}

/// A reading of an [`IoGroup`].
#[derive(Clone, Debug, Default)]
pub struct IoCounts {
    kinds: [KindCounts; NR_IO_KINDS],
    errors: u64,
}

impl IoCounts {
    /// Returns the counts of one kind.
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

    /// Returns all counts that are not 0, each with its index, for another process ([`IoCounts::of_numbers`]).
    #[doc(hidden)]
    pub fn numbers(&self) -> Vec<(u32, u64)> {
        let mut all = vec![self.errors];
        for KindCounts { ios, bytes, split } in &self.kinds {
            all.extend([*ios, *bytes, split.time_ns]);
            all.extend(split.latency.iter().chain(&split.stage_ns).chain(split.stages.iter().flatten()));
        }
        (0..).zip(all).filter(|(_, number)| *number > 0).collect()
    }

    /// Returns the counts of another process. Numbers whose index means nothing here are passed over.
    #[doc(hidden)]
    pub fn of_numbers(numbers: &[(u32, u64)]) -> IoCounts {
        let mut counts = IoCounts::default();
        let mut places: Vec<&mut u64> = vec![&mut counts.errors];
        for KindCounts { ios, bytes, split } in &mut counts.kinds {
            places.extend([ios, bytes, &mut split.time_ns]);
            places.extend(split.latency.iter_mut().chain(&mut split.stage_ns).chain(split.stages.iter_mut().flatten()));
        }
        for (at, number) in numbers {
            if let Some(place) = places.get_mut(*at as usize) {
                **place = *number;
            }
        }
        counts
    }

    /// Returns the number of I/Os that ended with an error.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Returns the number of I/Os of all kinds.
    pub fn ios(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.ios).sum()
    }
}

#[derive(Debug, Default)]
struct Members {
    cells: Vec<Arc<IoCell>>,
    /// Counts of all cells that have been dropped.
    gone: Option<Box<IoCounts>>,
}

/// Cells of one file, or of one ring.
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

    /// Returns a number that is unique among the groups of the process; [`SlowIo::file`] refers to it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the slow I/Os on this file that are kept by the rings that have it open, the oldest first. Callable from
    /// any thread.
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

    /// Returns the counts so far. Callable from any thread.
    pub fn counts(&self) -> IoCounts {
        let members = self.members();
        let mut sum = members.gone.as_deref().cloned().unwrap_or_default();
        members.cells.iter().for_each(|cell| cell.read(&mut sum));
        sum
    }

    /// Adds counts of another process, whose work this one continues.
    #[doc(hidden)]
    pub fn carry(&self, counts: &IoCounts) {
        self.members().gone.get_or_insert_default().add(counts);
    }

    fn leave(&self, cell: &Arc<IoCell>) {
        let mut members = self.members();
        if let Some(at) = members.cells.iter().position(|have| Arc::ptr_eq(have, cell)) {
            members.cells.swap_remove(at);
            cell.read(members.gone.get_or_insert_default());
        }
    }
}

/// Statistics of a ring, passed to each file that it opens: the group of its cells, and its flight recorder.
#[derive(Clone, Debug)]
pub struct RingIo {
    pub group: Arc<IoGroup>,
    pub recorder: Arc<FlightRecorder>,
}

/// Membership of a ring's cell in its groups, until dropped.
#[derive(Debug)]
pub struct IoSeat {
    cell: Arc<IoCell>,
    groups: Vec<Arc<IoGroup>>,
}

impl IoSeat {
    /// Makes a cell in `groups`, with the counts of plain records if there are any, and the ring's recorder.
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

    /// Returns the cell, for the ring to count in.
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
mod tests {
    use super::*;
    use sheave_blk::stats::{LATENCY_CELLS, STAGE_CELLS, Stage};

    fn split(plugged_ns: u64, driver_ns: u64) -> Split {
        Split { plugged_ns, driver_ns, ..Split::default() }
    }

    #[test]
    fn what_a_cell_counts_is_in_the_readings_of_its_groups() {
        let (file, ring) = (Arc::new(IoGroup::default()), Arc::new(IoGroup::default()));
        let seat = IoSeat::new(None, None, [file.clone(), ring.clone()]);
        let other = IoSeat::new(None, None, [ring.clone()]);
        (0..4).for_each(|_| assert!(!seat.cell().note(IoKind::Read, &split(10, 90), 512)));
        seat.cell().note(IoKind::Write, &split(0, 70), 4096);
        seat.cell().note_error();
        other.cell().note(IoKind::Read, &split(0, 50), 512);
        let reads = file.counts().kind(IoKind::Read).clone();
        assert_eq!((reads.ios, reads.bytes, reads.split.time_ns), (4, 2048, 400));
        assert_eq!((reads.split.ns(Stage::Plugged), reads.split.ns(Stage::Driver)), (40, 360));
        let writes = file.counts().kind(IoKind::Write).clone();
        assert_eq!((writes.ios, writes.bytes, writes.split.time_ns), (1, 4096, 70));
        assert_eq!(ring.counts().kind(IoKind::Read).ios, 5, "of both files");
        assert_eq!((ring.counts().ios(), file.counts().errors()), (6, 1));
    }

    #[test]
    fn a_cell_that_goes_leaves_its_counts() {
        let group = Arc::new(IoGroup::default());
        for round in 1..=3 {
            let seat = IoSeat::new(None, None, [group.clone()]);
            (0..2).for_each(|_| assert!(!seat.cell().note(IoKind::Other, &split(1, 2), 0)));
            assert_eq!(group.counts().kind(IoKind::Other).ios, 2 * round, "while it is there");
            drop(seat);
            assert_eq!(group.counts().kind(IoKind::Other).ios, 2 * round, "and when it has gone");
        }
        assert_eq!(group.counts().kind(IoKind::Other).split.time_ns, 18);
        assert!(group.members().cells.is_empty());
    }

    #[test]
    fn a_cell_takes_no_more_than_its_pages_say() {
        // docs/operate/observe.md states this cost, per open file and ring.
        let readings = NR_IO_KINDS * 4 * LATENCY_CELLS * 4;
        let histograms = (NR_IO_KINDS + 2) * (LATENCY_CELLS + 5 * STAGE_CELLS) * 8;
        let all = readings + histograms + size_of::<IoCell>() + size_of::<RecordStats>();
        assert!(all <= 39 << 10, "{all} bytes");
    }
}
