//! Checks that counters return to zero, in whatever seat each request ends.

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

#[test]
fn the_reader_in_the_path_reads_once_a_jiffy_and_lets_go_of_its_device() {
    let device = open_device("null:").expect("a null device");
    for way in [Way::PerThread, Way::Tags] {
        let counters = Counters::read_in_path(way);
        let mut seat = counters.seat();
        seat.start(Op::Read);
        assert_eq!(counters.readings_in_path(), (0, 0), "{way:?}: it has no device yet");
        counters.watch(Some(&device));
        let began = jiffy();
        // Until there are two readings. The time bounds the loop on a machine that makes no progress.
        while counters.readings_in_path().0 < 2 && jiffy() < began + 10_000_000_000 {
            seat.start(Op::Read);
            // The end tests for a new jiffy too, and may be the second reading.
            if counters.readings_in_path().0 < 2 {
                seat.end(Op::Read);
            }
        }
        let (readings, seen) = counters.readings_in_path();
        let most = jiffies_since(began) + 1;
        assert!(readings == 2 && readings <= most, "{way:?}: {readings} readings in {most} jiffies");
        // Counters show the request that was started first, and for the second reading perhaps the current one too.
        let expected = if way == Way::Tags { 0..=0 } else { readings..=2 * readings };
        assert!(expected.contains(&seen), "{way:?}: {seen} seen in {readings} readings");
        counters.watch(None);
        assert!(counters.in_path.as_ref().is_some_and(|path| path.device.lock().expect("its lock").is_none()));
    }
    let mut seat = Counters::new(Way::PerThread).seat();
    seat.start(Op::Read);
    assert_eq!(seat.counters.readings_in_path(), (0, 0), "nobody asked for a reader");
}
