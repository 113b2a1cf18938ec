//! Rate limits: they are kept, they hold up no other export, and they can change while clients wait for them.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheave_iomap::RawFile;
use sheave_serve::{Allow, Export, ServerOptions};

use rig::{Device, Rig, option, options, reply, request, rig};

/// Reads `many` blocks with all requests sent at once.
fn ask(client: &mut UnixStream, many: u64) {
    let reads: Vec<u8> = (0..many).flat_map(|cookie| request(0, cookie, cookie << 12, 512)).collect();
    client.write_all(&reads).expect("sent");
}

fn take(client: &mut UnixStream, many: u64) {
    for _ in 0..many {
        assert_eq!(reply(client).0, 0);
        client.read_exact(&mut [0; 512]).expect("data");
    }
}

fn one_reactor() -> Option<Rig> {
    rig(ServerOptions { reactors: 1, ..options() })
}

#[test]
fn a_limited_export_keeps_its_rate_and_others_on_its_thread_theirs() {
    let Some(rig) = one_reactor() else { return };
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let backend = Box::new(Device(Arc::new(RawFile::new(device))));
    let free = Export {
        name: "free".into(),
        description: String::new(),
        read_only: false,
        allow: Allow::All,
        backend,
        vhost_user: None,
    };
    rig.server.add_export(free).expect("added");
    let (mut one, mut two) = (rig.client(), rig.client());
    let mut other = rig.connect();
    other.read_exact(&mut [0; 18]).expect("a greeting");
    other.write_all(&[vec![0, 0, 0, 3], option(1, b"free")].concat()).expect("sent");
    other.read_exact(&mut [0; 10]).expect("an export");
    // On a busy machine 1000 requests of another client may take as long as all that are limited, and are then compared
    // with a lower rate.
    for rate in [200, 40, 8] {
        let limit = format!("iops={rate},burst=10ms");
        rig.server.set_limit("x", Some(limit.parse().expect("a limit"))).expect("set");
        assert_eq!(rig.server.exports()[0].limit.map(|limit| limit.to_string()), Some(limit));
        let (from, before) = (Instant::now(), rig.server.exports()[0].counts);
        ask(&mut one, 60);
        ask(&mut two, 60);
        for _ in 0..50 {
            ask(&mut other, 20);
            take(&mut other, 20);
        }
        let reads = rig.server.exports()[0].counts.reads - before.reads;
        take(&mut one, 60);
        take(&mut two, 60);
        // 120 requests, of which 3 begin at once.
        assert!(from.elapsed() >= Duration::from_secs(117) / rate, "{:?}", from.elapsed());
        let throttled = rig.server.exports()[0].counts.throttled - before.throttled;
        assert!(throttled >= Duration::from_millis(300), "{throttled:?}");
        if reads < 120 {
            break;
        }
        assert!(rate > 8, "1000 requests of another client took as long as all that are limited");
    }
    assert_eq!(rig.server.exports()[1].counts.throttled, Duration::ZERO);
    rig.server.stop().expect("it ends");
}

#[test]
fn bytes_are_limited_and_what_has_none_counts_as_a_request() {
    let Some(rig) = one_reactor() else { return };
    rig.server.set_limit("x", Some("bps=1M,burst=10ms".parse().expect("a limit"))).expect("set");
    let mut client = rig.client();
    let from = Instant::now();
    for cookie in 0..4 {
        client.write_all(&[request(1, cookie, 0, 65536), vec![1; 65536]].concat()).expect("sent");
        client.write_all(&request(3, cookie, 0, 0)).expect("sent");
    }
    (0..8).for_each(|_| assert_eq!(reply(&mut client).0, 0));
    // The first begins at once, the last when three are paid for.
    assert!(from.elapsed() >= Duration::from_micros(3 * 62_500 - 10_000), "{:?}", from.elapsed());
    rig.server.stop().expect("it ends");
}

#[test]
fn a_limit_that_changes_counts_for_requests_that_wait() {
    let Some(rig) = one_reactor() else { return };
    rig.server.set_limit("x", Some("iops=1,burst=10ms".parse().expect("a limit"))).expect("set");
    let mut clients: Vec<_> = (0..20).map(|_| rig.client()).collect();
    clients.iter_mut().for_each(|client| ask(client, 30));
    // All of it would take ten minutes; the read timeout of a client is 20 s.
    let until = Instant::now() + Duration::from_secs(20);
    while rig.server.exports()[0].counts.reads == 0 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.server.set_limit("x", None).expect("set");
    clients.iter_mut().for_each(|client| take(client, 30));
    // A client that waits for a limit does not hold up the end of the server.
    rig.server.set_limit("x", Some("iops=1,burst=10ms".parse().expect("a limit"))).expect("set");
    clients.iter_mut().for_each(|client| ask(client, 30));
    assert!(rig.server.set_limit("y", None).is_err());
    let from = Instant::now();
    rig.server.stop().expect("it ends");
    assert!(from.elapsed() < Duration::from_secs(8), "{:?}", from.elapsed());
}

#[test]
fn who_hangs_up_while_a_limit_holds_it_back_leaves_its_place_to_others() {
    // On two reactors: a client that waits on one moves up when clients of the other leave.
    let Some(rig) = rig(options()) else { return };
    rig.server.set_limit("x", Some("bps=64K,burst=10ms".parse().expect("a limit"))).expect("set");
    // The first begins, and takes four seconds; the others would take 76 s more.
    for cookie in 0..20 {
        rig.client().write_all(&request(0, cookie, 0, 256 << 10)).expect("sent");
    }
    let mut client = rig.client();
    ask(&mut client, 1);
    take(&mut client, 1);
    let until = Instant::now() + Duration::from_secs(10);
    while rig.server.exports()[0].clients > 1 {
        assert!(Instant::now() < until, "{} clients", rig.server.exports()[0].clients);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Their requests, all but the first and the last, were never begun.
    assert!(rig.server.exports()[0].counts.reads <= 3, "{:?}", rig.server.exports()[0].counts);
    rig.server.stop().expect("it ends");
}
