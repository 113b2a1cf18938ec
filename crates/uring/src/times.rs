//! Times of a ring's I/O on files: the clock, and the times of a slot.
//!
//! Owns the state; the functions that measure and count are in `count`.

use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::sync::Arc;
use sheave_blk::stats::Split;
use sheave_iomap::io_stats::RingIo;
use sheave_iomap::slow::FlightRecorder;

/// State of a ring's statistics.
#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) ring: RingIo,
    pub(crate) clock: Clock,
    /// Times of the bio that ends now.
    pub(crate) bio: Split,
    /// File for the next `Core::look_at_files`.
    pub(crate) next_file: usize,
}

impl Times {
    pub(crate) fn new(clock: Clock, slow_limit: Duration) -> Times {
        let recorder = Arc::new(FlightRecorder::new(clock.clone(), slow_limit));
        Times { ring: RingIo { group: Arc::default(), recorder }, clock, bio: Split::default(), next_file: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotTimes {
    /// Sum of the times so far.
    pub(crate) split: Split,
    /// Start of the current time with a worker, the wait for one included.
    pub(crate) with_worker: Option<CoarseTs>,
}

impl SlotTimes {
    pub(crate) fn leave_worker(&mut self, now: CoarseTs) {
        if let Some(since) = self.with_worker.take() {
            self.split.worker_ns += now.ns_since(since);
        }
    }
}
