//! Questions about the status of a range (BLOCK_STATUS). A backend answers them on the reactor's thread; those that
//! take I/O begin here, and a [thread](crate::serial_thread) of the export answers them.
//!
//! Decides which question is answered next, and when. Answers are given in slices of the thread's time: a question for
//! several contexts is answered one context at a time, as many as fit into a slice, and several clients take turns. A
//! slice ends when its replies were given to the kernel, which often takes longer than finding them.
//!
//! Invariants:
//! - Q1. A slice ends with the answer that exceeds it. Between two slices the reactor handles the events of other
//!   connections.
//! - Q2. While other clients have something to do, the next slice waits until the thread has worked [`WORK`] times as
//!   long for them as the last slice took. It waits for [`WALL`] times as long at most, since the others may leave the
//!   thread idle. Clients that ask nothing but such questions do not count as others.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sheave_nbd::session::Request;

/// Length of a slice. It is also the longest time that a request of another client waits for one.
const SLICE: Duration = Duration::from_micros(50);
/// CPU time for others between two slices, as a multiple of the first slice's time.
const WORK: u32 = 2;
/// Longest time between two slices, as a multiple of the first slice's time.
const WALL: u32 = 5;
/// Upper limit of a slice's time in those products, so that a slow backend is not made slower still.
const MOST: Duration = Duration::from_millis(20);
/// Slices in a row without events for others, after which others count as idle. A client that sends its next request on
/// receiving a reply has no event at the end of every second slice.
const ALONE: u8 = 2;

/// A question that is being answered. `left` has a bit for each context that is left. Meanwhile no other request of the
/// client is parsed; nor is the next context answered while many of its replies are still to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) left: u32,
    pub(super) turn: Turn,
}

/// State of a question with the first of the contexts that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Not in line.
    Out,
    /// In line, or being answered.
    Waits,
    /// Given to the export's thread.
    Reads,
}

/// A point in time: on the clock, and as CPU time of the thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    at: Instant,
    worked: Duration,
}

impl Moment {
    /// Returns the current time, and the CPU time of the calling thread.
    pub(super) fn now() -> Moment {
        let worked = clock_gettime(ClockId::ThreadCPUTime);
        Moment { at: Instant::now(), worked: Duration::try_from(worked).unwrap_or_default() }
    }
}

/// The line of connections that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Questions {
    waiting: VecDeque<usize>,
    /// Begin of the slice that is open: its replies are not with the kernel yet.
    begun: Option<Instant>,
    /// End of the last slice, and its time, at most [`MOST`].
    last: Option<(Moment, Duration)>,
    /// Slices left until others count as idle.
    others: u8,
}

impl Questions {
    /// Puts a connection in line for an answer.
    pub(super) fn wait(&mut self, conn: usize) {
        self.waiting.push_back(conn);
    }

    /// Removes a connection from the line.
    pub(super) fn forget(&mut self, conn: usize) {
        self.waiting.retain(|other| *other != conn);
    }

    /// Records that there was an event other than a question.
    pub(super) fn others_have_work(&mut self) {
        self.others = ALONE;
    }

    /// Returns true if others count as having something to do.
    #[cfg(test)]
    pub(super) fn have_others_work(&self) -> bool {
        self.others > 0
    }

    /// Returns the longest time that the reactor may wait for events, if a question waits or a slice is open.
    pub(super) fn due_in(&self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        if self.begun.is_some() {
            return Some(Duration::ZERO);
        }
        if self.waiting.is_empty() {
            return None;
        }
        let last = self.last.filter(|_| self.others > 0);
        Some(last.map_or(Duration::ZERO, |(end, took)| (end.at + WALL * took).saturating_duration_since(now())))
    }

    /// Begins a slice if one is due (Q2). Returns true if it did.
    pub(super) fn begin(&mut self, now: impl FnOnce() -> Moment) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let now = now();
        if let Some((end, took)) = self.last.filter(|_| self.others > 0) {
            let worked = now.worked.saturating_sub(end.worked);
            if worked < WORK * took && now.at < end.at + WALL * took {
                return false;
            }
        }
        self.others = self.others.saturating_sub(1);
        self.begun = Some(now.at);
        true
    }

    /// Returns the connection whose question is answered next in the open slice.
    pub(super) fn next(&mut self) -> Option<usize> {
        self.waiting.pop_front()
    }

    /// Returns true if the open slice has time for one more answer.
    pub(super) fn has_time(&self, now: Instant) -> bool {
        self.begun.is_some_and(|begun| now < begun + SLICE)
    }

    /// Called when the kernel has taken everything that was prepared. Ends the open slice, if there is one.
    pub(super) fn sent(&mut self, now: impl FnOnce() -> Moment) {
        if let Some(begun) = self.begun.take() {
            let end = now();
            self.last = Some((end, end.at.saturating_duration_since(begun).min(MOST)));
        }
    }
}

#[cfg(test)]
mod tests;
