//! The kernel ring on real files: every set of flags, both tables, waiting, full queues, errors and dropping.
#![allow(unsafe_code)] // prepares I/O to memory of the test

mod faults;
mod queues;
mod tables;
mod wait;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use super::*;

const LONG: Option<Duration> = Some(Duration::from_secs(20));

/// Makes a ring, or returns `None` with a loud message where io_uring is forbidden.
fn ring_with(entries: u32, avoid: KringAvoid) -> Option<KernelRing> {
    match KernelRing::new(entries, KringOpts { iopoll: false, avoid }) {
        Ok(ring) => Some(ring),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn ring(entries: u32) -> Option<KernelRing> {
    ring_with(entries, KringAvoid::default())
}

fn file_with(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("written");
    file
}

fn vec_of(memory: &mut [u8]) -> IoVec {
    IoVec { base: memory.as_mut_ptr(), len: memory.len() }
}

/// Enters and reaps until `count` completions came. Returns them in order.
fn collect(ring: &mut KernelRing, count: usize) -> Vec<(u64, i32)> {
    let mut done = Vec::new();
    while done.len() < count {
        ring.enter(1, LONG).expect("entered");
        ring.reap(|user_data, res, _| done.push((user_data, res)));
    }
    assert_eq!(done.len(), count, "one completion an operation (I2)");
    done
}

/// Returns one ring for each kernel version of the ladder.
fn generations() -> Vec<KringAvoid> {
    let v6_1 = KringAvoid { no_sqarray: true, ..KringAvoid::default() };
    let v6_0 = KringAvoid { defer_taskrun: true, ..v6_1 };
    let v5_19 = KringAvoid { single_issuer: true, ..v6_0 };
    let v5_18 = KringAvoid { coop_taskrun: true, ..v5_19 };
    let v5_11 = KringAvoid { submit_all: true, registered_ring: true, ..v5_18 };
    let v5_6 = KringAvoid { ext_arg: true, file_table: true, buffer_table: true, ..v5_11 };
    vec![KringAvoid::default(), v6_1, v6_0, v5_19, v5_18, v5_11, v5_6]
}

#[test]
fn each_generation_of_kernels_reads_writes_and_syncs() {
    for avoid in generations() {
        let Some(mut ring) = ring_with(8, avoid) else { return };
        let features = *ring.features();
        assert!(!(avoid.defer_taskrun && features.defer_taskrun), "{avoid:?} gave {features:?}");
        assert!(!(avoid.registered_ring && features.registered_ring), "{avoid:?} gave {features:?}");
        assert_eq!(features.file_slots, if avoid.file_table { 0 } else { FILE_SLOTS });
        let file = file_with(&[0; 8192]);
        let target = ring.register_file(file.as_raw_fd()).map_or(Target::Raw(file.as_raw_fd()), Target::Fixed);
        assert_eq!(matches!(target, Target::Raw(_)), avoid.file_table);
        let mut data = *b"sheave block i/o";
        let (mut front, mut back) = ([0; 6], [0; 10]);
        // SAFETY: all memory lives until its completion was collected, below.
        unsafe {
            ring.prep_rw(KOp::Write, target, &[vec_of(&mut data)], None, 4096, 0, 1).expect("room");
            collect(&mut ring, 1);
            let segments = [vec_of(&mut front), vec_of(&mut back)];
            ring.prep_rw(KOp::Read, target, &segments, None, 4096, 0, 2).expect("room");
            ring.prep_fsync(target, true, 3).expect("room");
            assert_eq!(ring.pending(), 2);
            let mut done = collect(&mut ring, 2);
            done.sort_unstable();
            assert_eq!(done, [(2, 16), (3, 0)], "{avoid:?}");
        }
        assert_eq!((&front, &back), (b"sheave", b" block i/o"));
        assert_eq!((ring.pending(), ring.in_flight()), (0, 0));
    }
}

#[test]
fn direct_io_moves_whole_blocks_both_ways() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let mut opts = File::options();
    let file = match opts.read(true).write(true).create(true).custom_flags(libc::O_DIRECT).open(&path) {
        Ok(file) => file,
        Err(error) => {
            eprintln!("SKIPPED: the file system of the temporary directory has no direct I/O: {error}");
            return;
        }
    };
    file.set_len(1 << 20).expect("sized");
    let Some(mut ring) = ring(8) else { return };
    let target = Target::Fixed(ring.register_file(file.as_raw_fd()).expect("a slot"));
    let mut memory = vec![0u8; 3 * 4096];
    let start = memory.as_ptr().align_offset(4096);
    let (out, back) = memory[start..start + 8192].split_at_mut(4096);
    out.fill(0xa5);
    // SAFETY: `memory` lives on until both completions were collected.
    unsafe {
        ring.prep_rw(KOp::Write, target, &[vec_of(out)], None, 65536, libc::RWF_DSYNC, 1).expect("room");
        assert_eq!(collect(&mut ring, 1), [(1, 4096)]);
        ring.prep_rw(KOp::Read, target, &[vec_of(back)], None, 65536, 0, 2).expect("room");
        assert_eq!(collect(&mut ring, 1), [(2, 4096)]);
    }
    assert_eq!(out, back);
}

#[test]
fn punching_a_hole_reads_as_zeroes() {
    let Some(mut ring) = ring(4) else { return };
    let file = file_with(&[7; 16384]);
    let target = Target::Raw(file.as_raw_fd());
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    ring.prep_fallocate(target, mode, 4096, 4096, 1).expect("room");
    let done = collect(&mut ring, 1);
    if done == [(1, -libc::EOPNOTSUPP)] {
        eprintln!("SKIPPED: no holes on the file system of the temporary directory");
        return;
    }
    assert_eq!(done, [(1, 0)]);
    let mut memory = [1u8; 12288];
    // SAFETY: `memory` lives until the completion was collected.
    unsafe { ring.prep_rw(KOp::Read, target, &[vec_of(&mut memory)], None, 0, 0, 2).expect("room") };
    assert_eq!(collect(&mut ring, 1), [(2, 12288)]);
    assert!(memory[..4096].iter().all(|b| *b == 7) && memory[4096..8192].iter().all(|b| *b == 0));
    assert!(memory[8192..].iter().all(|b| *b == 7));
}

#[test]
fn bad_operations_end_with_their_errno_and_stop_nobody() {
    let Some(mut ring) = ring(8) else { return };
    let file = file_with(&[1; 512]);
    let mut memory = [0u8; 16];
    let seg = [vec_of(&mut memory)];
    // SAFETY: `memory` lives until all completions were collected; the null segment is the kernel's to refuse.
    unsafe {
        ring.prep_rw(KOp::Read, Target::Raw(-1), &seg, None, 0, 0, 1).expect("room");
        ring.prep_rw(KOp::Read, Target::Fixed(63), &seg, None, 0, 0, 2).expect("room");
        ring.prep_rw(KOp::Read, Target::Fixed(70_000), &seg, None, 0, 0, 3).expect("room");
        ring.prep_rw(KOp::Read, Target::Raw(file.as_raw_fd()), &seg, Some(9), 0, 0, 4).expect("room");
        let nowhere = [IoVec { base: std::ptr::null_mut(), len: usize::MAX }];
        ring.prep_rw(KOp::Write, Target::Raw(file.as_raw_fd()), &nowhere, None, 0, 0, 5).expect("room");
        ring.prep_rw(KOp::Read, Target::Raw(file.as_raw_fd()), &[], None, 0, 0, 6).expect("room");
        ring.prep_rw(KOp::Read, Target::Raw(file.as_raw_fd()), &seg, None, 0, i32::MAX, 7).expect("room");
        ring.prep_rw(KOp::Read, Target::Raw(file.as_raw_fd()), &seg, None, 0, 0, 8).expect("room");
    }
    let mut done = collect(&mut ring, 8);
    done.sort_unstable();
    let (ebadf, efault) = (-libc::EBADF, -libc::EFAULT);
    assert_eq!(done[..3], [(1, ebadf), (2, ebadf), (3, ebadf)]);
    assert_eq!(done[3..6], [(4, efault), (5, efault), (6, 0)]);
    assert!(done[6].1 == -libc::EOPNOTSUPP || done[6].1 == -libc::EINVAL, "{done:?}");
    assert_eq!(done[7], (8, 16));
}

#[test]
fn a_full_queue_answers_and_takes_more_after_an_enter() {
    let Some(mut ring) = ring(4) else { return };
    let file = file_with(&[1; 512]);
    for n in 0..4 {
        assert_eq!(ring.space(), 4 - n);
        ring.prep_fsync(Target::Raw(file.as_raw_fd()), true, 0).expect("room");
    }
    assert_eq!(ring.prep_fsync(Target::Raw(file.as_raw_fd()), true, 0), Err(Full));
    assert_eq!(ring.prep_poll_fd(0, 0), Err(Full));
    assert_eq!((ring.pending(), ring.space()), (4, 0));
    assert_eq!(ring.enter(0, None), Ok(4));
    ring.prep_fsync(Target::Raw(file.as_raw_fd()), true, 0).expect("room again");
    collect(&mut ring, 5);
}

#[test]
fn a_reaper_that_comes_late_loses_nothing() {
    let Some(mut ring) = ring(64) else { return };
    let null = File::open("/dev/null").expect("/dev/null");
    let mut memory = [0u8; 16];
    let total = u64::from(ring.features().cq_entries) * 3;
    for n in 0..total {
        if ring.space() == 0 {
            ring.enter(0, None).expect("entered");
        }
        // SAFETY: /dev/null reads nothing into `memory`, which lives to the end of the test.
        unsafe { ring.prep_rw(KOp::Read, Target::Raw(null.as_raw_fd()), &[vec_of(&mut memory)], None, 0, 0, n) }
            .expect("room");
    }
    let mut seen = Vec::new();
    for _ in 0..total {
        ring.enter(1, LONG).expect("entered");
        ring.reap(|user_data, _, _| seen.push(user_data));
        if seen.len() as u64 == total {
            break;
        }
    }
    assert_eq!(seen, (0..total).collect::<Vec<_>>(), "all of them, in their order");
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn polled_rings_refuse_or_read_but_never_hang() {
    let opts = KringOpts { iopoll: true, ..KringOpts::default() };
    let Ok(mut ring) = KernelRing::new(4, opts) else { return };
    assert!(ring.features().iopoll);
    let file = file_with(&[1; 4096]);
    let mut memory = [0u8; 512];
    // SAFETY: `memory` lives until the completion was collected.
    unsafe { ring.prep_rw(KOp::Read, Target::Raw(file.as_raw_fd()), &[vec_of(&mut memory)], None, 0, 0, 1) }
        .expect("room");
    let done = collect(&mut ring, 1);
    assert_eq!(done, [(1, -libc::EOPNOTSUPP)], "a file that is not O_DIRECT is never polled");
}

#[test]
fn a_restricted_ring_does_what_it_is_for_and_nothing_else() {
    if ring(8).is_none() {
        return;
    }
    restrict_rings();
    for avoid in generations() {
        let mut ring = ring_with(8, avoid).expect("as before");
        let open = io_uring::opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr()).build();
        ring.push(open, 1).expect("room");
        assert_eq!(collect(&mut ring, 1), [(1, -libc::EACCES)], "{avoid:?}");
        assert!(ring.ring.submitter().register_probe(&mut io_uring::Probe::new()).is_err(), "no other registration");
    }
    // All other operations still work.
    each_generation_of_kernels_reads_writes_and_syncs();
    punching_a_hole_reads_as_zeroes();
}
