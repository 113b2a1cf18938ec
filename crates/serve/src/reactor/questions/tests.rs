//! Times at which the next slice begins, by a clock that the test advances.

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
    assert!(!questions.begin(|| clock.now), "others have had less than 6 ms of the thread, in less than 15 ms (Q2)");
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
fn a_moment_has_the_work_of_its_thread() {
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
