//! The queue against a back-end that the test plays itself, by writing the used ring.

use super::*;
use crate::memory::RegionSpec;

const SOON: Duration = Duration::from_millis(1);

fn queue(size: u16, negotiated: u64) -> DriverQueue {
    let memory = GuestMemory::new(&[RegionSpec::new(0x10_0000, 1 << 20)]).expect("made");
    DriverQueue::new(0, size, 8, negotiated, &memory).expect("room")
}

/// Completes a head as a back-end does.
fn used(queue: &DriverQueue, head: u16, len: u32) {
    let index = queue.ring().used_index();
    queue.ring().set_used_entry(index, u32::from(head), len);
    queue.ring().set_used_index(index.wrapping_add(1));
}

fn reaped(queue: &mut DriverQueue) -> Result<Vec<u16>> {
    let mut heads = Vec::new();
    queue.reap(|completion| heads.push(completion.token.0))?;
    Ok(heads)
}

fn why(queue: &mut DriverQueue) -> String {
    reaped(queue).expect_err("the ring is broken").to_string()
}

#[test]
fn a_direct_chain_has_header_data_and_status() {
    let mut queue = queue(8, 0);
    let header = queue.next_header_address();
    let data = [Segment { address: 0x20_0000, len: 512 }, Segment { address: 0x30_0000, len: 1024 }];
    let token = queue.submit(Operation::Read, 0x1234, &data).expect("room");
    assert_eq!(queue.ring().avail_index(), 0, "the back-end sees nothing before the kick");
    queue.publish();
    assert_eq!((queue.ring().avail_index(), queue.ring().avail_entry(0), token), (1, 0, Token(0)));
    let chain: Vec<_> = (0..4).map(|at| queue.ring().descriptor(at)).collect();
    let expected = [(header, 16, NEXT, 1), (0x20_0000, 512, NEXT | WRITE, 2), (0x30_0000, 1024, NEXT | WRITE, 3)];
    for (descriptor, (address, len, flags, next)) in chain.iter().zip(expected) {
        assert_eq!(*descriptor, Descriptor { address, len, flags, next });
    }
    assert_eq!(chain[3], Descriptor { address: header + 16, len: 1, flags: WRITE, next: 0 });
    assert_eq!(queue.memory().read(header, 16), [0, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0]);
    assert_eq!(queue.free_descriptors(), 4);
}

#[test]
fn an_indirect_chain_takes_one_descriptor() {
    let mut queue = queue(8, features::INDIRECT_DESC);
    let token = queue.write(7, 0x20_0000, 4096).expect("room");
    let descriptor = queue.ring().descriptor(token.0);
    assert_eq!((descriptor.flags, descriptor.len, queue.free_descriptors()), (INDIRECT, 48, 7));
    let table = queue.memory().read(descriptor.address, 48);
    assert_eq!(table[16..32], Descriptor { address: 0x20_0000, len: 4096, flags: NEXT, next: 2 }.encode());
    assert_eq!(table[32 + 12..], [2, 0, 0, 0], "the status is written and is the last");
    let many = vec![Segment { address: 0x20_0000, len: 512 }; 7];
    assert!(matches!(queue.submit(Operation::Read, 0, &many), Err(Error::TooManyPieces { pieces: 9, most: 8 })));
}

#[test]
fn descriptors_come_back_when_their_request_is_used() {
    let mut queue = queue(8, 0);
    let tokens: Vec<_> = (0..2).map(|at| queue.read(at, 0x20_0000, 512).expect("room")).collect();
    let error = queue.read(2, 0x20_0000, 512).unwrap_err();
    assert!(matches!(error, Error::QueueFull { free: 2, needed: 3 }), "{error}");
    for round in 0..100 {
        used(&queue, tokens[1].0, 513);
        assert_eq!(reaped(&mut queue).expect("fine"), [tokens[1].0], "round {round}");
        assert_eq!((queue.free_descriptors(), queue.in_flight()), (5, vec![tokens[0]]));
        assert_eq!(queue.read(2, 0x20_0000, 512).expect("room"), tokens[1]);
    }
}

#[test]
fn a_chain_takes_no_descriptor_of_a_request_in_flight() {
    let mut queue = queue(8, 0);
    let (first, second) = (queue.read(0, 0x20_0000, 512).expect("room"), queue.read(1, 0x20_0000, 512).expect("room"));
    used(&queue, first.0, 513);
    assert_eq!(reaped(&mut queue).expect("fine"), [first.0]);
    let data = [Segment { address: 0x20_0000, len: 512 }; 3];
    let mut chain = vec![queue.submit(Operation::Read, 2, &data).expect("room").0];
    while chain.len() < 5 {
        chain.push(queue.ring().descriptor(chain[chain.len() - 1]).next);
    }
    assert_eq!((chain, second), (vec![0, 1, 2, 6, 7], Token(3)));
}

#[test]
fn a_used_entry_that_no_request_explains_breaks_the_queue() {
    let mut queue = queue(8, 0);
    let token = queue.flush().expect("room");
    used(&queue, 5, 0);
    assert!(why(&mut queue).contains("names 5, which is not in flight"));

    queue.restart(0);
    let again = queue.flush().expect("room");
    assert_eq!(again, token);
    used(&queue, token.0, 1);
    used(&queue, token.0, 1);
    assert!(why(&mut queue).contains("entry 1 names 0"), "the second use of a request");

    queue.restart(0);
    queue.ring().set_used_entry(0, 0x1_0000, 0);
    queue.ring().set_used_index(1);
    assert!(why(&mut queue).contains("names 65536"));

    queue.restart(0);
    queue.ring().set_used_index(9);
    assert!(why(&mut queue).contains("from 0 to 9"));
}

#[test]
fn an_entry_of_an_in_order_back_end_stands_for_a_batch() {
    let mut queue = queue(16, features::IN_ORDER | features::INDIRECT_DESC);
    let tokens: Vec<u16> = (0..5).map(|_| queue.flush().expect("room").0).collect();
    assert_eq!(tokens, [0, 1, 2, 3, 4]);
    // One entry for three requests, in the place of the first of them; the next entry follows behind the batch.
    queue.ring().set_used_entry(0, 2, 1);
    queue.ring().set_used_entry(3, 3, 1);
    queue.ring().set_used_index(4);
    assert_eq!(reaped(&mut queue).expect("fine"), [0, 1, 2, 3]);
    assert_eq!((queue.reaped_index(), queue.free_descriptors()), (4, 15));
    for expected in 5..40u16 {
        used(&queue, (expected - 1) % 16, 1);
        assert_eq!(queue.flush().expect("room"), Token(expected % 16), "descriptors are taken in a circle");
        assert_eq!(reaped(&mut queue).expect("fine"), [(expected - 1) % 16]);
    }
}

#[test]
fn an_in_order_back_end_that_overtakes_breaks_the_queue() {
    let mut queue = queue(16, features::IN_ORDER | features::INDIRECT_DESC);
    for _ in 0..3 {
        queue.flush().expect("room");
    }
    used(&queue, 2, 1);
    assert!(why(&mut queue).contains("before earlier requests"));
}

#[test]
fn kicks_follow_the_wish_of_the_back_end() {
    let mut queue = queue(8, features::EVENT_IDX | features::INDIRECT_DESC);
    queue.flush().expect("room");
    assert!(queue.kick().expect("kicked"), "the event is 0 at the beginning");
    queue.flush().expect("room");
    assert!(!queue.kick().expect("no kick"), "the event was passed");
    queue.ring().set_avail_event(2);
    queue.flush().expect("room");
    assert!(queue.kick().expect("kicked"));
    assert!(!queue.kick().expect("no kick"), "nothing is new");

    queue.restart(features::INDIRECT_DESC);
    queue.flush().expect("room");
    queue.ring().set_used_flags(ring::NO_NOTIFY);
    assert!(!queue.kick().expect("no kick"));
    queue.flush().expect("room");
    queue.ring().set_used_flags(0);
    assert!(queue.kick().expect("kicked"));
    assert_eq!(rustix::io::read(queue.kick_fd(), &mut [0; 8]).expect("a count"), 8);
}

#[test]
fn a_wait_asks_for_a_call_and_then_for_none() {
    for event_idx in [false, true] {
        let mut queue = queue(8, if event_idx { features::EVENT_IDX } else { 0 });
        let asked = |queue: &DriverQueue| (queue.ring().used_event(), queue.ring().avail_flags());
        let quiet = if event_idx { (0, 0) } else { (0, ring::NO_INTERRUPT) };
        assert_eq!(asked(&queue), quiet);
        let token = queue.flush().expect("room");
        assert!(!queue.wait_until(Instant::now() + SOON).expect("waited"), "nothing came");
        assert_eq!(asked(&queue), quiet);
        assert!(!queue.arm());
        assert_eq!(asked(&queue), (0, 0));
        used(&queue, token.0, 1);
        assert!(queue.arm(), "it came before the wish");
        queue.wait().expect("no wait for a call that may not come");
        assert_eq!(reaped(&mut queue).expect("fine"), [token.0]);
        queue.arm();
        assert_eq!(asked(&queue), if event_idx { (1, 0) } else { (0, 0) });
    }
}

#[test]
fn a_completion_that_another_call_found_is_kept() {
    let mut queue = queue(8, 0);
    let (first, second) = (queue.flush().expect("room"), queue.flush().expect("room"));
    used(&queue, first.0, 1);
    used(&queue, second.0, 1);
    assert_eq!(queue.complete(second, SOON).expect("there").token, second);
    assert_eq!(reaped(&mut queue).expect("kept"), [first.0]);
    assert!(matches!(queue.complete(first, SOON), Err(Error::Timeout(_))));
}

#[test]
fn a_status_that_was_not_written_is_seen() {
    let mut queue = queue(8, 0);
    let token = queue.flush().expect("room");
    used(&queue, token.0, 0);
    assert_eq!(queue.complete(token, SOON).expect("used").status, STATUS_UNWRITTEN);
    let token = queue.flush().expect("room");
    used(&queue, token.0, 0);
    assert!(matches!(queue.finish(token, SOON), Err(Error::Status(STATUS_UNWRITTEN))));
}

#[test]
fn ranges_and_serial_numbers_have_memory_of_their_own() {
    let mut queue = queue(8, 0);
    let header = queue.next_header_address();
    queue.submit_range(Operation::WriteZeroes, 0x11, 0x22, 1).expect("room");
    assert_eq!(queue.memory().read(header, 4), [13, 0, 0, 0]);
    let range = queue.ring().descriptor(1);
    assert_eq!((range.len, range.flags), (16, NEXT));
    assert_eq!(queue.memory().read(range.address, 16), [0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 1, 0, 0, 0]);

    let token = queue.get_id().expect("room");
    let id = queue.ring().descriptor(queue.ring().descriptor(token.0).next);
    assert_eq!((id.len, id.flags), (ID_LEN, NEXT | WRITE));
    queue.memory().write(id.address, b"serial\0\xff");
    assert_eq!(queue.id(token), "serial");
    queue.memory().write(id.address, &[b'x'; 20]);
    assert_eq!(queue.id(token), "x".repeat(20), "no NUL after 20 bytes");
}

#[test]
fn a_count_of_the_eventfd_for_errors_is_a_broken_queue() {
    let queue = queue(8, 0);
    assert!(!queue.is_broken(SOON).expect("asked"));
    rustix::io::write(queue.err_fd(), &1u64.to_ne_bytes()).expect("written");
    assert!(queue.is_broken(SOON).expect("asked"));
}
