//! State changes of lines, case by case, and the counts of each case.

use super::*;

const APART: Topology = Topology { complex: 2, socket: 4 };

fn machine() -> Machine {
    Machine::new(APART, 8)
}

fn shape(counts: &Counts) -> [u64; 4] {
    [counts.cold, counts.transfers, counts.upgrades, counts.invalidations]
}

#[test]
fn who_is_alone_pays_nothing() {
    let mut machine = machine();
    for access in [Access::Read, Access::Write, Access::Write, Access::Read] {
        assert!(!machine.touch(0, 128, 8, access), "nobody else has seen it");
    }
    let counts = machine.counts();
    assert_eq!((shape(&counts), counts.hops, counts.accesses), ([1, 0, 0, 0], [0; 3], 4));
}

#[test]
fn a_line_that_two_write_comes_and_goes() {
    let mut machine = machine();
    machine.touch(0, 128, 8, Access::Write);
    for turn in 0..10 {
        assert!(machine.touch((turn + 1) % 2, 184, 8, Access::Write), "the same line, another word of it");
    }
    let counts = machine.counts();
    assert_eq!((shape(&counts), counts.hops), ([1, 10, 0, 10], [10, 0, 0]));
    assert_eq!(counts.busiest, [[10, 0, 0]]);
}

#[test]
fn a_line_that_is_shared_comes_once_and_is_taken_back_from_all() {
    let mut machine = machine();
    machine.touch(0, 0, 8, Access::Write);
    for reader in 1..8 {
        machine.touch(reader, 0, 8, Access::Read);
        machine.touch(reader, 0, 8, Access::Read);
    }
    // The nearest holder answers a read: only the first reader of a complex and of a socket has a longer hop.
    assert_eq!(machine.counts().hops, [4, 2, 1]);
    assert_eq!(shape(&machine.counts()), [1, 7, 0, 0]);
    machine.touch(0, 0, 8, Access::Write);
    // The writer has the data: only the other holders have to answer, and the farthest decides the distance.
    assert_eq!(shape(&machine.counts()), [1, 7, 1, 7]);
    assert_eq!(machine.counts().hops, [4, 2, 2]);
    machine.touch(7, 0, 8, Access::Read);
    assert_eq!(shape(&machine.counts()), [1, 8, 1, 7], "who lost its copy has to fetch it");
}

#[test]
fn a_reader_of_a_written_line_leaves_the_writer_a_shared_copy() {
    let mut machine = machine();
    machine.touch(0, 0, 8, Access::Write);
    machine.touch(1, 0, 8, Access::Read);
    machine.touch(0, 0, 8, Access::Read);
    assert_eq!(shape(&machine.counts()), [1, 1, 0, 0], "it reads its own copy");
    machine.touch(0, 0, 8, Access::Write);
    assert_eq!(shape(&machine.counts()), [1, 1, 1, 1]);
}

#[test]
fn data_over_several_lines_touches_each() {
    let mut machine = machine();
    machine.touch(0, 60, 8, Access::Write);
    machine.touch(0, 256, 0, Access::Write);
    assert_eq!(machine.counts().cold, 3);
    machine.touch(5, 0, 256, Access::Read);
    assert_eq!(shape(&machine.counts()), [3 + 2, 2, 0, 0]);
}

#[test]
fn a_lock_is_busy_with_all_that_its_holder_fetches() {
    let mut machine = machine();
    for data in [64, 128, 192] {
        machine.touch(1, data, 8, Access::Write);
    }
    machine.took(0, 0);
    for data in [64, 128, 192] {
        machine.touch(0, data, 8, Access::Write);
    }
    machine.gave(0, 0);
    machine.touch(1, 64, 8, Access::Write);
    let counts = machine.counts();
    assert_eq!(counts.busiest, [[3, 0, 0], [2, 0, 0], [1, 0, 0], [1, 0, 0]], "the lock first, then its lines");
}

#[test]
fn counts_begin_anew_and_lines_stay() {
    let mut machine = machine();
    machine.touch(0, 8, 8, Access::Write);
    machine.touch(1, 8, 8, Access::Write);
    machine.waits();
    machine.reset();
    assert_eq!(machine.counts(), Counts::default());
    machine.touch(0, 8, 8, Access::Write);
    machine.waits();
    let counts = machine.counts();
    assert_eq!((shape(&counts), counts.lock_waits), ([0, 1, 0, 1], 1));
}
