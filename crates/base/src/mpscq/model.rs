//! The queue under a model checker: no node is lost or doubled, producers keep their order, payloads arrive.

use super::*;
use crate::model::explore;
use crate::sync::thread;

/// Runs producers that push their nodes. Returns the number of times that they found the queue empty.
fn spawn_producers(queue: &MpscQueue, nodes: &[&[u32]]) -> Vec<thread::JoinHandle<u32>> {
    nodes
        .iter()
        .map(|nodes| {
            let (queue, nodes) = (queue.clone(), nodes.to_vec());
            thread::spawn(move || nodes.into_iter().map(|node| u32::from(queue.push(node))).sum())
        })
        .collect()
}

fn join(threads: Vec<thread::JoinHandle<u32>>) -> u32 {
    threads.into_iter().map(|thread| thread.join().expect("thread")).sum()
}

/// Checks that each node came once, and the nodes of each producer in their order.
fn check_order(popped: &[u32], nodes: &[&[u32]]) {
    assert_eq!(popped.len(), nodes.iter().map(|nodes| nodes.len()).sum::<usize>(), "{popped:?}");
    for nodes in nodes {
        let of_one: Vec<_> = popped.iter().filter(|node| nodes.contains(node)).copied().collect();
        assert_eq!(of_one, *nodes, "lost, doubled or out of order: {popped:?}");
    }
}

/// Runs producers beside a consumer that pops a few times and takes the rest when they have ended.
fn race(nodes: &'static [&'static [u32]], pops: u32) {
    let (queue, mut consumer) = MpscQueue::new(8);
    let producers = spawn_producers(&queue, nodes);
    let mut popped: Vec<_> = (0..pops).filter_map(|_| consumer.pop()).collect();
    let found_empty = join(producers);
    assert!(found_empty >= 1, "somebody was the first");
    assert!(found_empty <= 1 + popped.len() as u32, "the queue was empty once more for each pop");
    // While no push is under way, `None` does mean empty.
    while let Some(node) = consumer.pop() {
        popped.push(node);
    }
    assert!(consumer.is_empty());
    check_order(&popped, nodes);
}

#[test]
fn model_two_producers_lose_nothing_and_keep_their_order() {
    explore("two producers", || race(&[&[0, 1], &[2]], 2));
}

#[cfg(not(loom))] // Too many schedules for all of them.
#[test]
fn model_three_producers_lose_nothing_and_keep_their_order() {
    explore("three producers", || race(&[&[0, 1, 2], &[3, 4], &[5, 6, 7]], 6));
}

#[test]
fn model_the_last_node_is_taken_against_a_push() {
    explore("last node", || {
        let (queue, mut consumer) = MpscQueue::new(2);
        queue.push(0);
        let producer = spawn_producers(&queue, &[&[1]]);
        let first = consumer.pop();
        let found_empty = join(producer) == 1;
        if found_empty {
            assert_eq!(first, Some(0), "only a pop can have made it empty");
        }
        let rest: Vec<_> = std::iter::from_fn(|| consumer.pop()).collect();
        check_order(&first.into_iter().chain(rest).collect::<Vec<_>>(), &[&[0, 1]]);
    });
}

#[test]
fn model_none_does_not_mean_empty() {
    static IN_BETWEEN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    explore("push under way", || {
        let (queue, mut consumer) = MpscQueue::new(2);
        let producers = spawn_producers(&queue, &[&[0], &[1]]);
        if consumer.pop().is_none() && !consumer.is_empty() {
            IN_BETWEEN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        join(producers);
        assert!(consumer.pop().is_some(), "with no push under way the queue gives what it has");
    });
    let seen = IN_BETWEEN.load(std::sync::atomic::Ordering::Relaxed);
    println!("push under way: seen by the consumer in {seen} schedules");
    assert!(seen > 0, "the model never saw what it is about");
}

#[test]
fn model_a_node_is_pushed_again_by_another_thread() {
    explore("reuse", || {
        let (queue, mut consumer) = MpscQueue::new(3);
        queue.push(0);
        let other = spawn_producers(&queue, &[&[1, 2]]);
        let mut popped = Vec::from_iter(consumer.pop());
        // The node gets a new owner, which is ordered after the consumer by being spawned.
        let again = if popped == [0] { spawn_producers(&queue, &[&[0]]) } else { Vec::new() };
        let pushes = 3 + again.len();
        popped.extend(consumer.pop());
        join(again);
        join(other);
        popped.extend(std::iter::from_fn(|| consumer.pop()));
        assert_eq!(popped.len(), pushes, "{popped:?}");
        popped.retain(|&node| node != 0);
        assert_eq!(popped, [1, 2]);

        assert!(consumer.is_empty());
    });
}

#[cfg(loom)] // A payload that is not atomic: loom reports an access that is not ordered.
#[test]
fn model_the_payload_is_published_with_the_node() {
    use loom::cell::UnsafeCell;
    explore("payload", || {
        let (queue, mut consumer) = MpscQueue::new(2);
        let payload: Arc<[UnsafeCell<u32>; 2]> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let producers: Vec<_> = (0..2)
            .map(|node| {
                let (queue, payload) = (queue.clone(), Arc::clone(&payload));
                thread::spawn(move || {
                    payload[node as usize].with_mut(|_| ());
                    u32::from(queue.push(node))
                })
            })
            .collect();
        for _ in 0..3 {
            if let Some(node) = consumer.pop() {
                payload[node as usize].with_mut(|_| ());
            }
        }
        join(producers);
    });
}

#[test]
fn model_nodes_pushed_together_are_one_push() {
    explore("push_all", || {
        let (queue, mut consumer) = MpscQueue::new(4);
        let together = {
            let queue = queue.clone();
            thread::spawn(move || u32::from(queue.push_all([0, 1, 2])))
        };
        let alone = thread::spawn(move || u32::from(queue.push(3)));
        let mut popped: Vec<_> = (0..2).filter_map(|_| consumer.pop()).collect();
        let found_empty = join(vec![together, alone]);
        assert!((1..=2).contains(&found_empty), "somebody was the first");
        while let Some(node) = consumer.pop() {
            popped.push(node);
        }
        assert!(consumer.is_empty());
        check_order(&popped, &[&[0, 1, 2], &[3]]);
        let at = popped.iter().position(|&node| node == 0).expect("popped");
        assert_eq!(popped[at..at + 3], [0, 1, 2], "nothing comes in between");
    });
}
