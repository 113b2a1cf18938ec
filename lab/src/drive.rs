//! The I/O of one thread: a ring, the loop of `sheave bench` around it, and the pattern of its blocks.
//!
//! An arm has one drive for each submitting thread, and uses it on the thread that made it.

use std::sync::Arc;

use hdrhistogram::Histogram;
use sheave::Ring;
use sheave_load::looper::{Driven, Lane, Looper, Until};
use sheave_load::pace::Pace;
use sheave_load::pattern::Pattern;
use sheave_load::sheave_engine::{EngineOpts, SheaveEngine};

use crate::experiment::{Lab, TurnEnd};
use crate::{LabError, Point};

/// Returns the options of an engine at a point. Arms without options of their own use these.
pub fn opts(point: &Point, poll: bool) -> EngineOpts {
    EngineOpts { depth: point.depth, bs: point.bs, poll, stats: true, fixed_buffers: true, dsync: false, ioprio: 0 }
}

pub struct Drive<E = SheaveEngine> {
    looper: Looper<E>,
    pattern: Pattern,
    /// The pattern in its first state, for `rewind`.
    first: Pattern,
    lane: Arc<Lane>,
}

impl<E: Driven> Drive<E> {
    /// Makes a loop over the first `bytes` of the device or file that the engine has open.
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

    /// Runs until a limit is reached. Returns the number of I/Os done. Their latencies add to those since the last
    /// [`Drive::reset`].
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

    /// Starts again at the first block of the pattern.
    pub fn rewind(&mut self) {
        self.pattern = self.first.clone();
    }

    /// Resets counts and latencies.
    pub fn reset(&mut self) {
        self.looper.reset();
    }

    /// Adds the latencies to a histogram that [`sheave_load::live::report_histogram`] has made.
    pub fn add_latency(&self, into: &mut Histogram<u64>) {
        sheave_load::live::merge(&self.lane.latency, into);
    }

    pub fn engine(&self) -> &E {
        &self.looper.engine
    }
}

impl Drive {
    pub fn ring(&self) -> &Ring {
        self.engine().ring()
    }
}

/// Translates the end of a turn into the limit of one of `threads` loops.
pub fn until(lab: &Lab, end: TurnEnd, threads: u32) -> Until {
    let (runtime, ios) = match end {
        TurnEnd::Time(time) => (Some(time), u64::MAX),
        TurnEnd::Ios(ios) => (None, ios.div_ceil(u64::from(threads.max(1)))),
    };
    Until { runtime, ios, stop: lab.stop.clone() }
}
