//! The count, and the wake-up of the owner.

use super::*;

#[test]
fn a_dropped_handle_wakes_only_a_waiting_owner() {
    let count = HandleCount::default();
    assert_eq!(count.count(), 1);
    count.add();
    count.add();
    assert_eq!(count.count(), 3);
    assert!(!count.gone(), "nobody listens");
    count.hear();
    assert!(count.gone());
    count.deaf();
    count.add();
    assert!(!count.gone(), "nor any more");
    assert_eq!(count.count(), 1);
}
