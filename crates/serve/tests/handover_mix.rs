//! Clients that ask for anything at any time, some of which pause, across handovers at random moments to servers with
//! other numbers of reactors: each request has one reply, and the data is that of a model.

mod rig;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rig::handover::Plan;
use rig::talker::{Asked, FLUSH, FORMS, READ, STATUS, TRIM, Talker, WRITE, pattern};
use rig::{Ends, SIZE, options};
use sheave_base::rng::Rng;
use sheave_serve::{IoCounts, ServerOptions};

const CLIENTS: u64 = 6;
const BLOCK: usize = 4096;
/// Blocks of each client's part of the export.
const BLOCKS: usize = 1024;
const ZEROES: u16 = 6;

/// A client, its requests, and what it knows of its part of the export.
struct Worker {
    talker: Talker,
    base: u64,
    /// Seed of the bytes of each block, 0 for zeroes; `None` after a trim that may have done anything.
    model: Vec<Option<u64>>,
    /// Seed that a write leaves, or that a read is to find, by its blocks.
    writes: BTreeMap<u64, Option<u64>>,
    /// Number of requests under way for each block; -1 for a write.
    busy: Vec<i32>,
    seed: u64,
    rng: Rng,
    counts: IoCounts,
}

fn blocks(base: u64, asked: &Asked) -> std::ops::Range<usize> {
    let first = ((asked.offset - base) / BLOCK as u64) as usize;
    first..first + asked.len as usize / BLOCK
}

impl Worker {
    /// Makes a request that conflicts with none under way. Returns its bytes.
    fn request(&mut self) -> Vec<u8> {
        let roll = self.rng.below(100);
        let has_contexts = self.talker.form != rig::talker::Form::Simple;
        match roll {
            0..4 => return self.talker.ask(FLUSH, 0, 0),
            4..8 if has_contexts => return self.talker.ask(STATUS, self.base, 1 << 20),
            8..11 => return self.talker.write(SIZE, &[7; 5000]),
            _ => {}
        }
        let most = *self.rng.pick(&[1u64, 1, 4, 16, 80, 256]);
        let len = self.rng.between(1, most) as usize;
        let first = self.rng.below((BLOCKS - len) as u64) as usize;
        let reads = self.rng.percent(50);
        let is_free = |busy: &i32| if reads { *busy >= 0 } else { *busy == 0 };
        if !self.busy[first..first + len].iter().all(is_free) {
            return Vec::new();
        }
        self.busy[first..first + len].iter_mut().for_each(|busy| *busy += if reads { 1 } else { -1 });
        let offset = self.base + (first * BLOCK) as u64;
        if reads {
            return self.talker.ask(READ, offset, (len * BLOCK) as u32);
        }
        self.seed += 1;
        match self.rng.below(6) {
            0 => {
                self.writes.insert(offset, None);
                self.talker.ask(TRIM, offset, (len * BLOCK) as u32)
            }
            1 => {
                self.writes.insert(offset, Some(0));
                self.talker.ask(ZEROES, offset, (len * BLOCK) as u32)
            }
            _ => {
                self.writes.insert(offset, Some(self.seed));
                self.talker.write(offset, &pattern(self.seed, offset, len * BLOCK))
            }
        }
    }

    /// Receives a reply and checks it.
    fn answer(&mut self) {
        let (asked, answer) = self.talker.answer().unwrap_or_else(|error| panic!("{error}: {:?}", self.talker.asked));
        if asked.offset == SIZE {
            self.counts.errors += 1;
            return assert_ne!(answer.error, 0);
        }
        assert_eq!(answer.error, 0, "{asked:?}");
        match asked.command {
            FLUSH => self.counts.flushes += 1,
            STATUS => self.counts.others += 1,
            READ => {
                self.counts.reads += 1;
                for (at, block) in blocks(self.base, &asked).enumerate() {
                    self.busy[block] -= 1;
                    let offset = self.base + (block * BLOCK) as u64;
                    let expected = match self.model[block] {
                        None => continue,
                        Some(0) => vec![0; BLOCK],
                        Some(seed) => pattern(seed, offset, BLOCK),
                    };
                    assert!(answer.data[at * BLOCK..(at + 1) * BLOCK] == expected, "block {block} of {asked:?}");
                }
            }
            _ => {
                let found = self.writes.remove(&asked.offset).expect("one for each write");
                for block in blocks(self.base, &asked) {
                    (self.busy[block], self.model[block]) = (0, found);
                }
                *match asked.command {
                    WRITE => &mut self.counts.writes,
                    TRIM => &mut self.counts.trims,
                    _ => &mut self.counts.zeroes,
                } += 1;
            }
        }
    }

    fn work(mut self, ends: &AtomicBool, done: &AtomicU64) -> (Talker, IoCounts) {
        while !ends.load(Ordering::Relaxed) {
            let most = *self.rng.pick(&[1u64, 4, 32, 120]);
            let (burst, mut said) = (self.rng.between(1, most), Vec::new());
            (0..burst).for_each(|_| said.extend(self.request()));
            // In parts, so that handovers fall into requests.
            while !said.is_empty() {
                let part = match self.rng.below(4) {
                    0 => said.len().min(1 + self.rng.below(40) as usize),
                    1 => said.len().min(1 + self.rng.below(100_000) as usize),
                    _ => said.len(),
                };
                // The server may wait for this client to take its replies before it reads on.
                self.send(&said[..part]);
                said.drain(..part);
                if self.rng.percent(20) {
                    std::thread::sleep(Duration::from_micros(self.rng.below(8000)));
                }
            }
            if self.rng.percent(10) {
                std::thread::sleep(Duration::from_millis(self.rng.below(150)));
            }
            let stays = if self.rng.percent(30) { self.rng.below(20) as usize } else { 0 };
            while self.talker.asked.len() > stays {
                self.answer();
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
        while !self.talker.asked.is_empty() {
            self.answer();
        }
        assert!(self.busy.iter().all(|busy| *busy == 0) && self.writes.is_empty());
        (self.talker, self.counts)
    }

    /// Sends bytes, and takes replies whenever the socket takes no more.
    fn send(&mut self, mut bytes: &[u8]) {
        use std::io::Write;
        while !bytes.is_empty() {
            self.talker.stream.set_nonblocking(true).expect("set");
            let sent = self.talker.stream.write(bytes);
            self.talker.stream.set_nonblocking(false).expect("set");
            match sent {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    // A whole reply may have to wait for the rest of a request that is sent in part.
                    std::thread::sleep(Duration::from_micros(200));
                    if rig::has_bytes(&self.talker.stream) {
                        self.answer();
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn any_requests_are_answered_once_across_handovers_at_any_time() {
    for (seed, time) in [(1u64, 4000), (2, 4000)] {
        let limits = ServerOptions { client_bytes: 4 << 20, ..options() };
        let Some(mut moving) = Plan::spec("ram:size=64M", limits).start() else { return };
        let mut rng = Rng::new(seed);
        let workers: Vec<_> = (0..CLIENTS)
            .map(|number| Worker {
                talker: moving.talker(FORMS[number as usize % 3]),
                base: number * (BLOCKS * BLOCK) as u64,
                model: vec![Some(0); BLOCKS],
                writes: BTreeMap::new(),
                busy: vec![0; BLOCKS],
                seed: number << 20,
                rng: rng.fork(number),
                counts: IoCounts::default(),
            })
            .collect();
        let numbers: Vec<u64> = moving.server.clients().iter().map(|client| client.id).collect();
        let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut handovers = 0;
        let ended: Vec<_> = std::thread::scope(|scope| {
            let (ends, done) = (&ends, &done);
            let threads: Vec<_> =
                workers.into_iter().map(|worker| scope.spawn(move || worker.work(ends, done))).collect();
            let (ended, until) = (Ends(ends), Instant::now() + Duration::from_millis(time));
            while Instant::now() < until && !threads.iter().any(|thread| thread.is_finished()) {
                std::thread::sleep(Duration::from_micros(rng.below(40_000)));
                if rng.percent(20) {
                    moving.server.suspend(Duration::from_secs(5)).expect("suspended");
                    moving.server.resume();
                } else {
                    moving.hand_over_to(rng.between(1, 3) as usize);
                    handovers += 1;
                }
            }
            drop(ended);
            let notices = moving.notices.lock().expect("nobody panics");
            assert!(notices.is_empty(), "{notices:?}");
            drop(notices);
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let done = done.load(Ordering::Relaxed);
        eprintln!("{done} requests across {handovers} handovers");
        assert!(handovers > 20 && done > 2000, "{done} requests across {handovers} handovers");
        let clients = moving.server.clients();
        assert_eq!(clients.iter().map(|client| client.id).collect::<Vec<_>>(), numbers);
        for ((_, counts), client) in ended.iter().zip(&clients) {
            let bytes = IoCounts {
                read_bytes: client.counts.read_bytes,
                written_bytes: client.counts.written_bytes,
                trimmed_bytes: client.counts.trimmed_bytes,
                zeroed_bytes: client.counts.zeroed_bytes,
                ..*counts
            };
            assert_eq!(client.counts, bytes, "client {}", client.id);
        }
        assert!(moving.notices.lock().expect("nobody panics").is_empty());
        moving.stop().server.stop().expect("it ends");
    }
}
