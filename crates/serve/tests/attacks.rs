//! Hostile clients, and busy ones: their cost is bounded, and other clients are served.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sheave_iomap::{File, RawFile};
use sheave_nbd::Extent;
use sheave_serve::{Backend, NoStatus, Question, ServerOptions};
use sheave_testkit::under_sanitizer;

use rig::{
    extended, extended_request, is_closed, looked_before_ten_reads, option, options, reply, request, rig, rig_of,
    rig_with,
};

/// NBD_CMD_FLAG_NO_HOLE.
const NO_HOLE: u16 = 2;

fn one_reactor() -> ServerOptions {
    ServerOptions { reactors: 1, ..ServerOptions::default() }
}

/// Returns a field of /proc/self/status. Fields of memory mean nothing under a sanitizer, which keeps memory of its
/// own.
fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = text.lines().find(|line| line.starts_with(field)).expect("a field");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn a_write_as_long_as_they_may_be_is_taken() {
    // With its headroom it counts for 64 MiB, which is all that one client may have.
    let Some(rig) = rig(options()) else { return };
    let mut client = rig.client();
    let bytes: Vec<u8> = (0..32 << 20).map(|at: u32| (at / 4093) as u8).collect();
    client.write_all(&[request(1, 5, 0, 32 << 20), bytes.clone()].concat()).expect("sent");
    assert_eq!(reply(&mut client), (0, 5));
    client.write_all(&request(0, 6, 0, 32 << 20)).expect("sent");
    assert_eq!(reply(&mut client), (0, 6));
    let mut back = vec![0; 32 << 20];
    client.read_exact(&mut back).expect("data");
    assert!(back == bytes);
    rig.server.stop().expect("it ends");
}

#[test]
fn zeroes_that_are_written_take_memory_once() {
    let Some(rig) = rig_of("null:size=1T,latency=50ms", one_reactor()) else { return };
    let mut client = extended(&rig);
    let before = status("VmHWM:");
    let asked: Vec<u8> =
        (0..256).flat_map(|cookie| extended_request(6, NO_HOLE, cookie, cookie << 20, 1 << 20)).collect();
    client.write_all(&asked).expect("sent");
    client.read_exact(&mut vec![0; 256 * 32]).expect("replies");
    let grown = status("VmHWM:") - before;
    assert!(grown < 64 << 10, "{grown} KiB for 256 MiB of zeroes");
    rig.server.stop().expect("it ends");
}

#[test]
fn who_zeroes_all_and_leaves_does_not_keep_the_server_from_its_end() {
    let drain = Duration::from_millis(300);
    let Some(rig) = rig_of("null:size=1P,latency=1ms", ServerOptions { drain, ..options() }) else { return };
    let mut gone = extended(&rig);
    gone.write_all(&extended_request(6, NO_HOLE, 1, 0, 1 << 50)).expect("sent");
    drop(gone);
    let mut stays = extended(&rig);
    stays
        .write_all(&[extended_request(6, NO_HOLE, 1, 0, 1 << 50), extended_request(5, 0, 2, 0, 512)].concat())
        .expect("sent");
    stays.read_exact(&mut [0; 32]).expect("both were taken");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(rig.server.stop().is_ok()));
    assert_eq!(told.recv_timeout(Duration::from_secs(30)), Ok(true));
}

#[test]
fn small_requests_do_not_save_a_client_that_stalls_a_write() {
    let stall = Duration::from_millis(300);
    let limits = ServerOptions { client_bytes: 16 << 20, server_bytes: 24 << 20, stall, ..one_reactor() };
    let Some(rig) = rig(limits) else { return };
    let mut lazy: Vec<UnixStream> = (0..2).map(|_| rig.client()).collect();
    // With their headroom these count for 12 MiB per client: the two have all memory, and each may still ask for more.
    let reads: Vec<u8> = (0..3).flat_map(|cookie| request(0, cookie, cookie << 22, (4 << 20) - 512)).collect();
    lazy.iter_mut().for_each(|stream| stream.write_all(&reads).expect("sent"));
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (lazy, ended) = (&mut lazy, &ended);
        scope.spawn(move || {
            while ended.load(Ordering::Relaxed) == 0 {
                for stream in lazy.iter_mut() {
                    // Fails for a client that was dropped, which is what this test expects.
                    let _ = stream.write_all(&request(5, 9, 0, 512));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rig.serves()));
        ended.store(1, Ordering::Relaxed);
        assert!(served.is_ok());
    });
    assert!(rig.heard("it took nothing of the replies"));
    rig.server.stop().expect("it ends");
}

#[test]
fn a_large_request_is_answered_beside_small_ones_that_want_all_memory() {
    let limits = ServerOptions { server_bytes: 4 << 20, ..one_reactor() };
    let Some(rig) = rig_of("null:size=64M,latency=1ms", limits) else { return };
    let mut client = rig.client();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut greedy = rig.client();
            let ended = &ended;
            scope.spawn(move || {
                // With their headroom these count for 8 KiB each, so each client wants all memory.
                let ask = request(0, 1, 0, 4096);
                greedy.write_all(&ask.repeat(512)).expect("sent");
                let mut back = vec![0; 16 + 4096];
                while !ended.load(Ordering::Relaxed) {
                    greedy.read_exact(&mut back).expect("a reply");
                    greedy.write_all(&ask).expect("sent");
                }
            });
        }
        let answered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            std::thread::sleep(Duration::from_millis(100));
            for cookie in 0..10 {
                client.write_all(&request(0, cookie, 0, (2 << 20) - 4096)).expect("sent");
                assert_eq!(reply(&mut client), (0, cookie));
                client.read_exact(&mut vec![0; (2 << 20) - 4096]).expect("data");
            }
        }));
        ended.store(true, Ordering::Relaxed);
        assert!(answered.is_ok());
    });
    assert!(rig.notices.lock().expect("nobody panics").is_empty(), "nobody is dropped who waits for memory");
    rig.server.stop().expect("it ends");
}

/// A backend that takes long to find its extents.
#[derive(Debug)]
struct Scattered {
    file: Arc<dyn File>,
    looked: Arc<AtomicUsize>,
}

impl Backend for Scattered {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        std::thread::sleep(Duration::from_millis(1));
        self.looked.fetch_add(1, Ordering::Relaxed);
        Ok(vec![Extent { len: question.len, status: 0 }])
    }
}

#[test]
fn who_asks_for_extents_leaves_others_their_turn() {
    const ASKED: usize = 1000;
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let looked = Arc::new(AtomicUsize::new(0));
    let backend = Scattered { file: Arc::new(RawFile::new(device)), looked: looked.clone() };
    let Some(rig) = rig_with(Box::new(backend), one_reactor()) else { return };
    let mut curious = rig.connect();
    let queries = b"\0\0\0\x01x\0\0\0\x01\0\0\0\x0fbase:allocation";
    curious.read_exact(&mut [0; 18]).expect("a greeting");
    let options = [vec![0, 0, 0, 3], option(8, b""), option(10, queries), option(7, b"\0\0\0\x01x\0\0")].concat();
    curious.write_all(&options).expect("sent");
    curious.read_exact(&mut [0; 20 + 20 + 19 + 20 + 20 + 12 + 20 + 14 + 20]).expect("an export");
    let mut other = rig.client();
    let asked: Vec<u8> = (0..ASKED as u64).flat_map(|cookie| request(7, cookie, 0, 1 << 20)).collect();
    // On a busy machine the thread of this test may be late with its reads. Then all is repeated.
    for tries in 1.. {
        curious.write_all(&asked).expect("sent");
        let before = looked_before_ten_reads(&mut other, &looked);
        // All questions are answered.
        let mut replies = vec![0; ASKED * (20 + 12)];
        curious.read_exact(&mut replies).expect("all");
        if before < ASKED / 2 {
            break;
        }
        assert!(tries < 20, "{before} were looked at before ten reads of another");
        looked.store(0, Ordering::Relaxed);
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn the_end_answers_what_came_before_half_a_write() {
    let Some(rig) = rig_of("null:size=64M,latency=500ms", options()) else { return };
    let mut client = rig.client();
    let reads: Vec<u8> = (0..4).flat_map(|cookie| request(0, cookie, cookie << 12, 4096)).collect();
    let half = [request(1, 8, 0, 1 << 20), vec![1; 1 << 19]].concat();
    client.write_all(&[reads, request(5, 7, 0, 512), half].concat()).expect("sent");
    // This reply proves that the server has read everything before the write.
    assert_eq!(reply(&mut client), (0, 7));
    let server = rig.server;
    let end = std::thread::spawn(move || server.stop());
    let mut all = Vec::new();
    client.read_to_end(&mut all).expect("to the end");
    assert_eq!(all.len(), 4 * (16 + 4096), "the replies to the reads, and none to the write");
    end.join().expect("no panic").expect("it ends");
}

#[test]
fn one_client_gets_no_more_memory_than_its_limit() {
    let Some(rig) = rig(ServerOptions { client_bytes: 4 << 20, ..one_reactor() }) else { return };
    for (many, len) in [(60u64, 1u32 << 20), (4096, 4096)] {
        let mut client = rig.client();
        let before = status("VmHWM:");
        let asked: Vec<u8> = (0..many).flat_map(|cookie| request(0, cookie, cookie * u64::from(len), len)).collect();
        client.write_all(&asked).expect("sent");
        let mut data = vec![0; len as usize];
        for _ in 0..many {
            assert_eq!(reply(&mut client).0, 0);
            client.read_exact(&mut data).expect("data");
        }
        let grown = status("VmHWM:") - before;
        assert!(grown < 20 << 10 || under_sanitizer(), "{grown} KiB for {many} reads of {len} bytes");
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn a_client_has_a_bounded_number_of_requests_under_way() {
    let Some(rig) = rig(one_reactor()) else { return };
    let mut client = rig.client();
    let before = status("VmHWM:");
    let asked: Vec<u8> = (0..4096).flat_map(|cookie| request(0, cookie, cookie << 12, 4096)).collect();
    client.write_all(&asked).expect("sent");
    client.read_exact(&mut vec![0; 16 + 4096]).expect("a reply");
    let grown = status("VmHWM:") - before;
    assert!(grown < 20 << 10 || under_sanitizer(), "{grown} KiB");
    drop(client);
    rig.server.stop().expect("it ends");
}

#[test]
fn clients_that_do_nothing_wake_nobody_and_have_no_buffers() {
    const CLIENTS: u64 = 100;
    let Some(rig) = rig_of("null:size=64M", options()) else { return };
    let work = |many: u64| {
        let mut clients: Vec<UnixStream> = (0..many).map(|_| rig.client()).collect();
        for client in &mut clients {
            let reads: Vec<u8> = (0..200).flat_map(|cookie| request(0, cookie, cookie << 12, 4096)).collect();
            client.write_all(&[reads, request(1, 9, 0, 1 << 20), vec![7; 1 << 20]].concat()).expect("sent");
            client.read_exact(&mut vec![0; 200 * (16 + 4096) + 16]).expect("replies");
        }
        clients
    };
    // Warms up the memory that a server has once, in each of its reactors.
    (0..4).for_each(|_| drop(work(30)));
    // Longer than the second for which memory is kept for the next request.
    std::thread::sleep(Duration::from_millis(2500));
    let before = status("VmRSS:");
    let _clients = work(CLIENTS);
    std::thread::sleep(Duration::from_millis(2500));
    let grown = status("VmRSS:").saturating_sub(before);
    // On a busy machine the server comes to rest later.
    let until = Instant::now() + Duration::from_secs(30);
    let woken = loop {
        let from = switches();
        std::thread::sleep(Duration::from_secs(1));
        let woken = switches() - from;
        if woken <= 8 {
            break woken;
        }
        assert!(Instant::now() < until, "the threads of an idle server ran {woken} times in a second");
    };
    assert!(grown <= CLIENTS * 16 + 2048 || under_sanitizer(), "{grown} KiB for {CLIENTS} clients that do nothing");
    eprintln!("{grown} KiB for {CLIENTS} idle clients, {woken} wakes");
    rig.server.stop().expect("it ends");
}

#[test]
fn who_connects_and_is_silent_takes_half_of_the_places_and_keeps_nobody_out() {
    let Some(rig) = rig(ServerOptions { max_clients: 32, ..one_reactor() }) else { return };
    let mut working: Vec<UnixStream> = (0..8).map(|_| rig.client()).collect();
    let from = Instant::now();
    let mut silent: Vec<UnixStream> = (0..60).map(|_| rig.connect()).collect();
    // This client is behind all of them in line, and is served long before their ten seconds of handshake are over.
    rig.serves();
    assert!(from.elapsed() < Duration::from_secs(8), "{:?}", from.elapsed());
    assert!(rig.heard("others wait for its place"));
    let unchosen = rig.server.clients().iter().filter(|client| client.export.is_none()).count();
    assert!(unchosen <= 17, "{unchosen} that have chosen no export");
    assert!(is_closed(&mut silent[0]), "the first to come is the first to go");
    for client in &mut working {
        client.write_all(&request(3, 5, 0, 0)).expect("who has chosen stays");
        assert_eq!(reply(client), (0, 5));
    }
    rig.server.stop().expect("it ends");
}

/// A backend whose answers wait for permission.
#[derive(Debug)]
struct Stuck {
    file: Arc<dyn File>,
    asked: Arc<AtomicBool>,
    may: Arc<AtomicBool>,
}

impl Backend for Stuck {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        self.asked.store(true, Ordering::Relaxed);
        while !self.may.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(vec![Extent { len: question.len, status: 0 }])
    }
}

/// The check on which the watchdog of systemd relies.
#[test]
fn a_reactor_that_is_stuck_does_not_say_that_it_lives() {
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let (asked, may) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let stuck = Stuck { file: Arc::new(RawFile::new(device)), asked: asked.clone(), may: may.clone() };
    let Some(rig) = rig_with(Box::new(stuck), options()) else { return };
    let mut client = rig.connect();
    client.read_exact(&mut [0; 18]).expect("a greeting");
    let queries = b"\0\0\0\x01x\0\0\0\x01\0\0\0\x0fbase:allocation";
    let said = [vec![0, 0, 0, 3], option(8, b""), option(10, queries), option(7, b"\0\0\0\x01x\0\0")].concat();
    client.write_all(&said).expect("sent");
    client.read_exact(&mut [0; 20 + 20 + 19 + 20 + 20 + 12 + 20 + 14 + 20]).expect("an export");
    assert!(rig.server.is_alive(Duration::from_secs(20)), "all answer");
    client.write_all(&request(7, 1, 0, 4096)).expect("sent");
    while !asked.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    assert!(!rig.server.is_alive(Duration::from_millis(300)), "one of two does not answer");
    may.store(true, Ordering::Relaxed);
    assert!(rig.server.is_alive(Duration::from_secs(20)), "and then it does");
    client.read_exact(&mut [0; 20 + 12]).expect("the extents");
    rig.server.stop().expect("it ends");
}

/// Returns the number of context switches of the reactors' threads.
fn switches() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    let reactor = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("sheave-serve"))
    };
    let switched = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("status")).expect("a status");
        let line = text.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("a field");
        line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).expect("a number")
    };
    let paths: Vec<_> = tasks.map(|task| task.expect("a task").path()).filter(reactor).collect();
    assert!(!paths.is_empty(), "there are reactors");
    paths.into_iter().map(switched).sum()
}
