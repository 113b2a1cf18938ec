//! The bitmap under a model checker: one owner per tag, no tag lost, the lowest bits, exact when quiet.

use super::*;
use crate::model::explore;
use crate::sync::atomic::AtomicU32;
use crate::sync::{Arc, thread};

/// A bitmap with a record of each tag's owner, which the owners keep and not the bitmap.
struct Owned {
    map: Sbitmap,
    owners: Vec<AtomicU32>,
}

impl Owned {
    fn new(depth: u32) -> Arc<Self> {
        let owners = (0..depth).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { map: Sbitmap::new(depth), owners })
    }

    /// Takes up to `want` tags for `who`, and checks that they had no owner.
    fn take(&self, who: u32, hint: &mut u32, want: u32) -> Option<(u32, u64)> {
        let (first, mask) = self.map.get_batch(hint, want)?;
        assert!(mask != 0 && mask.count_ones() <= want, "{mask:#b} for {want}");
        for tag in tags(first, mask) {
            let before = self.owners[tag as usize].swap(who, Ordering::Relaxed);
            assert_eq!(before, 0, "tag {tag} granted to {who} while {before} owns it");
        }
        Some((first, mask))
    }

    /// Frees the tags of `who`.
    fn put(&self, who: u32, (first, mask): (u32, u64)) {
        for tag in tags(first, mask) {
            let before = self.owners[tag as usize].swap(0, Ordering::Relaxed);
            assert_eq!(before, who, "tag {tag} of {who} was taken by {before}");
        }
        self.map.clear_batch(first, mask);
    }

    /// Checks, with no thread at work, that the weight is the number of owned tags, and that each other tag can be
    /// taken.
    fn check_quiet(&self) {
        let held = self.owners.iter().filter(|owner| owner.load(Ordering::Relaxed) != 0).count() as u32;
        assert_eq!(self.map.weight(), held);
        let mut free = 0;
        while let Some((_, mask)) = self.map.get_batch(&mut 0, WORD_BITS) {
            free += mask.count_ones();
        }
        assert_eq!(free + held, self.map.depth(), "a tag was lost");
    }
}

fn tags(first: u32, mask: u64) -> impl Iterator<Item = u32> {
    (0..WORD_BITS).filter(move |bit| mask >> bit & 1 == 1).map(move |bit| first + bit)
}

fn spawn(
    owned: &Arc<Owned>,
    threads: u32,
    body: impl Fn(&Owned, u32) + Copy + Send + 'static,
) -> Vec<thread::JoinHandle<()>> {
    (1..=threads)
        .map(|who| {
            let owned = Arc::clone(owned);
            thread::spawn(move || body(&owned, who))
        })
        .collect()
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("thread");
    }
}

#[test]
fn model_a_tag_has_one_owner() {
    explore("one owner", || {
        let owned = Owned::new(3);
        let threads = spawn(&owned, 2, |owned, who| {
            let first = owned.take(who, &mut 0, 2);
            first.into_iter().for_each(|batch| owned.put(who, batch));
            let second = owned.take(who, &mut 0, 2);
            second.into_iter().for_each(|batch| owned.put(who, batch));
        });
        join(threads);
        owned.check_quiet();
    });
}

#[cfg(not(loom))] // Too many schedules for all of them.
#[test]
fn model_many_threads_over_two_words() {
    explore("two words", || {
        let owned = Owned::new(67);
        // Fills the first word, so that the threads compete for freed tags and for the three tags of the second word.
        let filled = owned.take(9, &mut 0, 62).expect("free");
        let threads = spawn(&owned, 4, |owned, who| {
            let mut hint = who;
            for want in 1..=3 {
                if let Some(batch) = owned.take(who, &mut hint, want) {
                    owned.put(who, batch);
                }
            }
        });
        owned.put(9, filled);
        join(threads);
        owned.check_quiet();
    });
}

#[test]
fn model_the_weight_is_what_is_live() {
    explore("weight", || {
        let owned = Owned::new(4);
        let threads = spawn(&owned, 2, |owned, who| {
            let (first, mask) = owned.take(who, &mut 0, 2).expect("two each");
            let kept = mask & mask.wrapping_neg();
            if mask != kept {
                owned.put(who, (first, mask ^ kept));
            }
        });
        join(threads);
        assert_eq!(owned.map.weight(), 2);
        owned.check_quiet();
    });
}

#[test]
fn model_grants_leave_no_gap() {
    explore("lowest bits", || {
        let owned = Owned::new(9);
        let threads = spawn(&owned, 2, |owned, who| {
            let (_, mask) = owned.take(who, &mut 0, 2).expect("free");
            assert_eq!(mask.count_ones(), 2, "nine tags are enough for both");
        });
        join(threads);
        assert_eq!(owned.map.busy(0), 0b1111, "with nothing freed the lowest bits are taken");
    });
}

#[test]
fn model_a_freed_tag_is_granted_again() {
    explore("granted again", || {
        let owned = Owned::new(1);
        let held = owned.take(9, &mut 0, 1).expect("free");
        let threads = spawn(&owned, 2, |owned, who| {
            // One of the two may run too early, or find the other at work.
            if let Some(batch) = owned.take(who, &mut 0, 1) {
                owned.put(who, batch);
            }
        });
        owned.put(9, held);
        join(threads);
        assert_eq!(owned.map.get(&mut 0), Some(0));
        assert_eq!(owned.map.get(&mut 0), None);
    });
}

#[cfg(not(loom))] // Waits in a loop, which has no bounded number of schedules.
#[test]
fn model_who_waits_for_a_tag_gets_one() {
    explore("waiting", || {
        let owned = Owned::new(2);
        let threads = spawn(&owned, 4, |owned, who| {
            let batch = loop {
                match owned.take(who, &mut 0, 2) {
                    Some(batch) => break batch,
                    None => thread::yield_now(),
                }
            };
            owned.put(who, batch);
        });
        join(threads);
        owned.check_quiet();
    });
}

#[test]
fn model_a_reader_misses_no_live_tag() {
    explore("reader", || {
        let owned = Owned::new(3);
        // Granted, freed, and granted again while `cleared` is folded: the reader must not take the old free for one of
        // the new owner.
        let old = owned.take(9, &mut 0, 3).expect("free");
        owned.put(9, old);
        let held = owned.take(9, &mut 0, 1).expect("free");
        let threads = spawn(&owned, 1, |owned, who| {
            if let Some(batch) = owned.take(who, &mut 0, 2) {
                owned.put(who, batch);
            }
            owned.take(who, &mut 0, 2);
        });
        let busy = owned.map.busy(0);
        assert_eq!(busy & held.1, held.1, "{busy:#b} misses a tag that is live all the time");
        assert!(owned.map.weight() <= owned.map.depth());
        join(threads);
        owned.check_quiet();
    });
}

#[cfg(loom)] // A payload that is not atomic: loom reports an access that is not ordered.
#[test]
fn model_the_next_owner_sees_what_the_last_one_wrote() {
    explore("hand over", || {
        let shared = Arc::new((Sbitmap::new(1), loom::cell::UnsafeCell::new(0)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for _ in 0..2 {
                        if shared.0.get(&mut 0).is_some() {
                            shared.1.with_mut(|_| ());
                            shared.0.clear_batch(0, 1);
                        }
                    }
                })
            })
            .collect();
        join(threads);
    });
}
