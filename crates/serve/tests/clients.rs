//! Clients that leave early, lie, or do nothing: they are dropped, and other clients are served.

mod rig;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sheave_serve::{Exports, ServeError, Server, ServerOptions};

use rig::{Rig, SIZE, is_closed, option, options, reply, request, rig};

#[test]
fn who_names_an_export_and_leaves_without_reading_harms_nobody() {
    // QEMU's servers crash in this case.
    let Some(rig) = rig(options()) else { return };
    for _ in 0..50 {
        let mut stream = rig.connect();
        stream.write_all(&[vec![0, 0, 0, 3], option(1, b"x")].concat()).expect("sent");
        drop(stream);
    }
    rig.serves();
    rig.server.stop().expect("it ends");
}

#[test]
fn who_leaves_with_requests_in_flight_harms_nobody() {
    // nbdkit's memory plugin aborts in this case.
    let Some(rig) = rig(options()) else { return };
    for round in 0..20u64 {
        let mut stream = rig.client();
        let reads: Vec<u8> = (0..256).flat_map(|cookie| request(0, cookie, cookie << 16, 65536)).collect();
        stream.write_all(&reads).expect("sent");
        if round % 2 == 0 {
            stream.shutdown(Shutdown::Both).expect("shut");
        }
        drop(stream);
    }
    rig.serves();
    rig.server.stop().expect("it ends");
}

#[test]
fn who_leaves_in_any_byte_harms_nobody() {
    let Some(rig) = rig(options()) else { return };
    let write = [request(1, 1, 1 << 20, 40960), vec![7; 40960]].concat();
    let all = [vec![0, 0, 0, 3], option(3, b""), option(7, b"\0\0\0\x01x\0\0"), request(0, 1, 0, 512), write].concat();
    let cuts = (0..160).chain((160..all.len()).step_by(4099));
    for cut in cuts {
        let mut stream = rig.connect();
        stream.write_all(&all[..cut]).expect("sent");
        drop(stream);
    }
    rig.serves();
    rig.server.stop().expect("it ends");
}

/// Each option adds 5 ms to the time of the handshake.
#[test]
fn a_client_that_lists_many_exports_has_time_for_each() {
    let Some(rig) = rig(ServerOptions { handshake: Duration::from_secs(2), ..options() }) else { return };
    let mut stream = rig.connect();
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    stream.write_all(&[0, 0, 0, 3]).expect("sent");
    stream.read_exact(&mut [0; 18]).expect("it greets");
    for _ in 0..1000 {
        stream.write_all(&option(3, b"")).expect("sent");
        // A reply for each export, then the acknowledgement.
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head).expect("each is answered");
            let [kind, len] = [12, 16].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().expect("four")));
            stream.read_exact(&mut vec![0; len as usize]).expect("with its data");
            if kind == 1 {
                break;
            }
        }
    }
    // The two seconds for the handshake are over; only the time added by options is left.
    std::thread::sleep(Duration::from_millis(2500));
    stream.write_all(&option(6, b"\0\0\0\x01x\0\0")).expect("sent");
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).expect("it is still there");
    assert_eq!(reply[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
    rig.server.stop().expect("it ends");
}

#[test]
fn who_sends_what_is_no_protocol_is_dropped() {
    let Some(rig) = rig(options()) else { return };
    let mut liar = rig.client();
    liar.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").expect("sent");
    assert!(is_closed(&mut liar));
    assert!(rig.heard("that is no request"));
    let mut huge = rig.client();
    huge.write_all(&request(1, 1, 0, (32 << 20) + 1)).expect("sent");
    assert!(is_closed(&mut huge));
    let mut flags = rig.connect();
    flags.write_all(&[0xff; 4]).expect("sent");
    assert!(is_closed(&mut flags));
    rig.serves();
    rig.server.stop().expect("it ends");
}

#[test]
fn who_does_not_finish_the_handshake_is_dropped_in_time() {
    // CVE-2019-14850 of nbdkit and CVE-2024-7409 of QEMU: clients that stay in the handshake, or leave in it.
    let Some(rig) = rig(ServerOptions { handshake: Duration::from_millis(300), ..options() }) else { return };
    let from = Instant::now();
    let mut silent: Vec<UnixStream> = (0..30).map(|_| rig.connect()).collect();
    // On a busy machine the time may be over before a client that is not silent has chosen. Then it tries again.
    let mut tries = (0..100).map(|_| rig.try_client());
    let mut working = tries.find_map(Result::ok).expect("a client that chooses an export at once is served");
    for stream in &mut silent {
        assert!(is_closed(stream));
    }
    assert!(from.elapsed() >= Duration::from_millis(250) && from.elapsed() < Duration::from_secs(60));
    assert!(rig.heard("did not choose an export in time"));
    working.write_all(&request(3, 5, 0, 0)).expect("a client that has chosen stays");
    assert_eq!(reply(&mut working), (0, 5));
    rig.server.stop().expect("it ends");
}

#[test]
fn who_does_not_read_replies_holds_up_nobody_else() {
    let limits = ServerOptions {
        reactors: 1,
        client_bytes: 4 << 20,
        server_bytes: 6 << 20,
        stall: Duration::from_millis(300),
        ..ServerOptions::default()
    };
    let Some(rig) = rig(limits) else { return };
    let mut lazy: Vec<UnixStream> = (0..4).map(|_| rig.client()).collect();
    let reads: Vec<u8> = (0..64).flat_map(|cookie| request(0, cookie, cookie << 19, 1 << 19)).collect();
    lazy.iter_mut().for_each(|stream| stream.write_all(&reads).expect("sent"));
    rig.serves();
    assert!(rig.heard("it took nothing of the replies"), "those who hold all memory are dropped");
    rig.server.stop().expect("it ends");
}

#[test]
fn a_goodbye_is_answered_after_what_was_asked_before() {
    let Some(rig) = rig(options()) else { return };
    let mut client = rig.client();
    let asked: Vec<u8> = (0..100).flat_map(|cookie| request(0, cookie, cookie << 12, 4096)).collect();
    client.write_all(&[asked, request(2, 0, 0, 0)].concat()).expect("sent");
    let mut all = Vec::new();
    client.read_to_end(&mut all).expect("to the end");
    assert_eq!(all.len(), 100 * (16 + 4096));
    rig.server.stop().expect("it ends");
}

#[test]
fn the_end_answers_what_is_under_way_and_waits_for_nobody_idle() {
    let Some(rig) = rig(options()) else { return };
    let idle: Vec<UnixStream> = (0..10).map(|_| rig.client()).collect();
    let mut silent = rig.connect();
    let from = Instant::now();
    rig.server.stop().expect("it ends");
    assert!(from.elapsed() < Duration::from_secs(5));
    assert!(!rig.socket.exists());
    for mut client in idle {
        assert!(is_closed(&mut client));
    }
    assert!(is_closed(&mut silent));
}

#[test]
fn more_clients_than_there_may_be_wait_for_their_turn() {
    let Some(rig) = rig(ServerOptions { reactors: 1, max_clients: 2, ..ServerOptions::default() }) else { return };
    let (first, second) = (rig.client(), rig.client());
    let mut third = rig.connect();
    third.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    assert!(third.read_exact(&mut [0; 18]).is_err(), "nobody greets it");
    drop(first);
    // Much less than the time of a handshake: only the end of the first client can make room.
    third.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
    third.read_exact(&mut [0; 18]).expect("now it is greeted");
    drop(second);
    rig.serves();
    rig.server.stop().expect("it ends");
}

#[test]
fn many_clients_come_and_go_while_others_work() {
    let Some(rig) = rig(options()) else { return };
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let rig = &rig;
            scope.spawn(move || {
                let mut rng = sheave_base::rng::Rng::new(seed);
                for _ in 0..60 {
                    let mut stream = rig.client();
                    for cookie in 0..rng.below(40) {
                        let blocks = 1 + rng.below(64) as u32;
                        let at = rng.below(SIZE / 4096 - 64) << 12;
                        let command = [0u16, 1, 3, 4, 6, 5][rng.below(6) as usize];
                        let len = if command == 3 { 0 } else { blocks * 4096 };
                        let at = if command == 3 { 0 } else { at };
                        let mut bytes = request(command, cookie, at, len);
                        if command == 1 {
                            bytes.resize(bytes.len() + len as usize, seed as u8);
                        }
                        // Some clients end within the data of a write.
                        let cut = if rng.percent(3) { bytes.len() / 2 } else { bytes.len() };
                        // Fails if the server has closed the connection, or if the socket is full, as this client reads
                        // nothing.
                        stream.set_write_timeout(Some(Duration::from_millis(50))).expect("set");
                        if stream.write_all(&bytes[..cut]).is_err() || cut < bytes.len() {
                            break;
                        }
                    }
                }
            });
        }
        for _ in 0..10 {
            rig.serves_alone(1 << 12);
        }
    });
    rig.server.stop().expect("it ends");
}

/// A value that takes long to drop.
struct Slow(Arc<AtomicBool>);

impl Drop for Slow {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_server_that_cannot_start_has_let_go_of_everything_when_it_says_so() {
    // The reactor's thread owns a reference to the listeners: a process that exits on the error would leave their paths
    // behind.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sheave_testkit::seccomp::forbid_rings();
            for _ in 0..10 {
                let (dir, listener) = rig::listener();
                let gone = Arc::new(AtomicBool::new(false));
                let slow = Slow(gone.clone());
                let hear = Box::new(move |_: &sheave_serve::Notice<'_>| _ = &slow);
                let started = Server::start(Exports::new(Vec::new()), vec![listener], options(), hear);
                assert!(matches!(started, Err(ServeError::Ring(_))), "{:?}", started.err());
                assert!(gone.load(Ordering::Acquire), "a thread still has what the server was given");
                assert!(!dir.path().join("s").exists(), "the socket is left behind");
            }
        });
    });
}

/// Returns the number of clients of each of three reactors.
fn by_reactor(rig: &Rig) -> [usize; 3] {
    let mut has = [0; 3];
    rig.server.clients().iter().for_each(|client| has[client.reactor] += 1);
    has
}

/// Clients are spread evenly, whichever reactor accepts them; new ones fill the places that others have left.
#[test]
fn clients_that_come_one_after_another_are_spread_evenly_over_the_threads() {
    let Some(rig) = rig(ServerOptions { reactors: 3, ..options() }) else { return };
    let mut clients = Vec::new();
    for count in 1..=12 {
        clients.push(rig.client());
        let has = by_reactor(&rig);
        assert_eq!(has.iter().sum::<usize>(), count);
        assert!(has.iter().max().zip(has.iter().min()).is_some_and(|(most, least)| most - least <= 1), "{has:?}");
    }
    // Each client is served by its reactor.
    for (cookie, client) in clients.iter_mut().enumerate() {
        client.write_all(&request(0, cookie as u64, 0, 512)).expect("sent");
        assert_eq!(reply(client), (0, cookie as u64));
        client.read_exact(&mut [0; 512]).expect("data");
    }
    // All clients of one reactor and one of another leave: the next ones fill their places.
    let listed = rig.server.clients();
    let goes: Vec<u64> = listed.iter().filter(|client| client.reactor == 1).map(|client| client.id).collect();
    goes.iter().for_each(|id| rig.server.disconnect(*id).expect("it is there"));
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while by_reactor(&rig) != [4, 0, 4] {
        assert!(std::time::Instant::now() < until, "{:?}", by_reactor(&rig));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let more: Vec<_> = (0..4).map(|_| rig.client()).collect();
    assert_eq!(by_reactor(&rig), [4, 4, 4]);
    drop((clients, more));
    rig.server.stop().expect("it ends");
}

/// Clients that connect at the same time, and leave while they are being handed over, leave no place occupied.
#[test]
fn clients_that_leave_while_they_are_handed_over_leave_nothing() {
    let Some(rig) = rig(ServerOptions { reactors: 3, ..options() }) else { return };
    for _ in 0..200 {
        drop(rig.connect());
    }
    let held: Vec<_> = (0..30).map(|_| rig.client()).collect();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while by_reactor(&rig).iter().sum::<usize>() != 30 {
        assert!(std::time::Instant::now() < until, "{:?}", by_reactor(&rig));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    drop(held);
    while by_reactor(&rig) != [0; 3] {
        assert!(std::time::Instant::now() < until, "{:?}", by_reactor(&rig));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // A client that is still before its handshake does not hold up the end of the server.
    let waits = rig.connect();
    rig.server.stop().expect("it ends");
    drop(waits);
}
