//! Failover between two daemons that stand by for the same pool, on a Ceph cluster of one node (V29). The daemon that
//! has the pool is killed, or stopped and continued later, while a client writes and checks that no flushed data is
//! lost.
//!
//! The configurations of the two daemons name the same pool. The client connects to the daemon that serves the volume.
//! `SHEAVE_FAILOVER_ROUNDS` sets the number of rounds: `cargo xtask nightly` sets 20.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheave_base::rng::Rng;
use sheave_testkit::ceph::{Ceph, Store};

use crate::daemon::{Daemon, Nbd};
use crate::sheave::{Dir, no_io_uring};

const BLOCK: usize = 4096;
/// Number of blocks that the client uses.
const BLOCKS: u64 = 512;
/// Longest time until the other daemon serves. This cluster declares a silent client dead after 5 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// Contents that each block may have: the one at the last flush, then those written since, the newest last.
#[derive(Default)]
struct Known(BTreeMap<u64, Vec<u64>>);

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

impl Known {
    fn may(&mut self, block: u64) -> &mut Vec<u64> {
        self.0.entry(block).or_insert_with(|| vec![0])
    }

    /// Asserts that each block has one of its possible contents. Returns `None` if the connection breaks.
    fn check(&mut self, nbd: &mut Nbd) -> Option<()> {
        for block in 0..BLOCKS {
            let data = nbd.read(block * BLOCK as u64, BLOCK as u32)?;
            let found = u64::from_le_bytes(data[..8].try_into().expect("eight"));
            assert!(data == content(found), "block {block} is torn");
            let may = self.may(block);
            assert!(may.contains(&found), "block {block} has {found}, it may have {may:?}: flushed bytes are lost");
        }
        Some(())
    }
}

/// Writes and flushes until the connection breaks or a request fails.
fn work(nbd: &mut Nbd, known: &mut Known, next: &AtomicU64, stop: &AtomicBool) -> Option<()> {
    let mut rng = Rng::new(next.load(Ordering::Relaxed));
    // Relaxed, here and below: no other data depends on these flags and numbers.
    while !stop.load(Ordering::Relaxed) {
        let mut written = Vec::new();
        for _ in 0..1 + rng.below(16) {
            let (block, number) = (rng.below(BLOCKS), next.fetch_add(1, Ordering::Relaxed));
            known.may(block).push(number);
            if nbd.write(block * BLOCK as u64, &content(number))? != 0 {
                return None;
            }
            written.push((block, number));
        }
        if nbd.flush()? != 0 {
            return None;
        }
        for (block, number) in written {
            // The flush made this content durable, so older contents of the block are no longer possible.
            let may = known.may(block);
            let at = may.iter().position(|other| *other == number).expect("it was noted");
            may.drain(..at);
        }
    }
    Some(())
}

/// One of the two hosts, with its daemon while that runs.
struct Host {
    /// Dropped before the directory, because the daemon of a failed test prints its log from there.
    daemon: Option<Daemon>,
    dir: Dir,
}

impl Host {
    fn new(ceph: &Ceph, confined: bool) -> Host {
        Host::with(ceph, confined, "")
    }

    /// Makes a host. `more` is appended to its configuration.
    fn with(ceph: &Ceph, confined: bool, more: &str) -> Host {
        let dir = Dir::new();
        fs::create_dir(dir.path("run")).expect("made");
        let conf = ceph.conf().display().to_string();
        let config = format!(
            "listen = [\"unix:nbd.sock\"]\nthreads = 1\nconfine = {confined}\n[[pool]]\nname = \"p\"\n\
             path = \"rbd:rbd/disk,conf={conf}\"\n[[export]]\npool = \"p\"\nvolume = \"v\"\n{more}"
        );
        fs::write(dir.path("c.toml"), config).expect("written");
        Host { daemon: None, dir }
    }

    /// Makes a pool with these volumes of 16 MiB each.
    fn with_pool(&self, spec: &str, volumes: &[&str]) {
        self.dir.ok(&format!("pool create {spec} --yes"));
        for volume in volumes {
            self.dir.ok(&format!("volume create {spec}#{volume} --size 16M"));
        }
    }

    fn start(&mut self) {
        self.daemon = Some(Daemon::run(&self.dir, "serve --config c.toml --standby"));
    }

    fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("it was started")
    }

    /// Continues a stopped daemon. Waits until the daemon logs that it has lost the pool, and then until it has ended
    /// the export. The log entry comes first, because the end of an export takes a moment.
    fn wake(&mut self) {
        let losses = |daemon: &Daemon| daemon.said().matches("pool 'p' is lost: ").count();
        let (daemon, from) = (self.daemon(), Instant::now());
        let before = losses(daemon);
        daemon.signal("-CONT");
        while losses(daemon) == before {
            assert!(from.elapsed() < PATIENCE, "it does not hear that it was cut off");
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = Instant::now();
        while Nbd::connect(&self.socket(), "v").is_some() {
            assert!(said.elapsed() < Duration::from_secs(5), "who was cut off serves the volume still");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path("nbd.sock")
    }
}

/// Waits until a daemon serves the volume on this socket. Returns the time that this took.
fn until_served(socket: &Path, what: &str) -> Duration {
    let from = Instant::now();
    while Nbd::connect(socket, "v").is_none() {
        assert!(from.elapsed() < PATIENCE, "{what} does not serve the volume");
        std::thread::sleep(Duration::from_millis(50));
    }
    from.elapsed()
}

#[test]
fn a_daemon_that_stands_by_takes_over_and_no_flushed_byte_is_lost() {
    if no_io_uring() {
        return;
    }
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    let rounds: u32 = std::env::var("SHEAVE_FAILOVER_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    ceph.rbd(&["create", "--size", "256M", "disk"]);
    // One daemon confines itself, the other does not.
    let mut hosts = [Host::new(&ceph, true), Host::new(&ceph, false)];
    let spec = format!("rbd:rbd/disk,conf={}", ceph.conf().display());
    hosts[0].with_pool(&spec, &["v"]);
    hosts.iter_mut().for_each(Host::start);
    until_served(&hosts[0].socket(), "the first");
    hosts[1].daemon().until_it_says("pool 'p' is waited for: ");
    assert!(Nbd::connect(&hosts[1].socket(), "v").is_none(), "who waits serves nothing");
    assert!(!hosts[1].daemon().said().contains("error: "), "to wait is no error: {}", hosts[1].daemon().said());

    let (mut known, next) = (Known::default(), AtomicU64::new(1));
    let mut active = 0;
    for round in 0..rounds {
        let (owner, other) = (active, 1 - active);
        let (from, to) = (hosts[owner].socket(), hosts[other].socket());
        let is_killed = round % 2 == 0;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (next, stop, socket) = (&next, &stop, &from);
            let mut then = std::mem::take(&mut known);
            let (checked, begins) = std::sync::mpsc::channel();
            let worker = scope.spawn(move || {
                let mut nbd = Nbd::connect(socket, "v").expect("it is served");
                then.check(&mut nbd).expect("it is served");
                checked.send(()).expect("the test waits");
                let _ = work(&mut nbd, &mut then, next, stop);
                then
            });
            begins.recv_timeout(PATIENCE).expect("the worker begins to write");
            std::thread::sleep(Duration::from_millis(500));
            if is_killed {
                hosts[owner].daemon().signal("-KILL");
            } else {
                hosts[owner].daemon().stop();
            }
            let took = until_served(&to, "the one that stands by");
            eprintln!("round {round}: {} ms until it is served again", took.as_millis());
            let mut after = Nbd::connect(&to, "v").expect("it is served");
            if is_killed {
                known = worker.join().expect("no byte was lost");
            } else {
                // The stopped owner still has requests of its client. The other host writes before the owner
                // continues.
                let fresh = content(u64::MAX - u64::from(round));
                let tail = BLOCKS * BLOCK as u64;
                assert_eq!(after.write(tail, &fresh), Some(0));
                assert_eq!(after.flush(), Some(0));
                hosts[owner].wake();
                stop.store(true, Ordering::Relaxed);
                known = worker.join().expect("no byte was lost");
                assert!(after.read(tail, BLOCK as u32) == Some(fresh), "who was cut off has written");
                assert!(Nbd::connect(&from, "v").is_none(), "who was cut off serves nothing");
            }
            known.check(&mut after).expect("it is served");
        });
        if is_killed {
            let _ = hosts[owner].daemon().child.wait();
            hosts[owner].start();
        }
        active = other;
    }
    let said = hosts[active].daemon().said();
    assert!(said.contains("is on the cluster's blocklist until 20"), "{said}");
    assert!(said.contains("pool 'p' is open, after a wait of "), "{said}");
    for host in &mut hosts {
        host.daemon.take().expect("it was started").end();
    }
    hosts[0].dir.ok(&format!("pool check {spec}"));
}

/// The storage does not answer the owner any more, while clients can still connect to it. Then another daemon has to
/// take over although it also waits for a pool on a cluster that never answers.
#[test]
fn an_owner_that_its_storage_does_not_answer_lets_go_whatever_is_under_way() {
    if no_io_uring() {
        return;
    }
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    ceph.rbd(&["create", "--size", "256M", "disk"]);
    // The monitor of this cluster accepts connections and never answers.
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let (port, dir) = (nowhere.local_addr().expect("bound").port(), Dir::new());
    let conf = dir.path("nowhere.conf");
    let text = fs::read_to_string(ceph.conf()).expect("read");
    let mon = |line: &str| {
        if line.contains("mon host") { format!("mon host = v2:127.0.0.1:{port}") } else { line.to_owned() }
    };
    fs::write(&conf, text.lines().map(mon).collect::<Vec<_>>().join("\n") + "\n").expect("written");
    let silent = format!("[[pool]]\nname = \"q\"\npath = \"rbd:rbd/other,conf={},connect=600s\"\n", conf.display());

    // The owner has two pools. The write that is under way in one of them must not delay the release of the other.
    ceph.rbd(&["create", "--size", "256M", "second"]);
    let [spec, second] = ["disk", "second"].map(|image| format!("rbd:rbd/{image},conf={}", ceph.conf().display()));
    let more = format!("[[pool]]\nname = \"q\"\npath = \"{second}\"\n[[export]]\npool = \"q\"\nvolume = \"u\"\n");
    let mut owner = Host::with(&ceph, false, &more);
    owner.with_pool(&spec, &["v", "w"]);
    owner.with_pool(&second, &["u"]);
    owner.start();
    until_served(&owner.socket(), "the owner");
    let mut client = Nbd::connect(&owner.socket(), "v").expect("it is served");

    // A copy from a pipe to which nobody writes blocks all other changes of the pool.
    let (pipe, keep) = std::io::pipe().expect("a pipe");
    let path = owner.dir.path("run/control.sock");
    let copy = std::thread::spawn(move || {
        let mut client = sheave_varlink::Client::connect(&path).expect("the daemon is there");
        client.set_patience(Some(PATIENCE));
        let wanted = serde_json::json!({ "pool": "p", "volume": "w" });
        client.call_more("io.sheave.Control.ImportVolume", &wanted, &[pipe.as_fd()], &mut |_| Ok(())).map(|_| ())
    });
    std::thread::sleep(Duration::from_millis(500));

    ceph.stop_osd();
    // The result of this write is not checked: it may or may not reach the storage.
    let write = std::thread::spawn(move || client.write(0, &content(1)).is_some() && client.flush().is_some());
    let from = Instant::now();
    while ["v", "u"].iter().any(|volume| Nbd::connect(&owner.socket(), volume).is_some()) {
        // The daemon has to give the pool up after ten seconds. It checks every half second.
        assert!(from.elapsed() < Duration::from_secs(20), "it serves what another may have written");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(owner.daemon().said().contains("its storage has not answered for "), "{}", owner.daemon().said());
    eprintln!("{} ms until it has let go", from.elapsed().as_millis());
    ceph.continue_osd();
    write.join().expect("no panic");
    let copied = copy.join().expect("no panic");
    assert!(copied.is_err(), "a copy into a pool that was lost ends");
    drop(keep);
    let took = until_served(&owner.socket(), "who let go, and nobody took it,");
    eprintln!("{} ms until it has the pool again", took.as_millis());

    // The other daemon waits for two pools, and one of them never opens.
    let mut other = Host::with(&ceph, false, &silent);
    other.start();
    other.daemon().until_it_says("pool 'p' is waited for: ");
    owner.daemon().signal("-KILL");
    let took = until_served(&other.socket(), "the one that waits for a cluster that is nowhere, too,");
    eprintln!("{} ms until the other serves it", took.as_millis());
    _ = other.daemon().child.kill();
    drop(nowhere);
}

/// An owner without standby ends its export too when another machine has opened the image meanwhile.
#[test]
fn an_owner_that_does_not_stand_by_ends_what_was_taken_from_it() {
    if no_io_uring() {
        return;
    }
    let Some(ceph) = Ceph::start(Store::Memory) else { return };
    ceph.rbd(&["create", "--size", "256M", "disk"]);
    let spec = format!("rbd:rbd/disk,conf={}", ceph.conf().display());
    let mut owner = Host::new(&ceph, false);
    owner.with_pool(&spec, &["v"]);
    owner.daemon = Some(Daemon::run(&owner.dir, "serve --config c.toml"));
    until_served(&owner.socket(), "the owner");
    owner.daemon().stop();
    let from = Instant::now();
    while Dir::new()
        .command(&format!("volume create {spec}#w --size 1M"))
        .output()
        .is_ok_and(|done| !done.status.success())
    {
        assert!(from.elapsed() < PATIENCE, "the image of an owner that is stopped is not to be had");
    }
    owner.wake();
    assert!(Nbd::connect(&owner.socket(), "v").is_none(), "who was cut off serves nothing");
    assert!(owner.daemon().said().contains("reload the daemon"), "{}", owner.daemon().said());
    owner.daemon.take().expect("it was started").end();
}

#[test]
fn a_pool_whose_storage_cuts_nobody_off_is_not_waited_for() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 64M");
    dir.ok("volume create p.img#v --size 1M");
    fs::create_dir(dir.path("run")).expect("made");
    let config = "listen = [\"unix:nbd.sock\"]\n[[pool]]\nname = \"p\"\npath = \"p.img\"\nstandby = true\n";
    let mut daemon = Daemon::start(&dir, &(config.to_owned() + "[[export]]\npool = \"p\"\nvolume = \"v\"\n"));
    // Pools with `standby` are opened in the background, so the error comes after the start.
    daemon.until_it_says("wants storage that cuts off who had the pool before");
    let said = daemon.said();
    assert!(said.contains("serve this pool without standby") && Nbd::connect(&dir.path("nbd.sock"), "v").is_none());
    daemon.end();
}
