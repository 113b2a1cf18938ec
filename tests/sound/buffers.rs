//! Memory of operations: buffers that are replaced while they are used, completions that are forgotten.
#![forbid(unsafe_code)]

use sheave::{Buf, Ring, op, open_device};

use crate::{buf, ring};

const BLOCK: usize = 4096;

/// Opens a `file:` device below `over`, with 8 blocks, each filled with its number.
fn numbered(dir: &tempfile::TempDir, over: &str) -> sheave::Device {
    let path = dir.path().join("image");
    let image: Vec<u8> = (0..8 * BLOCK).map(|at| (at / BLOCK) as u8 + 1).collect();
    std::fs::write(&path, image).expect("written");
    open_device(&format!("{over}file:{}", path.display())).expect("a device")
}

fn reads_in_flight_survive_an_update(over: &str, mut builder: sheave::RingBuilder) {
    let dir = tempfile::tempdir().expect("a directory");
    builder = builder.entries(64);
    let mut ring = builder.build().expect("a ring");
    let fd = ring.attach(&numbered(&dir, over)).expect("attached");
    for new in [Some(buf(0)), None] {
        ring.register_buffers(vec![Buf::zeroed(8 * BLOCK, BLOCK).expect("memory")]).expect("registered");
        for n in 0..8 {
            let range = n * BLOCK..(n + 1) * BLOCK;
            ring.push(op::read_fixed(fd, 0, range).offset((n * BLOCK) as u64).user_data(n as u64)).expect("room");
        }
        ring.submit().expect("submitted");
        let in_flight = ring.in_flight();
        let back = ring.update_buffer(0, new).expect("there is one");
        assert!(back.is_none() || in_flight == 0, "{over}: memory in use is not given back");
        ring.drain();
        let mut ended: Vec<_> = ring.completions().map(|done| (done.user_data, done.res)).collect();
        ended.sort_unstable();
        assert_eq!(ended, (0..8).map(|n| (n, BLOCK as i32)).collect::<Vec<_>>(), "{over}");
    }
}

#[test]
fn requests_that_wait_above_a_file_survive_an_update_of_their_buffer() {
    // A driver on top delays the requests, or the device takes one at a time: either way they are prepared after the
    // update.
    for over in ["fault:delay=1,over=", ""] {
        reads_in_flight_survive_an_update(over, Ring::builder());
        reads_in_flight_survive_an_update(over, Ring::builder().polled(true));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    std::fs::write(&path, vec![7; 8 * BLOCK]).expect("written");
    let device = open_device(&format!("file:{},depth=1", path.display())).expect("a device");
    let mut ring = ring();
    let fd = ring.attach(&device).expect("attached");
    ring.register_buffers(vec![Buf::zeroed(8 * BLOCK, BLOCK).expect("memory")]).expect("registered");
    for n in 0..8 {
        let range = n * BLOCK..(n + 1) * BLOCK;
        ring.push(op::read_fixed(fd, 0, range).offset((8 - 1 - n) as u64 * BLOCK as u64)).expect("room");
    }
    ring.submit().expect("submitted");
    ring.update_buffer(0, Some(buf(0))).expect("there is one");
    ring.drain();
    assert_eq!(ring.completions().map(|done| done.res).collect::<Vec<_>>(), [BLOCK as i32; 8]);
}

#[test]
fn a_forgotten_iterator_has_consumed_what_it_gave_and_no_more() {
    for owned in [false, true] {
        let mut ring = ring();
        let fd = ring.attach(&open_device("null:size=1M").expect("a device")).expect("attached");
        for n in 0..8 {
            if owned {
                ring.push(op::read(fd, buf(0)).offset(n * 8192).user_data(n)).expect("room");
            } else {
                ring.push(op::nop().user_data(n)).expect("room");
            }
        }
        ring.submit().expect("submitted");
        ring.drain();
        let mut completions = ring.completions();
        let first: Vec<_> =
            completions.by_ref().take(3).map(|done| (done.user_data, done.into_buf().is_some())).collect();
        // Never dropped, so that a destructor could not take effect either.
        let _ = std::mem::ManuallyDrop::new(completions);
        assert_eq!(first, [(0, owned), (1, owned), (2, owned)]);
        let rest: Vec<_> = ring.completions().map(|done| (done.user_data, done.into_buf().is_some())).collect();
        assert_eq!(rest, (3..8).map(|n| (n, owned)).collect::<Vec<_>>());
    }
}

#[test]
fn operations_are_pushed_while_completions_are_popped() {
    let mut ring = Ring::builder().entries(4).build().expect("a ring");
    let fd = ring.attach(&open_device("ram:size=1M").expect("a device")).expect("attached");
    (0..4).for_each(|n| ring.push(op::write(fd, buf(n as u8)).offset(n * 4096).user_data(n)).expect("room"));
    ring.submit_and_wait(4).expect("submitted");
    let mut seen = Vec::new();
    while let Some(done) = ring.pop() {
        seen.push(done.user_data);
        assert_eq!(done.res, 4096);
        let (next, buf) = (done.user_data + 4, done.into_buf().expect("its memory"));
        if next < 40 {
            ring.push(op::write(fd, buf).offset(next * 4096).user_data(next)).expect("room");
            ring.submit().expect("submitted");
        }
    }
    assert_eq!(seen, (0..40).collect::<Vec<_>>(), "each once, in order");
    assert!(ring.pop().is_none());
}

#[test]
fn a_chain_is_pushed_whole_or_comes_back_whole() {
    let mut ring = Ring::builder().entries(4).build().expect("a ring");
    let fd = ring.attach(&open_device("ram:size=1M").expect("a device")).expect("attached");
    let chain = || -> [op::Entry; 3] {
        [op::write(fd, buf(7)).user_data(1).into(), op::fsync(fd).user_data(2).into(), op::nop().user_data(3).into()]
    };
    ring.push(op::nop()).expect("room");
    ring.push(op::nop()).expect("room");
    let full = ring.push_chain(chain()).expect_err("room for two");
    assert_eq!(ring.sq_space(), 2, "nothing of it is in the queue");
    ring.submit_and_wait(2).expect("submitted");
    assert_eq!(ring.completions().map(|done| done.user_data).collect::<Vec<_>>(), [0, 0]);
    ring.push_chain(full.entry).expect("room");
    ring.submit_and_wait(3).expect("submitted");
    let ended: Vec<_> = ring.completions().map(|done| (done.user_data, done.res)).collect();
    assert_eq!(ended, [(1, 4096), (2, 0), (3, 0)]);
    // Each is linked to the next: operations after a failure do not run. A hard link stays hard.
    let bad = op::write(fd, buf(7)).offset(1 << 40);
    ring.push_chain([bad.user_data(1).into(), op::nop().user_data(2).into()]).expect("room");
    ring.push(op::nop().user_data(3)).expect("room");
    ring.submit_and_wait(3).expect("submitted");
    let mut ended: Vec<_> = ring.completions().map(|done| (done.user_data, done.res)).collect();
    ended.sort_unstable();
    assert_eq!(ended, [(1, -28), (2, -125), (3, 0)]);
    let bad = op::write(fd, buf(7)).offset(1 << 40).hardlink();
    ring.push_chain([bad.user_data(1).into(), op::nop().user_data(2).into()]).expect("room");
    ring.submit_and_wait(2).expect("submitted");
    assert_eq!(ring.completions().map(|done| (done.user_data, done.res)).collect::<Vec<_>>(), [(1, -28), (2, 0)]);
    ring.push_chain([]).expect("nothing has room everywhere");
}
