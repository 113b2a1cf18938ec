//! One thread's I/O: a ring, the loop of `sheave bench` around it, and the blocks that it takes.
//!
//! Owns nothing of an arm but the loop; an arm has one for each thread that submits. Called on the thread that made it.

use std::sync::Arc;

use hdrhistogram::Histogram;
use sheave::Ring;
use sheave_load::looper::{Driven, Lane, Looper, Until};
use sheave_load::pace::Pace;
use sheave_load::pattern::Pattern;
use sheave_load::sheave_engine::{EngineOpts, SheaveEngine};

use crate::experiment::{Lab, TurnEnd};
use crate::{LabError, Point};

/// How the engine of an experiment is set up at a point, in all arms that ask for nothing else.
pub fn opts(point: &Point, poll: bool) -> EngineOpts {
    EngineOpts { depth: point.depth, bs: point.bs, poll, stats: true, fixed_buffers: true, dsync: false, ioprio: 0 }
}

/// The loop of one thread.
pub struct Drive<E = SheaveEngine> {
    looper: Looper<E>,
    pattern: Pattern,
    /// The pattern as it began.
    first: Pattern,
    lane: Arc<Lane>,
}

impl<E: Driven> Drive<E> {
    /// A loop over the first `bytes` of what the engine is attached to, as the point says.
    pub fn new(engine: E, point: &Point, bytes: u64, seed: u64) -> Drive<E> {
        let lane = Arc::new(Lane::default());
        let blocks = (bytes / u64::from(point.bs)).max(1);
        let pattern = Pattern::new(point.rw, 50, 0, point.bs, blocks, seed);
        Drive {
            looper: Looper::new(engine, point.depth, point.batch, 0, lane.clone()),
            first: pattern.clone(),
            pattern,
            lane,
        }
    }

    /// Runs until then; how many I/Os. Their latencies are counted since the last [`Drive::reset`].
    pub fn run(&mut self, until: &Until) -> Result<u64, LabError> {
        let before = self.looper.counts().ios;
        self.looper.run(&mut self.pattern, until, &mut Pace::Unlimited)?;
        match self.looper.first_error() {
            None => Ok(self.looper.counts().ios - before),
            Some(error) => {
                let what = if error.write { "write" } else { "read" };
                Err(LabError::run(format!("a {what} at byte {} ended with {}", error.offset, error.result)))
            }
        }
    }

    /// Takes the blocks from the first on again.
    pub fn rewind(&mut self) {
        self.pattern = self.first.clone();
    }

    /// Begins to count anew.
    pub fn reset(&mut self) {
        self.looper.reset();
    }

    /// Adds the latencies to a histogram of [`sheave_load::live::report_histogram`].
    pub fn add_latency(&self, into: &mut Histogram<u64>) {
        sheave_load::live::merge(&self.lane.latency, into);
    }

    /// The engine, between turns.
    pub fn engine(&self) -> &E {
        &self.looper.engine
    }
}

impl Drive {
    /// The ring, between turns.
    pub fn ring(&self) -> &Ring {
        self.engine().ring()
    }
}

/// What `end` means for one of `threads` loops.
pub fn until(lab: &Lab, end: TurnEnd, threads: u32) -> Until {
    let (runtime, ios) = match end {
        TurnEnd::Time(time) => (Some(time), u64::MAX),
        TurnEnd::Ios(ios) => (None, ios.div_ceil(u64::from(threads.max(1)))),
    };
    Until { runtime, ios, stop: lab.stop.clone() }
}
