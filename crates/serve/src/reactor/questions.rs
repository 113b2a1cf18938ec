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
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A clock of a thread's time and CPU time.
    struct Clock {
        start: Instant,
        now: Moment,
    }

    impl Clock {
        fn new() -> Clock {
            let start = Instant::now();
            Clock { start, now: Moment { at: start, worked: Duration::ZERO } }
        }

        /// Lets the thread work, and then sleep.
        fn goes_on(&mut self, works: Duration, sleeps: Duration) {
            self.now.at += works + sleeps;
            self.now.worked += works;
        }

        /// Returns the latest time at which the next slice is due, since the start.
        fn due(&self, questions: &Questions) -> Option<Duration> {
            questions.due_in(|| self.now.at).map(|after| self.now.at - self.start + after)
        }
    }

    /// Runs a slice that takes `takes`, in which the first in line is answered.
    fn slice(questions: &mut Questions, clock: &mut Clock, takes: Duration) -> Option<usize> {
        let begins = questions.begin(|| clock.now);
        let answered = begins.then(|| questions.next().expect("it begins for somebody"));
        clock.goes_on(takes, Duration::ZERO);
        questions.sent(|| clock.now);
        answered
    }

    #[test]
    fn after_a_slice_others_have_twice_its_work_unless_they_have_nothing_to_do() {
        let (mut questions, mut clock) = (Questions::default(), Clock::new());
        assert_eq!(clock.due(&questions), None);
        (1..=5).for_each(|conn| questions.wait(conn));
        assert_eq!(slice(&mut questions, &mut clock, 3 * MS), Some(1));
        assert_eq!(slice(&mut questions, &mut clock, 3 * MS), Some(2), "nobody else has anything to do");
        questions.others_have_work();
        assert_eq!(clock.due(&questions), Some((6 + 15) * MS), "Q2");
        clock.goes_on(5 * MS, 9 * MS);
        assert!(
            !questions.begin(|| clock.now),
            "others have had less than 6 ms of the thread, in less than 15 ms (Q2)"
        );
        clock.goes_on(MS, Duration::ZERO);
        assert_eq!(slice(&mut questions, &mut clock, 2 * MS), Some(3), "others have had 6 ms");
        // No event arrives for the others in this slice, perhaps because they have not received their replies yet.
        assert!(!questions.begin(|| clock.now));
        clock.goes_on(Duration::ZERO, 10 * MS);
        assert_eq!(slice(&mut questions, &mut clock, 2 * MS), Some(4), "10 ms have gone by");
        assert_eq!(slice(&mut questions, &mut clock, 2 * MS), Some(5), "nothing has come in two slices");
        assert_eq!(slice(&mut questions, &mut clock, 2 * MS), None);
    }

    #[test]
    fn a_slice_lasts_until_its_replies_are_sent() {
        let (mut questions, mut clock) = (Questions::default(), Clock::new());
        (1..=2).for_each(|conn| questions.wait(conn));
        questions.others_have_work();
        assert!(questions.begin(|| clock.now));
        assert_eq!(questions.next(), Some(1));
        clock.goes_on(SLICE - SLICE / 4, Duration::ZERO);
        assert!(questions.has_time(clock.now.at));
        clock.goes_on(SLICE / 4, Duration::ZERO);
        assert!(!questions.has_time(clock.now.at), "Q1");
        assert_eq!(questions.due_in(|| clock.now.at), Some(Duration::ZERO), "the replies are sent at once");
        clock.goes_on(3 * SLICE, Duration::ZERO);
        questions.sent(|| clock.now);
        assert_eq!(questions.due_in(|| clock.now.at), Some(WALL * 4 * SLICE));
        clock.goes_on(WORK * 4 * SLICE - Duration::from_nanos(1), Duration::ZERO);
        assert!(!questions.begin(|| clock.now), "what is sent counts (Q2)");
        questions.forget(2);
        clock.goes_on(MS, Duration::ZERO);
        assert!(!questions.begin(|| clock.now), "nobody waits");
        assert_eq!(clock.due(&questions), None);
    }

    #[test]
    fn a_backend_that_is_very_slow_is_not_waited_for_as_long() {
        let (mut questions, mut clock) = (Questions::default(), Clock::new());
        (1..=2).for_each(|conn| questions.wait(conn));
        assert_eq!(slice(&mut questions, &mut clock, 1000 * MS), Some(1));
        questions.others_have_work();
        assert_eq!(questions.due_in(|| clock.now.at), Some(WALL * MOST));
        clock.goes_on(WORK * MOST, Duration::ZERO);
        assert!(questions.begin(|| clock.now));
    }

    #[test]
    fn moment_counts_the_cpu_time_of_the_calling_thread() {
        let before = Moment::now();
        let mut sum = 0u64;
        while Moment::now().worked == before.worked {
            sum = std::hint::black_box(sum + 1);
        }
        let (woken, from) = (Moment::now(), Instant::now());
        std::thread::sleep(20 * MS);
        let after = Moment::now();
        assert!(after.at - from >= 20 * MS);
        assert!(after.worked - woken.worked < after.at - from, "sleeping is no work");
    }
}
