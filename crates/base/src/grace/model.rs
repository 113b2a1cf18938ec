//! Graces under a model checker: space is not reused under an I/O, in any interleaving and, with loom, with any stale
//! value that weak memory allows.

use super::*;
use crate::model::explore;
use crate::sync::atomic::AtomicBool;
use crate::sync::thread;

/// A mapping to one of several places, and the places that were freed.
struct Space {
    grace: Arc<Grace>,
    map: AtomicU64,
    gone: Vec<AtomicBool>,
    /// Data written by I/Os, by place.
    written: Vec<AtomicU64>,
}

impl Space {
    fn new(places: usize) -> Arc<Space> {
        Arc::new(Space {
            grace: Arc::new(Grace::new()),
            map: AtomicU64::new(0),
            gone: (0..places).map(|_| AtomicBool::new(false)).collect(),
            written: (0..places).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// One batch of a ring: a lookup, and the I/O that uses it.
    fn lookup(&self, seat: &Seat) -> (usize, Phase) {
        seat.enter();
        // Relaxed: only the grace orders it.
        let place = self.map.load(Ordering::Relaxed) as usize;
        let phase = seat.count();
        seat.leave();
        (place, phase)
    }

    /// Executes the I/O as the device, and uncounts it as the ring.
    fn end(&self, seat: &Seat, (place, phase): (usize, Phase)) {
        assert!(!self.gone[place].load(Ordering::Relaxed), "an I/O to space that was given away");
        self.written[place].fetch_add(1, Ordering::Relaxed);
        seat.uncount(phase);
    }

    /// Changes the mapping, and frees the old place after a grace.
    fn move_on(&self, from: usize) {
        self.map.store(from as u64 + 1, Ordering::Relaxed);
        let ticket = self.grace.start();
        assert!(self.grace.wait(ticket, Duration::MAX));
        self.gone[from].store(true, Ordering::Relaxed);
        let written = self.written[from].load(Ordering::Relaxed);
        thread::yield_now();
        assert_eq!(self.written[from].load(Ordering::Relaxed), written, "who is told it is over sees all of it");
    }
}

#[test]
fn model_space_is_not_given_away_under_an_io() {
    explore("one lookup against one grace", || {
        let space = Space::new(2);
        let (seat, other) = (Grace::seat(&space.grace), Arc::clone(&space));
        let ring = thread::spawn(move || {
            let io = other.lookup(&seat);
            other.end(&seat, io);
        });
        space.move_on(0);
        ring.join().unwrap();
    });
}

#[test]
fn model_stragglers_of_an_older_phase_are_waited_for() {
    explore("a straggler against two graces", || {
        let space = Space::new(3);
        let (seat, other) = (Grace::seat(&space.grace), Arc::clone(&space));
        let ring = thread::spawn(move || {
            let io = other.lookup(&seat);
            other.end(&seat, io);
        });
        space.move_on(0);
        space.move_on(1);
        ring.join().unwrap();
    });
}

#[cfg(not(loom))]
#[test]
fn model_rings_go_on_while_two_files_wait() {
    explore("two rings, two who wait", || {
        let space = Space::new(3);
        let mut threads = Vec::new();
        for _ in 0..2 {
            let (seat, space) = (Grace::seat(&space.grace), Arc::clone(&space));
            threads.push(thread::spawn(move || {
                let first = space.lookup(&seat);
                let second = space.lookup(&seat);
                space.end(&seat, first);
                let third = space.lookup(&seat);
                space.end(&seat, second);
                space.end(&seat, third);
            }));
        }
        let asker = Arc::clone(&space);
        threads.push(thread::spawn(move || {
            // A second thread advances the same periods.
            let ticket = asker.grace.start();
            while !asker.grace.is_over(ticket) {
                thread::yield_now();
            }
        }));
        space.move_on(0);
        space.move_on(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(space.grace.is_over(space.grace.start()));
    });
}

#[cfg(not(loom))]
#[test]
fn model_a_seat_that_goes_in_mid_io_ends_the_wait() {
    explore("a dropped seat", || {
        let space = Space::new(2);
        let seat = Grace::seat(&space.grace);
        let io = space.lookup(&seat);
        let other = Arc::clone(&space);
        let waiter = thread::spawn(move || other.move_on(0));
        assert!(!space.gone[io.0].load(Ordering::Relaxed), "not before its I/O has ended");
        drop(seat);
        waiter.join().unwrap();
    });
}
