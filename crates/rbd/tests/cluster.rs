//! The driver against a Ceph cluster of one node. Starting the cluster is slow, so one test runs all scenarios in order
//! and names those that failed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use sheave::drivers::{Registry, Sharing};
use sheave::volumes::{CreateOptions, OpenOptions, Pool};
use sheave::{Buf, Device, DeviceError, Fd, Ring, op};
use sheave_conformance::Suite;
use sheave_testkit::ceph::{Ceph, Store};

#[path = "cluster/fence.rs"]
mod fence;

const MIB: u64 = 1 << 20;

type Scenario = (&'static str, fn(&Ceph));

const SCENARIOS: &[Scenario] = &[
    ("the suite for drivers", passes_the_suite),
    ("pieces of all sizes find their places", pieces_of_all_sizes),
    ("what is not there is named", what_is_not_there),
    ("keys and rights", keys_and_rights),
    ("a snapshot stays as it was", snapshot),
    ("an image in a namespace", namespace),
    ("an image that is resized", resized),
    ("one client has the exclusive lock", exclusive_lock),
    ("an image without the exclusive lock is told of", no_exclusive_lock),
    ("a client on the blocklist", blocklisted),
    ("an owner that is stopped is fenced, whatever the image says", fence::fenced_whatever_the_image_says),
    ("a claim that can fence nobody is refused each time", fence::refused_until_fenced),
    ("a client that others would have to fence does not fence itself", fence::fences_not_itself),
    ("who only reads is kept out by an owner that lives, and by no other", fence::dead_owner_and_a_reader),
    ("a pool with a volume", pool),
    ("an owner with a cache learns that it is fenced", fence::fenced_with_a_cache),
    ("a lock that was broken is not owned any more, though nobody has it", fence::broken_and_nobodys),
    ("what was cached before a claim is read again", fence::read_again_after_a_claim),
    ("an image that is resized before a ring has it", resized_before_a_ring),
    ("a cluster that says nothing is waited for", silent_cluster),
    ("a cluster that says nothing for too long", silent_for_too_long),
    ("a ring that goes while the cluster says nothing", dropped_while_silent),
    ("what came too late is let go of", too_late),
];

#[test]
fn the_driver_on_a_cluster() {
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    let mut failed = Vec::new();
    for (name, scenario) in SCENARIOS {
        let from = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| scenario(&ceph))).is_err() {
            failed.push(*name);
        }
        eprintln!("{:6.2} s: {name}", from.elapsed().as_secs_f64());
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

fn registry() -> Registry {
    let mut registry = Registry::standard();
    sheave_rbd::register(&mut registry).expect("the name is free");
    registry
}

fn make(ceph: &Ceph, image: &str, mib: u64) {
    ceph.rbd(&["create", "--size", &format!("{mib}M"), image]);
}

/// Returns the spec of an image, with further keys.
fn spec(ceph: &Ceph, image: &str, keys: &str) -> String {
    format!("rbd:rbd/{image},conf={}{keys}", ceph.conf().display())
}

fn open(ceph: &Ceph, image: &str, keys: &str) -> Result<Device, DeviceError> {
    registry().open(&spec(ceph, image, keys))
}

fn ring(device: &Device) -> (Ring, Fd) {
    let mut ring = Ring::builder().entries(256).build().expect("a ring");
    let fd = ring.attach(device).expect("attached");
    (ring, fd)
}

fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len, 4096).expect("memory");
    buf.fill(byte);
    buf
}

/// Submits, and waits for `many` completions. Returns user data and results, in order of the user data.
fn results(ring: &mut Ring, many: u32) -> Vec<(u64, i32)> {
    ring.submit_and_wait(many).expect("submitted");
    let mut all = Vec::new();
    while let Some(done) = ring.pop() {
        all.push((done.user_data, done.res));
    }
    all.sort_unstable();
    all
}

fn passes_the_suite(ceph: &Ceph) {
    make(ceph, "suite", 16);
    let spec = spec(ceph, "suite", "");
    Suite::new(move || registry().open(&spec)).run().assert_passed();
}

fn pieces_of_all_sizes(ceph: &Ceph) {
    make(ceph, "pieces", 64);
    let device = open(ceph, "pieces", "").expect("opened");
    assert_eq!(device.size_bytes(), 64 * MIB);
    let (mut ring, fd) = ring(&device);
    let byte = |number: u64, at: usize| (number as usize * 31 + at * 7) as u8;
    let sizes: Vec<usize> = (0..60).map(|number| 512 << (number % 12)).collect();
    for (number, &len) in (0..).zip(&sizes) {
        let mut buf = Buf::zeroed(len, 4096).expect("memory");
        buf.iter_mut().enumerate().for_each(|(at, to)| *to = byte(number, at));
        ring.push(op::write(fd, buf).offset(number * MIB).user_data(number)).expect("room");
    }
    let written = results(&mut ring, 60);
    assert!(written.iter().all(|&(number, res)| res as usize == sizes[number as usize]), "{written:?}");
    ring.push(op::fsync(fd)).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 0)]);
    for (number, &len) in sizes.iter().enumerate() {
        let number = number as u64;
        ring.push(op::read(fd, filled(len, 0xee)).offset(number * MIB).user_data(number)).expect("room");
    }
    ring.submit_and_wait(60).expect("submitted");
    let mut seen = 0;
    while let Some(done) = ring.pop() {
        let (number, res) = (done.user_data, done.res as usize);
        assert_eq!(res, sizes[number as usize]);
        let buf = done.into_buf().expect("its buffer");
        assert!(buf.iter().enumerate().all(|(at, got)| *got == byte(number, at)), "read {number}");
        seen += 1;
    }
    assert_eq!(seen, 60);
    assert!(device.notices().is_empty(), "{:?}", device.notices());
}

fn what_is_not_there(ceph: &Ceph) {
    make(ceph, "there", 16);
    let refused = |spec: String, words: &[&str]| {
        let error = registry().open(&spec).expect_err(&spec).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{spec}: {error}");
    };
    refused(spec(ceph, "nowhere", ""), &["rbd/nowhere", "`rbd ls rbd`"]);
    let conf = ceph.conf().display().to_string();
    refused(format!("rbd:nowhere/there,conf={conf}"), &["no pool 'nowhere'", "ceph osd pool ls"]);
    refused(format!("rbd:rbd/there@then,conf={conf}"), &["rbd/there@then", "`rbd snap ls rbd/there`"]);
    refused("rbd:rbd/there,conf=/nowhere/ceph.conf".into(), &["/nowhere/ceph.conf", "Check the path"]);
    // Nobody listens at this port.
    let text = std::fs::read_to_string(ceph.conf()).expect("read");
    let elsewhere: String = text.lines().filter(|line| !line.starts_with("mon host")).collect::<Vec<_>>().join("\n");
    let away = ceph.dir().join("away.conf");
    std::fs::write(&away, format!("{elsewhere}\n[global]\nmon host = [v2:127.0.0.1:1]\n")).expect("written");
    let from = Instant::now();
    refused(format!("rbd:rbd/there,conf={},connect=2s", away.display()), &["rbd/there", "connect= waits longer"]);
    assert!(from.elapsed() < Duration::from_secs(10), "{:?}", from.elapsed());
}

fn keys_and_rights(ceph: &Ceph) {
    make(ceph, "rights", 16);
    let keyring = ceph.dir().join("me.keyring");
    let made = ceph.ceph(&["auth", "get-or-create", "client.me", "mon", "profile rbd", "osd", "profile rbd pool=rbd"]);
    std::fs::write(&keyring, &made).expect("written");
    let secret = made.split("key = ").nth(1).expect("a key").trim().to_owned();
    let keys = format!(",id=me,keyring={}", keyring.display());
    let device = open(ceph, "rights", &keys).expect("opened");
    let (mut ring, fd) = ring(&device);
    ring.push(op::write(fd, filled(4096, 1))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
    drop((ring, device));
    // The key of another user, no key at all, and a missing right.
    let wrong = ceph.dir().join("wrong.keyring");
    let other = ceph.ceph(&["auth", "get-or-create", "client.other", "mon", "allow r"]);
    std::fs::write(&wrong, other.replace("client.other", "client.me")).expect("written");
    let refused = |keys: String, words: &[&str]| {
        let error = open(ceph, "rights", &keys).expect_err(&keys).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{keys}: {error}");
        assert!(!error.contains(&secret), "{error}");
    };
    refused(format!(",id=me,keyring={}", wrong.display()), &["refuses the key of client.me", "keyring="]);
    refused(",id=me,keyring=/nowhere/keyring".into(), &["no key of client.me", "keyring=PATH"]);
    std::fs::write(&wrong, &other).expect("written");
    refused(format!(",id=other,keyring={}", wrong.display()), &["client.other may not", "profile rbd"]);
}

fn snapshot(ceph: &Ceph) {
    make(ceph, "snapped", 16);
    let device = open(ceph, "snapped", "").expect("opened");
    let (mut now, fd) = ring(&device);
    now.push(op::write(fd, filled(MIB as usize, 1)).offset(MIB)).expect("room");
    now.push(op::fsync(fd).drain()).expect("room");
    results(&mut now, 2);
    ceph.rbd(&["snap", "create", "snapped@then"]);
    now.push(op::write(fd, filled(MIB as usize, 2)).offset(MIB)).expect("room");
    assert_eq!(results(&mut now, 1), [(0, 1 << 20)]);
    let then = registry().open(&format!("rbd:rbd/snapped@then,conf={}", ceph.conf().display())).expect("opened");
    assert!(then.capabilities().read_only);
    let (mut ring, then_fd) = ring(&then);
    ring.push(op::read(then_fd, filled(MIB as usize, 9)).offset(MIB)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let read = ring.pop().and_then(|done| done.into_buf()).expect("its buffer");
    assert!(read.iter().all(|byte| *byte == 1));
    ring.push(op::write(then_fd, filled(4096, 3))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, -libc::EBADF)]);
    // A snapshot never changes, so two claims do not exclude each other.
    let _one = then.claim(Sharing::WithReaders).expect("claimed");
    let _lock = device.claim(Sharing::Alone).expect("claimed");
    let again = registry().open(then.name()).expect("opened");
    let _two = again.claim(Sharing::WithReaders).expect("claimed");
}

fn namespace(ceph: &Ceph) {
    ceph.rbd(&["namespace", "create", "rbd/space"]);
    ceph.rbd(&["create", "--size", "8M", "rbd/space/inside"]);
    let device = open(ceph, "inside", ",namespace=space").expect("opened");
    assert_eq!(device.size_bytes(), 8 * MIB);
    let error = open(ceph, "inside", "").expect_err("not outside of it").to_string();
    assert!(error.contains("no such image"), "{error}");
}

fn resized(ceph: &Ceph) {
    make(ceph, "resized", 16);
    let device = open(ceph, "resized", "").expect("opened");
    let (mut ring, fd) = ring(&device);
    let mut resize = |mib: u64, shrink: &[&str]| {
        ceph.rbd(&[&["resize", "--size", &format!("{mib}M"), "resized"], shrink].concat());
        let from = Instant::now();
        while device.size_bytes() != mib * MIB {
            assert!(from.elapsed() < Duration::from_secs(30), "{} and not {mib} MiB", device.size_bytes());
            std::thread::sleep(Duration::from_millis(5));
        }
        for (at, res) in [(mib * MIB - 4096, 4096), (mib * MIB, -libc::ENOSPC)] {
            ring.push(op::write(fd, filled(4096, 1)).offset(at)).expect("room");
            assert_eq!(results(&mut ring, 1), [(0, res)], "at {at} of {mib} MiB");
        }
    };
    resize(24, &[]);
    resize(8, &["--allow-shrink"]);
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains("resized from 16777216 to 25165824 bytes")), "{told:?}");
}

fn exclusive_lock(ceph: &Ceph) {
    make(ceph, "locked", 16);
    let one = open(ceph, "locked", "").expect("opened");
    let two = open(ceph, "locked", ",lock=5s").expect("opened");
    let ((mut ring_one, fd_one), (mut ring_two, fd_two)) = (ring(&one), ring(&two));
    // Without a claim the lock passes to whoever writes.
    for _ in 0..3 {
        for (ring, fd) in [(&mut ring_one, fd_one), (&mut ring_two, fd_two)] {
            ring.push(op::write(fd, filled(4096, 1))).expect("room");
            assert_eq!(results(ring, 1), [(0, 4096)]);
        }
    }
    let claim = one.claim(Sharing::Alone).expect("claimed");
    let owner = ceph.rbd(&["lock", "ls", "locked"]);
    let owner = owner.split_whitespace().last().filter(|word| word.contains("127.0.0.1")).expect("an owner").to_owned();
    for sharing in [Sharing::Alone, Sharing::WithReaders] {
        let error = two.claim(sharing).expect_err("it is claimed");
        assert!(matches!(error, DeviceError::Claimed { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(&owner) && error.contains("rbd lock ls"), "{error} and not {owner}");
    }
    ring_two.push(op::write(fd_two, filled(4096, 2))).expect("room");
    assert_eq!(results(&mut ring_two, 1), [(0, -libc::EBADE)]);
    let from = Instant::now();
    while !two.notices().iter().any(|text| text.contains(&owner)) {
        assert!(from.elapsed() < Duration::from_secs(10), "{:?}", two.notices());
        std::thread::sleep(Duration::from_millis(5));
    }
    // The owner kept the lock, so no client is marked for fencing.
    assert!(!ceph.rbd(&["image-meta", "ls", "locked"]).contains("sheave"));
    // Ceph's own tools are kept out, too.
    let bench = ["bench", "--io-type", "write", "--io-size", "4096", "--io-total", "4096", "locked"];
    assert!(!ceph.run("rbd", &bench).is_good());
    ring_one.push(op::write(fd_one, filled(4096, 3))).expect("room");
    assert_eq!(results(&mut ring_one, 1), [(0, 4096)]);
    // After the claim has ended the lock is free, although the device is still open.
    drop(claim);
    let claim = two.claim(Sharing::Alone).expect("claimed");
    ring_two.push(op::write(fd_two, filled(4096, 4))).expect("room");
    assert_eq!(results(&mut ring_two, 1), [(0, 4096)]);
    drop(claim);
    let claim = one.claim(Sharing::Alone).expect("claimed again");
    ring_one.push(op::write(fd_one, filled(4096, 5))).expect("room");
    assert_eq!(results(&mut ring_one, 1), [(0, 4096)]);
    drop(claim);
    // Once claimed, the device writes no more without a claim, and a notice says so.
    ring_one.push(op::write(fd_one, filled(4096, 6))).expect("room");
    assert_eq!(results(&mut ring_one, 1), [(0, -libc::EBADE)]);
    let from = Instant::now();
    while !one.notices().iter().any(|text| text.contains("a claim of this device has ended")) {
        assert!(from.elapsed() < Duration::from_secs(10), "{:?}", one.notices());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn no_exclusive_lock(ceph: &Ceph) {
    ceph.rbd(&["create", "--size", "16M", "--image-feature", "layering", "unlocked"]);
    let device = open(ceph, "unlocked", "").expect("opened");
    let _claim = device.claim(Sharing::Alone).expect("there is nothing to lock");
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains("rbd feature enable rbd/unlocked exclusive-lock")), "{told:?}");
}

fn blocklisted(ceph: &Ceph) {
    make(ceph, "fenced", 16);
    let device = open(ceph, "fenced", "").expect("opened");
    let (mut ring, fd) = ring(&device);
    let _claim = device.claim(Sharing::Alone).expect("claimed");
    ring.push(op::write(fd, filled(4096, 1))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
    let status = ceph.rbd(&["status", "fenced"]);
    let address = status.split("watcher=").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("a watcher");
    ceph.ceph(&["osd", "blocklist", "add", address]);
    ring.push(op::write(fd, filled(4096, 2)).user_data(1)).expect("room");
    ring.push(op::read(fd, filled(4096, 2)).user_data(2)).expect("room");
    assert_eq!(results(&mut ring, 2), [(1, -libc::ENODEV), (2, -libc::ENODEV)]);
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains("blocklist")), "{told:?}");
}

fn pool(ceph: &Ceph) {
    make(ceph, "pool", 128);
    let device = open(ceph, "pool", "").expect("opened");
    Pool::create(&device, &CreateOptions::default()).expect("made");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
    let error = Pool::open(&open(ceph, "pool", "").expect("opened"), &OpenOptions::default());
    let error = error.expect_err("another client has it").to_string();
    assert!(error.contains("the client at 127.0.0.1") && error.contains("exclusive lock"), "{error}");
    let disk = pool.create_volume("disk", 16 << 20).expect("made");
    let mut ring = Ring::builder().entries(64).build().expect("a ring");
    let fd = ring.attach_file(std::sync::Arc::new(disk)).expect("attached");
    for round in 1..=5u8 {
        for number in 0..16 {
            ring.push(op::write(fd, filled(65536, round)).offset(number * 131_072)).expect("room");
        }
        assert!(results(&mut ring, 16).iter().all(|&(_, res)| res == 65536));
        ring.push(op::fsync(fd)).expect("room");
        assert_eq!(results(&mut ring, 1), [(0, 0)], "{round}");
    }
    drop(ring);
    pool.close().expect("closed");
    drop(device);
    let device = open(ceph, "pool", "").expect("opened");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
    let mut ring = Ring::builder().entries(64).build().expect("a ring");
    let disk = pool.open_volume("disk").expect("there");
    let fd = ring.attach_file(std::sync::Arc::new(disk)).expect("attached");
    ring.push(op::read(fd, filled(65536, 0xee)).offset(131_072)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let read = ring.pop().and_then(|done| done.into_buf()).expect("its buffer");
    assert!(read.iter().all(|byte| *byte == 5));
    drop(ring);
    pool.close().expect("closed");
}

/// A stopped OSD, which goes on when the scenario ends, even by a panic.
struct Stopped<'a>(&'a Ceph);

impl Stopped<'_> {
    fn new(ceph: &Ceph) -> Stopped<'_> {
        ceph.stop_osd();
        Stopped(ceph)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.continue_osd();
    }
}

fn resized_before_a_ring(ceph: &Ceph) {
    make(ceph, "early", 16);
    let device = open(ceph, "early", "").expect("opened");
    ceph.rbd(&["resize", "--size", "32M", "early"]);
    let from = Instant::now();
    while !device.notices().iter().any(|text| text.contains("resized")) {
        assert!(from.elapsed() < Duration::from_secs(60), "{:?}", device.notices());
        std::thread::sleep(Duration::from_millis(10));
    }
    let (mut ring, fd) = ring(&device);
    ring.push(op::write(fd, filled(4096, 1)).offset(31 << 20)).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
}

fn silent_cluster(ceph: &Ceph) {
    make(ceph, "silent", 16);
    let device = open(ceph, "silent", ",warn=300ms").expect("opened");
    let (mut ring, fd) = ring(&device);
    ring.push(op::write(fd, filled(4096, 1))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
    let stopped = Stopped::new(ceph);
    let from = Instant::now();
    for number in 0..8 {
        ring.push(op::write(fd, filled(4096, 2)).offset(number * 65536).user_data(number)).expect("room");
    }
    ring.submit().expect("submitted");
    let _ = ring.wait(8, Some(Duration::from_secs(1)));
    assert!(ring.pop().is_none() && from.elapsed() >= Duration::from_secs(1), "nothing has ended");
    while !device.notices().iter().any(|text| text.contains("has not answered for 300ms") && text.contains("ceph -s")) {
        assert!(from.elapsed() < Duration::from_secs(30), "{:?}", device.notices());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(stopped);
    let ended = results(&mut ring, 8);
    assert!(ended.iter().all(|&(_, res)| res == 4096), "{ended:?}");
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains("answers again, after")), "{told:?}");
    assert_eq!(told.len(), 2, "{told:?}");
}

fn silent_for_too_long(ceph: &Ceph) {
    make(ceph, "timeout", 16);
    let device = open(ceph, "timeout", ",warn=300ms,timeout=2s").expect("opened");
    let (mut ring, fd) = ring(&device);
    ring.push(op::write(fd, filled(4096, 1))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
    let stopped = Stopped::new(ceph);
    let from = Instant::now();
    ring.push(op::read(fd, filled(4096, 2))).expect("room");
    ring.submit().expect("submitted");
    let _ = ring.wait(1, Some(Duration::from_secs(15)));
    assert_eq!(ring.pop().map(|done| done.res), Some(-libc::ETIMEDOUT));
    assert!((1..10).contains(&from.elapsed().as_secs()), "{:?}", from.elapsed());
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains("were given up")), "{told:?}");
    drop(stopped);
    ring.push(op::read(fd, filled(4096, 2))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
}

fn dropped_while_silent(ceph: &Ceph) {
    make(ceph, "dropped", 16);
    let device = open(ceph, "dropped", ",warn=200ms").expect("opened");
    let (mut ring, fd) = ring(&device);
    ring.push(op::write(fd, filled(4096, 1))).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 4096)]);
    let stopped = Stopped::new(ceph);
    for number in 0..8 {
        ring.push(op::read(fd, filled(4096, 2)).offset(number * 65536)).expect("room");
    }
    ring.submit().expect("submitted");
    let from = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            // The thread that tells may be late on a busy machine.
            let is_told = || device.notices().iter().any(|text| text.contains("has not answered for 200ms"));
            while !is_told() && from.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(10));
            }
            drop(stopped);
        });
        drop(ring);
    });
    assert!(from.elapsed() >= Duration::from_secs(1), "librbd has the memory of the reads until they end");
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains("has not answered for 200ms")), "{told:?}");
    assert_eq!(device.in_flight().total(), 0);
}

/// An opening and a claim that timed out are undone when the cluster answers at last.
fn too_late(ceph: &Ceph) {
    make(ceph, "late", 16);
    let device = open(ceph, "late", ",lock=500ms").expect("opened");
    let stopped = Stopped::new(ceph);
    let from = Instant::now();
    let error = open(ceph, "late", ",connect=1s").expect_err("nobody answers").to_string();
    assert!(error.contains("opening the RBD image rbd/late within 1s"), "{error}");
    let error = device.claim(Sharing::Alone).expect_err("nobody answers").to_string();
    assert!(error.contains("not to be had within 500ms"), "{error}");
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
    drop(stopped);
    // The only watcher left is the device's own.
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let (status, locks) = (ceph.rbd(&["status", "late"]), ceph.rbd(&["lock", "ls", "late"]));
        if status.matches("watcher=").count() == 1 && locks.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "{status}{locks}");
    }
    let other = open(ceph, "late", "").expect("opened");
    let _claim = other.claim(Sharing::Alone).expect("nobody has it");
    drop(device);
}

#[test]
fn an_osd_that_is_killed_forgets_nothing_and_is_waited_for() {
    let Some(mut ceph) = Ceph::start(Store::Blue(2 << 30)) else { return };
    make(&ceph, "killed", 64);
    let device = open(&ceph, "killed", ",warn=300ms").expect("opened");
    let (mut ring, fd) = ring(&device);
    for number in 0..32 {
        ring.push(op::write(fd, filled(65536, 7)).offset(number * 131_072).user_data(number)).expect("room");
    }
    ring.submit().expect("submitted");
    let _ = ring.wait(5, Some(Duration::from_millis(20)));
    ceph.kill_osd_and_start();
    ring.push(op::fsync(fd).drain().user_data(32)).expect("room");
    ring.submit().expect("submitted");
    let mut left = 33;
    while left > 0 {
        let _ = ring.wait(1, Some(Duration::from_secs(20)));
        while let Some(done) = ring.pop() {
            assert_eq!(done.res, if done.user_data == 32 { 0 } else { 65536 }, "{}", done.user_data);
            left -= 1;
        }
    }
    // Flushed data is there, even after the OSD is killed once more.
    ceph.kill_osd_and_start();
    for number in 0..32 {
        ring.push(op::read(fd, filled(65536, 0xee)).offset(number * 131_072)).expect("room");
    }
    ring.submit_and_wait(32).expect("submitted");
    while let Some(done) = ring.pop() {
        assert_eq!(done.res, 65536);
        assert!(done.into_buf().expect("its buffer").iter().all(|byte| *byte == 7));
    }
}
