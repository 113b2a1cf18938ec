//! The queue on one thread against a plain queue, and on real threads.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::sync::thread;

#[test]
fn nodes_come_out_in_order_and_can_be_pushed_again() {
    let (queue, mut consumer) = MpscQueue::new(3);
    assert_eq!(queue.capacity(), 3);
    for _ in 0..3 {
        assert_eq!(consumer.pop(), None);
        assert!(queue.is_empty_hint() && consumer.is_empty());
        assert!(queue.push(0), "empty: wake");
        assert!(!queue.push(2), "not empty: somebody has woken");
        assert_eq!(consumer.pop(), Some(0));
        assert!(!queue.push(1) && !queue.push(0));
        assert_eq!(consumer.pop(), Some(2));
        assert_eq!(consumer.pop(), Some(1));
        assert!(!consumer.is_empty() && !queue.is_empty_hint());
        assert_eq!(consumer.pop(), Some(0));
    }
}

#[test]
#[should_panic(expected = "below the capacity")]
fn a_node_past_the_capacity_is_refused() {
    MpscQueue::new(3).0.push(3);
}

#[test]
#[should_panic(expected = "at most")]
fn a_capacity_past_the_index_space_is_refused() {
    let _ = MpscQueue::new(u32::MAX);
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
#[should_panic(expected = "while it was queued")]
fn a_node_pushed_twice_in_a_row_panics_in_debug_builds() {
    let (queue, _consumer) = MpscQueue::new(3);
    queue.push(1);
    queue.push(1);
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
#[should_panic(expected = "while it was queued")]
fn a_node_pushed_while_queued_panics_in_debug_builds() {
    let (queue, _consumer) = MpscQueue::new(3);
    queue.push(1);
    queue.push(2);
    queue.push(1);
}

#[test]
fn real_threads_lose_and_double_nothing() {
    const PRODUCERS: u32 = 3;
    const EACH: u32 = 20_000;
    let (queue, mut consumer) = MpscQueue::new(PRODUCERS * EACH);
    let mut popped = Vec::new();
    thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let queue = queue.clone();
            scope.spawn(move || {
                for node in producer * EACH..(producer + 1) * EACH {
                    queue.push(node);
                }
            });
        }
        while popped.len() < (PRODUCERS * EACH) as usize {
            match consumer.pop() {
                Some(node) => popped.push(node),
                None => thread::yield_now(),
            }
        }
    });
    assert!(consumer.is_empty() && consumer.pop().is_none());
    for producer in 0..PRODUCERS {
        let of_one = popped.iter().filter(|&&node| node / EACH == producer).copied();
        assert!(of_one.eq(producer * EACH..(producer + 1) * EACH), "producer {producer}");
    }
}

proptest! {
    #[test]
    fn behaves_like_a_plain_queue(capacity in 1_u32..20, pushes in prop::collection::vec(any::<bool>(), 1..300)) {
        let (queue, mut consumer) = MpscQueue::new(capacity);
        let mut plain = VecDeque::new();
        let mut free: VecDeque<u32> = (0..capacity).collect();
        for push in pushes {
            match free.pop_front() {
                Some(node) if push => {
                    prop_assert_eq!(queue.push(node), plain.is_empty());
                    plain.push_back(node);
                }
                spare => {
                    free.extend(spare);
                    let node = consumer.pop();
                    prop_assert_eq!(node, plain.pop_front());
                    free.extend(node);
                }
            }
            prop_assert_eq!(consumer.is_empty(), plain.is_empty());
            prop_assert_eq!(queue.is_empty_hint(), plain.is_empty());
        }
    }
}

#[test]
fn nodes_pushed_together_come_out_in_order_and_among_others() {
    let (queue, mut consumer) = MpscQueue::new(8);
    assert!(!queue.push_all([]), "nothing was pushed");
    assert!(consumer.is_empty());
    assert!(queue.push_all([3, 1, 2]), "it was empty");
    assert!(!queue.push(7) && !queue.push_all([0]));
    assert_eq!(std::iter::from_fn(|| consumer.pop()).collect::<Vec<_>>(), [3, 1, 2, 7, 0]);
    assert!(consumer.is_empty() && queue.push_all([5]));
    assert_eq!(consumer.pop(), Some(5));
}

#[test]
#[should_panic(expected = "below the capacity")]
fn nodes_pushed_together_are_checked_one_by_one() {
    MpscQueue::new(2).0.push_all([0, 1, 2]);
}
