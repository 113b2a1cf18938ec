//! A reactor whose turns the test takes one by one, beside a client in the same thread: the number of events that it
//! waits for, and events between the parts of a turn.

mod records;
mod suspend;

use std::os::unix::net::UnixStream;

use rustls::ClientConnection;
use sheave_iomap::{File, RawFile};
use sheave_nbd::session::{Command, Request};
use sheave_uring::Fd;

use super::requests::GROWTH;
use super::*;
use crate::allow::Allow;
use crate::clients::{Origin, Who};
use crate::export::{Backend, Export, Exports};
use crate::listen::{Address, Listener};
use crate::payload::Shape;
use crate::shared::ServerOptions;
use crate::shares::Peer;
use crate::tls::Tls;

#[derive(Debug)]
struct Memory(Arc<dyn File>);

impl Backend for Memory {
    fn file(&self) -> &Arc<dyn File> {
        &self.0
    }
}

struct Bench {
    reactor: Reactor,
    client: UnixStream,
    /// The client's side of TLS, once it has begun.
    tls: Option<ClientConnection>,
    _dir: tempfile::TempDir,
}

fn request(command: u8, len: u32) -> Vec<u8> {
    let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, command];
    [head.as_slice(), &[0; 16], &len.to_be_bytes()].concat()
}

impl Bench {
    /// Connects a client in the transmission phase, with at most `client_bytes` in flight. `None` without io_uring.
    fn new(client_bytes: u64) -> Option<Bench> {
        let mut bench = Bench::connected(ServerOptions { client_bytes, ..ServerOptions::default() }, None)?;
        bench.waits(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01x", 18 + 10);
        Some(bench)
    }

    /// Connects a client that has sent nothing yet.
    fn connected(options: ServerOptions, tls: Option<Tls>) -> Option<Bench> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let listener = Listener::bind(&Address::Unix(path.clone())).expect("it listens");
        listener.set_tls(tls);
        let device = sheave_drivers::open_device("ram:size=8M").expect("a device");
        let backend = Box::new(Memory(Arc::new(RawFile::new(device))));
        let export = Export {
            name: "x".into(),
            description: String::new(),
            read_only: false,
            allow: Allow::All,
            backend,
            vhost_user: None,
        };
        let options = ServerOptions { reactors: 1, ..options };
        let shared = Shared::new(Exports::new(vec![export]), vec![listener], options, Box::new(|_| {}));
        let io_wq = IoWq::builder().build().expect("a pool");
        let reactor = match Reactor::new(0, Arc::new(shared), &io_wq) {
            Ok(reactor) => reactor,
            Err(error) => {
                sheave_testkit::skip(&error.to_string());
                return None;
            }
        };
        let client = UnixStream::connect(path).expect("it is there");
        client.set_nonblocking(true).expect("set");
        Some(Bench { reactor, client, tls: None, _dir: dir })
    }

    /// Returns the number of events that the reactor wants to wait for in each turn, until `replies` bytes of replies
    /// have arrived.
    fn waits(&mut self, requests: &[u8], replies: usize) -> Vec<u32> {
        self.say(requests);
        let (mut waits, mut got) = (Vec::new(), 0);
        while got < replies {
            assert!(waits.len() < 100_000, "{got} bytes of {replies} have come, and no more does");
            let (wanted, _) = self.reactor.before_wait().expect("nobody ends it");
            self.reactor.wait(1, Some(Duration::ZERO));
            self.reactor.after_wait(None);
            let before = got;
            got += self.take();
            // A turn without a send does not show the number that matters.
            if got > before {
                waits.push(wanted);
            }
        }
        waits
    }

    /// Asserts that the reactor waits for the end of a send along with the next event only for the last two sends: the
    /// last one, and the one before the last receive, which has something to receive.
    fn none_waits_but_the_last(&mut self, requests: &[u8], replies: usize) {
        let waits = self.waits(requests, replies);
        assert!(waits.len() > 10, "a few sends were enough, which tests nothing: {waits:?}");
        let others = &waits[..waits.len() - 2];
        assert!(others.iter().all(|wanted| *wanted == 1), "something waits for the end of a send: {waits:?}");
    }
}

#[test]
fn the_end_of_a_quick_send_is_waited_for_with_the_next_event() {
    let Some(mut bench) = Bench::new(1 << 20) else { return };
    for _ in 0..3 {
        assert_eq!(bench.waits(&request(0, 512), 16 + 512), [2]);
    }
}

#[test]
fn replies_beyond_one_message_are_sent_without_another_event() {
    // Each reply with data is a piece of its own. A client may have 512 requests under way, and twice as many are
    // refused at once.
    let Some(mut bench) = Bench::new(1 << 20) else { return };
    let pair = [request(99, 0), request(0, 512)].concat();
    bench.none_waits_but_the_last(&pair.repeat(2000), 2000 * (16 + 16 + 512));
}

#[test]
fn a_send_that_frees_memory_for_requests_is_not_batched_with_the_next_event() {
    let Some(mut bench) = Bench::new(64 << 10) else { return };
    bench.none_waits_but_the_last(&request(0, 16 << 10).repeat(100), 100 * (16 + (16 << 10)));
}

#[test]
fn tls_records_beyond_one_send_are_sent_without_another_event() {
    // One request, whose reply is encrypted piece by piece: no other event occurs until the client has all of it.
    let Some(mut bench) = Bench::with_tls(64 << 20) else { return };
    for _ in 0..3 {
        bench.none_waits_but_the_last(&request(0, 4 << 20), 16 + (4 << 20));
    }
}

#[test]
fn block_status_requests_alone_do_not_delay_each_other() {
    let Some(mut bench) = Bench::connected(ServerOptions::default(), None) else { return };
    let base = b"\0\0\0\x01x\0\0\0\x01\0\0\0\x0fbase:allocation";
    let option = |kind: u8, data: &[u8]| {
        [b"IHAVEOPT\0\0\0".as_slice(), &[kind], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let said = [b"\0\0\0\x03".to_vec(), option(8, b""), option(10, base), option(7, b"\0\0\0\x01x\0\0")].concat();
    bench.waits(&said, 18 + 20 + (20 + 4 + 15) + 20 + (20 + 12) + (20 + 14) + 20);
    for _ in 0..4 {
        bench.waits(&request(7, 1 << 20), 20 + 4 + 8);
    }
    assert_eq!(bench.reactor.io.questions.due_in(Instant::now), None, "all is sent, and nobody waits");
    assert!(!bench.reactor.io.questions.have_others_work(), "its own questions count as work for others");
    bench.waits(&[request(0, 512), request(7, 1 << 20)].concat(), 20 + 512 + 20 + 4 + 8);
    assert!(bench.reactor.io.questions.have_others_work());
}

#[test]
fn who_hangs_up_at_the_door_waits_for_no_place() {
    let options = ServerOptions { max_clients: 16, ..ServerOptions::default() };
    let Some(mut bench) = Bench::connected(options, None) else { return };
    bench.waits(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01x", 18 + 10);
    let path = bench.client.peer_addr().expect("it has one").as_pathname().expect("a path").to_owned();
    let _others: Vec<_> = (1..16).map(|_| UnixStream::connect(&path).expect("it answers")).collect();
    let waits = UnixStream::connect(&path).expect("it answers");
    let goes = UnixStream::connect(&path).expect("it answers");
    while bench.reactor.door.waiting.len() < 2 {
        bench.waits(&request(3, 0), 16);
    }
    drop(goes);
    bench.reactor.look_at_the_door(Instant::now());
    assert_eq!(bench.reactor.door.waiting.len(), 1);
    drop(waits);
}

#[test]
fn lifting_a_limit_releases_a_request_charged_in_the_same_turn() {
    let Some(mut bench) = Bench::new(1 << 20) else { return };
    let limit = |bench: &Bench, text: Option<&str>| {
        let limit = text.map(|text: &str| text.parse().expect("a limit"));
        bench.reactor.shared.exports.set_limits(&[("x", limit)].into());
    };
    limit(&bench, Some("bps=64K,burst=10ms"));
    bench.waits(&request(0, 1 << 20), 16 + (1 << 20));
    bench.say(&request(0, 512));
    bench.reactor.before_wait().expect("nobody ends it");
    bench.reactor.wait(1, Some(Duration::from_secs(1)));
    bench.reactor.io.turn += 1;
    bench.reactor.socket_events();
    let is_held_back = |bench: &mut Bench| {
        bench
            .reactor
            .sessions
            .iter_mut()
            .flatten()
            .any(|session| session.charge().is_some_and(|charge| charge.held_back_until().is_some()))
    };
    assert!(is_held_back(&mut bench), "the request has not come, which tests nothing");
    limit(&bench, None);
    bench.reactor.shared.order(0, Order::Limits);
    bench.reactor.obey();
    assert!(!is_held_back(&mut bench), "it waits by the limit that is no more");
    bench.waits(&[], 16 + 512);
}

/// Adds clients that have nothing in the ring. Returns the descriptor of the export for them.
fn client_beside(bench: &mut Bench) -> Fd {
    let who = Who { origin: Origin::Unknown, certificate: Vec::new(), at: Vec::new() };
    let (export, _) =
        bench.reactor.shared.exports.choose(0, &who, &Arc::new(crate::counts::Tally::new(1))).expect("it is there");
    let io = &mut bench.reactor.io;
    (1..4).for_each(|conn| io.shares.enter(conn, Peer::User(0), 0));
    io.open(0, &export).expect("it opens")
}

fn request_of(command: Command, len: u64) -> Request {
    Request { command, flags: 0, cookie: 0, offset: 0, len, contexts: 0 }
}

#[test]
fn a_request_that_needs_much_memory_is_not_passed_by_small_ones_for_ever() {
    const SMALL: u64 = 64 << 10;
    const LARGE: u64 = 512 << 10;
    let options = ServerOptions { server_bytes: 1 << 20, ..ServerOptions::default() };
    let Some(mut bench) = Bench::connected(options, None) else { return };
    let fd = client_beside(&mut bench);
    let io = &mut bench.reactor.io;
    // Begins a read for connection `conn`, which is not in the reactor.
    let take = |io: &mut Io, conn: usize, cost: u64| {
        let read = request_of(Command::Read, cost - 4096);
        let shape = Shape::whole(cost as usize - 4096, 512);
        let memory = io.ask(conn, &read, &shape)?;
        Some(io.begin(conn, fd, read, &shape, memory).expect("there is memory"))
    };
    // The first has all that is shared, and the room for one request more. However much it asks for, the others get
    // that room once it is given back, in the order in which they asked.
    let small: Vec<u32> = std::iter::from_fn(|| take(io, 1, SMALL)).collect();
    assert!(small.len() >= 3, "{}", small.len());
    assert!(take(io, 2, LARGE).is_none() && take(io, 3, LARGE).is_none());
    small.into_iter().rev().for_each(|slot| io.forget(slot));
    assert!(take(io, 1, SMALL).is_some(), "it is first in line");
    let first = take(io, 2, LARGE).expect("there is room for the first");
    assert!(take(io, 3, LARGE).is_none());
    io.forget(first);
    assert_eq!(io.shares.take_hopeful(), [3]);
    assert!(take(io, 3, LARGE).is_some() && take(io, 2, LARGE).is_none());
}

#[test]
fn a_write_that_is_announced_counts_for_what_has_come_of_it() {
    const WHOLE: u64 = 32 << 20;
    let Some(mut bench) = Bench::connected(ServerOptions::default(), None) else { return };
    let fd = client_beside(&mut bench);
    let io = &mut bench.reactor.io;
    let write = request_of(Command::Write, WHOLE);
    let shape = Shape::whole(WHOLE as usize, 512);
    let memory = io.ask(1, &write, &shape).expect("there is room");
    let slot = io.begin(1, fd, write, &shape, memory).expect("there is memory");
    let mut come = 0;
    let mut steps = 0;
    while come < WHOLE {
        let held = io.shares.held(1);
        assert!(held <= come * GROWTH + io.shares.own() + 4096, "{held} bytes are held for {come} that have come");
        let room = io.grow(1, slot).min(WHOLE - come);
        assert!(room > 0, "nobody else wants any");
        come += room;
        *io.gathering(slot).expect("it is there").1 = come;
        steps += 1;
    }
    assert!(steps <= 8, "a long write is received in few pieces: {steps}");
    io.forget(slot);
    assert_eq!(io.shares.held(1), 0);
}

#[test]
fn a_write_gets_a_part_of_the_memory_that_it_asks_for_where_there_is_no_more() {
    const WHOLE: u64 = 32 << 20;
    let options = ServerOptions { server_bytes: 64 << 20, ..ServerOptions::default() };
    let Some(mut bench) = Bench::connected(options, None) else { return };
    let fd = client_beside(&mut bench);
    let io = &mut bench.reactor.io;
    // Others hold so much that little is left over, and the first in line has the room for one large request.
    for conn in [2, 3] {
        let read = request_of(Command::Read, 1 << 20);
        while let Some(memory) = io.ask(conn, &read, &Shape::whole(read.len as usize, 512)) {
            io.begin(conn, fd, read, &Shape::whole(read.len as usize, 512), memory).expect("there is memory");
        }
    }
    let write = request_of(Command::Write, WHOLE);
    let memory = io.ask(1, &write, &Shape::whole(write.len as usize, 512)).expect("its own part");
    let slot = io.begin(1, fd, write, &Shape::whole(write.len as usize, 512), memory).expect("there is memory");
    let mut come = 0;
    loop {
        let room = io.grow(1, slot);
        if room == 0 {
            break;
        }
        come += room;
        *io.gathering(slot).expect("it is there").1 = come;
    }
    let held = io.shares.held(1);
    assert!(held < WHOLE, "there is memory for all of it, which tests nothing");
    // The client cannot get more, except for a step that is smaller than this.
    assert!(!io.shares.has_share_for(1, 2 * io.shares.own()), "{held} bytes are held, and there is more");
}
