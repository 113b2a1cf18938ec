//! When the next answer is due, by times of the test's.

use super::*;

const MS: Duration = Duration::from_millis(1);

#[test]
fn after_an_answer_others_have_twice_its_time_unless_they_have_nothing_to_do() {
    let mut questions = Questions::default();
    let now = Instant::now();
    assert_eq!(questions.due_in(|| now), None);
    (1..=2).for_each(|conn| questions.wait(conn));
    assert_eq!(questions.take(), Some(1));
    questions.answered(now, now + 3 * MS);
    questions.wait(1);
    assert_eq!(questions.due_in(|| now + 3 * MS), Some(Duration::ZERO), "nobody has anything to do");
    questions.comes_for(1);
    assert_eq!(questions.due_in(|| now + 3 * MS), Some(Duration::ZERO), "who waits for an answer does nothing else");
    questions.comes_for(3);
    assert_eq!(questions.due_in(|| now + 3 * MS), Some(6 * MS), "Q2");
    assert_eq!(questions.due_in(|| now + 9 * MS), Some(Duration::ZERO));
    questions.forget(2);
    questions.answered(now, now);
    assert_eq!((questions.take(), questions.take()), (Some(1), None));
}

#[test]
fn a_backend_that_is_very_slow_is_not_waited_for_as_long() {
    let mut questions = Questions::default();
    let now = Instant::now();
    questions.wait(1);
    questions.answered(now, now + 1000 * MS);
    questions.comes_for(2);
    assert_eq!(questions.due_in(|| now + 1000 * MS), Some(2 * MOST));
}
