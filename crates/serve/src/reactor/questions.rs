//! Questions for the status of a range (BLOCK_STATUS), which a backend answers on the reactor's thread.
//!
//! Owns whose turn it is, and when. A question for several contexts is answered one context at a time, and those of
//! several clients in turn.
//!
//! Invariants:
//! - Q1. Between two answers of a backend the reactor takes what has come for other connections.
//! - Q2. While others have something to do, answers take at most a third of the thread's time: after one, none begins
//!   for twice as long as it took.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sheave_nbd::session::Request;

/// An answer that takes longer than this is waited for no longer than if it took this: a backend that is that slow is
/// not made any slower.
const MOST: Duration = Duration::from_millis(20);

/// A question that is being answered, and the contexts that are left, a bit for each number. Nothing else of the client
/// is looked at meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) request: Request,
    pub(super) left: u32,
}

/// The connections that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Questions {
    waiting: VecDeque<usize>,
    /// When the next may be answered, while others have something to do.
    after: Option<Instant>,
    /// Others had something to do since the last answer.
    are_others: bool,
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

    /// Something has come for a connection: one that waits for its answer has nothing else to do.
    pub(super) fn comes_for(&mut self, conn: usize) {
        self.are_others |= !self.waiting.is_empty() && !self.waiting.contains(&conn);
    }

    /// How long the next answer has to wait, if somebody waits for one.
    pub(super) fn due_in(&self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        if self.waiting.is_empty() {
            return None;
        }
        let after = self.after.filter(|_| self.are_others);
        Some(after.map_or(Duration::ZERO, |after| after.saturating_duration_since(now())))
    }

    /// Whose question is answered now.
    pub(super) fn take(&mut self) -> Option<usize> {
        if self.due_in(Instant::now)? > Duration::ZERO {
            return None;
        }
        self.waiting.pop_front()
    }

    /// An answer was given, which was begun then.
    pub(super) fn answered(&mut self, begun: Instant, now: Instant) {
        self.after = Some(now + 2 * now.saturating_duration_since(begun).min(MOST));
        self.are_others = false;
    }
}

#[cfg(test)]
mod tests;
