//! The count on one thread: calls that wake and calls that do not.

use super::WakeCount;

#[test]
fn each_result_wakes_until_an_owner_sleeps_for_several_and_again_when_it_is_awake() {
    let count = WakeCount::new();
    assert!(count.is_due(1) && count.is_due(1));
    count.sleep_until(3);
    assert_eq!([1, 1, 1].map(|results| count.is_due(results)), [false, false, true]);
    assert!(count.is_due(1), "more than were wanted");
    count.awake();
    assert!(count.is_due(1));
}

#[test]
fn results_that_come_together_count_together() {
    let count = WakeCount::new();
    count.sleep_until(4);
    assert_eq!([3, 3].map(|results| count.is_due(results)), [false, true]);
}
