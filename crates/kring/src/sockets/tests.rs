//! Sending and receiving on a pair of sockets.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::*;
use crate::KringOpts;

const SECOND: Option<Duration> = Some(Duration::from_secs(1));

fn ring() -> Option<KernelRing> {
    KernelRing::new(8, KringOpts::default()).ok()
}

fn only(ring: &mut KernelRing) -> (u64, i32, u32) {
    ring.enter(1, SECOND).expect("it enters");
    let mut all = Vec::new();
    ring.reap(|user_data, res, flags| all.push((user_data, res, flags)));
    assert_eq!(all.len(), 1);
    all[0]
}

#[test]
fn what_is_received_lies_in_a_lent_buffer_until_it_is_recycled() {
    let Some(mut ring) = ring() else { return };
    ring.register_recv_buffers(0, 2, 4096).expect("a kernel from 5.19 on");
    let (mut near, far) = UnixStream::pair().expect("a pair");
    for round in 0..5u8 {
        ring.prep_recv(far.as_raw_fd(), 0, 7).expect("there is room");
        near.write_all(&[round; 100]).expect("it is sent");
        let (user_data, res, flags) = only(&mut ring);
        assert_eq!((user_data, res), (7, 100));
        // SAFETY: of the CQE above.
        let (number, data) = unsafe { ring.received(0, res, flags) }.expect("it has a buffer");
        assert_eq!(data, [round; 100]);
        // The first buffer is kept: all others are received into the second.
        if round > 0 {
            ring.recycle(0, number);
            ring.recycle(0, number);
        }
    }
}

#[test]
fn without_a_free_buffer_nothing_is_received() {
    let Some(mut ring) = ring() else { return };
    ring.register_recv_buffers(0, 1, 4096).expect("a kernel from 5.19 on");
    let (mut near, far) = UnixStream::pair().expect("a pair");
    near.write_all(b"one").expect("it is sent");
    ring.prep_recv(far.as_raw_fd(), 0, 1).expect("there is room");
    let (_, res, flags) = only(&mut ring);
    // SAFETY: of the CQE above.
    let number = unsafe { ring.received(0, res, flags) }.expect("it has a buffer").0;
    near.write_all(b"two").expect("it is sent");
    ring.prep_recv(far.as_raw_fd(), 0, 2).expect("there is room");
    assert_eq!(only(&mut ring).1, -libc::ENOBUFS);
    ring.recycle(0, number);
    ring.prep_recv(far.as_raw_fd(), 0, 3).expect("there is room");
    assert_eq!(only(&mut ring).1, 3);
}

#[test]
fn a_message_of_several_pieces_is_sent_whole() {
    let Some(mut ring) = ring() else { return };
    let (near, mut far) = UnixStream::pair().expect("a pair");
    let mut pieces = [*b"head", *b"data"];
    let mut message = Message::new();
    for piece in &mut pieces {
        assert!(message.push(IoVec { base: piece.as_mut_ptr(), len: 4 }));
    }
    // SAFETY: message and pieces outlive the wait.
    unsafe { ring.prep_send(near.as_raw_fd(), &mut message, 5) }.expect("there is room");
    assert_eq!(only(&mut ring).1, 8);
    let mut got = [0; 8];
    far.read_exact(&mut got).expect("it came");
    assert_eq!(&got, b"headdata");
}

#[test]
fn a_receive_into_memory_waits_for_all_of_it() {
    let Some(mut ring) = ring() else { return };
    let (mut near, far) = UnixStream::pair().expect("a pair");
    let mut memory = vec![0u8; 6];
    let place = IoVec { base: memory.as_mut_ptr(), len: 6 };
    // SAFETY: the memory outlives the wait.
    unsafe { ring.prep_recv_into(far.as_raw_fd(), place, 5) }.expect("there is room");
    near.write_all(b"abc").expect("it is sent");
    ring.enter(1, Some(Duration::from_millis(20))).expect("it enters");
    assert_eq!(ring.ready(), 0);
    near.write_all(b"def").expect("it is sent");
    assert_eq!(only(&mut ring).1, 6);
    assert_eq!(memory, b"abcdef");
}
