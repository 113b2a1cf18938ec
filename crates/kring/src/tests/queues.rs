//! The queues in memory shared with the kernel: entries written and completions read in place, round after round.

use super::*;

/// Bytes of one operation of the runs here.
const LEN: usize = 512;

/// Returns the operations that read the parts of a file into the parts of `memory`, each with its number.
fn parts(memory: &mut [u8]) -> Vec<RwOp> {
    let part = |(at, part): (usize, &mut [u8])| RwOp {
        len: LEN as u32,
        base: part.as_mut_ptr().addr(),
        offset: (at * LEN) as u64,
        user_data: at as u64,
    };
    memory.chunks_mut(LEN).enumerate().map(part).collect()
}

#[test]
fn runs_go_round_both_queues() {
    let Some(mut ring) = ring(8) else { return };
    let bytes: Vec<u8> = (0..5 * LEN).map(|at| (at / LEN) as u8 + 1).collect();
    let file = file_with(&bytes);
    let target = Target::Fixed(ring.register_file(file.as_raw_fd()).expect("a slot"));
    let mut done = Vec::new();
    // Five of eight entries: most batches go round the end of the SQ, and some round that of the CQ.
    for round in 0..200 {
        let mut memory = vec![0; bytes.len()];
        let ops = parts(&mut memory);
        // SAFETY: the memory lives until all has ended, below.
        let prepared = unsafe { ring.prep_run(KOp::Read, target, None, &ops, |op| Some(*op)) };
        assert_eq!((prepared, ring.pending()), (5, 5));
        // An operation with other fields, which the next round overwrites.
        let after = Duration::from_millis(1);
        ring.prep_alarm(after, 99).expect("room");
        assert_eq!((ring.enter(6, LONG), ring.in_flight()), (Ok(6), 6));
        ring.reap_into(&mut done);
        done.sort_unstable_by_key(|done| done.user_data);
        let all: Vec<(u64, i32)> = done.drain(..).map(|done| (done.user_data, done.res)).collect();
        let expected: Vec<(u64, i32)> = (0..5).map(|at| (at, LEN as i32)).chain([(99, -libc::ETIME)]).collect();
        assert_eq!(all, expected, "round {round}");
        ring.rang(99);
        assert_eq!((memory == bytes, ring.in_flight(), ring.outstanding()), (true, 0, 0), "round {round}");
    }
}

#[test]
fn a_run_ends_where_there_is_no_room() {
    let Some(mut ring) = ring(4) else { return };
    let file = file_with(&[7; 6 * LEN]);
    let mut memory = vec![0; 6 * LEN];
    let ops = parts(&mut memory);
    // SAFETY: the memory lives until all has ended, below.
    let run = |ring: &mut KernelRing, ops: &[RwOp], most: u64| unsafe {
        let some = |op: &RwOp| (op.user_data < most).then_some(*op);
        ring.prep_run(KOp::Read, Target::Raw(file.as_raw_fd()), None, ops, some)
    };
    assert_eq!(run(&mut ring, &ops, 3), 3, "the fourth is none");
    assert_eq!(run(&mut ring, &ops[3..], 9), 1, "four entries");
    assert_eq!((run(&mut ring, &ops[4..], 9), ring.space()), (0, 0));
    let mut all = collect(&mut ring, 4);
    assert_eq!(run(&mut ring, &ops[4..], 9), 2);
    all.extend(collect(&mut ring, 2));
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5].map(|at| (at, LEN as i32)));
    assert!(memory.iter().all(|byte| *byte == 7));
}

#[test]
fn a_run_writes_and_a_buffer_that_is_not_there_is_none() {
    let Some(mut ring) = ring(4) else { return };
    let file = file_with(&[0; 2 * LEN]);
    let mut memory = vec![9; 2 * LEN];
    let ops = parts(&mut memory);
    // SAFETY: the memory lives until both have ended, below.
    let prepared = unsafe { ring.prep_run(KOp::Write, Target::Raw(file.as_raw_fd()), Some(3), &ops, |op| Some(*op)) };
    assert_eq!(prepared, 2);
    let mut done = collect(&mut ring, 2);
    done.sort_unstable();
    assert_eq!(done, [(0, LEN as i32), (1, LEN as i32)]);
    let mut written = vec![0; 2 * LEN];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut written, 0).expect("read");
    assert_eq!(written, memory);
}

#[test]
fn a_run_in_registered_buffers_ends_where_a_buffer_is_not_there() {
    let Some(mut ring) = ring(8) else { return };
    let bytes: Vec<u8> = (0..4 * LEN).map(|at| (at / LEN) as u8 + 1).collect();
    let file = file_with(&bytes);
    let target = Target::Raw(file.as_raw_fd());
    let mut memory = vec![0; 4 * LEN];
    let ops = parts(&mut memory);
    // Each part is a buffer, except the third.
    for op in ops.iter().filter(|op| op.user_data != 2) {
        // SAFETY: the memory lives until the ring is dropped, and only the operations below touch it.
        let registered = unsafe { ring.register_buffer(op.user_data as u32, op.base as *mut u8, op.len as usize) };
        if registered.is_err() {
            return; // The limit of locked memory.
        }
    }
    let in_buffer = |op: &RwOp| Some((*op, op.user_data as u16));
    // SAFETY: as above.
    let prepared = unsafe {
        let third = ring.prep_run_fixed(KOp::Read, target, &ops, in_buffer);
        let none = ring.prep_run_fixed(KOp::Read, target, &ops[2..], in_buffer);
        (third, none, ring.prep_run_fixed(KOp::Read, target, &ops[3..], |op| Some((*op, 1))))
    };
    assert_eq!(prepared, (2, 0, 1), "the third names a buffer that is not there");
    let mut done = collect(&mut ring, 3);
    done.sort_unstable();
    // Each SQE names its buffer. Read 3 has its memory in another buffer than it names, which the kernel refuses.
    assert_eq!(done, [(0, LEN as i32), (1, LEN as i32), (3, -libc::EFAULT)]);
    assert_eq!(memory, [&bytes[..2 * LEN], &[0; 2 * LEN]].concat());
}

#[test]
fn reap_only_takes_a_single_completion() {
    let Some(mut ring) = ring(4) else { return };
    let file = file_with(&[0; 16]);
    assert_eq!(ring.reap_only(), None);
    for count in [1, 2] {
        for user_data in 0..count {
            ring.prep_fsync(Target::Raw(file.as_raw_fd()), false, user_data).expect("room");
        }
        ring.enter(count as u32, LONG).expect("entered");
        let only = ring.reap_only().map(|done| (done.user_data, done.res));
        assert_eq!(only, (count == 1).then_some((0, 0)));
        assert_eq!((ring.ready(), ring.in_flight()), if count == 1 { (0, 0) } else { (2, 2) });
    }
    assert_eq!(ring.reap(|_, res, _| assert_eq!(res, 0)), 2);
}
