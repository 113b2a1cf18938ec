//! Tickets on one thread: what holds them up and what does not; many threads for real.

use std::time::Instant;

use super::*;

fn graced() -> (Arc<Grace>, Seat) {
    let grace = Arc::new(Grace::new());
    let seat = Grace::seat(&grace);
    (grace, seat)
}

#[test]
fn with_nothing_in_flight_a_ticket_is_over_at_once() {
    let (grace, seat) = graced();
    assert!(grace.is_over(grace.start()));
    seat.enter();
    seat.leave();
    let ticket = grace.start();
    assert!(grace.is_over(ticket) && grace.is_over(ticket), "for ever");
    assert!(grace.is_over(grace.start()));
}

#[test]
fn a_section_and_each_io_of_it_hold_up_tickets_of_before_and_within() {
    let (grace, seat) = graced();
    let early = grace.start();
    assert!(grace.is_over(early));
    seat.enter();
    assert!(seat.is_inside());
    let ticket = grace.start();
    let (a, b) = (seat.count(), seat.count());
    assert!(!grace.is_over(ticket), "the section may still look mappings up");
    seat.leave();
    assert_eq!(seat.in_flight(), 2);
    assert!(!grace.is_over(ticket));
    seat.uncount(a);
    assert!(!grace.is_over(ticket));
    seat.uncount(b);
    assert!(grace.is_over(ticket));
    assert_eq!(seat.in_flight(), 0);
}

#[test]
fn io_that_begins_later_holds_nothing_up_however_much_there_is() {
    let (grace, seat) = graced();
    for round in 0..100 {
        seat.enter();
        let old = seat.count();
        seat.leave();
        let ticket = grace.start();
        assert!(!grace.is_over(ticket), "round {round}");
        let mut later = Vec::new();
        for _ in 0..3 {
            seat.enter();
            later.push(seat.count());
            seat.leave();
        }
        seat.uncount(old);
        assert!(grace.is_over(ticket), "round {round}: three others are in flight");
        later.into_iter().for_each(|phase| seat.uncount(phase));
    }
}

#[test]
fn a_ticket_taken_while_a_period_runs_waits_for_what_that_one_missed() {
    let (grace, seat) = graced();
    seat.enter();
    let old = seat.count();
    seat.leave();
    let first = grace.start();
    assert!(!grace.is_over(first));
    seat.enter();
    let new = seat.count();
    seat.leave();
    let second = grace.start();
    assert!(second > first);
    seat.uncount(old);
    assert!(grace.is_over(first) && !grace.is_over(second));
    seat.uncount(new);
    assert!(grace.is_over(second));
}

#[test]
fn tickets_that_nobody_has_looked_at_share_a_period() {
    let (grace, _seat) = graced();
    let tickets: Vec<Ticket> = (0..10).map(|_| grace.start()).collect();
    assert!(tickets.iter().all(|&ticket| ticket == tickets[0]));
}

#[test]
fn a_seat_that_goes_holds_nothing_up() {
    let (grace, seat) = graced();
    let other = Grace::seat(&grace);
    other.enter();
    let _ = other.count();
    other.leave();
    let ticket = grace.start();
    assert!(!grace.is_over(ticket));
    drop(other);
    assert!(grace.is_over(ticket));
    assert_eq!(grace.seats(), 1);
    drop(seat);
    assert_eq!(grace.seats(), 0);
}

#[test]
fn a_wait_ends_with_its_time_or_with_the_io() {
    let (grace, seat) = graced();
    seat.enter();
    let phase = seat.count();
    seat.leave();
    let ticket = grace.start();
    assert!(!grace.wait(ticket, Duration::ZERO));
    let before = Instant::now();
    assert!(!grace.wait(ticket, Duration::from_millis(20)), "its own thread waits for itself: time ends it");
    assert!(before.elapsed() >= Duration::from_millis(20));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| grace.wait(ticket, Duration::MAX));
        std::thread::sleep(Duration::from_millis(5));
        seat.uncount(phase);
        assert!(waiter.join().unwrap());
    });
    let text = format!("{grace:?} {seat:?}");
    assert!(text.contains("in_flight"), "{text}");
}

#[test]
fn a_phase_is_one_bit() {
    for bit in [false, true] {
        assert_eq!(Phase::from_bit(bit).bit(), bit);
    }
}

/// Readers on threads use the value that is current; the writer poisons the old one after each grace.
#[test]
fn many_readers_never_see_what_was_given_back() {
    const GONE: u64 = u64::MAX;
    let grace = Arc::new(Grace::new());
    let space: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    let (map, stop) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let seat = Grace::seat(&grace);
            scope.spawn({
                let (space, map, stop) = (&space, &map, &stop);
                move || {
                    let mut held = Vec::new();
                    while stop.load(Ordering::Relaxed) == 0 || !held.is_empty() {
                        if held.len() < 4 && stop.load(Ordering::Relaxed) == 0 {
                            seat.enter();
                            held.push((map.load(Ordering::Relaxed), seat.count()));
                            seat.leave();
                        } else {
                            let (at, phase) = held.remove(0);
                            assert_ne!(space[at as usize].load(Ordering::Relaxed), GONE);
                            seat.uncount(phase);
                        }
                    }
                }
            });
        }
        for round in 0..300_u64 {
            let (old, new) = (round % 2, (round + 1) % 2);
            space[new as usize].store(round, Ordering::Relaxed);
            map.store(new, Ordering::Relaxed);
            let ticket = grace.start();
            assert!(grace.wait(ticket, Duration::from_secs(30)));
            space[old as usize].store(GONE, Ordering::Relaxed);
        }
        stop.store(1, Ordering::Relaxed);
    });
}
