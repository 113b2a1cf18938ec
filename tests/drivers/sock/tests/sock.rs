//! A driver of the unsafe tier: passes the suite, moves bytes without a copy, and survives all failures of its server.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sheave::drivers::Registry;
use sheave::{Buf, Device, Fd, Ring, op};
use sheave_conformance::Suite;
use sheave_outside_sock::register;
use sheave_outside_sock::server::{Fails, Server};
use tempfile::TempDir;

const MIB: usize = 1 << 20;
const EIO: i32 = 5;
const ETIMEDOUT: i32 = 110;

/// A server, and the path of its socket.
struct Rig {
    server: Server,
    path: PathBuf,
    _dir: TempDir,
}

impl Rig {
    fn new(fails: Fails) -> Rig {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sock");
        Rig { server: Server::start(&path, 8 * MIB, fails).expect("listening"), path, _dir: dir }
    }

    fn device(&self, keys: &str) -> Device {
        let mut registry = Registry::standard();
        register(&mut registry).expect("a free name");
        registry.open(&format!("sock:{},size=8M{keys}", self.path.display())).expect("opened")
    }
}

/// Makes a ring with the device; `None`, with a reported skip, if there is no kernel ring.
fn ring(device: &Device) -> Option<(Ring, Fd)> {
    let mut ring = Ring::builder().entries(128).build().expect("a ring");
    match ring.attach(device) {
        Ok(fd) => Some((ring, fd)),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn filled(len: usize, with: impl Fn(usize) -> u8) -> Buf {
    let mut buf = Buf::zeroed(len, 4096).expect("memory");
    buf.iter_mut().enumerate().for_each(|(at, byte)| *byte = with(at));
    buf
}

/// Runs `many` operations. Returns their user data and results.
fn results(ring: &mut Ring, many: u32) -> Vec<(u64, i32)> {
    ring.submit_and_wait(many).expect("submitted");
    let mut all: Vec<(u64, i32)> = std::iter::from_fn(|| ring.pop()).map(|done| (done.user_data, done.res)).collect();
    all.sort_unstable();
    all
}

#[test]
fn passes_the_suite() {
    let rig = Rig::new(Fails::Never);
    if ring(&rig.device("")).is_none() {
        return;
    }
    let at = |path: String| {
        move || {
            let mut registry = Registry::standard();
            register(&mut registry)?;
            registry.open(&path)
        }
    };
    let served = at(format!("sock:{},size=8M", rig.path.display()));
    let copied = at(format!("sock:{},size=8M,receive=any", rig.path.display()));
    // No server listens there: requests wait for a connection until they are overdue.
    let stuck = at(format!("sock:{}.none,size=8M,timeout=200ms", rig.path.display()));
    Suite::new(served).stuck(stuck).run().assert_passed();
    Suite::new(copied).run().assert_passed();
    let delayed = format!("fault:seed=1,delay=0.2,delay_time=100us,over=sock:{},size=8M", rig.path.display());
    Suite::new(at(delayed)).run().assert_passed();
}

#[test]
fn many_requests_of_many_sizes_are_received_where_they_belong() {
    ["", ",receive=any"].into_iter().for_each(many_requests);
}

fn many_requests(keys: &str) {
    let rig = Rig::new(Fails::Never);
    let Some((mut ring, fd)) = ring(&rig.device(keys)) else { return };
    let byte = |number: usize, at: usize| (number * 31 + at * 7) as u8;
    let sizes: Vec<usize> = (0..60).map(|number| 512 << (number % 8)).collect();
    for (number, &len) in sizes.iter().enumerate() {
        let buf = filled(len, |at| byte(number, at));
        let offset = (number * 128 * 1024) as u64;
        ring.push(op::write(fd, buf).offset(offset).user_data(number as u64)).expect("room");
    }
    let written = results(&mut ring, 60);
    assert!(written.iter().all(|&(number, res)| res as usize == sizes[number as usize]), "{written:?}");
    ring.push(op::fsync(fd)).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 0)]);
    for (number, &len) in sizes.iter().enumerate().rev() {
        let offset = (number * 128 * 1024) as u64;
        let buf = filled(len, |_| 0xee);
        ring.push(op::read(fd, buf).offset(offset).user_data(number as u64)).expect("room");
    }
    ring.submit_and_wait(60).expect("submitted");
    let mut seen = 0;
    while let Some(done) = ring.pop() {
        let (number, res) = (done.user_data as usize, done.res as usize);
        assert_eq!(res, sizes[number]);
        let buf = done.into_buf().expect("a read gives its buffer back");
        assert!(buf.iter().enumerate().all(|(at, &got)| got == byte(number, at)), "read {number}");
        seen += 1;
    }
    assert_eq!(seen, 60);
    assert_eq!(rig.server.connections(), 1);
}

#[test]
fn a_server_that_dies_at_any_byte_fails_what_was_under_way_and_nothing_else() {
    ["", ",receive=any"].into_iter().for_each(dies);
}

fn dies(keys: &str) {
    // Positions around the heads of replies, and within the data of the first and the second read.
    for at in [0, 1, 15, 16, 17, 500, 16 + 8192 - 1, 16 + 8192, 16 + 8192 + 3, 2 * (16 + 8192) - 1, 40_000] {
        let rig = Rig::new(Fails::DiesAt(at));
        let Some((mut ring, fd)) = ring(&rig.device(keys)) else { return };
        for number in 0..8 {
            let buf = filled(8192, |_| 0xee);
            // With gaps, or they would be merged into one request.
            ring.push(op::read(fd, buf).offset(number * 65536).user_data(number)).expect("room");
        }
        let ended = results(&mut ring, 8);
        let whole = (at / (16 + 8192)) as usize;
        assert_eq!(ended.len(), 8, "each ends once");
        let good = ended.iter().filter(|(_, res)| *res == 8192).count();
        assert!(good == whole.min(8) && ended.iter().all(|&(_, res)| res == 8192 || res == -EIO), "{at}: {ended:?}");
        // The next connection works.
        ring.push(op::read(fd, filled(8192, |_| 0xee)).user_data(9)).expect("room");
        assert_eq!(results(&mut ring, 1), [(9, 8192)], "{at}");
        assert_eq!(rig.server.connections(), 2);
    }
}

#[test]
fn a_server_that_stalls_in_the_middle_of_data_costs_a_timeout() {
    for at in [0, 10, 16 + 5000] {
        let rig = Rig::new(Fails::StallsAt(at));
        let Some((mut ring, fd)) = ring(&rig.device(",timeout=300ms")) else { return };
        let start = Instant::now();
        ring.push(op::read(fd, filled(8192, |_| 0xee)).user_data(1)).expect("room");
        assert_eq!(results(&mut ring, 1), [(1, -ETIMEDOUT)], "{at}");
        assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
        ring.push(op::read(fd, filled(8192, |_| 0xee)).user_data(2)).expect("room");
        assert_eq!(results(&mut ring, 1), [(2, 8192)], "{at}: on the next connection");
    }
}

#[test]
fn a_ring_that_goes_takes_its_operations_back_first() {
    for (at, keys) in [0, 16 + 100, 16 + 1000].into_iter().flat_map(|at| [(at, ""), (at, ",receive=any")]) {
        let rig = Rig::new(Fails::StallsAt(at));
        let device = rig.device(keys);
        let Some((mut ring, fd)) = ring(&device) else { return };
        let start = Instant::now();
        for number in 0..16 {
            ring.push(op::read(fd, filled(65536, |_| 0xee)).offset(number * 131_072)).expect("room");
            ring.push(op::write(fd, filled(65536, |_| 1)).offset((4 << 20) + number * 131_072)).expect("room");
        }
        ring.submit().expect("submitted");
        // Waits until some of it is in the kernel, including a receive into the memory of a read.
        while rig.server.requests() == 0 && start.elapsed() < Duration::from_secs(10) {
            let _ = ring.wait(32, Some(Duration::from_millis(5)));
        }
        let _ = ring.wait(32, Some(Duration::from_millis(30)));
        assert!(device.in_flight().total() > 0, "the server holds the connection");
        drop(ring); // only a cancellation ends the receive
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        assert_eq!(device.in_flight().total(), 0);
    }
}

#[test]
fn a_server_that_lies_loses_the_connection() {
    let rig = Rig::new(Fails::Lies);
    let Some((mut ring, fd)) = ring(&rig.device("")) else { return };
    for round in 0..3 {
        ring.push(op::read(fd, filled(4096, |_| 0)).user_data(round)).expect("room");
        assert_eq!(results(&mut ring, 1), [(round, -EIO)]);
    }
    ring.push(op::write(fd, filled(4096, |_| 1))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
}

#[test]
fn connections_that_are_cut_all_the_time_lose_no_end_of_an_io() {
    ["", ",receive=any"].into_iter().for_each(cut_all_the_time);
}

fn cut_all_the_time(keys: &str) {
    let rig = Rig::new(Fails::Never);
    let Some((mut ring, fd)) = ring(&rig.device(keys)) else { return };
    let (mut failed, mut good) = (0, 0);
    for round in 0..60 {
        for number in 0..32 {
            let offset = number * 131_072;
            if number % 3 == 0 {
                ring.push(op::write(fd, filled(65536, |_| 3)).offset(offset)).expect("room");
            } else {
                ring.push(op::read(fd, filled(65536, |_| 0xee)).offset(offset)).expect("room");
            }
        }
        ring.submit().expect("submitted");
        let _ = ring.wait(round % 32, Some(Duration::from_millis(20)));
        rig.server.hang_up();
        ring.submit_and_wait(32).expect("submitted");
        let all: Vec<i32> = std::iter::from_fn(|| ring.pop()).map(|done| done.res).collect();
        assert_eq!(all.len(), 32, "round {round}: {all:?}");
        assert!(all.iter().all(|&res| res == 65536 || res == -EIO), "{all:?}");
        good += all.iter().filter(|&&res| res == 65536).count();
        failed += all.iter().filter(|&&res| res == -EIO).count();
    }
    assert!(failed > 0 && good > 0, "{failed} failed, {good} did not");
}
