//! The walk by itself: requests that it notes and forgets, and times that go back or overflow.

use super::*;
use crate::bio::BioId;

const TIMEOUT: Duration = Duration::from_millis(100);

fn at(ms: u64) -> PreciseTs {
    PreciseTs(ms * 1_000_000)
}

/// Makes three requests and the flush request; those named in `live` have bios.
fn requests(live: &[usize]) -> Vec<Request> {
    let mut rqs: Vec<Request> = (0..4).map(|_| Request::unused()).collect();
    live.iter().for_each(|&tag| rqs[tag].bio_head = BioId(7));
    rqs
}

#[test]
fn is_due_four_times_a_timeout() {
    let mut walk = TimeoutWalk::new(TIMEOUT, 3);
    assert!(walk.is_due(at(0)), "the first walk notes what is there");
    walk.walk(at(0), &requests(&[]), false);
    assert!(!walk.is_due(at(24)) && walk.is_due(at(25)));
    assert_eq!(walk.next_walk(), at(25));
    // A tiny timeout does not make the ring walk all the time.
    let mut walk = TimeoutWalk::new(Duration::from_nanos(1), 3);
    walk.walk(at(0), &requests(&[]), false);
    assert_eq!(walk.next_walk(), at(1));
}

#[test]
fn notes_first_and_calls_later() {
    let mut walk = TimeoutWalk::new(TIMEOUT, 3);
    let rqs = requests(&[0, 2]);
    assert!(walk.walk(at(10), &rqs, false).is_empty());
    assert!(walk.walk(at(109), &rqs, false).is_empty());
    assert_eq!(walk.walk(at(110), &rqs, false), [0, 2]);
    assert!(walk.walk(at(209), &rqs, false).is_empty(), "again only after another timeout");
    assert_eq!(walk.walk(at(210), &rqs, false), [0, 2]);
}

#[test]
fn a_new_use_of_the_tag_is_another_request() {
    let mut walk = TimeoutWalk::new(TIMEOUT, 3);
    let mut rqs = requests(&[0, 1]);
    walk.walk(at(0), &rqs, false);
    rqs[0].generation += 1;
    assert_eq!(walk.walk(at(100), &rqs, false), [1]);
    assert_eq!(walk.walk(at(200), &rqs, false), [0, 1]);
    // Gone and back with the same generation (it wraps): noted anew, because a walk saw that it was gone.
    rqs[0].bio_head = BioId::NONE;
    walk.walk(at(250), &rqs, false);
    rqs[0].bio_head = BioId(1);
    walk.walk(at(280), &rqs, false);
    assert_eq!(walk.walk(at(300), &rqs, false), [1]);
}

#[test]
fn the_flush_request_counts_while_it_runs() {
    let mut walk = TimeoutWalk::new(TIMEOUT, 3);
    let rqs = requests(&[]);
    walk.walk(at(0), &rqs, true);
    assert!(walk.walk(at(100), &rqs, false).is_empty());
    walk.walk(at(200), &rqs, true);
    assert_eq!(walk.walk(at(300), &rqs, true), [3]);
}

#[test]
fn time_that_goes_back_or_to_its_end_is_harmless() {
    let mut walk = TimeoutWalk::new(Duration::MAX, 3);
    let rqs = requests(&[1]);
    walk.walk(at(1000), &rqs, false);
    assert!(walk.walk(at(10), &rqs, false).is_empty());
    assert!(walk.walk(PreciseTs(u64::MAX), &rqs, false).is_empty());
    assert_eq!(walk.next_walk(), PreciseTs(u64::MAX));
}
