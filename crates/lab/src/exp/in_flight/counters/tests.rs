//! Counters: quiescent they are zero, whoever ended what.

use super::*;
use sheave::open_device;

#[test]
fn what_starts_in_one_seat_and_ends_in_another_is_zero_in_the_end() {
    let device = open_device("null:").expect("a null device");
    for way in [Way::Pair, Way::PerThread, Way::PerNode] {
        let counters = Counters::new(way);
        let mut here = counters.seat();
        for op in [Op::Read, Op::Read, Op::Write] {
            here.start(op);
        }
        assert_eq!(counters.read(&device), Reading { reads: 2, writes: 1 }, "{way:?}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut there = counters.seat();
                [Op::Read, Op::Write, Op::Read].into_iter().for_each(|op| there.end(op));
            });
        });
        assert_eq!(counters.read(&device), Reading::default(), "{way:?}");
        drop(here);
        assert_eq!(counters.updates(), 6, "{way:?}");
    }
}

#[test]
fn tags_count_nothing() {
    let device = open_device("null:").expect("a null device");
    let counters = Counters::new(Way::Tags);
    let mut seat = counters.seat();
    seat.start(Op::Read);
    assert_eq!(counters.read(&device), Reading::default(), "the device has no request");
    drop(seat);
    assert_eq!(counters.updates(), 0);
}

#[test]
fn seats_of_a_node_go_round_its_lines() {
    let counters = Counters::new(Way::PerNode);
    let at: Vec<usize> = (0..6).map(|_| counters.seat().at).collect();
    assert_eq!(at, [0, 1, 2, 3, 0, 1]);
}
