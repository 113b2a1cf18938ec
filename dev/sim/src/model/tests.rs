//! Tests of the contract, rule by rule.

use super::*;
use crate::sparse::Sparse;
use crate::tag::Seen;
use crate::tag::Value;

const V: u32 = 1;

fn write(op: u64, sector: u64, value: Value) -> Event {
    Event::Write { op, volume: V, sector, sectors: 1, value, dsync: false }
}

fn wrote(op: u64) -> Event {
    Event::Wrote { op, ok: true }
}

fn sync(op: u64) -> Event {
    Event::Sync { op }
}

fn synced(op: u64) -> Event {
    Event::Synced { op, ok: true }
}

fn model(events: &[Event]) -> Model {
    let mut model = Model::new();
    let create = Change::Create { name: "v".into(), id: V, size: 4096, max: None };
    [Event::Change(create), Event::Changed { ok: true, sizes: Vec::new() }]
        .iter()
        .chain(events)
        .for_each(|event| model.apply(event));
    model
}

fn sorted(values: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut all: Vec<Value> = values.collect();
    all.sort_unstable();
    all
}

fn after_crash(model: &Model, sector: u64) -> Vec<Value> {
    sorted(model.volumes()["v"].survivors(sector))
}

fn now(model: &Model, sector: u64) -> Vec<Value> {
    sorted(model.volumes()["v"].readable(sector, model.now()))
}

#[test]
fn r1_a_write_on_its_way_may_be_there() {
    let model = model(&[write(1, 0, 7)]);
    assert_eq!((now(&model, 0), after_crash(&model, 0)), (vec![0, 7], vec![0, 7]));
    assert_eq!(now(&model, 1), [0]);
}

#[test]
fn r2_readers_see_what_has_ended_and_a_crash_may_take_it() {
    let model = model(&[write(1, 0, 7), wrote(1)]);
    assert_eq!((now(&model, 0), after_crash(&model, 0)), (vec![7], vec![0, 7]));
}

#[test]
fn r2_of_two_at_a_time_either_may_be_last() {
    let mut model = model(&[write(1, 0, 7), write(2, 0, 8), wrote(1), wrote(2)]);
    assert_eq!(now(&model, 0), [7, 8]);
    [write(3, 0, 9), wrote(3)].iter().for_each(|event| model.apply(event));
    assert_eq!((now(&model, 0), after_crash(&model, 0)), (vec![9], vec![0, 7, 8, 9]));
}

#[test]
fn r2_a_reader_who_began_before_may_see_either() {
    let mut model = model(&[write(1, 0, 7)]);
    let since = model.begin_read();
    [wrote(1), sync(2), synced(2)].iter().for_each(|event| model.apply(event));
    assert_eq!(sorted(model.volumes()["v"].readable(0, since)), [0, 7]);
    assert_eq!((now(&model, 0), after_crash(&model, 0)), (vec![7], vec![7]));
    model.end_read(since);
}

#[test]
fn r3_a_flush_covers_what_had_ended_when_it_was_asked_for() {
    let mut model = model(&[write(1, 0, 7), wrote(1), write(2, 1, 8), sync(3), wrote(2)]);
    assert_eq!(after_crash(&model, 0), [0, 7]);
    model.apply(&synced(3));
    assert_eq!((after_crash(&model, 0), after_crash(&model, 1)), (vec![7], vec![0, 8]));
    model.apply(&write(4, 0, 9));
    assert_eq!(after_crash(&model, 0), [7, 9], "something later may be there");
}

/// Excludes a pool whose flush covers only the volume through which it was issued.
#[test]
fn r3_a_flush_covers_all_volumes_of_the_pool() {
    let create = Change::Create { name: "w".into(), id: 2, size: 4096, max: None };
    let other = Event::Write { op: 1, volume: 2, sector: 0, sectors: 1, value: 6, dsync: false };
    let events = [Event::Change(create), DONE, other, wrote(1), write(2, 0, 7), wrote(2), sync(3), synced(3)];
    let model = model(&events);
    let mut found = found(&[(0, Seen::Written { value: 7, volume: V, sector: 0 })]);
    found.insert("w".into(), found["v"].clone());
    let seen = |value| Seen::Written { value, volume: 2, sector: 0 };
    let mut settle = |seen| {
        found.get_mut("w").expect("it is there").sectors.change(0..1, |_| true, |_, one| *one = seen);
        model.settle(&found).map(drop)
    };
    let why = settle(Seen::Zero).expect_err("V3: it was covered too");
    assert!(why.contains("volume 'w' (2), sector 0: zeroes; may be there: write 6"), "{why}");
    assert!(settle(seen(6)).is_ok());
}

#[test]
fn r3_a_flush_that_failed_covers_nothing() {
    let model = model(&[write(1, 0, 7), wrote(1), sync(3), Event::Synced { op: 3, ok: false }]);
    assert_eq!(after_crash(&model, 0), [0, 7]);
}

#[test]
fn r3_a_dsync_write_covers_itself() {
    let dsync = Event::Write { op: 1, volume: V, sector: 0, sectors: 1, value: 7, dsync: true };
    let model = model(&[dsync, wrote(1)]);
    assert_eq!(after_crash(&model, 0), [7]);
}

#[test]
fn a_write_that_failed_may_be_there_in_parts() {
    let mut model = model(&[write(1, 0, 7), Event::Wrote { op: 1, ok: false }]);
    assert_eq!(now(&model, 0), [0, 7]);
    [sync(2), synced(2)].iter().for_each(|event| model.apply(event));
    assert_eq!(after_crash(&model, 0), [0, 7]);
}

#[test]
fn r4_and_r5_a_snapshot_is_there_or_not_and_durable_once_made() {
    let copy = Change::Copy { source: "v".into(), name: "s".into(), id: 2, snapshot: true };
    let mut model = model(&[write(1, 0, 7), wrote(1), Event::Change(copy)]);
    let states = model.after_crash();
    let names: Vec<usize> = states.iter().map(|state| state.volumes().len()).collect();
    assert_eq!(names, [2, 1]);
    model.apply(&Event::Changed { ok: true, sizes: Vec::new() });
    model.apply(&write(2, 0, 8));
    model.apply(&wrote(2));
    assert_eq!(sorted(model.volumes()["s"].survivors(0)), [7]);
    assert_eq!(after_crash(&model, 0), [0, 7, 8]);
}

#[test]
fn r5_a_copy_may_have_what_was_there_when_it_began() {
    let copy = Change::Copy { source: "v".into(), name: "s".into(), id: 2, snapshot: true };
    let events = [write(1, 0, 7), wrote(1), write(2, 0, 8), Event::Change(copy), wrote(2), sync(3), synced(3)];
    let mut model = model(&events);
    model.apply(&Event::Changed { ok: true, sizes: Vec::new() });
    assert_eq!((sorted(model.volumes()["s"].survivors(0)), after_crash(&model, 0)), (vec![7, 8], vec![8]));
}

#[test]
fn r6_what_was_cut_off_and_grown_again_is_zero() {
    let resize = |size| {
        [Event::Change(Change::Resize { name: "v".into(), size }), Event::Changed { ok: true, sizes: Vec::new() }]
    };
    let mut model = model(&[write(1, 7, 7), wrote(1)]);
    resize(2048).iter().chain(&resize(8192)).for_each(|event| model.apply(event));
    assert_eq!((after_crash(&model, 7), model.volumes()["v"].size), (vec![0], 8192));
}

#[test]
fn r4_an_interrupted_resize_may_have_zeroed_what_it_was_to_cut_off() {
    let resize = Event::Change(Change::Resize { name: "v".into(), size: 2048 });
    let model = model(&[write(1, 1, 6), wrote(1), write(2, 7, 7), wrote(2), sync(3), synced(3), resize]);
    let states = model.after_crash();
    assert_eq!((states[0].volumes()["v"].size, states[1].volumes()["v"].size), (2048, 4096));
    assert_eq!((after_crash(&states[1], 1), after_crash(&states[1], 7)), (vec![6], vec![0, 7]));
}

fn found(values: &[(u64, Seen)]) -> Observed {
    let mut sectors = Sparse::default();
    sectors.touch(0..8, |_| Seen::Zero);
    values.iter().for_each(|&(at, seen)| sectors.change(at..at + 1, |_| true, |_, one| *one = seen));
    Observed::from([("v".to_string(), ObservedVolume { size: 4096, max: None, snapshot: false, sectors })])
}

#[test]
fn r7_what_was_found_stays() {
    let model = model(&[write(1, 0, 7), wrote(1)]);
    let seen = Seen::Written { value: 7, volume: V, sector: 0 };
    let kept = model.settle(&found(&[(0, seen)])).expect("may be there");
    assert_eq!(after_crash(&kept, 0), [7]);
    let lost = model.settle(&found(&[])).expect("may be lost");
    assert_eq!(after_crash(&lost, 0), [0]);
}

#[test]
fn what_may_not_be_there_is_named() {
    let model = model(&[write(1, 0, 7), wrote(1), sync(2), synced(2)]);
    let why = |found: &Observed| model.settle(found).expect_err("may not be there");
    assert!(why(&found(&[])).contains("sector 0: zeroes; may be there: write 7"));
    let foreign = Seen::Written { value: 3, volume: 9, sector: 0 };
    assert!(why(&found(&[(0, foreign)])).contains("write 3 put into sector 0 of volume 9"));
    let moved = Seen::Written { value: 7, volume: V, sector: 1 };
    assert!(why(&found(&[(0, moved)])).contains("sector 1 of volume 1"));
    assert!(why(&found(&[(0, Seen::Nobodys)])).contains("bytes that nobody wrote"));
    assert!(why(&Observed::new()).contains("'v' is not there"));
}

/// Returns a volume that grows, of 16 KiB, all written by write 1 and durable.
fn grown(events: &[Event]) -> Model {
    let create = Change::Create { name: "v".into(), id: V, size: 0, max: Some(1 << 20) };
    let first = Event::Write { op: 1, volume: V, sector: 0, sectors: 32, value: 1, dsync: true };
    let mut model = Model::new();
    [Event::Change(create), Event::Changed { ok: true, sizes: Vec::new() }, first, wrote(1)]
        .iter()
        .chain(events)
        .for_each(|event| model.apply(event));
    model
}

fn resize(size: u64) -> Event {
    Event::Change(Change::Resize { name: "v".into(), size })
}

fn long_write(op: u64, sector: u64, sectors: u64, value: Value) -> Event {
    Event::Write { op, volume: V, sector, sectors, value, dsync: false }
}

const DONE: Event = Event::Changed { ok: true, sizes: Vec::new() };

#[test]
fn s5_a_write_during_a_cut_comes_before_or_after_it_block_by_block() {
    let mut model = grown(&[long_write(2, 8, 24, 2), resize(4096), DONE, wrote(2)]);
    assert_eq!(model.sizes_of(V), [4096, 8192, 12288, 16384]);
    assert_eq!((now(&model, 0), now(&model, 8), now(&model, 24)), (vec![1], vec![0, 2], vec![0, 2]));
    model.apply(&Event::Sized { volume: V, size: 12288 });
    assert_eq!((model.sizes_of(V)[0], now(&model, 8), now(&model, 24)), (12288, vec![0, 2], vec![0]));
    [sync(3), synced(3)].iter().for_each(|event| model.apply(event));
    let seen = |size, sectors: &[u64]| {
        let mut all = found(&[(0, Seen::Zero)]);
        let volume = all.get_mut("v").expect("it is there");
        (volume.size, volume.max) = (size, Some(1 << 20));
        volume.sectors.touch(0..32, |_| Seen::Zero);
        for &at in sectors {
            let value = if at < 8 { 1 } else { 2 };
            let one = Seen::Written { value, volume: V, sector: at };
            volume.sectors.change(at..at + 1, |_| true, |_, seen| *seen = one);
        }
        all
    };
    let whole: Vec<u64> = (0..24).collect();
    assert!(model.settle(&seen(12288, &whole)).is_ok());
    assert!(model.settle(&seen(4096, &whole[..8])).is_err(), "a flush has made the larger size durable");
}

#[test]
fn s5_what_had_ended_before_the_cut_is_gone() {
    let model = grown(&[long_write(2, 8, 24, 2), wrote(2), resize(4096), DONE]);
    assert_eq!((model.sizes_of(V), now(&model, 8), after_crash(&model, 8)), (vec![4096], vec![0], vec![0]));
}

#[test]
fn s5_what_ends_within_a_larger_size_may_be_cut_by_the_next_call() {
    let model = grown(&[long_write(2, 8, 8, 2), resize(32768), DONE, resize(0), DONE, wrote(2)]);
    assert_eq!(model.sizes_of(V), [0, 8192]);
}

#[test]
fn s5_a_crash_within_the_cut_leaves_all_that_was_there_or_the_smaller_size() {
    let model = grown(&[resize(4096)]);
    let states = model.after_crash();
    assert_eq!((states[0].volumes()["v"].size, states[1].volumes()["v"].size), (4096, 16384));
    assert_eq!((after_crash(&states[0], 8), after_crash(&states[1], 8)), (vec![0], vec![1]));
}
