//! Rings and the graces of their files: the I/O that is counted and for how long, waits that must not deadlock, and the
//! order and the batches of completion work.
#![allow(unsafe_code)] // Raw SQEs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_blk::bio::Op;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::MapFlags;
use sheave_iomap::{FallocateMode, MappingKind};
use sheave_uring::prep::{self, Cancel};
use sheave_uring::sqe::{IOSQE_ASYNC, IOSQE_IO_LINK, RWF_DSYNC, Sqe, opcode};
use sheave_uring::{Account, Fd, IoWq, Ring};

use crate::support::{Puppet, buf, fsync, nop, push, reaped, ring, run, rw};
use crate::thin::{Call, Thin, UNIT};

const ECANCELED: i32 = -125;
const PATIENCE: Duration = Duration::from_secs(20);
const ADDR: u64 = 1 << 24;

fn nothing(_: &Thin, _: &Call, _: &MayBlock<'_>) -> Result<(), Status> {
    Ok(())
}

fn cached() -> Puppet {
    Puppet::new().caps(|caps| caps.volatile_cache = true)
}

fn read(fd: Fd, pos: u64, user_data: u64) -> Sqe {
    rw(opcode::READ, fd, pos, ADDR, 4096, user_data)
}

fn write(fd: Fd, pos: u64, user_data: u64) -> Sqe {
    rw(opcode::WRITE, fd, pos, ADDR, 4096, user_data)
}

fn dsync(fd: Fd, pos: u64, user_data: u64) -> Sqe {
    Sqe { op_flags: RWF_DSYNC, ..write(fd, pos, user_data) }
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn ops(puppet: &Puppet) -> Vec<Op> {
    puppet.script().seen.iter().map(|rq| rq.op).collect()
}

fn sorted(mut ended: Vec<(u64, i32)>) -> Vec<(u64, i32)> {
    ended.sort_unstable();
    ended
}

#[test]
fn every_way_of_an_io_is_counted_until_it_has_ended() {
    type Make = fn(Fd) -> Vec<Sqe>;
    // Single, several, in a chain, over two mappings, unaligned memory for one of two, through a worker, failing.
    let ways: &[(&str, Make)] = &[
        ("a plain read", |fd| vec![read(fd, 0, 1)]),
        ("plain writes", |fd| (0..8).map(|n| write(fd, n * 4096, n)).collect()),
        ("a chain", |fd| vec![Sqe { flags: IOSQE_IO_LINK, ..write(fd, 0, 1) }, nop(2, 0)]),
        ("over two units", |fd| vec![rw(opcode::WRITE, fd, 4096, ADDR, 8192, 1)]),
        ("with its result from a worker's issue", |fd| vec![Sqe { flags: IOSQE_ASYNC, ..read(fd, 0, 1) }]),
        ("with FUA", |fd| vec![dsync(fd, 0, 1)]),
    ];
    for status in [Status::Ok, Status::IoErr] {
        for (what, sqes) in ways {
            let puppet = Puppet::new().holding();
            let file = Thin::new(&puppet.device(), 16, MappingKind::Mapped, nothing);
            let mut ring = ring();
            let fd = ring.attach_file(file.clone()).unwrap();
            let before = file.graces().start();
            assert!(file.graces().is_over(before), "{what}: nothing was sent");
            push(&mut ring, &sqes(fd));
            ring.submit().unwrap();
            until("it is with the device", || {
                ring.reap();
                !puppet.script().seen.is_empty()
            });
            let ticket = file.graces().start();
            assert!(!file.graces().is_over(ticket), "{what}: it is in flight");
            let held = ring.in_flight();
            puppet.script().fail = vec![(Op::Write, status), (Op::Read, status)];
            puppet.script().finish = u32::MAX;
            ring.drain();
            let ended = reaped(&mut ring);
            assert!(ended.len() >= held as usize && (status.is_ok() == (ended[0].1 > 0)), "{what}: {ended:?}");
            assert!(file.graces().is_over(ticket), "{what}: it has ended");
            assert_eq!(file.calls(), [], "{what}: pure overwrites have no completion work");
        }
    }
}

#[test]
fn what_was_not_sent_is_not_counted() {
    let puppet = Puppet::new();
    let file = Thin::new(&puppet.device(), 4, MappingKind::Mapped, |_, _, _| Err(Status::NoSpc));
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).unwrap();
    file.forget(1);
    file.units.lock().unwrap()[2] = Some((0, MappingKind::Hole, MapFlags::NONE));
    // Misaligned, beyond the end, a hole, a mapping that blocks and fails, a mapping outside of the device.
    file.units.lock().unwrap()[3] = Some((puppet.size, MappingKind::Mapped, MapFlags::NONE));
    let zeroes = buf(4096);
    let hole = rw(opcode::READ, fd, 2 * UNIT, zeroes.as_ptr() as u64, 4096, 3);
    let wrong = [read(fd, 1, 1), read(fd, 4 * UNIT, 2), hole, write(fd, UNIT, 4), write(fd, 3 * UNIT, 5)];
    let ended = sorted(run(&mut ring, &wrong));
    assert_eq!(ended, [(1, -22), (2, 0), (3, 4096), (4, -28), (5, -5)]);
    assert!(file.graces().is_over(file.graces().start()));
    assert_eq!(ops(&puppet), []);
}

#[test]
fn grace_is_left_after_last_use_of_file() {
    let puppet = Puppet::new().holding();
    let file = Thin::new(&puppet.device(), 4, MappingKind::Mapped, nothing);
    let mut ring = ring();
    let (a, b) = (ring.attach_file(file.clone()).unwrap(), ring.attach_file(file.clone()).unwrap());
    assert_eq!(file.graces().seats(), 2);
    push(&mut ring, &[read(a, 0, 1)]);
    ring.submit().unwrap();
    let ticket = file.graces().start();
    ring.detach(b).unwrap();
    ring.detach(a).unwrap();
    assert_eq!(file.graces().seats(), 1, "one has a read in flight");
    assert!(!file.graces().is_over(ticket));
    puppet.script().finish = u32::MAX;
    ring.drain();
    assert_eq!((file.graces().seats(), reaped(&mut ring)), (0, vec![(1, 4096)]));
    assert!(file.graces().is_over(ticket));
}

#[test]
fn a_thread_that_waits_for_its_own_io_ends_it_and_reads_its_completions_later() {
    for (kind, stepped) in
        [(MappingKind::Mapped, false), (MappingKind::Unwritten, false), (MappingKind::Unwritten, true)]
    {
        let puppet = Puppet::new();
        let file = Thin::new(&puppet.device(), 4, kind, nothing);
        let wq = IoWq::builder().stepped(stepped).build().unwrap();
        let mut ring = Ring::builder().entries(8).polled(true).io_wq(&wq).build().unwrap();
        let fd = ring.attach_file(file.clone()).unwrap();
        push(&mut ring, &[write(fd, 0, 1), write(fd, UNIT, 2)]);
        ring.submit().unwrap();
        // Waits for a grace on the thread that has not reaped, as a snapshot does.
        assert!(file.graces().wait(file.graces().start(), PATIENCE), "{kind:?}");
        assert_eq!(ring.in_flight(), 0, "{kind:?}: its completions are posted");
        assert_eq!(sorted(reaped(&mut ring)), [(1, 4096), (2, 4096)], "and nobody has taken them");
    }
}

#[test]
fn a_mapping_may_wait_for_a_grace_while_writes_of_the_same_file_end() {
    // One worker of each kind: work that ends the writes must not queue behind work that waits for them.
    let waited = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&waited);
    let puppet = cached();
    let file = Thin::new(&puppet.device(), 8, MappingKind::Unwritten, move |file, call, _| {
        if matches!(call, Call::MapBlocking(_) | Call::Fallocate(..)) {
            let ticket = file.graces().start();
            assert!(file.graces().wait(ticket, PATIENCE), "{call:?} waits for ever");
            seen.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    });
    let wq = IoWq::builder().max_workers(1, 1).build().unwrap();
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
    let fd = ring.attach_file(file.clone()).unwrap();
    for round in 0..20 {
        file.forget(7);
        let sqes = [dsync(fd, 0, 1), write(fd, 7 * UNIT, 2), write(fd, UNIT, 3), fsync(fd, 4), dsync(fd, 2 * UNIT, 5)];
        push(&mut ring, &sqes);
        ring.push(prep::punch_hole(fd, 3 * UNIT, UNIT).user_data(6)).unwrap();
        ring.submit().unwrap();
        ring.drain();
        let ended = sorted(reaped(&mut ring));
        assert_eq!(ended, [(1, 4096), (2, 4096), (3, 4096), (4, 0), (5, 4096), (6, 0)], "round {round}");
    }
    assert_eq!(waited.load(Ordering::SeqCst), 40);
}

#[test]
fn a_count_is_dropped_after_the_completion_work_and_before_the_sync() {
    let puppet = cached();
    let seen = Arc::new(AtomicU32::new(0));
    let asserts = Arc::clone(&seen);
    let file = Thin::new(&puppet.device(), 8, MappingKind::Unwritten, move |file, call, _| {
        let is_sync = *call == Call::Sync;
        let time = if is_sync { PATIENCE } else { Duration::from_millis(20) };
        assert_eq!(file.graces().wait(file.graces().start(), time), is_sync, "{call:?}");
        asserts.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).unwrap();
    assert_eq!(run(&mut ring, &[dsync(fd, 4096, 1)]), [(1, 4096)]);
    let end = Call::End { pos: 4096, len: 4096, status: Status::Ok, pieces: vec![file.piece(4096, 4096)] };
    assert_eq!(file.calls(), [end, Call::Sync]);
    assert_eq!(seen.load(Ordering::SeqCst), 2, "no hook panicked");
}

#[test]
fn the_end_of_a_write_names_the_mappings_it_used() {
    for status in [Status::Ok, Status::Medium] {
        let puppet = Puppet::new();
        puppet.script().fail = vec![(Op::Write, status)];
        let file = Thin::new(&puppet.device(), 8, MappingKind::Mapped, nothing);
        file.units.lock().unwrap()[2] = Some((5 * UNIT, MappingKind::Unwritten, MapFlags::NEW | MapFlags::DIRTY));
        let mut ring = ring();
        let fd = ring.attach_file(file.clone()).unwrap();
        let pieces = [file.piece(UNIT + 512, UNIT), file.piece(2 * UNIT, UNIT), file.piece(3 * UNIT, 1024)].to_vec();
        let len = pieces.iter().map(|piece| piece.len).sum::<u64>();
        let res = if status.is_ok() { len as i32 } else { status.result() };
        assert_eq!(run(&mut ring, &[rw(opcode::WRITE, fd, UNIT + 512, ADDR, len as u32, 1)]), [(1, res)]);
        assert_eq!(file.calls(), [Call::End { pos: UNIT + 512, len, status, pieces }], "the first error, once");
    }
}

#[test]
fn synchronous_writes_and_fsyncs_share_syncs() {
    let puppet = cached();
    for flush in [false, true] {
        let hook = move |_: &Thin, call: &Call, _: &MayBlock<'_>| {
            std::thread::sleep(Duration::from_millis(2));
            if flush && *call == Call::Sync { Err(Status::Again) } else { Ok(()) }
        };
        let file = Thin::new(&puppet.device(), 64, MappingKind::Unwritten, hook);
        let mut ring = Ring::builder().entries(64).build().unwrap();
        let fd = ring.attach_file(file.clone()).unwrap();
        let mut sqes: Vec<Sqe> = (0..32).map(|n| dsync(fd, n * UNIT, n)).collect();
        sqes.extend((32..48).map(|n| fsync(fd, n)));
        puppet.script().seen.clear();
        let ended = sorted(run(&mut ring, &sqes));
        assert!(ended.iter().all(|&(n, res)| res == if n < 32 { 4096 } else { 0 }), "{ended:?}");
        assert_eq!(ended.len(), 48);
        let calls = file.calls();
        let syncs = calls.iter().filter(|call| **call == Call::Sync).count();
        assert_eq!(calls.len() - syncs, 32, "each write has its end");
        assert!((1..=4).contains(&syncs), "{syncs} for 48 that want one");
        assert_eq!(calls.last(), Some(&Call::Sync), "after the last end");
        assert_eq!(ops(&puppet).iter().filter(|&&op| op == Op::Flush).count(), if flush { syncs } else { 0 });
    }
}

#[test]
fn a_sync_that_fails_fails_all_that_waited_for_it() {
    for (sync, device, res) in [(Status::NoSpc, Status::Ok, -28), (Status::Again, Status::IoErr, -5)] {
        let puppet = cached();
        puppet.script().fail = vec![(Op::Flush, device)];
        let hook = move |_: &Thin, call: &Call, _: &MayBlock<'_>| match call {
            Call::Sync => Err(sync),
            _ => Ok(()),
        };
        let file = Thin::new(&puppet.device(), 8, MappingKind::Unwritten, hook);
        let mut ring = ring();
        let fd = ring.attach_file(file).unwrap();
        let ended = run(&mut ring, &[dsync(fd, 0, 1), dsync(fd, UNIT, 2), fsync(fd, 3), write(fd, 2 * UNIT, 4)]);
        assert_eq!(sorted(ended), [(1, res), (2, res), (3, res), (4, 4096)]);
    }
}

#[test]
fn with_nothing_of_its_own_to_commit_a_sync_needs_no_worker() {
    let puppet = cached();
    let file = Thin::new(&puppet.device(), 8, MappingKind::Mapped, |_, call, _| panic!("{call:?}"));
    file.needs_sync.store(false, Ordering::SeqCst);
    let wq = IoWq::builder().build().unwrap();
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
    let fd = ring.attach_file(file).unwrap();
    let ended = run(&mut ring, &[fsync(fd, 1), dsync(fd, 0, 2), fsync(fd, 3)]);
    assert_eq!(sorted(ended), [(1, 0), (2, 4096), (3, 0)]);
    assert_eq!(wq.counts().map(|acct| acct.created), [0, 0]);
    let flushes = ops(&puppet).iter().filter(|&&op| op == Op::Flush).count();
    assert_eq!(flushes, 3, "also for the write, on a device without FUA");
}

#[test]
fn a_request_that_waits_in_a_mapping_can_be_cancelled_and_a_ring_that_goes_does_not_wait() {
    for drops in [false, true] {
        let paused = Arc::new(AtomicBool::new(false));
        let hook = {
            let paused = Arc::clone(&paused);
            move |_: &Thin, _: &Call, token: &MayBlock<'_>| {
                paused.store(true, Ordering::SeqCst);
                until("somebody cancels it", || token.is_cancelled());
                Err(Status::Canceled)
            }
        };
        let puppet = Puppet::new();
        let file = Thin::new(&puppet.device(), 8, MappingKind::Mapped, hook);
        let wq = IoWq::builder().max_workers(1, 1).build().unwrap();
        let mut ring = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
        let fd = ring.attach_file(file.clone()).unwrap();
        file.forget(0);
        file.forget(1);
        push(&mut ring, &[write(fd, 0, 1), write(fd, UNIT, 2), write(fd, 2 * UNIT, 3)]);
        ring.submit().unwrap();
        until("it pauses", || paused.load(Ordering::SeqCst));
        assert!(file.graces().is_over(file.graces().start()) || !reaped(&mut ring).is_empty(), "it is not counted");
        let before = Instant::now();
        if drops {
            drop(ring);
            assert!(before.elapsed() < PATIENCE / 2, "it was asked to end");
            continue;
        }
        assert_eq!(ring.cancel(Cancel::user_data(1)), Ok(1));
        until("it ends", || {
            ring.reap();
            ring.in_flight() <= 1
        });
        assert_eq!(ring.cancel(Cancel::user_data(2)), Ok(1), "running by now, or queued");
        ring.drain();
        let ended: Vec<_> = reaped(&mut ring).into_iter().filter(|&(n, _)| n != 3).collect();
        assert_eq!(sorted(ended), [(1, ECANCELED), (2, ECANCELED)]);
    }
}

#[test]
fn fallocate_is_the_files_and_its_result_stands() {
    let puppet = Puppet::new();
    let hook = |_: &Thin, call: &Call, _: &MayBlock<'_>| match call {
        Call::Fallocate(_, UNIT, _) => Err(Status::NoSpc),
        _ => Ok(()),
    };
    let file = Thin::new(&puppet.device(), 8, MappingKind::Mapped, hook);
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).unwrap();
    let entries = [
        prep::punch_hole(fd, 0, 4096),
        prep::zero_range(fd, 4096, 3 * UNIT),
        prep::punch_hole(fd, UNIT, 512),
        prep::punch_hole(fd, 7 * UNIT, 4 * UNIT),
        prep::zero_range(fd, 1, 4096),
    ];
    let count = entries.len() as u32;
    for (n, entry) in entries.into_iter().enumerate() {
        ring.push(entry.user_data(n as u64)).unwrap();
    }
    ring.submit_and_wait(count).unwrap();
    assert_eq!(sorted(reaped(&mut ring)), [(0, 0), (1, 0), (2, -28), (3, 0), (4, -22)]);
    let mut calls = file.calls();
    calls.sort_by_key(|call| matches!(call, Call::Fallocate(_, pos, _) if *pos == 4096));
    for call in [
        Call::Fallocate(FallocateMode::PunchHole, 0, 4096),
        Call::Fallocate(FallocateMode::ZeroRange, 4096, 3 * UNIT),
        Call::Fallocate(FallocateMode::PunchHole, UNIT, 512),
        Call::Fallocate(FallocateMode::PunchHole, 7 * UNIT, UNIT),
    ] {
        assert!(calls.contains(&call), "{call:?} in {calls:?}");
    }
    assert_eq!((calls.len(), ops(&puppet)), (4, vec![]), "nothing goes to the device behind the file's back");
}

#[test]
fn a_ring_dropped_in_mid_io_tells_the_file_of_every_write_it_began() {
    for reap in [false, true] {
        let puppet = Puppet::new().holding();
        let file = Thin::new(&puppet.device(), 8, MappingKind::Unwritten, nothing);
        let mut ring = ring();
        let fd = ring.attach_file(file.clone()).unwrap();
        for n in 0..4 {
            ring.push(prep::write(fd, buf(4096)).offset(n * UNIT)).unwrap();
        }
        ring.submit().unwrap();
        let ticket = file.graces().start();
        puppet.script().finish = if reap { 2 } else { 0 };
        ring.reap();
        drop(ring);
        let mut ends: Vec<(u64, Status)> = file
            .calls()
            .into_iter()
            .map(|call| match call {
                Call::End { pos, status, pieces, .. } => {
                    assert_eq!(pieces, [file.piece(pos, 4096)]);
                    (pos / UNIT, status)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        ends.sort_unstable_by_key(|end| end.0);
        assert_eq!(ends.iter().map(|end| end.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let fine = ends.iter().filter(|end| end.1.is_ok()).count();
        assert_eq!(fine, if reap { 2 } else { 0 }, "{ends:?}");
        assert!(file.graces().is_over(ticket) && file.graces().seats() == 0);
    }
}

#[test]
fn again_from_file_reissues_the_request() {
    for stepped in [false, true] {
        let looks = Arc::new(AtomicU32::new(0));
        let hook = {
            let looks = Arc::clone(&looks);
            move |file: &Thin, call: &Call, _: &MayBlock<'_>| {
                looks.fetch_add(1, Ordering::SeqCst);
                let over = matches!(call, Call::End { .. }) || file.graces().is_over(file.graces().start());
                if over { Ok(()) } else { Err(Status::Again) }
            }
        };
        let puppet = Puppet::new().holding();
        let file = Thin::new(&puppet.device(), 8, MappingKind::Unwritten, hook);
        let wq = IoWq::builder().stepped(stepped).build().unwrap();
        let mut ring = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
        let fd = ring.attach_file(file.clone()).unwrap();
        file.forget(1);
        push(&mut ring, &[write(fd, 0, 1), write(fd, UNIT, 2)]);
        ring.push(prep::zero_range(fd, 2 * UNIT, UNIT).user_data(3)).unwrap();
        ring.submit().unwrap();
        until("both have looked more than once", || {
            wq.step();
            ring.reap();
            looks.load(Ordering::SeqCst) > 6
        });
        assert_eq!(reaped(&mut ring), [], "the first write holds the grace up");
        puppet.script().finish = u32::MAX;
        ring.drain();
        assert_eq!(sorted(reaped(&mut ring)), [(1, 4096), (2, 4096), (3, 0)]);
        assert!(file.calls().contains(&Call::Fallocate(FallocateMode::ZeroRange, 2 * UNIT, UNIT)));
    }
}

#[test]
fn a_ring_that_goes_is_not_held_up_by_a_worker_that_waits_for_its_io() {
    for kind in [MappingKind::Mapped, MappingKind::Unwritten] {
        let begun = Arc::new(AtomicU32::new(0));
        let hook = {
            let begun = Arc::clone(&begun);
            move |file: &Thin, call: &Call, _: &MayBlock<'_>| {
                begun.fetch_add(1, Ordering::SeqCst);
                match call {
                    Call::End { .. } => std::thread::sleep(Duration::from_millis(5)),
                    _ => assert!(file.graces().wait(file.graces().start(), PATIENCE)),
                }
                Ok(())
            }
        };
        let puppet = Puppet::new();
        let file = Thin::new(&puppet.device(), 8, kind, hook);
        let mut ring = Ring::builder().entries(8).polled(true).build().unwrap();
        let fd = ring.attach_file(file.clone()).unwrap();
        push(&mut ring, &[write(fd, 0, 1), write(fd, UNIT, 2)]);
        ring.push(prep::punch_hole(fd, 2 * UNIT, UNIT).user_data(3)).unwrap();
        file.forget(3);
        push(&mut ring, &[write(fd, 3 * UNIT, 4)]);
        ring.submit().unwrap();
        until("both wait for the writes", || begun.load(Ordering::SeqCst) >= 2);
        if kind == MappingKind::Unwritten {
            ring.reap(); // From now on a worker ends them.
        }
        let before = Instant::now();
        drop(ring);
        assert!(before.elapsed() < PATIENCE / 4, "{kind:?}: {:?}", before.elapsed());
        assert_eq!((file.graces().seats(), Arc::strong_count(&file)), (0, 1));
    }
}

/// Runs a small program on a pool without threads. Returns the calls of the file, and the CQEs.
fn stepped_run(choose: impl Fn(u32) -> bool) -> (Vec<Call>, Vec<(u64, i32)>) {
    let puppet = cached();
    let file = Thin::new(&puppet.device(), 8, MappingKind::Unwritten, nothing);
    let wq = IoWq::builder().stepped(true).build().unwrap();
    let mut rings: Vec<Ring> =
        (0..2).map(|_| Ring::builder().entries(16).spin(Duration::ZERO).io_wq(&wq).build().unwrap()).collect();
    let mut ended = Vec::new();
    for round in 0..10 {
        for ring in &mut rings {
            let fd = ring.attach_file(file.clone()).unwrap();
            file.forget(3);
            push(ring, &[dsync(fd, 0, 1), write(fd, UNIT, 2), write(fd, 3 * UNIT, 3), fsync(fd, 4)]);
            ring.submit().unwrap();
            ring.detach(fd).unwrap();
        }
        if choose(round) {
            wq.step_account(Account::Unbound);
            wq.step();
        }
        for ring in &mut rings {
            ring.drain();
            ended.extend(reaped(ring));
        }
    }
    drop(rings);
    assert_eq!(wq.counts().map(|acct| acct.created), [0, 0]);
    assert_eq!(ended.len(), 80);
    (file.calls(), ended)
}

#[test]
fn without_threads_everything_runs_here_and_twice_alike() {
    let straight = stepped_run(|_| false);
    assert_eq!(straight, stepped_run(|_| false));
    let chosen = stepped_run(|round| round % 3 == 0);
    assert_eq!(chosen, stepped_run(|round| round % 3 == 0));
    assert_ne!(straight.0, chosen.0, "another order of steps is another run");
}

#[test]
fn a_ring_dropped_without_threads_ends_its_writes() {
    let puppet = Puppet::new();
    let file = Thin::new(&puppet.device(), 8, MappingKind::Unwritten, nothing);
    let wq = IoWq::builder().stepped(true).build().unwrap();
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
    let fd = ring.attach_file(file.clone()).unwrap();
    file.forget(1);
    push(&mut ring, &[write(fd, 0, 1), write(fd, UNIT, 2), fsync(fd, 3)]);
    ring.submit().unwrap();
    ring.reap();
    drop(ring);
    let mut calls = file.calls();
    // A sync queued earlier may have run as well. The mapping was not run.
    calls.retain(|call| *call != Call::Sync);
    assert!(matches!(calls.as_slice(), [Call::End { pos: 0, .. }]), "{calls:?}");
}
