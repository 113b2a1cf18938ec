//! Foreign threads that give bios back, against the owner that takes, shares and splices.

use sheave_base::sync::thread;

use super::{TURNS, explore};
use crate::bio_set::{BioSet, RESERVE};

#[test]
fn model_a_shared_bio_is_live_until_both_have_let_it_go() {
    explore(|| {
        let mut set = BioSet::new(2, 2);
        let id = set.take().expect("free");
        let generation = set[id].generation();
        let foreign = set.share(id).expect("not shared yet");
        let other = thread::spawn(move || {
            thread::yield_now();
            drop(foreign);
        });
        set.put(id);
        let mut spliced = 0;
        for _ in 0..TURNS {
            let live = set.is_live(id, generation);
            assert_eq!(live, spliced == 0, "live as long as the other thread's reference has not come back");
            spliced += set.splice_returns();
            if spliced > 0 {
                break;
            }
            thread::yield_now();
        }
        other.join().expect("thread");
        assert_eq!((spliced, set.live(), set.splice_returns()), (1, 0, 0), "one reference came back, once");
        assert!(!set.is_live(id, generation), "a late look finds a bio of another generation");
    });
}

#[test]
fn model_foreign_puts_lose_and_double_nothing() {
    const ROUNDS: u32 = 3;
    explore(|| {
        let mut set = BioSet::new(2, 2);
        let mut threads = Vec::new();
        let mut spliced = 0;
        for _ in 0..ROUNDS {
            // At most two are away, so that one must have come back for the third: the set gives it when it has.
            let id = (0..TURNS).find_map(|_| {
                spliced += set.splice_returns();
                let id = set.take();
                if id.is_none() {
                    thread::yield_now();
                }
                id
            });
            let id = id.expect("a bio comes back");
            let foreign = set.share(id).expect("a fresh bio is not shared");
            assert!(set.share(id).is_none(), "one foreign reference at a time");
            threads.push(thread::spawn(move || drop(foreign)));
            set.put(id);
            assert!(set.live() <= 2);
        }
        for thread in threads {
            thread.join().expect("thread");
        }
        set.splice_returns();
        assert_eq!((set.live(), set.available(), set.reserved()), (0, 2, RESERVE), "all are back, none twice");
    });
}
