//! Every bio ends exactly once, whatever the driver, other threads and the gate do, and the statistics equal the I/O
//! that was done. The driver refuses requests, and ends them in any order, at once, later or on another thread, with
//! success or not.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use sheave_base::sync::{Arc, Mutex, thread};
use sheave_blk::bio::{BIO_FUA, BIO_NOMERGE, BIO_PREFLUSH, BVec, NO_FIXED_BUF, Op};
use sheave_blk::ctx::lane::PlainKind;
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Remote, RemoteRq, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::queue::Queue;
use sheave_blk::request::{DoneList, Rq, RqList, RqTable};
use sheave_blk::{Device, DeviceError};

use crate::support::{Rig, address, vec_at};

const TIMEOUT: Duration = Duration::from_millis(10);

/// Requests, sectors and errors by operation.
type Counts = [(u64, u64, u64); 5];

#[derive(Clone, Debug)]
struct Chaos {
    seed: u64,
    host_depth: Option<u16>,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Debug)]
struct ChaosQueue {
    rng: Rng,
    held: Vec<Rq>,
    counts: Arc<Mutex<Counts>>,
    remote: Remote,
    /// Channel to the thread that ends requests sent out, with the status of each.
    out: Option<Sender<(RemoteRq, Status)>>,
    outside: Arc<AtomicU32>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Collects the requests that it receives and ends them in random order. Runs on its own thread.
fn finish_elsewhere(receive: &Receiver<(RemoteRq, Status)>, outside: &AtomicU32, mut rng: Rng) {
    let mut have = Vec::new();
    while let Ok(one) = receive.recv() {
        have.push(one);
        have.extend(receive.try_iter());
        if rng.percent(30) {
            thread::yield_now();
        }
        while !have.is_empty() {
            let (rq, status) = have.swap_remove(rng.below(have.len() as u64) as usize);
            // Relaxed: a hint for the queue's `next_event`, which the wake-up of `complete` follows.
            outside.fetch_sub(1, Ordering::Relaxed);
            rq.complete(status);
        }
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: its queues take every request within the limits that it reports.
unsafe impl Driver for Chaos {
    fn limits(&self) -> Limits {
        Limits::default()
            .queue_depth(1 + (self.seed % 13) as u16)
            .max_sectors(16)
            .max_segments(3)
            .chunk_sectors(if self.seed.is_multiple_of(3) { 64 } else { 0 })
            .max_discard_sectors(200)
            .max_write_zeroes_sectors(100)
    }

    fn capabilities(&self) -> Capabilities {
        let (fua, volatile_cache) = (self.seed.is_multiple_of(2), !self.seed.is_multiple_of(5));
        Capabilities::default().fua(fua).volatile_cache(volatile_cache).polled(true).discard(true).write_zeroes(true)
    }

    fn size_bytes(&self) -> u64 {
        1 << 30
    }

    fn host_wide_depth(&self) -> Option<u16> {
        self.host_depth
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        let rng = Rng::new(self.seed + 1000 * u64::from(open.hctx));
        let (send, receive) = channel();
        let outside = Arc::new(AtomicU32::new(0));
        let (count, order) = (outside.clone(), rng.clone());
        let thread = thread::spawn(move || finish_elsewhere(&receive, &count, order));
        Ok(Box::new(ChaosQueue {
            rng,
            held: Vec::new(),
            counts: self.counts.clone(),
            remote: open.remote.clone(),
            out: Some(send),
            outside,
            thread: Some(thread),
        }))
    }
}

impl ChaosQueue {
    /// Decides the status of the request, and counts it.
    fn end(&mut self, rq: &Rq, rqs: &RqTable<'_>) -> Status {
        let request = rqs.get(rq);
        let bad = self.rng.percent(10);
        let count = &mut self.counts.lock().unwrap()[request.op as usize];
        count.0 += 1;
        count.1 += u64::from(request.bytes >> 9);
        count.2 += u64::from(bad);
        match (bad, self.rng.percent(50)) {
            (false, _) => Status::Ok,
            (true, false) => Status::Medium,
            (true, true) => Status::Transport,
        }
    }

    fn finish_one(&mut self, rqs: &RqTable<'_>, done: &mut DoneList) {
        let at = self.rng.below(self.held.len() as u64) as usize;
        let rq = self.held.swap_remove(at);
        let status = self.end(&rq, rqs);
        done.push(rq, status);
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for ChaosQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        while let Some(rq) = list.pop() {
            match self.rng.below(100) {
                0..8 => return list.unpop(rq),
                8..40 => {
                    let status = self.end(&rq, rqs);
                    // Relaxed: see `finish_elsewhere`.
                    self.outside.fetch_add(1, Ordering::Relaxed);
                    let out = self.remote.send_out(rq);
                    let sent = self.out.as_ref().expect("the queue is open").send((out, status));
                    sent.expect("the thread takes everything");
                }
                40..50 => {
                    let status = self.end(&rq, rqs);
                    done.push(rq, status);
                }
                _ => self.held.push(rq),
            }
        }
    }

    fn poll(&mut self, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        while !self.held.is_empty() && self.rng.percent(70) {
            self.finish_one(rqs, done);
        }
    }

    fn next_event(&self) -> NextEvent {
        // Relaxed: see `finish_elsewhere`.
        match (self.held.is_empty(), self.outside.load(Ordering::Relaxed)) {
            (false, _) => NextEvent::Ready,
            (true, 0) => NextEvent::Idle,
            (true, _) => NextEvent::Remote,
        }
    }

    fn timed_out(&mut self, tag: u16, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut {
        // A request with the other thread ends there. If both could end it, this lookup decides which one does.
        let Some(at) = self.held.iter().position(|rq| rq.tag() == tag) else { return TimedOut::Waiting };
        let rq = self.held.swap_remove(at);
        let request = rqs.get(&rq);
        let count = &mut self.counts.lock().unwrap()[request.op as usize];
        *count = (count.0 + 1, count.1 + u64::from(request.bytes >> 9), count.2 + 1);
        done.push(rq, Status::Timeout);
        TimedOut::Ended
    }

    fn shutdown(&mut self, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        while !self.held.is_empty() {
            self.finish_one(rqs, done);
        }
        self.out = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the thread ends when there is no more to come");
        }
    }
}

/// Closes and opens the gate, and reads counts, until told to stop.
fn disturb(queue: &Arc<Queue>, stop: &AtomicBool, most: u32) {
    let mut ios = 0;
    // Relaxed: stops a little later if need be.
    while !stop.load(Ordering::Relaxed) {
        let in_flight = queue.in_flight(0).0.total();
        assert!(in_flight <= most, "{in_flight} in flight, {most} are possible");
        let stats = queue.stats().ios();
        assert!(stats >= ios, "statistics only grow");
        ios = stats;
        if let Ok(guard) = queue.freeze(Duration::from_millis(2)) {
            thread::yield_now();
            drop(guard);
        }
        drop(queue.quiesce(Duration::from_millis(2)));
        thread::yield_now();
    }
}

struct Program {
    rig: Rig,
    rng: Rng,
    owner: u32,
    plugs: u32,
}

impl Program {
    fn submit(&mut self) {
        let rng = &mut self.rng;
        let op = Op::ALL[[0, 0, 0, 1, 1, 1, 2, 3, 4][rng.below(9) as usize]];
        let flags = match rng.below(10) {
            0 => BIO_FUA,
            1 => BIO_PREFLUSH,
            2 => BIO_FUA | BIO_PREFLUSH,
            3 => BIO_NOMERGE,
            _ => 0,
        };
        // Some are beyond the end of the device.
        let sector = rng.below((1 << 21) + 500);
        let base = address(self.owner);
        let vecs: Vec<BVec> = match op {
            Op::Read | Op::Write => {
                (0..1 + rng.below(7) as usize).map(|at| vec_at(base + at * 65536, 512 << rng.below(4))).collect()
            }
            _ => Vec::new(),
        };
        let bytes = match op {
            Op::Flush => 0,
            Op::Discard | Op::WriteZeroes => 512 * (1 + rng.below(1000) as u32),
            _ => vecs.iter().map(|vec| vec.len() as u32).sum(),
        };
        let sector = if op == Op::Flush { 0 } else { sector };
        let spec =
            sheave_blk::ctx::BioSpec { bdev: self.rig.devices[0].0, op, flags, sector, bytes, owner: self.owner };
        self.owner += u32::from(self.rig.ctx.submit(&spec, &vecs, NO_FIXED_BUF));
    }

    fn lane(&mut self) {
        let route = self.rig.ctx.route(self.rig.devices[0].0).expect("one leg");
        let op = if self.rng.percent(50) { Op::Read } else { Op::Write };
        let kind = PlainKind::new(op == Op::Write, 0, NO_FIXED_BUF);
        let mut lane = self.rig.ctx.lane(route, kind).expect("attached");
        let mut sector = self.rng.below(1 << 20);
        for _ in 0..self.rng.below(20) {
            let bytes = 512_u32 << self.rng.below(6);
            let vec = vec_at(address(self.owner), bytes as usize);
            self.owner += u32::from(lane.submit(self.owner, sector, vec));
            sector += if self.rng.percent(60) { u64::from(bytes >> 9) } else { self.rng.below(1000) };
        }
        lane.finish();
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..9 => self.submit(),
            9..11 => self.lane(),
            11..13 if self.plugs < 3 => {
                self.rig.ctx.start_plug(self.rng.below(40) as u32);
                self.plugs += 1;
            }
            13..15 if self.plugs > 0 => {
                self.rig.ctx.finish_plug();
                self.plugs -= 1;
            }
            15 => self.rig.time.advance(TIMEOUT / 3),
            16 => self.rig.ctx.wait(1, Some(Duration::from_micros(50))),
            _ => drop(self.rig.poll()),
        }
    }

    fn end(&mut self, drain: bool) {
        (0..self.plugs).for_each(|_| self.rig.ctx.finish_plug());
        if !drain {
            return self.rig.shutdown();
        }
        while !self.rig.ctx.is_idle() {
            self.rig.ctx.wait(1, Some(Duration::from_micros(500)));
            self.rig.poll();
        }
    }
}

fn run(seed: u64) {
    let host_depth = seed.is_multiple_of(4).then_some(6);
    let chaos = Chaos { seed, host_depth, counts: Arc::default() };
    let device = Device::with_timeout("chaos", Box::new(chaos.clone()), TIMEOUT);
    let queue = device.legs()[0].queue.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let most = u32::from(host_depth.unwrap_or(1 + (seed % 13) as u16)) + 1;
    let disturber = thread::spawn({
        let (queue, stop) = (queue.clone(), stop.clone());
        move || disturb(&queue, &stop, most)
    });
    let rig = Rig::with(4 + (seed % 40) as u32, true, &[&device]);
    let mut program = Program { rig, rng: Rng::new(seed * 31), owner: 0, plugs: 0 };
    (0..3000).for_each(|_| program.step());
    let drain = !seed.is_multiple_of(3);
    program.end(drain);
    // Relaxed: joined below.
    stop.store(true, Ordering::Relaxed);
    disturber.join().expect("what the other thread saw was right");

    let mut owners: Vec<u32> = program.rig.ended.iter().map(|end| end.0).collect();
    owners.sort_unstable();
    assert!(owners.iter().copied().eq(0..program.owner), "seed {seed}: each bio ends once");
    assert_eq!((program.rig.ctx.bios().live(), program.rig.ctx.bios().reserved()), (0, 4), "seed {seed}");
    assert_eq!(queue.in_flight(0).0.total(), 0, "seed {seed}");
    if drain {
        let (stats, counts) = (device.stats(), chaos.counts.lock().unwrap());
        for op in Op::ALL {
            let (have, expect) = (stats.op(op), counts[op as usize]);
            assert_eq!((have.ios, have.sectors, have.errors), expect, "seed {seed}: {}", op.name());
            assert_eq!(have.split.latency.iter().sum::<u64>(), have.ios, "seed {seed}");
        }
    }
}

#[test]
fn every_bio_ends_exactly_once_whatever_happens() {
    (0..24).for_each(run);
}
