//! Memory that operations own: every type comes back with its completion, on every path of an I/O; a device refuses
//! unsuitable memory with a reason; no memory is lost or freed early when an operation ends early.
#![allow(unsafe_code)] // Operations of the raw interface among the others.

use std::sync::Arc;

use sheave_base::buf::Buf;
use sheave_base::status::Errno;
use sheave_drivers::open_device;
use sheave_uring::io_buf::{IoBuf, IoParts};
use sheave_uring::sqe::{Sqe, opcode};
use sheave_uring::{Fd, Ring, Waited, prep};

fn ring(spec: &str, entries: u32) -> (Ring, Fd) {
    let mut ring = Ring::builder().entries(entries).build().expect("a ring");
    let fd = ring.attach(&open_device(spec).expect("a device")).expect("attached");
    (ring, fd)
}

const RAM: &str = "ram:size=1M";

#[test]
fn every_type_writes_and_reads() {
    let (mut ring, fd) = ring(RAM, 8);
    let shared: Arc<[u8]> = Arc::from([1; 512]);
    ring.push(prep::write(fd, Arc::clone(&shared)).user_data(1)).expect("room");
    ring.push(prep::write(fd, vec![2; 512]).offset(512).user_data(2)).expect("room");
    ring.push(prep::write(fd, vec![3; 512].into_boxed_slice()).offset(1024).user_data(3)).expect("room");
    ring.submit_and_wait(3).expect("submitted");
    assert_eq!(Arc::strong_count(&shared), 2, "the operation has one until it is read");
    for expected in 1..=3 {
        let done = ring.pop().expect("waited for it");
        assert_eq!((done.user_data, done.res), (expected, 512));
        let bytes = match expected {
            1 => done.into_memory::<Arc<[u8]>>().expect("as given").to_vec(),
            2 => done.into_memory::<Vec<u8>>().expect("as given"),
            _ => done.into_memory::<Box<[u8]>>().expect("as given").into_vec(),
        };
        assert_eq!(bytes, [expected as u8; 512]);
    }
    assert_eq!(Arc::strong_count(&shared), 1);
    ring.push(prep::read(fd, vec![0; 1536]).user_data(4)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let bytes: Vec<u8> = ring.pop().and_then(|done| done.into_memory()).expect("as given");
    assert!(bytes.chunks(512).zip(1..).all(|(block, value)| block.iter().all(|byte| *byte == value)));
}

#[test]
fn another_type_is_dropped_and_not_made_up() {
    let (mut ring, fd) = ring(RAM, 8);
    let shared: Arc<[u8]> = Arc::from([1; 512]);
    ring.push(prep::write(fd, Arc::clone(&shared))).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    assert!(ring.pop().expect("waited for it").into_buf().is_none());
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn a_part_is_read_and_the_rest_stays() {
    let (mut ring, fd) = ring(RAM, 8);
    ring.push(prep::write(fd, vec![9; 4096]).part(1024..2048)).expect("room");
    ring.push(prep::read(fd, vec![7; 2048]).part(512..1536)).expect("room");
    ring.submit_and_wait(2).expect("submitted");
    assert_eq!(ring.pop().map(|done| done.res), Some(1024));
    let done = ring.pop().expect("waited for it");
    assert_eq!(done.res, 1024);
    let bytes: Vec<u8> = done.into_memory().expect("as given");
    assert!(bytes[..512].iter().chain(&bytes[1536..]).all(|byte| *byte == 7));
    assert!(bytes[512..1536].iter().all(|byte| *byte == 9));
}

#[test]
#[allow(clippy::reversed_empty_ranges)] // One of the invalid parts.
fn a_part_outside_of_the_memory_is_efault() {
    let (mut ring, fd) = ring(RAM, 8);
    for part in [0..1024, 512..1024, 1024..1536, usize::MAX - 511..usize::MAX, 512..0] {
        let empty = part.is_empty();
        ring.push(prep::read(fd, vec![7; 512]).part(part.clone())).expect("room");
        ring.submit_and_wait(1).expect("submitted");
        let done = ring.pop().expect("waited for it");
        assert!(done.res == -14 || empty && done.res == 0, "{part:?}: {}", done.res);
        assert_eq!(done.into_memory::<Vec<u8>>().expect("as given"), [7; 512]);
    }
    ring.register_buffers(vec![Buf::zeroed(4096, 4096).expect("memory")]).expect("registered");
    for part in [0..1024, 512..1024, usize::MAX - 511..usize::MAX] {
        // A part is relative to the range, not to the whole buffer.
        ring.push(prep::read_fixed(fd, 0, 1024..1536).part(part.clone())).expect("room");
        ring.submit_and_wait(1).expect("submitted");
        assert_eq!(ring.pop().map(|done| done.res), Some(-14), "{part:?}");
    }
    ring.push(prep::read_fixed(fd, 0, 1024..2048).part(512..1024)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    assert_eq!(ring.pop().map(|done| done.res), Some(512));
}

#[test]
fn memory_that_begins_elsewhere_is_einval_that_names_the_alignment() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    std::fs::write(&path, vec![5; 1 << 20]).expect("written");
    let device = open_device(&format!("file:{},direct=on", path.display()));
    let Ok(device) = device else { return sheave_testkit::skip("no direct I/O here") };
    let align = device.limits().dma_alignment as usize;
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let Ok(fd) = ring.attach(&device) else { return sheave_testkit::skip("no kernel ring here") };
    let whole = vec![0; 4096 + 1];
    let at = (1..align).find(|at| !(whole.as_ptr().addr() + at).is_multiple_of(align)).unwrap_or(0);
    ring.push(prep::read(fd, whole).part(at..at + 4096)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let done = ring.pop().expect("waited for it");
    let error = done.result().expect_err("the device cannot take it");
    assert_eq!(error, Errno(22));
    assert!(error.to_string().contains(&format!("multiple of {align}")), "{error}");
    assert_eq!(done.into_memory::<Vec<u8>>().expect("as given"), vec![0; 4097], "nothing was read");
}

#[test]
fn an_offset_that_is_no_multiple_is_told_and_other_errors_are_not() {
    let (mut ring, fd) = ring(RAM, 8);
    ring.push(prep::read(fd, vec![0; 512]).offset(100).user_data(1)).expect("room");
    ring.push(prep::read(fd, vec![0; 100]).user_data(2)).expect("room");
    ring.push(prep::read(Fd::NONE, vec![0; 512]).user_data(3)).expect("room");
    ring.push(prep::read(fd, vec![0; 512]).offset(1 << 63).user_data(4)).expect("room");
    ring.submit_and_wait(4).expect("submitted");
    let mut wanted = [None; 5];
    while let Some(done) = ring.pop() {
        wanted[done.user_data as usize] = done.result().expect_err("none of them can be").wanted_alignment();
    }
    assert_eq!(wanted[1].map(|(block, _)| block), Some(512));
    assert_eq!(wanted[2].map(|(block, _)| block), Some(512));
    assert_eq!((wanted[3], wanted[4]), (None, None));
}

/// Mixes owned, raw and fixed reads and NOPs in one batch, in every order: two bits of a number select each operation.
#[test]
fn operations_of_both_interfaces_mix() {
    let (mut ring, fd) = ring(RAM, 8);
    let mut place = Buf::zeroed(512, 512).expect("memory");
    ring.register_buffers((0..3).map(|_| Buf::zeroed(512, 512).expect("memory")).collect()).expect("registered");
    for order in 0..4_u32.pow(6) {
        for at in 0..6 {
            let user_data = u64::from(order << 8 | at);
            match order >> (2 * at) & 3 {
                0 => ring.push(prep::read(fd, vec![at as u8; 512]).user_data(user_data)).expect("room"),
                1 => {
                    let addr = place.as_mut_ptr() as u64;
                    let sqe = Sqe { opcode: opcode::READ, fd: fd.raw(), addr, len: 512, user_data, ..Sqe::default() };
                    // SAFETY: the memory outlives the ring's use of it; all reads write zeroes to it.
                    assert!(unsafe { ring.push_sqe(&sqe) });
                }
                2 => ring.push(prep::read_fixed(fd, at as u16 % 3, 0..512).user_data(user_data)).expect("room"),
                _ => ring.push(prep::nop().user_data(user_data)).expect("room"),
            }
        }
        ring.submit_and_wait(6).expect("submitted");
        let mut seen = 0;
        while let Some(done) = ring.pop() {
            let at = (done.user_data & 0xff) as u32;
            assert_eq!(done.user_data >> 8, u64::from(order));
            let kind = order >> (2 * at) & 3;
            assert_eq!(done.res, if kind == 3 { 0 } else { 512 });
            assert_eq!(done.into_memory::<Vec<u8>>().is_some(), kind == 0);
            seen |= 1 << at;
        }
        assert_eq!(seen, 0b11_1111);
    }
}

#[test]
fn raw_readers_see_the_callers_user_data_and_memory_goes_with_its_cqe() {
    let (mut ring, fd) = ring(RAM, 8);
    let shared: Arc<[u8]> = Arc::from([1; 512]);
    for alone in [true, false] {
        let many = if alone { 1 } else { 3 };
        for at in 0..many {
            ring.push(prep::write(fd, Arc::clone(&shared)).user_data(1000 + at)).expect("room");
        }
        ring.submit_and_wait(many as u32).expect("submitted");
        let mut seen = Vec::new();
        assert_eq!(u64::from(ring.for_each_cqe(|cqe| seen.push(cqe.user_data))), many);
        assert_eq!(seen, (1000..1000 + many).collect::<Vec<_>>());
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}

/// Memory whose drop panics if its first byte is 1.
struct Fuse(Vec<u8>);

impl Drop for Fuse {
    fn drop(&mut self) {
        assert!(self.0.first() != Some(&1), "this one goes off");
    }
}

// SAFETY: the memory of the `Vec`, as its own implementation says.
unsafe impl IoBuf for Fuse {
    fn into_parts(mut self) -> IoParts {
        IoBuf::into_parts(std::mem::take(&mut self.0))
    }

    unsafe fn from_parts(parts: IoParts) -> Fuse {
        // SAFETY: promised by the caller.
        Fuse(unsafe { <Vec<u8> as IoBuf>::from_parts(parts) })
    }
}

#[test]
fn memory_that_panics_when_it_is_dropped_takes_no_other_with_it() {
    let (mut ring, fd) = ring(RAM, 8);
    // This user data would be the key of an operation in flight if it were taken for a key.
    for (at, byte) in [0, 1, 0].into_iter().enumerate() {
        ring.push(prep::write(fd, Fuse(vec![byte; 512])).user_data(2 - at as u64)).expect("room");
    }
    ring.submit_and_wait(3).expect("submitted");
    let gone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ring.for_each_cqe(|_| {})));
    assert!(gone.is_err(), "the second goes off");
    let seen: Vec<(u64, i32, bool)> =
        ring.completions().map(|done| (done.user_data, done.res, done.into_memory::<Fuse>().is_some())).collect();
    assert_eq!(seen, [(2, 512, false), (1, 512, false), (0, 512, true)]);
}

#[test]
fn panic_in_drop_of_skipped_memory_is_contained() {
    let (mut ring, fd) = ring(RAM, 8);
    ring.push(prep::write(fd, Fuse(vec![1; 512])).skip_success().link()).expect("room");
    ring.push(prep::write(fd, Fuse(vec![0; 512])).offset(512).user_data(7)).expect("room");
    ring.submit().expect("submitted");
    assert_eq!(ring.wait(1, Some(std::time::Duration::from_secs(20))), Waited::Ready(1));
    assert_eq!(ring.completions().map(|done| (done.user_data, done.res)).collect::<Vec<_>>(), [(7, 512)]);
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn what_is_not_read_is_dropped_with_the_ring_and_what_is_skipped_at_its_end() {
    let shared: Arc<[u8]> = Arc::from([1; 512]);
    let (mut ring, fd) = ring(RAM, 8);
    ring.push(prep::write(fd, Arc::clone(&shared)).skip_success()).expect("room");
    ring.push(prep::nop()).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    assert_eq!(Arc::strong_count(&shared), 1, "it has ended and posts nothing");
    ring.push(prep::write(fd, Arc::clone(&shared))).expect("room");
    ring.submit_and_wait(2).expect("submitted");
    ring.push(prep::write(fd, Arc::clone(&shared))).expect("room");
    assert_eq!(Arc::strong_count(&shared), 3, "one to be read, one to be submitted");
    drop(ring);
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn a_full_queue_gives_the_memory_back() {
    let (mut ring, fd) = ring(RAM, 2);
    let shared: Arc<[u8]> = Arc::from([1; 512]);
    while ring.sq_space() > 0 {
        ring.push(prep::nop()).expect("room");
    }
    let full = ring.push(prep::write(fd, Arc::clone(&shared))).expect_err("no room");
    assert_eq!(Arc::strong_count(&shared), 2);
    drop(full);
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn what_fails_or_overflows_comes_back_too() {
    let mut ring = Ring::builder().entries(4).cq_entries(4).build().expect("a ring");
    let fd = ring.attach(&open_device("fault:error=0.5,seed=3,over=ram:size=1M").expect("a device")).expect("attached");
    for round in 0..3_u64 {
        for at in 0..4 {
            ring.push(prep::read(fd, vec![0; 512]).user_data(round << 8 | at)).expect("room");
        }
        // No CQE is read: those that do not fit into the CQ go to the overflow list.
        let _ = ring.submit();
        ring.drain();
    }
    let (mut seen, mut failed) = (Vec::new(), 0);
    while let Some(done) = ring.pop() {
        seen.push(done.user_data);
        failed += u32::from(done.res == -5);
        assert_eq!(done.into_memory::<Vec<u8>>().map(|vec| vec.len()), Some(512));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..3).flat_map(|round| (0..4).map(move |at| round << 8 | at)).collect::<Vec<_>>());
    assert!(failed > 0, "the test is of no use");
}

#[test]
fn a_buffer_that_a_record_uses_is_not_given_back_early() {
    // Adjacent reads into different buffers share a request, and the device still holds them.
    let (mut ring, fd) = ring("null:size=1M,latency=20ms", 8);
    ring.register_buffers((0..4).map(|_| Buf::zeroed(512, 512).expect("memory")).collect()).expect("registered");
    for round in 0..2 {
        for at in 0..4_u16 {
            ring.push(prep::read_fixed(fd, at, 0..512).offset(u64::from(at) * 512)).expect("room");
        }
        ring.submit().expect("submitted");
        if ring.in_flight() == 4 {
            for at in 0..4 {
                assert!(ring.buffer(at).is_none(), "round {round}: buffer {at} is in use");
            }
        }
        ring.drain();
        assert_eq!(ring.completions().count(), 4);
        assert!(ring.buffer(3).is_some());
    }
}
