//! Time of an I/O by stages: the stages, the split of one I/O, and the counts of many.
//!
//! Owns the arithmetic of a split and the histograms of one kind of I/O. Does not read the clock. Stamps come from the
//! hardware context for the stages in the block layer, and from the owner of the I/O for its workers.
//!
//! Invariants:
//! - S1: the parts of a split add up to the latency for any stamps: a stamp earlier than the one before it counts as
//!   equal to it.
//! - S2: one writer, with plain loads and stores. Counting many I/Os with the same split costs no more than counting
//!   one.
//! - S3: a stage's histogram counts only the I/Os that spent time in the stage.

use sheave_base::clock::CoarseTs;
use sheave_base::histogram::{Histogram, cells};
use sheave_base::sync::atomic::Ordering;
use sheave_base::sync::count::AtomicU64;

/// Adds `n` to a counter. For the single writer.
#[inline]
pub(super) fn add(cell: &AtomicU64, n: u64) {
    // Relaxed: single writer (S2); readers want each number by itself.
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Stages of an I/O, in the order in which it passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// With a worker, or waiting for one: work before the data transfer (a mapping, space, a copy) or after it.
    Worker = 0,
    /// Waiting for admission: for a tag, for room in the driver, or for a closed gate to open.
    Tag = 1,
    /// Gathered with other requests of its batch.
    Plugged = 2,
    /// With the driver or its device.
    Driver = 3,
    /// Ended by the device, and not yet found by the ring.
    Reap = 4,
}

/// Number of stages.
pub const NR_STAGES: usize = 5;

impl Stage {
    /// All stages, in the order of their values.
    pub const ALL: [Stage; NR_STAGES] = [Stage::Worker, Stage::Tag, Stage::Plugged, Stage::Driver, Stage::Reap];

    /// Returns the lower-case name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Worker => "worker",
            Stage::Tag => "tag",
            Stage::Plugged => "plugged",
            Stage::Driver => "driver",
            Stage::Reap => "reap",
        }
    }
}

/// Time of one I/O by stage, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// See [`Stage::Worker`].
    pub worker_ns: u64,
    /// See [`Stage::Tag`].
    pub tag_ns: u64,
    /// See [`Stage::Plugged`].
    pub plugged_ns: u64,
    /// See [`Stage::Driver`].
    pub driver_ns: u64,
    /// See [`Stage::Reap`].
    pub reap_ns: u64,
}

impl Split {
    /// Returns the split of a request that was issued at `start`, `sent` to its driver, `ended` by its device and
    /// reaped at `now` (S1).
    #[inline(always)]
    pub(crate) fn between(start: CoarseTs, sent: CoarseTs, ended: CoarseTs, now: CoarseTs) -> Split {
        let now = now.max(start);
        let sent = sent.max(start).min(now);
        let ended = ended.max(sent).min(now);
        Split {
            plugged_ns: sent.0 - start.0,
            driver_ns: ended.0 - sent.0,
            reap_ns: now.0 - ended.0,
            ..Split::default()
        }
    }

    /// Returns a split with all time in the driver.
    #[inline(always)]
    pub(crate) fn in_driver(ns: u64) -> Split {
        Split { driver_ns: ns, ..Split::default() }
    }

    /// Returns the time in one stage.
    pub fn ns(&self, stage: Stage) -> u64 {
        match stage {
            Stage::Worker => self.worker_ns,
            Stage::Tag => self.tag_ns,
            Stage::Plugged => self.plugged_ns,
            Stage::Driver => self.driver_ns,
            Stage::Reap => self.reap_ns,
        }
    }

    /// Returns the latency: the sum over all stages.
    #[inline(always)]
    pub fn total_ns(&self) -> u64 {
        self.around_driver_ns() + self.driver_ns
    }

    /// Returns the time in all stages except the driver.
    #[inline(always)]
    fn around_driver_ns(&self) -> u64 {
        self.worker_ns + self.tag_ns + self.plugged_ns + self.reap_ns
    }

    /// Adds the times of `other`.
    pub fn add(&mut self, other: &Split) {
        self.worker_ns += other.worker_ns;
        self.tag_ns += other.tag_ns;
        self.plugged_ns += other.plugged_ns;
        self.driver_ns += other.driver_ns;
        self.reap_ns += other.reap_ns;
    }

    /// Returns the stage that took longest, the first one if several did.
    pub fn longest(&self) -> Stage {
        let mut longest = Stage::Worker;
        for stage in Stage::ALL {
            if self.ns(stage) > self.ns(longest) {
                longest = stage;
            }
        }
        longest
    }
}

/// Histogram of latencies in ns: eight cells per power of two, up to 2^36 ns (69 s). Longer ones count in the last
/// cell.
pub type Latencies = Histogram<3, { cells(3, 36) }>;
/// Number of cells of [`Latencies`].
pub const LATENCY_CELLS: usize = cells(3, 36);

/// Histogram of times in one stage in ns: two cells per power of two, up to 2^36 ns (69 s).
pub type StageTimes = Histogram<1, { cells(1, 36) }>;
/// Number of cells of [`StageTimes`].
pub const STAGE_CELLS: usize = cells(1, 36);

/// Cells of the latencies, then those of each stage.
const CELLS: usize = LATENCY_CELLS + NR_STAGES * STAGE_CELLS;

const fn first_cell(stage: Stage) -> usize {
    LATENCY_CELLS + stage as usize * STAGE_CELLS
}

/// Aligned to cache lines: data of other writers on the same line would slow this one.
#[derive(Debug)]
#[repr(align(64))]
struct Cells([AtomicU64; CELLS]);

/// Splits of I/Os of one kind: one writer, any readers.
#[derive(Debug)]
pub(super) struct SplitStats {
    time_ns: AtomicU64,
    /// By stage. The driver's entry stays 0; its time is `time_ns` minus the others.
    stage_ns: [AtomicU64; NR_STAGES],
    // One array, so that a count computes one address. Boxed because the stacks of a model checker's threads are small.
    cells: Box<Cells>,
}

impl Default for SplitStats {
    fn default() -> Self {
        let cells = Box::new(Cells(std::array::from_fn(|_| AtomicU64::new(0))));
        SplitStats { time_ns: AtomicU64::new(0), stage_ns: Default::default(), cells }
    }
}

impl SplitStats {
    /// Counts `ios` I/Os that share a split.
    #[inline(always)]
    pub fn note(&self, split: &Split, ios: u64) {
        let latency_ns = split.total_ns();
        add(&self.time_ns, latency_ns * ios);
        add(&self.cells.0[Latencies::cell(latency_ns)], ios);
        if split.driver_ns != 0 {
            self.count_in(Stage::Driver, split.driver_ns, ios);
        }
        if split.plugged_ns != 0 {
            self.add_stage(Stage::Plugged, split.plugged_ns, ios);
        }
        if split.reap_ns != 0 {
            self.add_stage(Stage::Reap, split.reap_ns, ios);
        }
        if split.worker_ns | split.tag_ns != 0 {
            self.note_rare(split.worker_ns, split.tag_ns, ios);
        }
    }

    #[cold]
    fn note_rare(&self, worker_ns: u64, tag_ns: u64, ios: u64) {
        for (stage, ns) in [(Stage::Worker, worker_ns), (Stage::Tag, tag_ns)] {
            if ns != 0 {
                self.add_stage(stage, ns, ios);
            }
        }
    }

    #[inline(always)]
    fn add_stage(&self, stage: Stage, ns: u64, ios: u64) {
        add(&self.stage_ns[stage as usize], ns * ios);
        self.count_in(stage, ns, ios);
    }

    #[inline(always)]
    fn count_in(&self, stage: Stage, ns: u64, ios: u64) {
        add(&self.cells.0[first_cell(stage) + StageTimes::cell(ns)], ios);
    }

    /// Returns the number of I/Os for each cell of [`Latencies`].
    pub fn latencies(&self) -> impl Iterator<Item = u64> {
        // Relaxed: see `add`.
        self.cells.0[..LATENCY_CELLS].iter().map(|cell| cell.load(Ordering::Relaxed))
    }

    /// Adds the counts to `into`.
    pub fn read(&self, into: &mut SplitCounts) {
        // Relaxed, all: see `add`.
        let time_ns = self.time_ns.load(Ordering::Relaxed);
        into.time_ns += time_ns;
        let mut around_ns = 0;
        for (ns, sum) in self.stage_ns.iter().zip(&mut into.stage_ns) {
            let ns = ns.load(Ordering::Relaxed);
            around_ns += ns;
            *sum += ns;
        }
        // Saturating: a reader may see the stages of a batch before its total.
        into.stage_ns[Stage::Driver as usize] += time_ns.saturating_sub(around_ns);
        self.latencies().zip(&mut into.latency).for_each(|(n, sum)| *sum += n);
        let stages = &self.cells.0[LATENCY_CELLS..];
        for (cell, sum) in stages.iter().zip(into.stages.iter_mut().flatten()) {
            *sum += cell.load(Ordering::Relaxed);
        }
    }
}

/// Reading of [`SplitStats`], or the sum of several.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SplitCounts {
    /// Sum of the latencies of all I/Os.
    pub time_ns: u64,
    /// Number of I/Os by latency in ns, for each cell of [`Latencies`].
    pub latency: Vec<u64>,
    /// Sum of the time in each [`Stage`] over all I/Os.
    pub stage_ns: [u64; NR_STAGES],
    /// For each [`Stage`] the number of I/Os that spent time in it, by the cells of [`StageTimes`]. Others are not
    /// counted.
    pub stages: [[u64; STAGE_CELLS]; NR_STAGES],
}

impl Default for SplitCounts {
    fn default() -> SplitCounts {
        SplitCounts {
            time_ns: 0,
            latency: vec![0; LATENCY_CELLS],
            stage_ns: [0; NR_STAGES],
            stages: [[0; STAGE_CELLS]; NR_STAGES],
        }
    }
}

impl SplitCounts {
    /// Adds another reading.
    pub fn add(&mut self, other: &SplitCounts) {
        self.time_ns += other.time_ns;
        self.latency.iter_mut().zip(&other.latency).for_each(|(n, m)| *n += m);
        self.stage_ns.iter_mut().zip(other.stage_ns).for_each(|(n, m)| *n += m);
        self.stages.iter_mut().flatten().zip(other.stages.iter().flatten()).for_each(|(n, m)| *n += m);
    }

    /// Returns the number of I/Os counted.
    pub fn ios(&self) -> u64 {
        self.latency.iter().sum()
    }

    /// Returns the time in a stage.
    pub fn ns(&self, stage: Stage) -> u64 {
        self.stage_ns[stage as usize]
    }

    /// Returns the latency in ns below which the fraction `q` (0 to 1) of the I/Os lies, as the lower bound of its
    /// cell.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        quantile_ns(&self.latency, q)
    }
}

/// Returns the latency in ns below which the fraction `q` (0 to 1) of `counts` (by cells of [`Latencies`]) lies, as the
/// lower bound of its cell; 0 if nothing was counted.
pub fn quantile_ns(counts: &[u64], q: f64) -> u64 {
    let total: u64 = counts.iter().sum();
    let rank = ((total as f64 * q).ceil() as u64).clamp(1, total.max(1));
    let mut seen = 0;
    for (cell, n) in counts.iter().enumerate() {
        seen += n;
        if seen >= rank {
            return *Latencies::values(cell).start();
        }
    }
    0
}
