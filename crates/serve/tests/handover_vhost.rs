//! Front-ends of a server that hands over to the next one: their guests notice nothing but a pause.

mod rig;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rig::handover::{Moving, Plan, WITHIN};
use rig::options;
use sheave_blk::device::Device as DiskDevice;
use sheave_drivers::fault::{self, FaultKind, FaultOps, FaultPlan};
use sheave_serve::{ServeError, ServerOptions};
use sheave_vhost_front::features::{self, protocol};
use sheave_vhost_front::message::{NEED_REPLY, VERSION, request};
use sheave_vhost_front::{BackendRequest, Driver, DriverQueue, GuestMemory, Options, RegionSpec, STATUS_OK};

const PATIENCE: Duration = Duration::from_secs(20);

fn two_queues() -> Options {
    Options { queues: 2, ..Options::default() }
}

fn without(feature: u64) -> Options {
    Options { protocol: features::KNOWN_PROTOCOL & !feature, ..two_queues() }
}

fn plan(device: DiskDevice) -> Plan {
    Plan { vhost_user: true, ..Plan::of(device, options()) }
}

fn ram() -> DiskDevice {
    sheave_drivers::open_device("ram:size=64M").expect("a device")
}

/// A device in memory that takes this time for each request.
fn slow(time: Duration) -> DiskDevice {
    let disk = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let plan = FaultPlan { ops: FaultOps::All, delay_time: time, ..FaultPlan::new(1).with(FaultKind::Delay, 1.0) };
    fault::over("slow", &disk, &plan).expect("a device").0
}

fn attach(moving: &Moving, options: &Options) -> Driver {
    options.connect(moving.front()).expect("attached")
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn heard_nothing(moving: &Moving) {
    let notices = moving.notices.lock().expect("nobody panics");
    assert!(notices.is_empty(), "{notices:?}");
}

/// Blocks of 4 KiB that a queue writes and reads, with the number of the last write to each.
struct Load {
    queue: DriverQueue,
    memory: GuestMemory,
    data: u64,
    first: u64,
    written: [u64; DEPTH as usize],
    rounds: u64,
}

const DEPTH: u64 = 16;

impl Load {
    fn new(queue: DriverQueue) -> Load {
        let memory = queue.memory().clone();
        let data = memory.alloc(DEPTH * 4096, 4096).expect("room");
        let first = 1 + u64::from(queue.number()) * DEPTH;
        Load { queue, memory, data, first, written: [0; DEPTH as usize], rounds: 0 }
    }

    fn block(&self, at: u64, number: u64) -> Vec<u8> {
        (0..512u64).flat_map(|word| (number << 32 | (self.first + at) << 16 | word).to_le_bytes()).collect()
    }

    /// Writes all blocks, then reads them and checks each. Each request completes once: the queue checks that.
    fn round(&mut self) {
        self.rounds += 1;
        for at in 0..DEPTH {
            self.written[at as usize] = self.rounds;
            self.memory.write(self.data + 4096 * at, &self.block(at, self.rounds));
            self.queue.write(8 * (self.first + at), self.data + 4096 * at, 4096).expect("submitted");
        }
        let ended = self.queue.complete_all(PATIENCE).expect("written");
        assert!(ended.len() == DEPTH as usize && ended.iter().all(|one| one.status == STATUS_OK), "{ended:?}");
        self.check();
    }

    fn check(&mut self) {
        self.memory.fill(self.data, DEPTH as usize * 4096, 0xee);
        for at in 0..DEPTH {
            self.queue.read(8 * (self.first + at), self.data + 4096 * at, 4096).expect("submitted");
        }
        let ended = self.queue.complete_all(PATIENCE).expect("read");
        assert!(ended.len() == DEPTH as usize && ended.iter().all(|one| one.status == STATUS_OK), "{ended:?}");
        for at in 0..DEPTH {
            let expected = self.block(at, self.written[at as usize]);
            assert!(self.memory.read(self.data + 4096 * at, 4096) == expected, "block {at} in round {}", self.rounds);
        }
    }
}

/// Lets all queues of a driver work in threads of their own while `meanwhile` runs. Returns the number of their rounds.
fn under_load(driver: &mut Driver, meanwhile: impl FnOnce(&AtomicU64)) -> u64 {
    let (ends, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (queues, total) = std::thread::scope(|scope| {
        let threads: Vec<_> = driver
            .take_queues()
            .into_iter()
            .map(|queue| {
                scope.spawn(|| {
                    let mut load = Load::new(queue);
                    while !ends.load(Ordering::Relaxed) {
                        load.round();
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                    (load.queue, load.rounds)
                })
            })
            .collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(&rounds)));
        ends.store(true, Ordering::Relaxed);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let total = ended.iter().map(|(_, rounds)| rounds).sum::<u64>();
        (ended.into_iter().map(|(queue, _)| queue).collect(), total)
    });
    driver.put_queues(queues);
    total
}

/// Waits until the queues have gone on for some rounds.
fn some_rounds(rounds: &AtomicU64) {
    let from = rounds.load(Ordering::Relaxed);
    until("the guest goes on", || rounds.load(Ordering::Relaxed) >= from + 4);
}

#[test]
fn guests_under_load_lose_no_request_and_none_is_done_twice() {
    let forms = [
        ("everything", two_queues(), false),
        ("no region for requests in flight", without(protocol::INFLIGHT_SHMFD), false),
        ("in order", Options { features: features::KNOWN | features::IN_ORDER, ..two_queues() }, true),
        ("no event index", Options { features: features::KNOWN & !features::EVENT_IDX, ..two_queues() }, false),
    ];
    for (name, options, in_order) in forms {
        eprintln!("{name}");
        let Some(mut moving) = (Plan { in_order, ..plan(ram()) }).start() else { return };
        let mut driver = attach(&moving, &options);
        assert_eq!(driver.features() & features::IN_ORDER != 0, in_order);
        let known = moving.server.clients();
        let rounds = under_load(&mut driver, |rounds| {
            for _ in 0..20 {
                some_rounds(rounds);
                moving.hand_over();
            }
            some_rounds(rounds);
        });
        let counts = moving.server.exports()[0].counts;
        assert_eq!((counts.writes, counts.reads), (rounds * DEPTH, rounds * DEPTH), "{name}: each once");
        assert_eq!(counts.errors, 0);
        let clients = moving.server.clients();
        assert_eq!((clients.len(), clients[0].id, clients[0].counts), (1, known[0].id, counts));
        assert_eq!(
            (moving.device().client, moving.device().queues, moving.device().running.len()),
            (Some(known[0].id), 2, 2)
        );
        heard_nothing(&moving);
        drop(driver);
        until("it is gone", || moving.device().client.is_none());
        assert_eq!(moving.server.exports()[0].counts, counts);
        moving.stop().server.stop().expect("it ends");
    }
}

#[test]
fn a_guest_keeps_its_queues_whatever_number_of_them_the_next_server_offers() {
    let Some(mut moving) = plan(ram()).start() else { return };
    let mut driver = attach(&moving, &two_queues());
    under_load(&mut driver, |rounds| {
        for reactors in [1, 3, 1, 2] {
            some_rounds(rounds);
            moving.hand_over_to(reactors);
            until("it is there", || moving.device().running.len() == 2);
            assert_eq!(moving.device().queues, 2);
        }
        some_rounds(rounds);
        moving.hand_over_to(3);
    });
    heard_nothing(&moving);
    drop(driver);
    // Who attaches it next gets what the server offers.
    until("it is gone", || moving.device().client.is_none());
    let mut driver = attach(&moving, &Options { queues: 3, ..Options::default() });
    assert_eq!(moving.device().queues, 3);
    under_load(&mut driver, |rounds| {
        some_rounds(rounds);
        moving.hand_over_to(1);
        some_rounds(rounds);
    });
    heard_nothing(&moving);
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_message_in_parts_arrives_whole_and_with_its_descriptor() {
    let Some(mut moving) = plan(ram()).start() else { return };
    let mut driver = attach(&moving, &two_queues());
    let message = |number: u32, flags: u32, body: &[u8]| {
        [&[number, flags, body.len() as u32].map(u32::to_ne_bytes).concat(), body].concat()
    };
    // The eventfd of queue 1 for interrupts: the descriptor comes with the first byte.
    let call = message(request::SET_VRING_CALL, VERSION | NEED_REPLY, &1u64.to_ne_bytes());
    let interrupts = driver.queue(1).call_fd().try_clone_to_owned().expect("cloned");
    for cut in 1..call.len() {
        let channel = driver.front().channel();
        channel.send_bytes(&call[..cut], &[interrupts.as_fd()]).expect("sent");
        std::thread::sleep(Duration::from_millis(1));
        moving.hand_over();
        let channel = driver.front().channel();
        channel.send_bytes(&call[cut..], &[]).expect("sent");
        let reply = channel.receive().expect("an acknowledgement");
        assert_eq!((reply.request, reply.u64_at(0)), (request::SET_VRING_CALL, Some(0)), "cut at {cut}");
    }
    // Interrupts come by it.
    let rounds = under_load(&mut driver, some_rounds);
    assert!(rounds >= 4);
    // An answer that the front-end has not received is in its socket.
    driver.front().channel().send_bytes(&message(request::GET_STATUS, VERSION, &[]), &[]).expect("sent");
    moving.hand_over();
    assert_eq!(driver.front().channel().receive().expect("an answer").request, request::GET_STATUS);
    // Half a message and then an end is what it is in one server.
    driver.front().channel().send_bytes(&call[..5], &[]).expect("sent");
    moving.hand_over();
    driver.front().hang_up();
    until("it is gone", || moving.device().client.is_none());
    assert!(moving.heard("within a message"));
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_kick_that_comes_while_nobody_serves_is_seen() {
    for options in [two_queues(), without(protocol::INFLIGHT_SHMFD)] {
        let Some(mut moving) = plan(ram()).start() else { return };
        let mut driver = attach(&moving, &options);
        under_load(&mut driver, some_rounds);
        let data = driver.memory().alloc(64 << 10, 4096).expect("room");
        for round in 0..10u64 {
            // The requests of queue 0 come before the server is suspended, those of queue 1 between two servers.
            for at in 0..8 {
                driver.queue(0).write(8 * (100 + at), data, 4096).expect("submitted");
            }
            driver.queue(0).kick().expect("kicked");
            let before = round.is_multiple_of(2).then(|| moving.take_out());
            (0..8).for_each(|at| _ = driver.queue(1).write(8 * (200 + at), data, 4096).expect("submitted"));
            driver.queue(1).kick_always().expect("kicked");
            driver.queue(1).publish();
            match before {
                Some(moved) => moving.go_on(moved),
                None => {
                    moving.server.suspend(WITHIN).expect("suspended");
                    driver.queue(1).kick_always().expect("kicked");
                    let moved = moving.take_out_of_suspended();
                    moving.go_on(moved);
                }
            }
            for number in [0, 1] {
                let ended = driver.queue(number).complete_all(PATIENCE).expect("all end");
                assert!(ended.iter().all(|one| one.status == STATUS_OK), "round {round}: {ended:?}");
            }
        }
        heard_nothing(&moving);
        moving.stop().server.stop().expect("it ends");
    }
}

#[test]
fn the_index_at_which_a_queue_stops_is_right_after_a_handover() {
    for options in [two_queues(), without(protocol::INFLIGHT_SHMFD)] {
        let Some(mut moving) = plan(ram()).start() else { return };
        let mut driver = attach(&moving, &options);
        let data = driver.memory().alloc(4096, 4096).expect("room");
        for (number, many) in [(0, 300u16), (1, 7)] {
            for _ in 0..many {
                let token = driver.queue(number).write(8, data, 4096).expect("submitted");
                driver.queue(number).finish(token, PATIENCE).expect("written");
            }
        }
        moving.hand_over();
        assert_eq!(driver.stop().expect("stopped"), [300, 7]);
        // Also of queues that are stopped at the handover.
        moving.hand_over();
        assert_eq!(driver.stop().expect("stopped"), [300, 7]);
        driver.start(&[300, 7]).expect("started");
        under_load(&mut driver, |rounds| {
            some_rounds(rounds);
            moving.hand_over();
            some_rounds(rounds);
        });
        driver.reboot().expect("rebooted");
        moving.hand_over();
        under_load(&mut driver, some_rounds);
        heard_nothing(&moving);
        moving.stop().server.stop().expect("it ends");
    }
}

#[test]
fn what_was_negotiated_stays() {
    let Some(mut moving) = plan(ram()).start() else { return };
    let mut driver = attach(&moving, &two_queues());
    let features = driver.features();
    driver.front().set_write_cache(false).expect("switched off");
    let status = driver.front().get_status().expect("a status");
    let region = driver.add_region(RegionSpec::new(0x2_0000_0000, 16 << 20)).expect("added");
    moving.hand_over();
    assert!(driver.read_config().expect("a configuration").writeback == 0, "the write cache stays off");
    assert_eq!((driver.front().get_status().expect("a status"), driver.features()), (status, features));
    // Memory is where it was, and can be taken away.
    driver.memory().write(0x2_0000_0000, &[5; 4096]);
    let token = driver.queue(0).write(8, 0x2_0000_0000, 4096).expect("submitted");
    driver.queue(0).finish(token, PATIENCE).expect("written");
    driver.remove_region(&region).expect("removed");
    moving.hand_over();
    assert_eq!(driver.queue(1).read_bytes(8, 4096, PATIENCE).expect("read"), [5; 4096]);
    driver.front().set_write_cache(true).expect("switched on");
    moving.hand_over();
    assert_eq!(driver.read_config().expect("a configuration").writeback, 1);
    // The channel of the back-end is still there.
    moving.server.size_changed("x");
    assert_eq!(driver.front().backend_request(PATIENCE).expect("a message"), Some(BackendRequest::ConfigChange));
    // Also of a size that has changed when no more messages are sent.
    moving.server.suspend(WITHIN).expect("nothing is under way");
    moving.server.size_changed("x");
    let moved = moving.take_out_of_suspended();
    moving.go_on(moved);
    assert_eq!(driver.front().backend_request(PATIENCE).expect("a message"), Some(BackendRequest::ConfigChange));
    // A queue that is disabled takes nothing until it is enabled.
    driver.front().set_vring_enable(1, false).expect("disabled");
    moving.hand_over();
    let data = driver.memory().alloc(4096, 4096).expect("room");
    let token = driver.queue(1).write(8, data, 4096).expect("submitted");
    driver.queue(1).kick_always().expect("kicked");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(driver.queue(1).in_flight(), [token]);
    driver.front().set_vring_enable(1, true).expect("enabled");
    driver.queue(1).kick_always().expect("kicked");
    driver.queue(1).finish(token, PATIENCE).expect("written");
    heard_nothing(&moving);
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_front_end_that_has_said_nothing_or_half_of_what_it_says_goes_on() {
    let Some(mut moving) = plan(ram()).start() else { return };
    let silent = sheave_vhost_front::Channel::connect(moving.front()).expect("connected");
    until("it is there", || moving.device().client.is_some());
    moving.hand_over();
    let mut driver = Options::default().connect_on(silent).expect("it is served");
    under_load(&mut driver, some_rounds);
    // One that connects while nobody serves waits in the socket.
    drop(driver);
    until("it is gone", || moving.device().client.is_none());
    let moved = moving.take_out();
    let early = sheave_vhost_front::Channel::connect(moved.front()).expect("the socket is there");
    moving.go_on(moved);
    let mut driver = Options::default().connect_on(early).expect("it is served");
    under_load(&mut driver, some_rounds);
    heard_nothing(&moving);
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_server_that_ends_at_once_after_a_handover_ends() {
    for _ in 0..40 {
        let Some(mut moving) = plan(ram()).start() else { return };
        let driver = attach(&moving, &two_queues());
        let mut talker = moving.talker(rig::talker::Form::Simple);
        moving.hand_over();
        let from = Instant::now();
        moving.stop().server.stop().expect("it ends");
        assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
        assert!(driver.front().sync().is_err() && talker.is_at_its_end());
    }
}

#[test]
fn only_a_front_end_that_has_said_nothing_has_a_deadline_for_its_first_message() {
    let handshake = Duration::from_millis(300);
    let limits = ServerOptions { handshake, ..options() };
    let Some(mut moving) = (Plan { vhost_user: true, ..Plan::of(ram(), limits) }).start() else { return };
    let mut driver = attach(&moving, &two_queues());
    moving.hand_over();
    std::thread::sleep(2 * handshake);
    under_load(&mut driver, some_rounds);
    heard_nothing(&moving);
    drop(driver);
    until("it is gone", || moving.device().client.is_none());
    let _silent = sheave_vhost_front::Channel::connect(moving.front()).expect("connected");
    until("it is there", || moving.device().client.is_some());
    moving.hand_over();
    assert!(moving.heard("it did not send a message in time"));
    moving.stop().server.stop().expect("it ends");
}

#[test]
fn a_guest_goes_on_after_a_handover_that_failed() {
    let time = Duration::from_millis(30);
    for options in [two_queues(), without(protocol::INFLIGHT_SHMFD)] {
        let Some(mut moving) = plan(slow(time)).start() else { return };
        let mut driver = attach(&moving, &options);
        let client = moving.server.clients()[0].id;
        let mut failed = 0;
        let rounds = under_load(&mut driver, |rounds| {
            // Until some have failed: on a busy machine many end well.
            for _ in 0..100 {
                if failed > 3 {
                    break;
                }
                // Shorter than requests take: queues end after the server has resumed.
                match moving.server.suspend(Duration::from_millis(5)) {
                    Ok(()) => _ = moving.server.resume(),
                    Err(ServeError::Busy { what }) => {
                        let named = what.contains(&format!("client {client}: requests of the guest"));
                        assert!(named || what == "the last one has just ended", "{what}");
                        failed += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
                some_rounds(rounds);
            }
            moving.hand_over();
            some_rounds(rounds);
        });
        assert!(failed > 3, "{failed}");
        assert_eq!(moving.server.exports()[0].counts.writes, rounds * DEPTH, "each once");
        heard_nothing(&moving);
        moving.stop().server.stop().expect("it ends");
    }
}

#[test]
fn a_request_that_a_limit_holds_back_stays_in_the_ring() {
    let limits = ServerOptions { reactors: 1, ..options() };
    let Some(mut moving) = (Plan { vhost_user: true, ..Plan::of(ram(), limits) }).start() else { return };
    moving.server.set_limit("x", Some("iops=2,burst=500ms".parse().expect("a limit"))).expect("set");
    let mut driver = attach(&moving, &Options::default());
    let data = driver.memory().alloc(4096, 4096).expect("room");
    (0..6u64).for_each(|at| _ = driver.queue(0).write(8 * at, data, 4096).expect("submitted"));
    driver.queue(0).kick().expect("kicked");
    std::thread::sleep(Duration::from_millis(10));
    moving.hand_over();
    let from = Instant::now();
    let mut ended = driver.queue(0).complete_all(PATIENCE).expect("all end");
    ended.dedup_by_key(|one| one.token);
    assert_eq!((ended.len(), moving.server.exports()[0].counts.writes), (6, 6));
    assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
    heard_nothing(&moving);
    moving.stop().server.stop().expect("it ends");
}
