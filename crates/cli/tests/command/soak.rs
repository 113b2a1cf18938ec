//! The daemon under every kind of load at once. Clients connect, write, flush, trim and die. Meanwhile commands make
//! snapshots and clones, roll back and resize volumes, and the daemon is killed by `kill -9` again and again.
//!
//! Each client has its own blocks in a volume. Every read of a block must return either its content at the last
//! answered flush, or one of the contents written since. `SHEAVE_SOAK_SECONDS` sets the duration:
//! `cargo xtask nightly` sets 120 seconds, with 20 kills.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheave_base::rng::Rng;

use crate::daemon::{Daemon, Nbd, ask};
use crate::sheave::{Dir, no_io_uring};

const CLIENTS: u64 = 50;
const VOLUMES: u64 = 5;
/// Number of blocks of each client.
const BLOCKS: u64 = 32;
const BLOCK: u64 = 4096;

/// Number of events of each kind. At the end the test asserts that enough of them have occurred.
#[derive(Default)]
struct Counts {
    sessions: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    trims: AtomicU64,
    checked: AtomicU64,
    changes: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Returns the content of a block: the number of its write in every word. Number 0 stands for zeroes.
fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK as usize / 8)
}

fn number_of(block: &[u8], what: &str) -> u64 {
    let number = u64::from_le_bytes(block[..8].try_into().expect("eight"));
    assert!(block == content(number), "{what}: a torn block");
    number
}

/// A client, which connects again after each session.
struct Client<'a> {
    dir: &'a Dir,
    counts: &'a Counts,
    stop: &'a AtomicBool,
    rng: Rng,
    export: String,
    first: u64,
    next: u64,
    /// Numbers of the contents that each block may have, the newest last.
    may: Vec<Vec<u64>>,
}

impl Client<'_> {
    fn run(mut self) {
        // Relaxed: the flag only ends the loop, and no data depends on it.
        while !self.stop.load(Ordering::Relaxed) {
            // The daemon may be down.
            let Some(mut nbd) = Nbd::connect(&self.dir.path("nbd.sock"), &self.export) else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            count(&self.counts.sessions);
            // The session returns `None` when the connection has broken. The next session checks the blocks.
            let _ = self.session(&mut nbd);
        }
    }

    fn at(&self, block: u64) -> u64 {
        (self.first + block) * BLOCK
    }

    /// Asserts that a request succeeded. The reply has only an error number, so the message adds the log of the daemon.
    fn well(&self, errno: u32, what: &str) {
        let said = || std::fs::read_to_string(self.dir.path("said")).unwrap_or_default();
        assert!(errno == 0, "{what} of {} ended with errno {errno}; the daemon says\n{}", self.export, said());
    }

    /// Checks all blocks of the client, then sends some requests, then leaves: with `NBD_CMD_DISC`, without it, or in
    /// the middle of a write.
    fn session(&mut self, nbd: &mut Nbd) -> Option<()> {
        let mut now = Vec::new();
        for block in 0..BLOCKS {
            let what = format!("{} block {block}", self.export);
            let found = number_of(&nbd.read(self.at(block), BLOCK as u32)?, &what);
            let may = &self.may[block as usize];
            assert!(may.contains(&found), "{what} has {found}, it may have {may:?}: flushed bytes are lost");
            count(&self.counts.checked);
            now.push(found);
        }
        for _ in 0..self.rng.below(40) {
            let block = self.rng.below(BLOCKS);
            match self.rng.below(10) {
                0 => {
                    // The flush has made the present contents durable.
                    if nbd.flush()? == 0 {
                        self.may = now.iter().map(|number| vec![*number]).collect();
                        count(&self.counts.flushes);
                    }
                }
                1 => {
                    self.may[block as usize].push(0);
                    self.well(nbd.ask(4, self.at(block), BLOCK as u32, &[])?, "a trim");
                    now[block as usize] = 0;
                    count(&self.counts.trims);
                }
                2 => {
                    let found = nbd.read(self.at(block), BLOCK as u32)?;
                    assert_eq!(number_of(&found, "a block"), now[block as usize], "not what was written");
                }
                _ => {
                    self.next += 1;
                    self.may[block as usize].push(self.next);
                    self.well(nbd.write(self.at(block), &content(self.next))?, "a write");
                    now[block as usize] = self.next;
                    count(&self.counts.writes);
                }
            }
        }
        match self.rng.below(3) {
            0 => nbd.leave_in_a_write(self.at(0), BLOCK as u32),
            1 => nbd.say_goodbye(),
            _ => {}
        }
        Some(())
    }
}

/// Changes volumes by commands that call the daemon. A command may fail because the daemon is down.
fn administer(dir: &Dir, counts: &Counts, stop: &AtomicBool) {
    let mut rng = Rng::new(77);
    let mut round = 0;
    // Relaxed: the same flag as in `Client::run`.
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let volume = rng.below(VOLUMES);
        let lines = [
            format!("volume snapshot p.img#v{volume} s{round}"),
            format!("volume clone p.img#s{round} c{round}"),
            format!("export add p.img#c{round}"),
            format!("volume resize p.img#v{volume} +1M"),
            "volume rollback p.img#rolled base --yes --force".to_owned(),
            format!("volume resize p.img#c{round} 2M --yes --force"),
            format!("volume rollback p.img#c{round} s{round} --yes --force"),
            format!("volume delete p.img#c{round} p.img#s{round} --yes --force"),
        ];
        for line in lines {
            let said = ask(dir, &line);
            assert!(!said.err.contains("panic"), "{line}: {}", said.err);
            counts.changes.fetch_add(u64::from(said.code == 0), Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// Returns the resident memory of a process in bytes.
fn memory(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") << 10
}

fn prepared() -> Dir {
    let dir = Dir::new();
    dir.ok("pool create p.img --size 1G");
    let mut config =
        String::from("listen = [\"unix:nbd.sock\"]\nthreads = 2\n[[pool]]\nname = \"p\"\npath = \"p.img\"\n");
    let volumes: Vec<String> = (0..VOLUMES).map(|volume| format!("v{volume}")).collect();
    for volume in volumes.iter().map(String::as_str).chain(["rolled"]) {
        dir.ok(&format!("volume create p.img#{volume} --size 8M"));
        config += &format!("[[export]]\npool = \"p\"\nvolume = \"{volume}\"\n");
    }
    dir.ok("volume snapshot p.img#rolled base");
    std::fs::create_dir(dir.path("run")).expect("made");
    std::fs::write(dir.path("c.toml"), config).expect("written");
    dir
}

#[test]
fn no_flushed_byte_is_lost_whatever_happens() {
    if no_io_uring() {
        return;
    }
    let seconds: u64 = std::env::var("SHEAVE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let (dir, counts, stop) = (prepared(), Counts::default(), AtomicBool::new(false));
    let kills = if seconds >= 60 { 20 } else { 4 };
    let begun = Instant::now();
    let mut memories = Vec::new();
    std::thread::scope(|scope| {
        let (dir, counts, stop) = (&dir, &counts, &stop);
        for number in 0..CLIENTS {
            let export = format!("v{}", number % VOLUMES);
            let may = vec![vec![0]; BLOCKS as usize];
            let (first, next) = (number / VOLUMES * BLOCKS, number << 40);
            let client = Client { dir, counts, stop, rng: Rng::new(number), export, first, next, may };
            scope.spawn(|| client.run());
        }
        // The client of the volume that is rolled back does not check its content.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Some(mut nbd) = Nbd::connect(&dir.path("nbd.sock"), "rolled") {
                    while nbd.write(0, &content(5)).is_some() && !stop.load(Ordering::Relaxed) {}
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        scope.spawn(|| administer(dir, counts, stop));
        let ended = std::panic::catch_unwind(|| live_and_die(dir, Duration::from_secs(seconds), kills));
        stop.store(true, Ordering::Relaxed);
        match ended {
            Ok(found) => memories = found,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    dir.ok("pool check p.img");
    dir.ok("pool scrub p.img --progress none");
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let Counts { sessions, writes, flushes, trims, checked, changes } = &counts;
    println!(
        "{:.0} s, {kills} kills: {} sessions, {} writes, {} flushes, {} trims, {} blocks checked, {} changes; \
         MiB: {:?}",
        begun.elapsed().as_secs_f64(),
        of(sessions),
        of(writes),
        of(flushes),
        of(trims),
        of(checked),
        of(changes),
        memories.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>(),
    );
    assert!(of(sessions) > CLIENTS && of(flushes) > 20 && of(trims) > 20 && of(changes) > 3, "little has happened");
    // Memory does not grow with the age of the pool: the last daemon needs as much as the first, apart from noise.
    let (first, last) = (memories[0], memories[memories.len() - 1]);
    assert!(last < 2 * first + (32 << 20), "memory grows: {memories:?}");
}

/// Starts the daemon and kills it, again and again. The last daemon is ended by SIGTERM. Returns the memory of each
/// daemon just before its end.
fn live_and_die(dir: &Dir, all: Duration, kills: u32) -> Vec<u64> {
    let life = all / (kills + 1);
    let mut memories = Vec::new();
    for _ in 0..kills {
        let mut daemon = Daemon::start_again(dir);
        std::thread::sleep(life);
        memories.push(memory(daemon.child.id()));
        daemon.signal("-KILL");
        daemon.child.wait().expect("it ends");
        assert!(!daemon.said().contains("is not open"), "{}", daemon.said());
    }
    let daemon = Daemon::start_again(dir);
    std::thread::sleep(life);
    memories.push(memory(daemon.child.id()));
    daemon.end();
    memories
}
