//! Every transition from every state.

use super::*;

#[test]
fn an_item_goes_round() {
    let items = Items::new(2, 5);
    assert!(items.is_idle(0) && items.is_idle(1));
    let generation = items.queue(0).expect("idle");
    assert_eq!(generation, 6);
    assert_eq!(items.queue(0), None, "queued already");
    assert!(items.is_queued(0, 6) && !items.is_queued(0, 5) && !items.is_queued(9, 6));
    assert!(!items.start(0, 5), "an entry of an earlier use");
    assert!(items.start(0, 6) && !items.start(0, 6));
    assert_eq!(items.queue(0), None, "running");
    assert!(!items.is_cancelled(0));
    assert_eq!(items.cancel(0), Cancelled::Running);
    assert!(items.is_cancelled(0));
    items.end(0, 6);
    assert!(items.is_idle(0) && !items.is_cancelled(0));
    assert_eq!(items.cancel(0), Cancelled::NotFound);
    assert_eq!(items.queue(0), Some(7));
    assert_eq!(items.next_generation(), 8);
}

#[test]
fn an_entry_left_behind_by_a_cancel_starts_nothing() {
    let items = Items::new(1, 0);
    let first = items.queue(0).expect("idle");
    assert_eq!(items.cancel(0), Cancelled::Queued);
    assert_eq!(items.cancel(0), Cancelled::NotFound);
    assert!(!items.start(0, first));
    let second = items.queue(0).expect("idle");
    assert!(!items.start(0, first), "of the first use");
    assert!(items.start(0, second));
    assert!(!items.start(7, second), "no such slot");
}

#[test]
fn generations_wrap() {
    let last = u32::MAX >> STATE_BITS;
    let items = Items::new(1, last);
    assert_eq!(items.queue(0), Some(0));
    assert!(items.start(0, 0));
}
