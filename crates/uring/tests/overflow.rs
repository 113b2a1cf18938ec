//! Full queues: a full SQ refuses, a full CQ loses nothing and keeps its order, and everything is bounded.

use sheave_uring::{Ring, RingError, prep};

use crate::support::{Puppet, buf, nop, push, reaped, ring};

fn push_nops(ring: &mut Ring, from: u64, count: u64) {
    for user_data in from..from + count {
        push(ring, &[nop(user_data, 0)]);
    }
}

/// Returns the user data of all completions, those in the overflow list included.
fn read_all(ring: &mut Ring) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let some = reaped(ring);
        if some.is_empty() {
            return all;
        }
        all.extend(some.iter().map(|cqe| cqe.0));
    }
}

#[test]
fn a_full_sq_answers_and_gives_the_operation_back() {
    let mut ring = ring();
    push_nops(&mut ring, 0, 8);
    assert_eq!(ring.sq_space(), 0);
    let fd = ring.attach(&Puppet::new().device()).unwrap();
    let mut memory = buf(4096);
    memory[0] = 42;
    let full = ring.push(prep::write(fd, memory).user_data(8)).unwrap_err();
    assert!(matches!(full.error, RingError::SqFull));
    assert!(full.error.to_string().contains("submit"), "the message names the fix: {}", full.error);
    // SAFETY: a NOP has no memory.
    #[allow(unsafe_code)]
    let pushed = unsafe { ring.push_sqe(&nop(9, 0)) };
    assert!(!pushed);
    assert_eq!(ring.submit().unwrap(), 8);
    assert_eq!(ring.sq_space(), 8);
    ring.push(full.entry).unwrap();
    ring.submit_and_wait(9).unwrap();
    let last = ring.completions().nth(8).unwrap();
    assert_eq!((last.user_data, last.res), (8, 4096));
    assert_eq!(last.into_buf().unwrap()[0], 42, "with its memory");
}

#[test]
fn cqes_that_find_the_cq_full_are_kept_flagged_and_flushed_in_order() {
    let mut ring = Ring::builder().entries(8).cq_entries(4).in_flight(16).build().unwrap();
    let mut seen = Vec::new();
    let mut pushed = 0;
    for round in 0..50 {
        push_nops(&mut ring, pushed, 8);
        assert_eq!(ring.submit().unwrap(), 8);
        pushed += 8;
        // Reads in small portions, until nothing is left.
        for take in [round % 3, 2, 4, round % 5] {
            let left = pushed - seen.len() as u64;
            assert_eq!(ring.cq_overflowed(), left > 4, "{left} left in round {round}");
            let some: Vec<_> = ring.completions().take(take).map(|c| c.user_data).collect();
            assert!(some.len() <= 4, "the CQ has 4 entries");
            seen.extend(some);
            ring.reap();
        }
        if round % 4 == 3 || pushed - seen.len() as u64 > 10 {
            seen.extend(read_all(&mut ring));
            assert!(!ring.cq_overflowed(), "the flag goes with the last of them");
            assert_eq!(seen.len() as u64, pushed);
        }
    }
    seen.extend(read_all(&mut ring));
    assert_eq!(seen, (0..pushed).collect::<Vec<_>>());
    let (memory, at) = ring.memory();
    assert_eq!(memory[at.cq_overflow..at.cq_overflow + 4], [0; 4], "nothing was lost");
}

#[test]
fn submission_stops_when_too_much_is_kept_and_says_so() {
    let mut ring = Ring::builder().entries(8).cq_entries(4).in_flight(8).build().unwrap();
    let mut pushed = 0;
    let error = loop {
        push_nops(&mut ring, pushed, 8);
        pushed += 8;
        match ring.submit() {
            Ok(taken) => assert_eq!(taken, 8),
            Err(error) => break error,
        }
        assert!(pushed < 100, "it must stop");
    };
    assert!(matches!(error, RingError::Busy) && error.to_string().contains("Read completions"), "{error}");
    let mut seen = Vec::new();
    while (seen.len() as u64) < pushed {
        seen.extend(reaped(&mut ring).iter().map(|cqe| cqe.0));
        let _ = ring.submit();
    }
    assert_eq!(seen, (0..pushed).collect::<Vec<_>>(), "and goes on where it stopped");
}

#[test]
fn memory_comes_back_with_its_own_completion_also_through_the_overflow() {
    let mut ring = Ring::builder().entries(16).cq_entries(4).in_flight(16).build().unwrap();
    let fd = ring.attach(&Puppet::new().device()).unwrap();
    for n in 0..16_u8 {
        let entry: prep::Entry = if n.is_multiple_of(3) {
            prep::nop().into()
        } else {
            let mut memory = buf(512);
            memory[0] = n;
            prep::write(fd, memory).into()
        };
        ring.push(entry.user_data(n.into())).unwrap();
    }
    ring.submit().unwrap();
    ring.drain();
    let mut seen = 0;
    while seen < 16 {
        for completion in ring.completions() {
            let n = completion.user_data as u8;
            assert_eq!(completion.into_buf().map(|buf| buf[0]), (!n.is_multiple_of(3)).then_some(n));
            seen += 1;
        }
    }
    assert_eq!(ring.completions().count(), 0);
}

#[test]
fn messages_behind_a_full_cq_are_bounded_and_none_that_was_taken_is_lost() {
    let mut ring = Ring::builder().entries(4).cq_entries(4).in_flight(4).build().unwrap();
    let handle = ring.handle();
    let mut sent = 0;
    // The ring reaps and no CQE is read, so the sender must be refused at some point.
    for _ in 0..10_000 {
        if handle.send(sent, 7).is_ok() {
            sent += 1;
        }
        ring.reap();
    }
    assert!((64..200).contains(&sent), "the mailbox, the CQ and what is kept have bounds: {sent}");
    assert_eq!(read_all(&mut ring), (0..sent).collect::<Vec<_>>());
    handle.send(0, 0).expect("there is room again");
}

#[test]
fn all_slots_in_use_is_an_answer() {
    let puppet = Puppet::new().holding();
    let mut ring = Ring::builder().entries(8).in_flight(4).build().unwrap();
    let fd = ring.attach(&puppet.device()).unwrap();
    for n in 0..6 {
        ring.push(prep::read(fd, buf(512)).user_data(n)).unwrap();
    }
    assert_eq!(ring.submit().unwrap(), 4, "as many as there are slots");
    assert!(matches!(ring.submit(), Err(RingError::Busy)));
    assert_eq!(ring.in_flight(), 4);
    puppet.script().finish = u32::MAX;
    ring.submit_and_wait(4).unwrap_err();
    ring.reap();
    assert_eq!(ring.submit().unwrap(), 2, "the rest was kept in the SQ");
    ring.drain();
    assert_eq!(reaped(&mut ring).iter().map(|cqe| cqe.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}
