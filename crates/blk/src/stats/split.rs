//! Where the time of an I/O goes: the stages, the split of one I/O, and the counts of many.
//!
//! Owns the arithmetic of a split and the histograms of one kind of I/O. Does not read the clock: the stamps come from
//! who makes them, a hardware context for what the block layer sees, the owner of the I/O for its workers.
//!
//! Invariants:
//! - S1: the parts of a split add up to the latency, whatever the stamps are: each stamp counts no earlier than the one
//!   before it.
//! - S2: one writer, with plain loads and stores; a count costs no more for many I/Os that share a split than for one.
//! - S3: a stage's histogram counts the I/Os that spent time there.

use sheave_base::clock::CoarseTs;
use sheave_base::histogram::{Histogram, cells};
use sheave_base::sync::atomic::Ordering;
use sheave_base::sync::count::AtomicU64;

/// Counts, for the only writer.
#[inline]
pub(super) fn add(cell: &AtomicU64, n: u64) {
    // Relaxed: single writer (S2); readers want each number by itself.
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Where the time of an I/O goes, in the order in which it passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// With a worker, or waiting for one: work before the data (a mapping, space, a copy), and after it.
    Worker = 0,
    /// Waiting to be let in: for a tag, for room in the driver, or for a closed gate to open.
    Tag = 1,
    /// Gathered with others of its batch.
    Plugged = 2,
    /// In the hands of the driver, or of its device.
    Driver = 3,
    /// Ended by the device, while the ring did not look.
    Reap = 4,
}

/// How many stages there are.
pub const NR_STAGES: usize = 5;

impl Stage {
    /// Every stage, in the order of its value.
    pub const ALL: [Stage; NR_STAGES] = [Stage::Worker, Stage::Tag, Stage::Plugged, Stage::Driver, Stage::Reap];

    /// Lower-case name for reports.
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

/// Where the time of an I/O went, in ns.
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
    /// Of a request that was issued at `start`, `sent` to its driver, `ended` by its device and reaped `now` (S1).
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

    /// All of it in the driver.
    #[inline(always)]
    pub(crate) fn in_driver(ns: u64) -> Split {
        Split { driver_ns: ns, ..Split::default() }
    }

    /// The time in one stage.
    pub fn ns(&self, stage: Stage) -> u64 {
        match stage {
            Stage::Worker => self.worker_ns,
            Stage::Tag => self.tag_ns,
            Stage::Plugged => self.plugged_ns,
            Stage::Driver => self.driver_ns,
            Stage::Reap => self.reap_ns,
        }
    }

    /// The latency: all stages together.
    #[inline(always)]
    pub fn total_ns(&self) -> u64 {
        self.around_driver_ns() + self.driver_ns
    }

    /// All stages but the driver.
    #[inline(always)]
    fn around_driver_ns(&self) -> u64 {
        self.worker_ns + self.tag_ns + self.plugged_ns + self.reap_ns
    }

    /// Goes through these stages, too.
    pub fn add(&mut self, other: &Split) {
        self.worker_ns += other.worker_ns;
        self.tag_ns += other.tag_ns;
        self.plugged_ns += other.plugged_ns;
        self.driver_ns += other.driver_ns;
        self.reap_ns += other.reap_ns;
    }

    /// The stage that took longest; of equals the first.
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

/// Latencies in ns, by cells: eight to a power of two, up to 2^36 ns (69 s). What took longer counts in the last one.
pub type Latencies = Histogram<3, { cells(3, 36) }>;
/// The cells of [`Latencies`].
pub const LATENCY_CELLS: usize = cells(3, 36);

/// Times in one stage in ns, by cells: two to a power of two, up to 2^36 ns (69 s).
pub type StageTimes = Histogram<1, { cells(1, 36) }>;
/// The cells of [`StageTimes`].
pub const STAGE_CELLS: usize = cells(1, 36);

/// The cells of the latencies, then those of each stage.
const CELLS: usize = LATENCY_CELLS + NR_STAGES * STAGE_CELLS;

/// Where the cells of a stage begin.
const fn first_cell(stage: Stage) -> usize {
    LATENCY_CELLS + stage as usize * STAGE_CELLS
}

/// The cells, on lines of their own: whoever else has a part of a line would slow their writer.
#[derive(Debug)]
#[repr(align(64))]
struct Cells([AtomicU64; CELLS]);

/// The splits of I/Os of one kind: one writer, any readers.
#[derive(Debug)]
pub(super) struct SplitStats {
    time_ns: AtomicU64,
    /// By stage; the driver's is what is left of `time_ns`.
    stage_ns: [AtomicU64; NR_STAGES],
    // One array for all, so that a count looks for one place. Boxed: a model checker's stacks are small.
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

    /// The latencies, by the cells of [`Latencies`].
    pub fn latencies(&self) -> impl Iterator<Item = u64> {
        // Relaxed: see `add`.
        self.cells.0[..LATENCY_CELLS].iter().map(|cell| cell.load(Ordering::Relaxed))
    }

    /// Adds what was counted to `into`.
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
        // A reader may see the parts of a batch and not yet its whole.
        into.stage_ns[Stage::Driver as usize] += time_ns.saturating_sub(around_ns);
        self.latencies().zip(&mut into.latency).for_each(|(n, sum)| *sum += n);
        let stages = &self.cells.0[LATENCY_CELLS..];
        for (cell, sum) in stages.iter().zip(into.stages.iter_mut().flatten()) {
            *sum += cell.load(Ordering::Relaxed);
        }
    }
}

/// A reading of [`SplitStats`], or the sum of several.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SplitCounts {
    /// Latencies, summed over the I/Os.
    pub time_ns: u64,
    /// I/Os by latency in ns, by the cells of [`Latencies`].
    pub latency: Vec<u64>,
    /// Time in each [`Stage`], summed over the I/Os.
    pub stage_ns: [u64; NR_STAGES],
    /// For each [`Stage`] the I/Os that spent time there, by the cells of [`StageTimes`]. The others were not there.
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

    /// I/Os that were counted.
    pub fn ios(&self) -> u64 {
        self.latency.iter().sum()
    }

    /// The time in a stage.
    pub fn ns(&self, stage: Stage) -> u64 {
        self.stage_ns[stage as usize]
    }

    /// The latency in ns below which the fraction `q` (0 to 1) of the I/Os lies: the smallest of its cell.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        quantile_ns(&self.latency, q)
    }
}

/// The latency in ns below which the fraction `q` (0 to 1) of the counts by cells of [`Latencies`] lies: the smallest
/// of its cell, 0 where nothing was counted.
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
