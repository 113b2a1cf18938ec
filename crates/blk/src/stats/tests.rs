//! Quantiles, splits, and the counts of a batch.

use super::*;
use sheave_base::clock::CoarseTs;

fn stats() -> HctxStats {
    HctxStats::new(Clock::virtual_clock().0)
}

/// Counts a batch of (operation, start, bytes, merged, error).
fn account(stats: &HctxStats, now: u64, requests: &[(Op, u64, u32, u16, bool)]) {
    let mut account = BatchAccount::new(stats);
    for &(op, start, bytes, merged, error) in requests {
        let split = Split::between(CoarseTs(start), CoarseTs(start), CoarseTs(now), CoarseTs(now));
        account.request(op, &split, bytes, merged);
        if error {
            stats.note_error(Some(&stats.own), op, Status::NoSpc);
        }
    }
    account.write();
}

fn read(stats: &HctxStats) -> Stats {
    let mut sum = Stats::default();
    stats.read(0, &|part| part == 0, &mut sum);
    sum
}

#[test]
fn a_batch_is_written_down_by_operation_and_start() {
    let stats = self::stats();
    let batch = [
        (Op::Read, 100, 512, 0, false),
        (Op::Read, 100, 4096, 3, false),
        (Op::Write, 100, 1024, 0, true),
        (Op::Read, 150, 512, 0, true),
        (Op::Flush, 190, 0, 0, false),
    ];
    account(&stats, 200, &batch);
    account(&stats, 300, &[]);
    let sum = read(&stats);
    let reads = sum.op(Op::Read);
    assert_eq!((reads.ios, reads.sectors, reads.merges, reads.split.time_ns, reads.errors), (3, 10, 3, 250, 1));
    assert_eq!((reads.split.latency[Latencies::cell(100)], reads.split.latency[Latencies::cell(50)]), (2, 1));
    let writes = sum.op(Op::Write);
    assert_eq!((writes.ios, writes.sectors, writes.split.time_ns, writes.errors), (1, 2, 100, 1));
    assert_eq!((sum.op(Op::Flush).ios, sum.op(Op::Flush).split.time_ns), (1, 10));
    assert_eq!(sum.ios(), 5);
    for op in Op::ALL {
        assert_eq!(sum.op(op).split.latency.iter().sum::<u64>(), sum.op(op).ios, "each request has a latency");
    }
}

#[test]
fn a_start_after_the_end_counts_as_nothing() {
    let stats = self::stats();
    account(&stats, 100, &[(Op::Read, 170, 512, 0, false)]);
    assert_eq!(read(&stats).op(Op::Read).split.time_ns, 0);
    assert_eq!(read(&stats).op(Op::Read).split.latency[0], 1);
}

#[test]
fn readings_add_up() {
    let (a, b) = (stats(), stats());
    account(&a, 10, &[(Op::Read, 0, 512, 0, false)]);
    account(&b, 20, &[(Op::Read, 0, 512, 1, true), (Op::Discard, 0, 512, 0, false)]);
    let mut one = read(&a);
    one.add(&read(&b));
    let mut other = read(&a);
    b.read(0, &|part| part == 0, &mut other);
    for op in Op::ALL {
        let (x, y) = (one.op(op), other.op(op));
        assert_eq!(
            (x.ios, x.sectors, x.merges, x.split.time_ns, x.errors),
            (y.ios, y.sectors, y.merges, y.split.time_ns, y.errors)
        );
        assert_eq!(x.split.latency, y.split.latency);
    }
    assert_eq!((one.op(Op::Read).ios, one.op(Op::Read).split.time_ns), (2, 30));
}

#[test]
fn quantiles_are_the_smallest_of_their_cells() {
    let stats = self::stats();
    assert_eq!(read(&stats).op(Op::Read).quantile_ns(0.5), 0, "of nothing");
    for ns in [1, 2, 3, 4, 5, 6, 7, 1000, 1000, 100_000] {
        account(&stats, ns, &[(Op::Read, 0, 512, 0, false)]);
    }
    let sum = read(&stats);
    let at = |q| sum.op(Op::Read).quantile_ns(q);
    assert_eq!([at(0.0), at(0.1), at(0.5), at(0.7)], [1, 1, 5, 7]);
    let floor = |ns| *Latencies::values(Latencies::cell(ns)).start();
    assert_eq!([at(0.8), at(0.9), at(0.99), at(1.0)], [floor(1000), floor(1000), floor(100_000), floor(100_000)]);
}

#[test]
fn the_parts_of_a_split_add_up_whatever_the_stamps_are() {
    let mut rng = sheave_base::rng::Rng::new(7);
    for round in 0..100_000 {
        // Close together, so that every order occurs.
        let [start, sent, ended, now] = [0; 4].map(|_: u8| CoarseTs(rng.below(16)));
        let split = Split::between(start, sent, ended, now);
        let parts: u64 = Stage::ALL.iter().map(|&stage| split.ns(stage)).sum();
        assert_eq!(parts, split.total_ns(), "round {round}");
        assert_eq!(parts, now.ns_since(start), "round {round}: {start:?} {sent:?} {ended:?} {now:?}");
        assert_eq!((split.worker_ns, split.tag_ns), (0, 0));
    }
    let never_sent = Split::between(CoarseTs(10), CoarseTs(0), CoarseTs(u64::MAX), CoarseTs(40));
    assert_eq!(never_sent, Split::in_driver(30), "what ended after the last look was not waiting to be reaped");
}

#[test]
fn stages_are_counted_for_those_that_were_there() {
    let stats = self::stats();
    let all = Split { worker_ns: 0, tag_ns: 5, plugged_ns: 10, driver_ns: 100, reap_ns: 20 };
    stats.own.note(Op::Write, &all, 3, 3 * 512);
    stats.own.note(Op::Write, &Split::in_driver(1000), 2, 1024);
    stats.own.note(Op::Write, &Split::default(), 1, 512);
    let sum = read(&stats);
    let writes = &sum.op(Op::Write).split;
    assert_eq!((writes.ios(), writes.time_ns), (6, 3 * 135 + 2 * 1000));
    assert_eq!(writes.stage_ns, [0, 15, 30, 2300, 60]);
    let counted = |stage: Stage| writes.stages[stage as usize].iter().sum::<u64>();
    assert_eq!(Stage::ALL.map(counted), [0, 3, 3, 5, 3], "nobody counts where it was not");
    assert_eq!(writes.stages[Stage::Driver as usize][StageTimes::cell(1000)], 2);
    assert_eq!(writes.stages[Stage::Reap as usize][StageTimes::cell(20)], 3);
    assert_eq!(all.longest(), Stage::Driver);
    let mut twice = writes.clone();
    twice.add(writes);
    assert_eq!((twice.ios(), twice.stage_ns[3], twice.stages[4][StageTimes::cell(20)]), (12, 4600, 6));
}
