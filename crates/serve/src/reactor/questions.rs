//! Questions for the status of a range (BLOCK_STATUS), which a backend answers on the reactor's thread, but for those
//! that take I/O: these begin here, and a [thread](crate::serial_thread) of the export answers them.
//!
//! Owns whose turn it is, and when. Answers are given in slices of the thread's time: a question for several contexts
//! is answered one context at a time, as many as fit into a slice, and those of several clients in turn. A slice ends
//! when its replies were given to the kernel, which often takes longer than to find them.
//!
//! Invariants:
//! - Q1. A slice ends with the answer that exceeds it; between two slices the reactor takes what has come for other
//!   connections.
//! - Q2. While others have something to do, none begins after a slice before the thread has worked [`WORK`] times as
//!   long for others as the slice took, or [`WALL`] times as long has gone by, which is so where others leave the
//!   thread idle. Who asks nothing but such questions is none of these others.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sheave_nbd::session::Request;

/// Time of a slice. A request of another client waits for one at most.
const SLICE: Duration = Duration::from_micros(50);
/// Work for others between two slices, by the time of the first.
const WORK: u32 = 2;
/// Time between two slices, by the time of the first, at most.
const WALL: u32 = 5;
/// A slice that takes longer than this is waited for no longer than if it took this: a backend that is that slow is
/// not made any slower.
const MOST: Duration = Duration::from_millis(20);
/// Slices in a row without anything for others, after which the others have nothing to do: a client that sends its next
/// request when it has the reply to the last one has none at the end of every second slice.
const ALONE: u8 = 2;

/// A question that is being answered, and the contexts that are left, a bit for each number. Nothing else of the client
/// is looked at meanwhile; nor does it wait for its next answer while many of its replies are still to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) left: u32,
    pub(super) turn: Turn,
}

/// How far a question has come with the first of the contexts that are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is not among those that wait.
    Out,
    /// It is among those that wait, or is answered now.
    Waits,
    /// The thread of the export has it.
    Reads,
}

/// A time on the clock, and the time that the thread had worked by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    at: Instant,
    worked: Duration,
}

impl Moment {
    /// Now, on this thread.
    pub(super) fn now() -> Moment {
        let worked = clock_gettime(ClockId::ThreadCPUTime);
        Moment { at: Instant::now(), worked: Duration::try_from(worked).unwrap_or_default() }
    }
}

/// The connections that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Questions {
    waiting: VecDeque<usize>,
    /// When the slice began whose replies are on their way to the kernel.
    begun: Option<Instant>,
    /// When the last slice has ended, and how long it took, at most [`MOST`].
    last: Option<(Moment, Duration)>,
    /// Slices in which something may come for others before they count as idle.
    others: u8,
}

impl Questions {
    /// A connection has a question, or more of one.
    pub(super) fn wait(&mut self, conn: usize) {
        self.waiting.push_back(conn);
    }

    /// A connection has no question any more.
    pub(super) fn forget(&mut self, conn: usize) {
        self.waiting.retain(|other| *other != conn);
    }

    /// Something has come for a connection that is no question.
    pub(super) fn others_have_work(&mut self) {
        self.others = ALONE;
    }

    /// Whether others count as having something to do.
    #[cfg(test)]
    pub(super) fn have_others_work(&self) -> bool {
        self.others > 0
    }

    /// How long the wait for what comes may take at most, if somebody waits for an answer, or replies for their way.
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

    /// Whether a slice begins (Q2).
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

    /// Whose question is answered next in the slice that has begun.
    pub(super) fn next(&mut self) -> Option<usize> {
        self.waiting.pop_front()
    }

    /// Whether there is time for one more answer in the slice that has begun.
    pub(super) fn has_time(&self, now: Instant) -> bool {
        self.begun.is_some_and(|begun| now < begun + SLICE)
    }

    /// What was given to the kernel has been taken: the slice ends, if there was one.
    pub(super) fn sent(&mut self, now: impl FnOnce() -> Moment) {
        if let Some(begun) = self.begun.take() {
            let end = now();
            self.last = Some((end, end.at.saturating_duration_since(begun).min(MOST)));
        }
    }
}

#[cfg(test)]
mod tests;
