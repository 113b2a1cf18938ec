//! A client that checks what it reads, and upgrades under its load.

use std::fs;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::rig::{Nbd, ONE, Rig, until};

/// Blocks of a load, and its requests in flight.
pub const DEPTH: u64 = 16;
const BLOCK: u32 = 4096;

/// A client that writes its blocks again and again, reads them back, and flushes now and then.
pub struct Load {
    thread: Option<JoinHandle<Book>>,
    ends: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
}

/// Record of the writes of a load.
#[derive(Debug, Default)]
pub struct Book {
    first: u64,
    /// The number of the last write to each block that was answered, and that was sent.
    acknowledged: [u64; DEPTH as usize],
    sent: [u64; DEPTH as usize],
    pub rounds: u64,
    /// The error that has ended it.
    pub broke: Option<String>,
}

fn block(at: u64, number: u64) -> Vec<u8> {
    (0..u64::from(BLOCK) / 8).flat_map(|word| (number << 32 | at << 16 | word).to_le_bytes()).collect()
}

impl Book {
    /// Writes and reads all blocks once.
    fn round(&mut self, client: &mut Nbd) -> io::Result<()> {
        let number = self.rounds + 1;
        for at in 0..DEPTH {
            let offset = (self.first + at) * u64::from(BLOCK);
            self.sent[at as usize] = number;
            let request = [Nbd::request(1, at, offset, BLOCK), block(self.first + at, number)].concat();
            client.0.write_all(&request)?;
        }
        for _ in 0..DEPTH {
            let (at, error) = client.reply()?;
            assert_eq!(error, 0, "a write to block {at}");
            assert_ne!(std::mem::replace(&mut self.acknowledged[at as usize], number), number, "a second reply");
        }
        if number.is_multiple_of(8) {
            assert_eq!(client.flush()?, 0);
        }
        let reads = (0..DEPTH).flat_map(|at| Nbd::request(0, at, (self.first + at) * u64::from(BLOCK), BLOCK));
        client.0.write_all(&reads.collect::<Vec<u8>>())?;
        let mut data = vec![0; BLOCK as usize];
        for _ in 0..DEPTH {
            let (at, error) = client.reply()?;
            assert_eq!(error, 0, "a read of block {at}");
            client.0.read_exact(&mut data)?;
            assert!(data == block(self.first + at, number), "block {at} is wrong after write {number}");
        }
        self.rounds = number;
        Ok(())
    }

    /// Asserts that all that was answered is there.
    #[track_caller]
    pub fn check(&self, rig: &Rig) {
        let mut client = rig.connect("va");
        for at in 0..DEPTH {
            let (answered, sent) = (self.acknowledged[at as usize], self.sent[at as usize]);
            let data = client.read((self.first + at) * u64::from(BLOCK), BLOCK).expect("read");
            let is = |number: u64| match number {
                0 => data.iter().all(|byte| *byte == 0),
                number => data == block(self.first + at, number),
            };
            let found = u64::from_le_bytes(data[..8].try_into().expect("8")) >> 32;
            assert!(is(answered) || is(sent), "DATA LOST: block {at} has {found}, not {answered} or {sent}");
        }
    }
}

impl Load {
    /// Connects to the export `va`, and works on blocks from `first` on.
    pub fn start(rig: &Rig, first: u64) -> Load {
        let mut client = rig.connect("va");
        let (ends, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, done) = (ends.clone(), rounds.clone());
        let work = move || {
            let mut book = Book { first, ..Book::default() };
            while !told.load(Ordering::Relaxed) && book.broke.is_none() {
                book.broke = book.round(&mut client).err().map(|error| error.to_string());
                done.store(book.rounds, Ordering::Relaxed);
            }
            book
        };
        Load { thread: Some(std::thread::spawn(work)), ends, rounds }
    }

    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Returns true if the client has ended, because its connection has.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the client has done some rounds more.
    #[track_caller]
    pub fn goes_on(&self) {
        let from = self.rounds();
        until("the client goes on", || {
            assert!(!self.has_ended(), "the client has ended");
            self.rounds() >= from + 3
        });
    }

    pub fn end(mut self) -> Book {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().expect("it runs").join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Ends the client. Asserts that it has seen no error, and that all its data is there.
    #[track_caller]
    pub fn end_well(self, rig: &Rig) {
        let book = self.end();
        assert_eq!(book.broke, None, "after {} rounds", book.rounds);
        book.check(rig);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// Returns the number of open descriptors of a process, and its resident memory in KiB.
fn size_of(pid: u32) -> (usize, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let resident = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    (fs::read_dir(format!("/proc/{pid}/fd")).expect("read").count(), resident)
}

#[test]
fn twenty_upgrades_under_load_lose_nothing_and_leave_nothing_behind() {
    let Some(rig) = Rig::start(ONE) else { return };
    let loads = [0, 100].map(|first| Load::start(&rig, first));
    let clients = || -> Vec<Value> {
        let told = rig.ok("client list --json").json();
        told["clients"].as_array().expect("a list").clone()
    };
    let (mut before, mut third) = (clients(), None);
    assert_eq!(before.len(), 2);
    for round in 1..=20 {
        let told = rig.upgrade();
        assert_eq!((told["clients"].as_u64(), told["pid"].as_u64()), (Some(2), Some(rig.pid().into())), "{told}");
        rig.ok(&format!("volume snapshot a.img#v s{round}"));
        loads.iter().for_each(Load::goes_on);
        let now = clients();
        for (old, new) in before.iter().zip(&now) {
            assert_eq!((&old["id"], &old["peer"]), (&new["id"], &new["peer"]));
            for counter in ["read_bytes", "written_bytes"] {
                assert!(old[counter].as_u64() < new[counter].as_u64(), "{counter}: {old} {new}");
            }
            assert_eq!(new["failed_requests"], 0);
        }
        assert_eq!(now.len(), 2);
        before = now;
        if round == 3 {
            third = Some(size_of(rig.pid()));
        }
    }
    let ((third_fds, third_kib), (fds, kib)) = (third.expect("there was one"), size_of(rig.pid()));
    assert!(fds <= third_fds + 2, "{fds} descriptors, and {third_fds} at the third");
    assert!(kib <= third_kib + third_kib / 4, "{kib} KiB, and {third_kib} at the third");
    loads.into_iter().for_each(|load| load.end_well(&rig));
    assert_eq!(rig.ok("volume list a.img --json").json()["volumes"].as_array().map(Vec::len), Some(21));
    rig.end();
}

#[test]
fn nobody_else_gets_the_lock_of_the_pool_during_ten_upgrades() {
    let Some(rig) = Rig::start(ONE) else { return };
    let load = Load::start(&rig, 0);
    let (ends, tries) = (AtomicBool::new(false), AtomicU64::new(0));
    let is_free = || {
        let file = fs::File::options().read(true).write(true).open(rig.dir.path("a.img")).expect("opened");
        flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    };
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                assert!(!is_free(), "the lock lapsed");
                tries.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..10 {
            rig.upgrade();
            load.goes_on();
        }
        ends.store(true, Ordering::Relaxed);
        stranger.join().expect("it never got the lock");
    });
    assert!(tries.load(Ordering::Relaxed) > 1000, "{tries:?}");
    load.end_well(&rig);
    let pid = rig.pid();
    sheave_testkit::process::signal(pid, "-TERM");
    until("the lock is given back with the end", is_free);
}
