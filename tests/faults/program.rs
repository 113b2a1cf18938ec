//! A random program of I/O on one ring, and the list of its operations in flight.
//!
//! Generates the operations (reads, writes, vectored and fixed ones, fsyncs, zeroed ranges, chains, drains, timeouts
//! and cancels) and checks each completion: it is the only one of its operation, its result is a possible one, its
//! buffer comes back, and the data read is what the model permits. A cancelled operation was not carried out.
//!
//! Operations in flight never overlap, unless they are of one chain: so the model has the order of writes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use sheave::op::{self};
use sheave::op::{Cancel, Entry};
use sheave::{Buf, Completion, Device, Fd, Ring};

use crate::model::{BLOCK, Model, fill, stamp_of};
use sheave_base::rng::Rng;

/// Number of blocks of every test device.
pub const DEVICE_BLOCKS: usize = 1024;
/// Bytes of every test device.
pub const DEVICE_BYTES: usize = DEVICE_BLOCKS * BLOCK;
/// Number of blocks of the longest operation.
const MAX_BLOCKS: u64 = 16;
/// Number of registered buffers.
const FIXED: u16 = 6;
/// A time longer than the timeout of any device, with a margin for a slow machine.
const LONGEST: Duration = Duration::from_secs(60);
/// Smallest number of turns within [`LONGEST`]: if the machine was stopped, the time alone proves nothing.
const FEWEST_TURNS: u32 = 200;

/// Parameters of a program.
#[derive(Clone, Debug)]
pub struct Shape {
    pub seed: u64,
    /// Number of operations.
    pub ops: u64,
    /// Number of entries of the SQ. The CQ has as many, so that it overflows.
    pub entries: u32,
    pub polled: bool,
    /// True if the data of reads is checked.
    pub checked: bool,
    /// Blocks of the device that the program may use.
    pub area: Range<usize>,
}

impl Shape {
    pub fn new(seed: u64) -> Shape {
        let entries = [8, 16, 64][seed as usize % 3];
        Shape { seed, ops: 400, entries, polled: seed.is_multiple_of(2), checked: true, area: 0..DEVICE_BLOCKS }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    Write {
        durable: bool,
    },
    Zero,
    /// Covers writes that had ended at this time of the model.
    Flush {
        since: u64,
    },
    /// A timeout, or a cancel.
    Other,
}

#[derive(Debug)]
struct Sent {
    what: What,
    blocks: Range<usize>,
    fixed: Option<u16>,
    /// Id of the fsync that is next in the chain.
    flush: Option<u64>,
}

/// A ring, and the state of its program.
pub struct Program {
    pub ring: Ring,
    pub fd: Fd,
    pub model: Model,
    /// Report of the first block with a content that is not permitted.
    pub wrong: Option<String>,
    /// Number of completions with success, and with an error.
    pub ended: (u64, u64),
    shape: Shape,
    rng: Rng,
    sent: BTreeMap<u64, Sent>,
    /// For each block, the number of operations in flight and their chain.
    busy: Vec<(u32, u64)>,
    free_fixed: Vec<u16>,
    chain: u64,
    next: u64,
    last_end: usize,
}

impl Program {
    pub fn new(shape: Shape, device: &Device) -> Program {
        let mut ring = Ring::builder()
            .entries(shape.entries)
            .cq_entries(shape.entries)
            .in_flight(shape.entries)
            .polled(shape.polled)
            .spin(Duration::from_micros(shape.seed % 2 * 20))
            .build()
            .expect("a ring");
        let fd = ring.attach(device).expect("attaches");
        let fixed = (0..FIXED).map(|_| Buf::zeroed(MAX_BLOCKS as usize * BLOCK, 4096).expect("memory")).collect();
        ring.register_buffers(fixed).expect("registers");
        Program {
            ring,
            fd,
            model: Model::new(DEVICE_BLOCKS),
            wrong: None,
            ended: (0, 0),
            rng: Rng::new(shape.seed),
            sent: BTreeMap::new(),
            busy: vec![(0, 0); DEVICE_BLOCKS],
            free_fixed: (0..FIXED).collect(),
            chain: 0,
            next: 1,
            last_end: shape.area.start,
            shape,
        }
    }

    /// Runs all operations to their end.
    pub fn run(&mut self) {
        while self.next <= self.shape.ops {
            self.step();
        }
        self.finish();
    }

    /// Submits a few operations, and takes a few completions.
    pub fn step(&mut self) {
        for _ in 0..1 + self.rng.below(6) {
            self.push_chain();
        }
        self.ring.submit().or_else(busy_is_fine).expect("only busy");
        if self.rng.percent(25) {
            let _ = self.ring.wait(1, Some(Duration::from_millis(2)));
        }
        if self.rng.percent(70) {
            self.take();
        }
    }

    /// Waits for all submitted operations.
    pub fn finish(&mut self) {
        let (start, mut turns) = (Instant::now(), 0);
        while !self.sent.is_empty() {
            self.ring.submit().or_else(busy_is_fine).expect("only busy");
            let _ = self.ring.wait(1, Some(Duration::from_millis(50)));
            self.take();
            turns += 1;
            if start.elapsed() > LONGEST && turns > FEWEST_TURNS {
                let (sent, ring) = (&self.sent, &self.ring);
                eprintln!("seed {}: {} of {sent:?} are in flight of {ring:#?}", self.shape.seed, ring.in_flight());
                panic!("seed {}: {} operations never end, in {turns} turns", self.shape.seed, sent.len());
            }
        }
        assert_eq!(self.ring.in_flight(), 0, "seed {}: slots leak", self.shape.seed);
        assert_eq!(self.ring.io().bios().live(), 0, "seed {}: bios leak", self.shape.seed);
        assert_eq!(self.free_fixed.len(), usize::from(FIXED));
        assert!(self.busy.iter().all(|busy| busy.0 == 0));
    }

    fn take(&mut self) {
        let ended: Vec<Completion> = self.ring.completions().collect();
        ended.into_iter().for_each(|completion| self.complete(completion));
    }

    /// Pushes one operation, or a chain.
    fn push_chain(&mut self) {
        let len = if self.rng.percent(25) { 2 + self.rng.below(4) } else { 1 };
        let room = u64::from(self.ring.sq_space()).min(u64::from(self.shape.entries) - self.sent.len() as u64);
        if room < len {
            return;
        }
        self.chain += 1;
        for at in 0..len {
            let (id, goes_on) = (self.next, at + 1 < len);
            if at > 0 && self.is_io(id - 1) && self.rng.percent(15) {
                let guard = op::link_timeout(Duration::from_micros(self.rng.below(3000)));
                self.push(guard.into(), sent(What::Other, 0..0), goes_on);
                continue;
            }
            // An fsync is possible even when no block is free.
            let since = self.model.now();
            let fsync = (op::fsync(self.fd).into(), sent(What::Flush { since }, 0..0));
            let (mut entry, sent) = self.draw().unwrap_or(fsync);
            if self.rng.percent(3) {
                entry = entry.run_async();
            }
            if at == 0 && self.rng.percent(2) {
                entry = entry.drain();
            }
            if at > 0
                && matches!(sent.what, What::Flush { .. })
                && let Some(before) = self.sent.get_mut(&(id - 1))
            {
                before.flush = Some(id);
            }
            self.push(entry, sent, goes_on);
        }
    }

    fn is_io(&self, id: u64) -> bool {
        self.sent.get(&id).is_some_and(|sent| sent.what != What::Other)
    }

    fn push(&mut self, entry: Entry, sent: Sent, goes_on: bool) {
        let entry = match (goes_on, self.rng.percent(30)) {
            (false, _) => entry,
            (true, false) => entry.link(),
            (true, true) => entry.hardlink(),
        };
        self.ring.push(entry.user_data(self.next)).expect("there is room");
        for block in &mut self.busy[sent.blocks.clone()] {
            *block = (block.0 + 1, self.chain);
        }
        match sent.what {
            What::Write { .. } => self.model.start(sent.blocks.clone(), self.next),
            What::Zero => self.model.start(sent.blocks.clone(), 0),
            What::Read | What::Flush { .. } | What::Other => {}
        }
        self.sent.insert(self.next, sent);
        self.next += 1;
    }

    /// Generates an operation on free blocks; `None` if there are none.
    fn draw(&mut self) -> Option<(Entry, Sent)> {
        let kind = self.rng.below(100);
        if kind < 8 {
            return Some(self.draw_without_blocks(kind));
        }
        let blocks = self.free_blocks()?;
        let offset = (blocks.start * BLOCK) as u64;
        let len = blocks.len() * BLOCK;
        let write = kind.is_multiple_of(2);
        let what = if write { What::Write { durable: false } } else { What::Read };
        let (entry, what, fixed): (Entry, What, Option<u16>) = match kind {
            8..12 => (op::punch_hole(self.fd, offset, len as u64).into(), What::Zero, None),
            12..16 => (op::zero_range(self.fd, offset, len as u64).into(), What::Zero, None),
            16..30 => {
                let bufs = self.buffers(&blocks, 1 + len / 3 / BLOCK * BLOCK, write);
                let entry = match write {
                    true => op::writev(self.fd, bufs).offset(offset).into(),
                    false => op::readv(self.fd, bufs).offset(offset).into(),
                };
                (entry, what, None)
            }
            30..45 if !self.free_fixed.is_empty() => {
                let index = self.free_fixed.pop()?;
                let buf = self.ring.buffer_mut(index).expect("no operation has it");
                fill(&mut buf[..len], blocks.start, if write { self.next } else { u64::MAX });
                let entry = match write {
                    true => op::write_fixed(self.fd, index, 0..len).offset(offset).into(),
                    false => op::read_fixed(self.fd, index, 0..len).offset(offset).into(),
                };
                (entry, what, Some(index))
            }
            _ => {
                let buf = self.buffers(&blocks, len, write).remove(0);
                let durable = write && kind >= 90;
                let what = if durable { What::Write { durable } } else { what };
                let entry = match (write, durable) {
                    (false, _) => op::read(self.fd, buf).offset(offset).into(),
                    (true, false) => op::write(self.fd, buf).offset(offset).into(),
                    (true, true) => op::write(self.fd, buf).offset(offset).dsync().into(),
                };
                (entry, what, None)
            }
        };
        Some((entry, Sent { fixed, ..sent(what, blocks) }))
    }

    fn draw_without_blocks(&mut self, kind: u64) -> (Entry, Sent) {
        let flush = What::Flush { since: self.model.now() };
        let (entry, what): (Entry, What) = match kind {
            0..2 => (op::fsync(self.fd).into(), flush),
            2..5 => (op::fdatasync(self.fd).into(), flush),
            5 => (op::timeout(Duration::from_micros(self.rng.below(2000))).into(), What::Other),
            6 => (op::cancel(Cancel::user_data(self.next - self.rng.below(self.next.min(40)))).into(), What::Other),
            _ => (op::cancel(Cancel::file(self.fd).all()).into(), What::Other),
        };
        (entry, sent(what, 0..0))
    }

    /// Allocates memory for the blocks, in pieces of whole blocks. It holds the data of a write, or data that no write
    /// makes.
    fn buffers(&mut self, blocks: &Range<usize>, piece: usize, write: bool) -> Vec<Buf> {
        let piece = piece.div_ceil(BLOCK);
        let starts = (blocks.start..blocks.end).step_by(piece);
        let stamp = if write { self.next } else { u64::MAX };
        starts
            .map(|start| {
                let len = piece.min(blocks.end - start) * BLOCK;
                let mut buf = Buf::zeroed(len, 4096).expect("memory");
                fill(&mut buf, start, stamp);
                buf
            })
            .collect()
    }

    /// Returns blocks on which nothing is in flight except operations of the chain that is being pushed; often those
    /// after the last ones.
    fn free_blocks(&mut self) -> Option<Range<usize>> {
        let area = self.shape.area.clone();
        for _ in 0..20 {
            let len = 1 + self.rng.below(MAX_BLOCKS) as usize;
            let start = match self.rng.percent(40) {
                true => self.last_end,
                false => area.start + self.rng.below(area.len() as u64) as usize,
            };
            let blocks = start..(start + len).min(area.end);
            let chain = self.chain;
            if !blocks.is_empty() && self.busy[blocks.clone()].iter().all(|busy| busy.0 == 0 || busy.1 == chain) {
                self.last_end = blocks.end;
                return Some(blocks);
            }
        }
        None
    }

    fn complete(&mut self, completion: Completion) {
        let (seed, id, res) = (self.shape.seed, completion.user_data, completion.res);
        let sent = self.sent.remove(&id).unwrap_or_else(|| panic!("seed {seed}: operation {id} completes twice"));
        self.busy[sent.blocks.clone()].iter_mut().for_each(|block| block.0 -= 1);
        let bytes = if matches!(sent.what, What::Read | What::Write { .. }) { sent.blocks.len() * BLOCK } else { 0 };
        let ok = res == bytes as i32;
        let errors: &[i32] = match sent.what {
            What::Other => &[libc::ETIME, libc::ENOENT, libc::ECANCELED, libc::EALREADY],
            _ => &[libc::EIO, libc::ETIMEDOUT, libc::ECANCELED],
        };
        let counts = sent.what == What::Other && res > 0;
        assert!(ok || counts || errors.contains(&-res), "seed {seed}: {sent:?} ends with {res}");
        self.ended = (self.ended.0 + u64::from(ok), self.ended.1 + u64::from(!ok));
        let stamp = if sent.what == What::Zero { 0 } else { id };
        match sent.what {
            What::Write { .. } | What::Zero if res == -libc::ECANCELED => self.model.forget(sent.blocks.clone(), stamp),
            What::Write { durable } => {
                self.model.end(sent.blocks.clone(), stamp, ok);
                if ok && durable {
                    self.model.durable(sent.blocks.clone());
                }
            }
            What::Zero => self.model.end(sent.blocks.clone(), stamp, ok),
            What::Flush { since } if ok => self.model.flushed(since),
            What::Read | What::Flush { .. } | What::Other => {}
        }
        self.look_at_memory(&sent, completion, ok);
        if let Some(flush) = sent.flush.and_then(|flush| self.sent.get_mut(&flush)) {
            // The flush starts now at the earliest, and may cover what has ended until now.
            flush.what = What::Flush { since: self.model.now() };
        }
    }

    /// Checks that the operation's memory came back with the expected content.
    fn look_at_memory(&mut self, sent: &Sent, completion: Completion, ok: bool) {
        let mut read = Vec::new();
        if let Some(index) = sent.fixed {
            self.free_fixed.push(index);
            let buf = self.ring.buffer(index).expect("no operation has it any more");
            read.extend_from_slice(&buf[..sent.blocks.len() * BLOCK]);
        } else if !sent.blocks.is_empty() && sent.what != What::Zero {
            let bufs = completion.into_bufs();
            bufs.iter().for_each(|buf| read.extend_from_slice(buf));
            assert_eq!(read.len(), sent.blocks.len() * BLOCK, "seed {}: memory comes back", self.shape.seed);
        }
        if sent.what == What::Read && ok {
            self.check(&read, sent.blocks.start, "read", Model::may_hold);
        }
    }

    /// Compares blocks with the contents that the model permits.
    pub fn check(&mut self, bytes: &[u8], first: usize, how: &str, may: fn(&Model, usize, u64) -> bool) {
        if !self.shape.checked {
            return;
        }
        for (at, bytes) in bytes.chunks(BLOCK).enumerate() {
            let block = first + at;
            let stamp = stamp_of(bytes, block);
            if self.wrong.is_none() && !stamp.is_some_and(|stamp| may(&self.model, block, stamp)) {
                let (head, history) = (&bytes[..16], self.model.history(block));
                self.wrong = Some(format!("{how}: block {block} holds {stamp:?} ({head:?}), may hold {history}"));
            }
        }
    }

    /// Reads this program's part of a device back, on another ring, and compares it.
    pub fn read_back(&mut self, device: &Device) {
        let mut ring = Ring::builder().entries(8).build().expect("a ring");
        let fd = ring.attach(device).expect("attaches");
        let area = self.shape.area.clone();
        let buf = Buf::zeroed(area.len() * BLOCK, 4096).expect("memory");
        ring.push(op::read(fd, buf).offset((area.start * BLOCK) as u64)).expect("there is room");
        ring.submit_and_wait(1).expect("nothing else is in flight");
        let completion = ring.completions().next().expect("waited for it");
        assert_eq!(completion.res as usize, area.len() * BLOCK, "the device underneath has no faults");
        let buf = completion.into_buf().expect("comes back");
        self.check(&buf, area.start, "read back", Model::may_hold);
    }
}

fn sent(what: What, blocks: Range<usize>) -> Sent {
    Sent { what, blocks, fixed: None, flush: None }
}

/// Treats the error of a busy ring, which takes nothing more now, as a success with nothing submitted.
fn busy_is_fine(error: sheave::RingError) -> Result<u32, sheave::RingError> {
    if matches!(error, sheave::RingError::Busy) { Ok(0) } else { Err(error) }
}
