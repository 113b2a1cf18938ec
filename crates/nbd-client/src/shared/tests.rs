//! The record of what a lost connection may have lost (V28), step by step, with two rings.

use std::fs::File;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use sheave_nbd::handshake::Mode;
use sheave_nbd::wire::tflag;

use super::{FIRST_EPOCH, Shared};
use crate::control::First;
use crate::negotiation::Export;
use crate::spec::{Place, Target};

fn export() -> Export {
    Export {
        size: 1 << 20,
        flags: 1 | tflag::SEND_FLUSH | tflag::CAN_MULTI_CONN,
        mode: Mode::Simple,
        min_block: 1,
        preferred_block: 4096,
        max_payload: 32 << 20,
        name: Some("x".into()),
        allocation: None,
        secure: false,
    }
}

fn shared_of(export: Export) -> Shared {
    let target = Target {
        spec: "nbd:unix:/x".into(),
        place: Place::Unix("/x".into(), SocketAddr::from_pathname("/x").expect("a path")),
        others: Vec::new(),
        export: "x".into(),
        connections: 1,
        timeout: Duration::from_secs(1),
        connect: Duration::from_secs(1),
        read_only: false,
        assume_multi: false,
        block_status: true,
        tls: None,
    };
    let fd = Arc::new(File::open("/dev/null").expect("there is one").into());
    let first = First { fd, secure: None, mode: export.mode, allocation: None };
    Shared::new(target, export, first, Vec::new())
}

fn shared() -> Shared {
    shared_of(export())
}

#[test]
fn a_loss_without_writes_fails_no_flush() {
    let shared = shared();
    let mut seen = shared.join().expect("room");
    assert!(shared.acked(0));
    let covers = shared.flush_begins();
    assert!(shared.flush_ended(covers, 0));
    shared.lost(0, "it closed");
    assert!(!shared.must_fail(&mut seen));
    assert_eq!(shared.epoch(), 1);
}

#[test]
fn writes_that_ended_and_were_not_flushed_fail_the_next_flush_of_each_ring_once() {
    let shared = shared();
    let (mut one, mut two) = (shared.join().expect("room"), shared.join().expect("room"));
    assert!(shared.acked(0));
    shared.lost(0, "it closed");
    assert!(shared.must_fail(&mut one) && !shared.must_fail(&mut one));
    assert!(shared.must_fail(&mut two) && !shared.must_fail(&mut two));
    let mut late = shared.join().expect("room");
    assert!(!shared.must_fail(&mut late), "it was told");
    assert!(shared.notices().iter().any(|text| text.contains("may be lost, so the next flush fails")));
}

#[test]
fn a_loss_that_failed_no_flush_yet_fails_one_of_a_ring_that_joins_later() {
    let shared = shared();
    shared.join().expect("room");
    assert!(shared.acked(0));
    shared.lost(0, "it closed");
    let mut late = shared.join().expect("room");
    assert!(shared.must_fail(&mut late));
}

#[test]
fn a_write_that_ended_after_a_flush_was_sent_is_not_covered_by_it() {
    let shared = shared();
    let mut seen = shared.join().expect("room");
    assert!(shared.acked(0));
    let covers = shared.flush_begins();
    assert!(shared.acked(0)); // by another connection, while the flush is under way
    assert!(shared.flush_ended(covers, 0));
    shared.lost(0, "it closed");
    assert!(shared.must_fail(&mut seen));
}

#[test]
fn answers_by_connections_of_an_earlier_epoch_count_for_nothing() {
    let shared = shared();
    let mut seen = shared.join().expect("room");
    let covers = shared.flush_begins();
    shared.lost(0, "it closed");
    assert!(!shared.acked(0), "the server that sent it is gone");
    assert!(!shared.flush_ended(covers, 0));
    assert_eq!(shared.epoch(), 1);
    shared.lost(0, "the other ring sees it too");
    assert_eq!(shared.epoch(), 1, "it is the same loss");
    assert!(shared.acked(1));
    shared.lost(1, "and again");
    assert!(shared.must_fail(&mut seen));
}

#[test]
fn a_connection_comes_up_only_in_an_epoch_whose_connections_are_open() {
    let shared = shared();
    let pair = || UnixStream::pair().map(|(ours, theirs)| (Arc::new(ours.into()), theirs)).expect("a pair");
    let ((one, server), (two, _other)) = (pair(), pair());
    shared.come_up(0, &one).expect("the first one is open");
    shared.come_up(0, &two).expect("both are open");
    drop(server);
    assert!(shared.come_up(0, &two).is_err(), "its end was not seen, but is there");
    drop(one);
    shared.come_up(0, &two).expect("what its ring has closed says nothing");
    shared.lost(0, "it closed");
    assert!(shared.come_up(0, &two).is_err(), "it began before the loss");
    shared.come_up(1, &two).expect("the next epoch has none yet");
}

#[test]
fn the_last_ring_with_connections_leaves_one_while_writes_are_not_flushed() {
    let shared = shared();
    drop(shared.take_spare());
    let pair = || UnixStream::pair().map(|(ours, theirs)| (Arc::new(ours.into()), theirs)).expect("a pair");
    let ((one, _of_one), (two, _of_two)) = (pair(), pair());
    shared.come_up(0, &one).expect("none has ended");
    shared.come_up(0, &two).expect("none has ended");
    assert!(shared.acked(0));
    assert!(!shared.must_leave_one(0, |fd| Arc::ptr_eq(fd, &one)), "the other is there");
    assert!(shared.must_leave_one(0, |fd| Arc::ptr_eq(fd, &two)), "one does not count any more");
    let covers = shared.flush_begins();
    assert!(shared.flush_ended(covers, 0));
    assert!(!shared.must_leave_one(0, |fd| Arc::ptr_eq(fd, &two)), "nothing can be lost");
}

#[test]
fn only_the_first_epoch_has_the_first_connection_and_gives_it_once() {
    let shared = shared();
    assert!(shared.take_spare().is_some() && shared.take_spare().is_none());
    let other = self::shared();
    other.lost(FIRST_EPOCH, "it closed");
    assert!(other.take_spare().is_none());
}

#[test]
fn a_server_without_multi_conn_gives_one_ring_a_connection() {
    let mut export = export();
    export.flags &= !tflag::CAN_MULTI_CONN;
    let shared = shared_of(export.clone());
    shared.join().expect("the first");
    assert!(shared.join().is_err());
    shared.leave();
    shared.join().expect("the first has gone");
    export.flags |= tflag::READ_ONLY;
    let shared = shared_of(export);
    shared.join().and_then(|_| shared.join()).expect("nothing is written");
}

#[test]
fn an_export_that_is_another_is_told_by_what_differs() {
    let shared = shared();
    assert_eq!(shared.differs(&export()), None);
    let more = Export { flags: export().flags | tflag::SEND_TRIM, mode: Mode::Extended, ..export() };
    assert_eq!(shared.differs(&more), None);
    for (other, says) in [
        (Export { size: 1 << 21, ..export() }, "1048576 bytes and now has 2097152"),
        (Export { name: Some("y".into()), ..export() }, "called 'x' and now 'y'"),
        (Export { flags: 1 | tflag::CAN_MULTI_CONN, ..export() }, "abilities"),
        (Export { flags: export().flags | tflag::READ_ONLY, ..export() }, "abilities"),
        (Export { min_block: 4096, ..export() }, "blocks of 1 and now takes 4096"),
    ] {
        let why = shared.differs(&other).expect("another");
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn notices_are_bounded() {
    let shared = shared();
    (0..1000).for_each(|number| shared.notice(number.to_string()));
    assert_eq!(shared.notices().len(), super::MAX_NOTICES);
}
