//! What a ring keeps of the times of its I/O on files: the clock, and the times of a slot.
//!
//! Owns the state; `count` fills it and counts.

use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::sync::Arc;
use sheave_blk::stats::Split;
use sheave_iomap::io_stats::RingIo;
use sheave_iomap::slow::FlightRecorder;

/// What a ring with statistics has for them.
#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) ring: RingIo,
    pub(crate) clock: Clock,
    /// That of the bio which ends now.
    pub(crate) bio: Split,
    /// The file that is looked at next.
    pub(crate) next_file: usize,
}

impl Times {
    pub(crate) fn new(clock: Clock, slow_limit: Duration) -> Times {
        let recorder = Arc::new(FlightRecorder::new(clock.clone(), slow_limit));
        Times { ring: RingIo { group: Arc::default(), recorder }, clock, bio: Split::default(), next_file: 0 }
    }
}

/// The times of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotTimes {
    /// So far.
    pub(crate) split: Split,
    /// Since when a worker has it, or it waits for one.
    pub(crate) with_worker: Option<CoarseTs>,
}

impl SlotTimes {
    pub(crate) fn leave_worker(&mut self, now: CoarseTs) {
        if let Some(since) = self.with_worker.take() {
            self.split.worker_ns += now.ns_since(since);
        }
    }
}
