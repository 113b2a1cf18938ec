//! State that the threads of a run share with the progress display: phase, goal, counts and latencies.
//!
//! * I1. The phase changes only while every thread waits at the gate, so that counts belong to one phase. The display
//!   may read the state at any time, and may show one that is a moment old.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sheave_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sheave_load::live::{Counts, report_histogram};
use sheave_load::looper::Lane;

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Rings are set up and buffers registered.
    Setup,
    /// The range is written before the run.
    Fill,
    /// The measured run.
    Run,
    /// Turns of both sides alternate.
    Compare,
    /// The blocks that were written are read back.
    ReadBack,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Fill => "fill",
            Self::Run => "run",
            Self::Compare => "compare",
            Self::ReadBack => "read back",
        }
    }
}

/// End of a phase. The bar and the estimate of the remaining time are computed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The phase ends after this number of I/Os.
    Ios(u64),
    /// The phase ends after this time.
    Time(Duration),
}

/// A phase with its start and end.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    pub phase: Phase,
    pub goal: Goal,
    pub since: Instant,
    /// Number of the stage, which increases by one with each stage.
    pub number: u32,
}

/// Shared by the threads of a run and the progress display.
pub struct Board {
    lanes: Vec<Arc<Lane>>,
    stage: Mutex<Stage>,
    /// Number of pairs of turns that a comparison has completed.
    pub pairs_done: AtomicU64,
    turns: Mutex<Turns>,
}

/// Total time of our completed turns in a comparison, and start of the current one.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    ended: Duration,
    since: Option<Instant>,
}

impl Board {
    /// Makes a board for this number of threads, with a lane for each.
    pub fn new(threads: u32) -> Self {
        let stage = Stage { phase: Phase::Setup, goal: Goal::Ios(0), since: Instant::now(), number: 0 };
        Self {
            lanes: (0..threads).map(|_| Arc::new(Lane::default())).collect(),
            stage: Mutex::new(stage),
            pairs_done: AtomicU64::new(0),
            turns: Mutex::default(),
        }
    }

    pub fn lane(&self, index: u32) -> Arc<Lane> {
        Arc::clone(&self.lanes[index as usize])
    }

    /// Begins a new phase (I1).
    pub fn enter(&self, phase: Phase, goal: Goal) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = Stage { phase, goal, since: Instant::now(), number: stage.number + 1 };
    }

    pub fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins our turn of a comparison.
    pub fn turn_begins(&self) {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).since = Some(Instant::now());
    }

    /// Ends our turn; the other side is next.
    pub fn turn_ends(&self) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let took = turns.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        turns.ended += took;
    }

    /// Returns the time during which the counts of this stage were collected. In a comparison, only our turns count.
    pub fn counted_for(&self) -> Duration {
        let stage = self.stage();
        if stage.phase != Phase::Compare {
            return stage.since.elapsed();
        }
        let turns = *self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.ended + turns.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Counts a completed pair of turns.
    pub fn pair_done(&self) {
        // Relaxed: the number is only shown.
        self.pairs_done.fetch_add(1, Relaxed);
    }

    /// Returns the sum of the counts of all lanes.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for lane in &self.lanes {
            sum += lane.counters.snapshot();
        }
        sum
    }

    /// Returns the latencies of all lanes together.
    pub fn latency(&self) -> Histogram<u64> {
        let mut report = report_histogram();
        for lane in &self.lanes {
            sheave_load::live::merge(&lane.latency, &mut report);
        }
        report
    }
}
