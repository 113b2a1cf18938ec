//! What the threads of a run show to the one that reports: phase, goal, counts and latencies.
//!
//! * I1. The phase changes only while every thread waits at the gate, so that counts belong to one phase; the
//!   reporter may look in between and shows a line that is a moment old.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sheave_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sheave_load::live::{Counts, report_histogram};
use sheave_load::looper::Lane;

/// What the threads are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Opening rings, registering buffers.
    Setup,
    /// Writing the range before the run.
    Fill,
    /// The run.
    Run,
    /// Turns of both sides.
    Compare,
    /// Reading back what was written.
    ReadBack,
}

impl Phase {
    /// For the progress line.
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

/// What ends a phase, for the bar and its ETA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A number of I/Os.
    Ios(u64),
    /// A time.
    Time(Duration),
}

/// A phase, since when, and what ends it.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// The phase.
    pub phase: Phase,
    /// Its end.
    pub goal: Goal,
    /// Its start.
    pub since: Instant,
    /// Counts up with each stage.
    pub number: u32,
}

/// Shared by the threads of a run and the reporter.
pub struct Board {
    lanes: Vec<Arc<Lane>>,
    stage: Mutex<Stage>,
    /// Pairs of turns done, for comparisons.
    pub pairs_done: AtomicU64,
    turns: Mutex<Turns>,
}

/// Of a comparison: the time of our turns that have ended, and since when one goes on.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    ended: Duration,
    since: Option<Instant>,
}

impl Board {
    /// A board with a lane a thread.
    pub fn new(threads: u32) -> Self {
        let stage = Stage { phase: Phase::Setup, goal: Goal::Ios(0), since: Instant::now(), number: 0 };
        Self {
            lanes: (0..threads).map(|_| Arc::new(Lane::default())).collect(),
            stage: Mutex::new(stage),
            pairs_done: AtomicU64::new(0),
            turns: Mutex::default(),
        }
    }

    /// A thread's lane.
    pub fn lane(&self, index: u32) -> Arc<Lane> {
        Arc::clone(&self.lanes[index as usize])
    }

    /// A new phase begins (I1).
    pub fn enter(&self, phase: Phase, goal: Goal) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = Stage { phase, goal, since: Instant::now(), number: stage.number + 1 };
    }

    /// The current stage.
    pub fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Our turn of a comparison begins.
    pub fn turn_begins(&self) {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).since = Some(Instant::now());
    }

    /// It has ended; theirs is next.
    pub fn turn_ends(&self) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let took = turns.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        turns.ended += took;
    }

    /// For how long the counts of this stage have been counted: in a comparison our turns alone count.
    pub fn counted_for(&self) -> Duration {
        let stage = self.stage();
        if stage.phase != Phase::Compare {
            return stage.since.elapsed();
        }
        let turns = *self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.ended + turns.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// A comparison has done one more pair of turns.
    pub fn pair_done(&self) {
        // Relaxed: shown, nothing depends on it.
        self.pairs_done.fetch_add(1, Relaxed);
    }

    /// All lanes together.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for lane in &self.lanes {
            sum += lane.counters.snapshot();
        }
        sum
    }

    /// Latencies of all lanes.
    pub fn latency(&self) -> Histogram<u64> {
        let mut report = report_histogram();
        for lane in &self.lanes {
            sheave_load::live::merge(&lane.latency, &mut report);
        }
        report
    }
}
