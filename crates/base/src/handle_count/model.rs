//! Handles that are dropped while their owner is about to wait for them (H1), and messages sent through them (H2).

use super::*;
use crate::model::explore;
use crate::sync::{Arc, thread};

/// State shared by a ring and another thread: the count, a message, and the wake-up of the ring.
#[derive(Default)]
struct Shared {
    count: HandleCount,
    message: AtomicU32,
}

/// An owner counts while the handles of `handles` other threads are dropped: if it saw one, it is woken. The message is
/// Relaxed, so that only the count orders it.
fn owner_counts(handles: u32) {
    let shared = Arc::new(Shared::default());
    let others: Vec<_> = (0..handles)
        .map(|_| {
            shared.count.add();
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.message.fetch_add(1, Ordering::Relaxed);
                shared.count.gone()
            })
        })
        .collect();
    shared.count.hear();
    let seen = shared.count.count() - 1;
    if seen == 0 {
        let sent = shared.message.load(Ordering::Relaxed);
        assert_eq!(sent, handles, "all have gone, and what they sent is not seen (H2)");
    }
    let woken = others.into_iter().map(|other| u32::from(other.join().expect("no panic"))).sum::<u32>();
    assert!(woken >= seen, "{seen} were seen, and {woken} woke the owner when they went (H1)");
}

#[test]
fn model_an_owner_hears_of_a_handle_that_it_saw() {
    explore("an owner and a handle", || owner_counts(1));
}

#[test]
fn model_an_owner_hears_of_two_handles_that_it_saw() {
    explore("an owner and two handles", || owner_counts(2));
}
