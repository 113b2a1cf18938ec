//! A flush must not hide the loss of a server (V28). The server dies at every byte that it sends or receives, and then
//! loses all unflushed data. Whatever happens, the server must have kept the data that a successful flush covers.

mod rig;

use std::collections::VecDeque;
use std::time::Duration;

use rig::{Dies, EIO, Server, filled, results, ring};
use sheave::{Device, Fd, Ring, op};
use sheave_nbd::handshake::Mode;
use sheave_nbd::wire::tflag;

const BLOCK: usize = 512;
/// Offset of the second block. It is not adjacent to the first, because otherwise both would be one request.
const SECOND: u64 = 8192;

/// Counts of the events in a run.
#[derive(Debug, Default)]
struct Seen {
    flushes_failed: u32,
    flushes_held: u32,
    died: u64,
}

fn write(ring: &mut Ring, fd: Fd, at: u64, byte: u8, fua: bool) -> i32 {
    let write = op::write(fd, filled(BLOCK, byte)).offset(at);
    ring.push(if fua { write.dsync() } else { write }).expect("room");
    results(ring, 1)[0].1
}

fn flush(ring: &mut Ring, fd: Fd) -> i32 {
    ring.push(op::fsync(fd)).expect("room");
    results(ring, 1)[0].1
}

fn read(ring: &mut Ring, fd: Fd, at: u64) -> u8 {
    ring.push(op::read(fd, filled(BLOCK, 0xee)).offset(at)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let done = ring.pop().expect("it was waited for");
    assert_eq!(done.res, BLOCK as i32, "reads are asked again");
    let buf = done.into_buf().expect("its buffer");
    assert!(buf.iter().all(|byte| *byte == buf[0]));
    buf[0]
}

/// Runs writes and flushes twice while the server dies. Every write must succeed, because unanswered ones are sent
/// again. A flush may fail only if the server has died with acknowledged writes.
fn run(mode: Mode, dies: &[Dies]) -> Option<Seen> {
    let server = Server::start(16 << 10, mode);
    let device = server.open("").expect("opened");
    let (mut ring, fd) = ring(&device)?;
    {
        let mut state = server.state();
        (state.dies, state.sent, state.received) = (VecDeque::from(dies.to_vec()), 0, 0);
    }
    let mut seen = Seen::default();
    let mut promised = [0u8; 2];
    for round in 1..=2u8 {
        let (one, two) = (round, round | 0x80);
        assert_eq!(write(&mut ring, fd, 0, one, false), BLOCK as i32, "{dies:?}");
        assert_eq!(write(&mut ring, fd, SECOND, two, false), BLOCK as i32, "{dies:?}");
        match flush(&mut ring, fd) {
            0 => {
                promised = [one, two];
                seen.flushes_held += 1;
            }
            res => {
                assert_eq!(res, -EIO, "{dies:?}");
                assert!(server.state().deaths > 0, "{dies:?}: a flush failed without a cause");
                seen.flushes_failed += 1;
            }
        }
        let state = server.state();
        if promised[0] == one {
            let kept = [state.stable[0], state.stable[SECOND as usize]];
            assert_eq!(kept, promised, "{dies:?}: a flush has lied");
        }
    }
    for (at, promised) in [(0, promised[0]), (SECOND, promised[1])] {
        let now = read(&mut ring, fd, at);
        assert!(now & 0x7f >= promised & 0x7f, "{dies:?}: {now} after {promised} was flushed");
    }
    // A loss is reported once.
    server.state().dies.clear();
    assert_eq!(write(&mut ring, fd, 0, 9, false), BLOCK as i32);
    let last = flush(&mut ring, fd);
    assert!(last == 0 || seen.flushes_failed == 0, "{dies:?}: told twice");
    assert_eq!(write(&mut ring, fd, 0, 10, false), BLOCK as i32);
    if last != 0 {
        assert_eq!(flush(&mut ring, fd), 0, "{dies:?}");
    }
    assert_eq!(write(&mut ring, fd, 0, 11, false), BLOCK as i32);
    assert_eq!(flush(&mut ring, fd), 0, "{dies:?}");
    assert_eq!(server.state().stable[0], 11);
    seen.died = server.state().deaths;
    Some(seen)
}

/// Returns the numbers of bytes that a server sends and receives if it does not die.
fn traffic(mode: Mode) -> Option<(u64, u64)> {
    let server = Server::start(16 << 10, mode);
    let device = server.open("").expect("opened");
    let (mut ring, fd) = ring(&device)?;
    (server.state().sent, server.state().received) = (0, 0);
    for round in 1..=2u8 {
        write(&mut ring, fd, 0, round, false);
        write(&mut ring, fd, SECOND, round, false);
        flush(&mut ring, fd);
    }
    read(&mut ring, fd, 0);
    read(&mut ring, fd, SECOND);
    let state = server.state();
    Some((state.sent, state.received))
}

fn dies_at_every_byte(mode: Mode, dies: fn(u64) -> Dies, of: fn((u64, u64)) -> u64) {
    let Some(bytes) = traffic(mode).map(of) else { return };
    let (mut failed, mut held) = (0, 0);
    for at in 1..=bytes {
        let Some(seen) = run(mode, &[dies(at)]) else { return };
        assert_eq!(seen.died, 1, "at {at} of {bytes}");
        failed += seen.flushes_failed;
        held += seen.flushes_held;
    }
    println!("{mode:?}: {bytes} bytes, {failed} flushes failed and {held} held what they promised");
    // Both outcomes must occur, or the test would show nothing.
    assert!(failed > 0 && u64::from(held) > bytes, "{failed} failed, {held} held");
}

fn sent((sent, _): (u64, u64)) -> u64 {
    sent
}

fn received((_, received): (u64, u64)) -> u64 {
    received
}

#[test]
fn a_flush_never_lies_simple_sent() {
    dies_at_every_byte(Mode::Simple, Dies::Sent, sent);
}

#[test]
fn a_flush_never_lies_simple_received() {
    dies_at_every_byte(Mode::Simple, Dies::Received, received);
}

#[test]
fn a_flush_never_lies_structured_sent() {
    dies_at_every_byte(Mode::Structured, Dies::Sent, sent);
}

#[test]
fn a_flush_never_lies_extended_sent() {
    dies_at_every_byte(Mode::Extended, Dies::Sent, sent);
}

#[test]
fn a_flush_never_lies_extended_received() {
    dies_at_every_byte(Mode::Extended, Dies::Received, received);
}

#[test]
fn a_server_that_dies_again_in_any_byte_of_the_handshake_is_tried_again() {
    for at in (1..=140).flat_map(|at| [Dies::Sent(at), Dies::Received(at)]) {
        let Some(seen) = run(Mode::Extended, &[Dies::Received(700), at]) else { return };
        assert_eq!(seen.died, 2, "{at:?}");
    }
}

#[test]
fn what_was_written_with_fua_is_there_after_any_death_and_needs_no_flush() {
    for at in 1..=64 {
        let server = Server::start(16 << 10, Mode::Structured);
        let device = server.open("").expect("opened");
        let Some((mut ring, fd)) = ring(&device) else { return };
        {
            let mut state = server.state();
            (state.dies, state.sent) = ([Dies::Sent(at)].into(), 0);
        }
        for round in 1..=5u8 {
            assert_eq!(write(&mut ring, fd, 0, round, true), BLOCK as i32);
            assert_eq!(server.state().stable[0], round, "{at}");
        }
        assert_eq!(server.state().deaths, 1);
        assert_eq!(flush(&mut ring, fd), 0, "{at}: nothing that was acknowledged can be lost");
    }
}

/// Returns two rings of a device whose server has died. The first ring has an unflushed write, the second has a
/// connection.
fn after_a_loss(device: &Device, server: &Server) -> Option<((Ring, Fd), (Ring, Fd))> {
    let ((mut one, of_one), (mut two, of_two)) = (ring(device)?, ring(device)?);
    assert_eq!(write(&mut one, of_one, 0, 1, false), BLOCK as i32);
    assert_eq!(read(&mut two, of_two, 0), 1, "it has a connection");
    server.state().die();
    Some(((one, of_one), (two, of_two)))
}

#[test]
fn a_flush_of_another_ring_fails_too() {
    let server = Server::start(16 << 10, Mode::Structured);
    let device = server.open("").expect("opened");
    let Some(((mut one, of_one), (mut two, of_two))) = after_a_loss(&device, &server) else { return };
    // The second ring has written nothing, and the first has not noticed the loss yet.
    assert_eq!(flush(&mut two, of_two), -EIO);
    assert_eq!(flush(&mut two, of_two), 0);
    assert_eq!(flush(&mut one, of_one), -EIO, "each hears of it");
    assert_eq!(flush(&mut one, of_one), 0);
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains("so the next flush fails")), "{told:?}");
}

#[test]
fn a_flush_that_is_to_run_asynchronously_tells_its_own_ring_of_a_loss() {
    let server = Server::start(16 << 10, Mode::Structured);
    let device = server.open("").expect("opened");
    let Some(((mut one, of_one), (mut two, of_two))) = after_a_loss(&device, &server) else { return };
    // The loss is reported, so rings that join from now on, a worker's included, need not report it.
    assert_eq!(flush(&mut two, of_two), -EIO);
    for res in [-EIO, 0] {
        one.push(op::fsync(of_one).run_async()).expect("room");
        assert_eq!(results(&mut one, 1)[0].1, res);
    }
}

#[test]
fn a_flush_of_a_ring_that_had_no_connection_when_the_server_died_fails_too() {
    let server = Server::start(16 << 10, Mode::Structured);
    let device = server.open("").expect("opened");
    let (Some((mut one, of_one)), Some((mut two, of_two))) = (ring(&device), ring(&device)) else { return };
    assert_eq!(write(&mut one, of_one, 0, 1, false), BLOCK as i32);
    server.state().die();
    // No ring has noticed the death: the second ring makes its first connection, to the restarted server.
    assert_eq!(flush(&mut two, of_two), -EIO);
    assert_eq!(flush(&mut two, of_two), 0);
    assert_eq!(flush(&mut one, of_one), -EIO, "each hears of it");
    assert_eq!(flush(&mut one, of_one), 0);
}

#[test]
fn a_flush_goes_by_no_connection_that_was_made_when_the_first_did_not_answer() {
    let server = Server::start(2 << 20, Mode::Structured);
    let device = server.open(",timeout=1s").expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    assert_eq!(write(&mut ring, fd, 0, 1, false), BLOCK as i32);
    let before = server.state().requests;
    // The address moves to another server, which has only the flushed data, and the old connection stays open.
    {
        let mut state = server.state();
        state.cache = state.stable.clone();
        state.deaf = state.connections;
    }
    for at in 0..4 {
        ring.push(op::write(fd, filled(256 << 10, 2)).offset(at * (256 << 10)).user_data(2)).expect("room");
    }
    // Once a read is answered, a connection to the new server exists.
    let mut pauses = (1..=100).map(|number| Duration::from_millis(5 * number));
    while server.state().requests == before {
        ring.push(op::read(fd, filled(BLOCK, 0)).user_data(3)).expect("room");
        ring.submit().expect("submitted");
        std::thread::sleep(pauses.next().expect("a second connection is made"));
    }
    ring.push(op::fsync(fd).user_data(1)).expect("room");
    let flushed = loop {
        if let Some((_, res)) = results(&mut ring, 1).into_iter().find(|(user, _)| *user == 1) {
            break res;
        }
    };
    assert_ne!(flushed, 0, "it was answered by a server that has not what was written");
}

/// Writes with one ring, drops it, and flushes with the next ring. If `dies` is true, the server dies in between.
/// Returns the result of the flush.
fn flush_after_a_ring_has_gone(server: &Server, dies: bool) -> Option<i32> {
    let device = server.open("").expect("opened");
    let (mut one, of_one) = ring(&device)?;
    assert_eq!(write(&mut one, of_one, 0, 1, false), BLOCK as i32);
    drop(one);
    if dies {
        server.state().die();
    }
    let (mut two, of_two) = ring(&device)?;
    let flushed = flush(&mut two, of_two);
    assert_eq!(flush(&mut two, of_two), 0, "it is told once");
    Some(flushed)
}

#[test]
fn a_flush_after_a_ring_has_gone_covers_its_writes_or_fails() {
    for flags in [rig::FLAGS, rig::FLAGS & !tflag::CAN_MULTI_CONN] {
        let server = Server::start(16 << 10, Mode::Structured);
        server.state().flags = flags;
        let Some(flushed) = flush_after_a_ring_has_gone(&server, true) else { return };
        assert_eq!(flushed, -EIO);
        let server = Server::start(16 << 10, Mode::Structured);
        server.state().flags = flags;
        assert_eq!(flush_after_a_ring_has_gone(&server, false), Some(0));
        assert_eq!(server.state().stable[0], 1);
        assert_eq!(server.state().connections, 1, "a server may serve one client: the next ring has its connection");
    }
}

#[test]
fn a_ring_that_has_written_leaves_no_connection_to_one_that_is_there() {
    for dies in [false, true] {
        let server = Server::start(16 << 10, Mode::Structured);
        let device = server.open("").expect("opened");
        let (Some((mut one, of_one)), Some((mut two, of_two))) = (ring(&device), ring(&device)) else { return };
        assert_eq!(write(&mut one, of_one, 0, 1, false), BLOCK as i32);
        assert_eq!(read(&mut two, of_two, 0), 1, "it has a connection");
        drop(one);
        let (mut three, of_three) = ring(&device).expect("there is a kernel ring");
        if dies {
            server.state().die();
        }
        assert_eq!(flush(&mut three, of_three), if dies { -EIO } else { 0 });
        assert_eq!(server.state().connections, 3, "it made its own");
    }
}

/// 125 is `ECANCELED` on Linux, which a pool takes for a flush that was not tried.
#[test]
fn a_flush_that_failed_with_an_errno_unknown_to_the_protocol_ends_with_an_io_error() {
    let server = Server::start(16 << 10, Mode::Structured);
    let device = server.open("").expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    for (forge, res) in FORGED {
        server.state().forged = Some(forge);
        assert_eq!(flush(&mut ring, fd), -res);
    }
}

type Forge = fn(&sheave_nbd::Request) -> Vec<u8>;

const FORGED: [(Forge, i32); 5] = [
    (|request| failure(request, 125), EIO),
    (|request| failure(request, 110), EIO),
    (|request| failure(request, 11), EIO),
    (|request| failure(request, 1), 30),
    (|request| failure(request, 28), 28),
];

fn failure(request: &sheave_nbd::Request, errno: u32) -> Vec<u8> {
    rig::chunk(request, true, 0x8001, &[&errno.to_be_bytes(), &[0; 2]])
}

#[test]
fn fua_is_sent_to_a_server_that_offers_it_without_flush() {
    let server = Server::start(16 << 10, Mode::Structured);
    server.state().flags = rig::FLAGS & !tflag::SEND_FLUSH;
    let device = server.open("").expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    assert_eq!(write(&mut ring, fd, 0, 1, true), BLOCK as i32);
    assert_eq!(server.state().fuas, 1, "the flag has arrived");
    assert_eq!(server.state().stable[0], 1);
    server.state().die();
    assert_eq!(flush(&mut ring, fd), 0, "what was written with FUA cannot be lost");
    assert_eq!(server.state().flushes, 0, "it has no flush");
}

#[test]
fn a_flush_fails_once_where_a_server_without_flush_has_died() {
    for drops in [false, true] {
        let server = Server::start(16 << 10, Mode::Structured);
        server.state().flags = rig::FLAGS & !(tflag::SEND_FLUSH | tflag::SEND_FUA);
        let device = server.open("").expect("opened");
        let (Some((mut one, of_one)), Some((mut two, of_two))) = (ring(&device), ring(&device)) else { return };
        assert_eq!(write(&mut one, of_one, 0, 1, false), BLOCK as i32);
        assert_eq!(flush(&mut one, of_one), 0);
        assert_eq!(flush(&mut two, of_two), 0);
        assert_eq!(write(&mut one, of_one, 0, 2, true), BLOCK as i32);
        if drops {
            drop(one);
            server.state().die();
        } else {
            server.state().die();
            assert_eq!(flush(&mut one, of_one), -EIO, "nothing that it had acknowledged is known to be durable");
            assert_eq!(flush(&mut one, of_one), 0);
        }
        assert_eq!(flush(&mut two, of_two), -EIO, "each hears of it");
        assert_eq!(flush(&mut two, of_two), 0);
        assert_eq!(write(&mut two, of_two, 0, 3, false), BLOCK as i32);
        assert_eq!(flush(&mut two, of_two), 0);
        assert_eq!(server.state().flushes, 0, "it has no flush");
    }
}
