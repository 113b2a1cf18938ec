//! Owners of the lock that die, are stopped or are fenced, and the access that the next owner and readers get
//! afterwards.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sheave::drivers::Sharing;
use sheave::volumes::{CreateOptions, OpenOptions, Pool, PoolError};
use sheave::{Status, op};
use sheave_testkit::ceph::Ceph;
use sheave_testkit::process;

use crate::{Stopped, filled, make, open, registry, results, ring};

/// A process that has an image's exclusive lock, and is killed in the end.
struct Owner(Child);

impl Owner {
    /// Starts `rbd bench`, which takes the lock like all writers do. Returns the process and its address.
    fn new(ceph: &Ceph, image: &str) -> (Owner, String) {
        let words =
            ["bench", "--io-type", "write", "--io-size", "4096", "--io-threads", "1", "--io-total", "1T", image];
        let mut bench = Command::new("rbd");
        bench.args(words).env("CEPH_CONF", ceph.conf()).stdin(Stdio::null()).stdout(Stdio::null());
        let owner = Owner(bench.stderr(Stdio::null()).spawn().expect("started"));
        let from = Instant::now();
        loop {
            let locks = ceph.rbd(&["lock", "ls", image]);
            if let Some(address) = locks.split_whitespace().last().filter(|word| word.contains("127.0.0.1")) {
                return (owner, address.to_owned());
            }
            assert!(from.elapsed() < Duration::from_secs(60), "it takes no lock: {locks}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The owner is fenced even if the image or its pool overrides the client's configuration.
pub(crate) fn fenced_whatever_the_image_says(ceph: &Ceph) {
    let keyring = ceph.dir().join("fencer.keyring");
    let rights = ["mon", "profile rbd", "osd", "profile rbd pool=rbd"];
    std::fs::write(&keyring, ceph.ceph(&[&["auth", "get-or-create", "client.fencer"], &rights[..]].concat()))
        .expect("written");
    let fencer = format!(",id=fencer,keyring={}", keyring.display());
    for (image, user, fenced_for) in [("unlisted", &*fencer, None), ("forgotten", "", Some("120"))] {
        make(ceph, image, 64);
        ceph.rbd(&["config", "image", "set", &format!("rbd/{image}"), "rbd_blocklist_on_break_lock", "false"]);
        let (owner, address) = Owner::new(ceph, image);
        process::stop(owner.0.id());
        let until = || {
            let listed = ceph.ceph(&["osd", "blocklist", "ls"]);
            listed.lines().find_map(|line| line.strip_prefix(&*address)).map(|until| until.trim().to_owned())
        };
        assert_eq!(until(), None);
        // A short fence, which `rbd_blocklist_expire_seconds` may make, is renewed.
        if let Some(seconds) = fenced_for {
            ceph.ceph(&["osd", "blocklist", "add", &address, seconds]);
        }
        let before = until();
        let device = open(ceph, image, &format!(",lock=60s{user}")).expect("opened");
        let _claim = device.claim(Sharing::Alone).expect("claimed");
        let after = until();
        assert!(after.is_some() && after > before, "{image}: {address} is listed until {after:?}, before {before:?}");
        let told = device.notices();
        assert!(told.iter().any(|text| text.contains(&address) && text.contains("blocklist until 20")), "{told:?}");
    }
}

/// Waits until Ceph has dropped the watch of a client of this image.
fn wait_for_silence(ceph: &Ceph, image: &str, address: &str) {
    let from = Instant::now();
    while ceph.rbd(&["status", image]).contains(address) {
        assert!(from.elapsed() < Duration::from_secs(60), "it is watched for still");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A refused claim leaves a mark on the client. The next claim, of any process, must fence that client.
pub(crate) fn refused_until_fenced(ceph: &Ceph) {
    let keyring = ceph.dir().join("weak.keyring");
    let rights = ["mon", "allow r", "osd", "profile rbd pool=rbd"];
    std::fs::write(&keyring, ceph.ceph(&[&["auth", "get-or-create", "client.weak"], &rights[..]].concat()))
        .expect("written");
    let keys = format!(",lock=60s,id=weak,keyring={}", keyring.display());
    let is_marked = |image: &str| ceph.rbd(&["image-meta", "ls", image]).contains("sheave");
    for (image, was_silent) in [("was-silent", true), ("falls-silent", false)] {
        make(ceph, image, 64);
        ceph.rbd(&["config", "image", "set", &format!("rbd/{image}"), "rbd_blocklist_on_break_lock", "false"]);
        let (owner, address) = Owner::new(ceph, image);
        process::stop(owner.0.id());
        if was_silent {
            wait_for_silence(ceph, image, &address);
        }
        for turn in 1..=2 {
            let device = open(ceph, image, &keys).expect("opened");
            let claimed = device.claim(Sharing::Alone).map(drop);
            let error = claimed.expect_err(&format!("{image}, {turn}: the owner is not fenced")).to_string();
            assert!(error.contains(&format!("ceph osd blocklist add {address}")), "{image}, {turn}: {error}");
            assert!(!ceph.ceph(&["osd", "blocklist", "ls"]).contains(&address));
        }
        // Where fencing was known to fail before the lock was requested, the lock stays with its dead owner.
        assert_eq!(ceph.rbd(&["lock", "ls", image]).contains(&address), was_silent, "{image}");
        assert_eq!(is_marked(image), !was_silent, "{image}");
        ceph.ceph(&["osd", "blocklist", "add", &address]);
        let _claim = open(ceph, image, &keys).expect("opened").claim(Sharing::Alone).expect("the owner is fenced");
        assert!(!is_marked(image), "{image}");
    }
}

/// Returns the first text under this key.
fn word<'a>(json: &'a str, key: &str) -> &'a str {
    let behind = json.split_once(&format!("\"{key}\":\"")).map(|(_, behind)| behind);
    behind.and_then(|behind| behind.split('"').next()).expect("it is there")
}

/// Another client, whose claim was refused, has marked this client. This client goes on and claims the image again, and
/// must not fence itself.
pub(crate) fn fences_not_itself(ceph: &Ceph) {
    make(ceph, "itself", 16);
    let device = open(ceph, "itself", "").expect("opened");
    let claim = device.claim(Sharing::Alone).expect("claimed");
    let locks = ceph.rbd(&["--format", "json", "lock", "ls", "itself"]);
    let info = ceph.rbd(&["--format", "json", "info", "itself"]);
    let (address, id) = (word(&locks, "address"), word(&info, "id"));
    ceph.rbd(&["image-meta", "set", "itself", "sheave_unfenced", &format!("{id} {address} 1")]);
    drop(claim);
    let _claim = device.claim(Sharing::Alone).expect("nobody else has had it");
    assert!(!ceph.ceph(&["osd", "blocklist", "ls"]).contains(address));
    assert!(!ceph.rbd(&["image-meta", "ls", "itself"]).contains("sheave"));
}

pub(crate) fn dead_owner_and_a_reader(ceph: &Ceph) {
    make(ceph, "left", 64);
    let (owner, address) = Owner::new(ceph, "left");
    let device = open(ceph, "left", ",readonly=on").expect("opened");
    let error = device.claim(Sharing::WithReaders).expect_err("the owner lives").to_string();
    assert!(error.contains(&address), "{error}");
    assert!(device.notices().is_empty(), "{:?}", device.notices());
    drop(owner);
    wait_for_silence(ceph, "left", &address);
    // The dead owner's lock stays until a client takes it, which a reader cannot.
    assert!(ceph.rbd(&["lock", "ls", "left"]).contains(&address));
    let _claim = device.claim(Sharing::WithReaders).expect("the owner is dead");
    let told = device.notices();
    assert!(told.iter().any(|text| text.contains(&address) && text.contains("snapshot")), "{told:?}");
}

/// Returns the spec of an image whose reads librbd caches.
fn cached_spec(ceph: &Ceph, image: &str) -> String {
    let text = std::fs::read_to_string(ceph.conf()).expect("read");
    let conf = ceph.dir().join("cached.conf");
    std::fs::write(&conf, format!("{text}[client]\nrbd cache = true\nrbd cache policy = writeback\n"))
        .expect("written");
    format!("rbd:rbd/{image},conf={},lock=60s", conf.display())
}

pub(crate) fn fenced_with_a_cache(ceph: &Ceph) {
    make(ceph, "kept", 128);
    let spec = format!("{},timeout=2s", cached_spec(ceph, "kept"));
    let device = registry().open(&spec).expect("opened");
    Pool::create(&device, &CreateOptions::default()).expect("made");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
    pool.create_volume("disk", 16 << 20).expect("made");
    for _ in 0..3 {
        pool.check_owner().expect("it is its own");
    }
    // The cluster is asked: a pool that has its superblocks in memory may have been fenced since.
    let stopped = Stopped::new(ceph);
    let error = pool.check_owner().expect_err("the cluster says nothing");
    assert!(matches!(error, PoolError::Io { .. }), "{error}");
    drop(stopped);
    pool.check_owner().expect("it is its own");
    let locks = ceph.rbd(&["lock", "ls", "kept"]);
    let address = locks.split_whitespace().last().filter(|word| word.contains("127.0.0.1")).expect("an owner");
    ceph.ceph(&["osd", "blocklist", "add", address]);
    let other = registry().open(&spec).expect("opened");
    let other = Pool::open(&other, &OpenOptions::default()).expect("taken over");
    let error = pool.check_owner().expect_err("another has it");
    let offline = matches!(error, PoolError::Io { status: Status::Offline, .. });
    assert!(offline || matches!(error, PoolError::Busy { .. }), "{error}");
    other.check_owner().expect("it is its own");
    other.close().expect("closed");
}

/// A lock may be broken by a client that does not take it.
pub(crate) fn broken_and_nobodys(ceph: &Ceph) {
    make(ceph, "broken", 16);
    ceph.rbd(&["config", "image", "set", "rbd/broken", "rbd_blocklist_on_break_lock", "false"]);
    let device = open(ceph, "broken", "").expect("opened");
    assert_eq!(device.still_owns(), Ok(()), "without a claim there is nothing to lose");
    let claim = device.claim(Sharing::Alone).expect("claimed");
    assert_eq!(device.still_owns(), Ok(()));
    let locks = ceph.rbd(&["--format", "json", "lock", "ls", "broken"]);
    ceph.rbd(&["lock", "rm", "broken", word(&locks, "id"), word(&locks, "locker")]);
    assert_eq!(ceph.rbd(&["lock", "ls", "broken"]), "", "nobody has it");
    assert_eq!(device.still_owns(), Err(Status::Conflict));
    drop(claim);
    let _claim = open(ceph, "broken", "").expect("opened").claim(Sharing::Alone).expect("nobody has it");
}

pub(crate) fn read_again_after_a_claim(ceph: &Ceph) {
    make(ceph, "stale", 16);
    let spec = cached_spec(ceph, "stale");
    let devices = [registry().open(&spec).expect("opened"), registry().open(&spec).expect("opened")];
    let [(mut one, fd_one), (mut two, fd_two)] = [ring(&devices[0]), ring(&devices[1])];
    let claim = devices[0].claim(Sharing::Alone).expect("claimed");
    let mut write = |byte| {
        one.push(op::write(fd_one, filled(4096, byte))).expect("room");
        one.push(op::fsync(fd_one).drain()).expect("room");
        assert_eq!(results(&mut one, 2), [(0, 0), (0, 4096)]);
    };
    let mut read = || {
        two.push(op::read(fd_two, filled(4096, 9))).expect("room");
        two.submit_and_wait(1).expect("submitted");
        two.pop().and_then(|done| done.into_buf()).expect("its buffer")[0]
    };
    write(1);
    assert_eq!(read(), 1);
    write(2);
    drop(claim);
    let _claim = devices[1].claim(Sharing::Alone).expect("claimed");
    assert_eq!(read(), 2);
}
