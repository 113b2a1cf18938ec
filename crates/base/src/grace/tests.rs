//! Tickets on one thread: the seats that hold them up and those that do not; then many real threads.

mod oracle;

use std::cell::RefCell;
use std::rc::Rc;

use super::own::Complete;
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

/// Readers on threads use the current value; the writer poisons the old one after each grace.
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

/// A stand-in for a ring: ends an I/O when it is run.
struct Ring {
    seat: Seat,
    ready: RefCell<Vec<Phase>>,
    runs: Cell<u32>,
    /// Called during its completions, in place of a file.
    within: Box<dyn Fn()>,
}

impl Ring {
    fn new(grace: &Arc<Grace>, ios: usize, within: impl Fn() + 'static) -> Rc<Ring> {
        let seat = Grace::seat(grace);
        seat.enter();
        let ready = RefCell::new((0..ios).map(|_| seat.count()).collect());
        seat.leave();
        Rc::new(Ring { seat, ready, runs: Cell::new(0), within: Box::new(within) })
    }
}

impl Complete for Ring {
    fn complete(&self) {
        self.runs.set(self.runs.get() + 1);
        (self.within)();
        if let Some(phase) = self.ready.borrow_mut().pop() {
            self.seat.uncount(phase);
        }
    }
}

#[test]
fn a_wait_runs_the_rings_of_its_own_thread_and_no_others() {
    let grace = Arc::new(Grace::new());
    let (one, two) = (Ring::new(&grace, 3, || ()), Ring::new(&grace, 1, || ()));
    let registered = (own::register(&one), own::register(&two));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert!(!own::has_own() && !own::complete_own());
            grace.wait(grace.start(), Duration::from_millis(5))
        });
        assert!(!other.join().unwrap(), "who waits elsewhere does not run what is not its own");
    });
    assert_eq!((one.runs.get(), two.runs.get()), (0, 0));
    assert!(own::has_own() && grace.wait(grace.start(), Duration::from_secs(30)));
    assert_eq!((one.seat.in_flight(), two.seat.in_flight()), (0, 0));
    let runs = (one.runs.get(), two.runs.get());
    assert!(runs.0 >= 3 && runs.1 >= 1);
    drop(registered);
    assert!(!own::has_own() && !own::complete_own());
    assert_eq!((one.runs.get(), two.runs.get()), runs, "they have left");
}

#[test]
fn a_wait_in_a_rings_own_completions_runs_no_ring() {
    let grace = Arc::new(Grace::new());
    let inner = Arc::clone(&grace);
    let ring = Ring::new(&grace, 1, move || {
        assert!(!own::has_own() && !own::complete_own());
        assert!(!inner.wait(inner.start(), Duration::from_millis(2)));
    });
    let _registered = own::register(&ring);
    assert!(grace.wait(grace.start(), Duration::from_secs(30)));
    assert_eq!(ring.runs.get(), 1);
    assert!(own::has_own(), "and afterwards they may be run again");
}

#[test]
fn a_ring_that_panics_or_is_gone_stands_in_nobodys_way() {
    let grace = Arc::new(Grace::new());
    let bad = Ring::new(&grace, 0, || panic!("on purpose"));
    let registered = own::register(&bad);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(own::complete_own));
    assert!(caught.is_err() && own::has_own(), "the next wait runs rings again");
    drop(bad);
    assert!(!own::complete_own(), "it is not kept");
    drop(registered);
}

#[test]
fn who_holds_a_grace_up_is_told_with_thread_and_time() {
    let grace = Arc::new(Grace::new());
    let seat = |name: &str| {
        let grace = Arc::clone(&grace);
        let make = move || Grace::seat(&grace);
        std::thread::Builder::new().name(name.into()).spawn(make).unwrap().join().unwrap()
    };
    let (slow, quick, idle) = (seat("slow"), seat("quick"), seat("idle"));
    assert_eq!(grace.holders(), [], "nobody waits");
    for seat in [&slow, &quick, &idle] {
        seat.enter();
    }
    let (old, new) = (slow.count(), quick.count());
    let _ = slow.count();
    for seat in [&slow, &quick, &idle] {
        seat.leave();
    }
    let ticket = grace.start();
    assert!(!grace.is_over(ticket));
    std::thread::sleep(Duration::from_millis(100));
    quick.uncount(new);
    let holders = grace.holders();
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert!(holders[0].thread.starts_with("thread 'slow' (") && holders[0].ios == 2, "{holders:?}");
    assert!(holders[0].held >= Duration::from_millis(100) && holders[0].held < Duration::from_secs(20));
    let text = holders[0].to_string();
    assert!(text.contains("thread 'slow'") && text.contains("2 I/Os"), "{text}");
    slow.uncount(old);
    slow.uncount(old);
    assert!(grace.is_over(ticket) && grace.holders().is_empty());
    // The time starts anew with the next period.
    let begun = Instant::now();
    slow.enter();
    let again = slow.count();
    slow.leave();
    let ticket = grace.start();
    assert!(!grace.is_over(ticket));
    let held = grace.holders()[0].held;
    assert!(held <= begun.elapsed(), "{held:?}");
    slow.uncount(again);
    assert!(grace.is_over(ticket));
}

#[test]
fn graces_do_not_wait_for_each_other() {
    let ((one, busy), (two, _idle)) = (graced(), graced());
    busy.enter();
    let io = busy.count();
    busy.leave();
    let (stuck, free) = (one.start(), two.start());
    assert!(!one.is_over(stuck) && two.is_over(free), "the I/O of one file holds up one file");
    assert_eq!((one.holders().len(), two.holders().len()), (1, 0));
    busy.uncount(io);
    assert!(one.is_over(stuck));
}
