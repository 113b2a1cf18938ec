//! Makes programs from a seed: mostly valid operations in chains. About one in four has an error.
//!
//! Only programs with one right answer are generated (I2 of `program`): operations that may overlap in time never touch
//! the same bytes; the target of a cancel is certainly pending or certainly absent; counted timeouts come first in
//! their batch; no drain waits behind a timeout that nothing ends.
//!
//! `rw` makes reads and writes, `timed` timeouts and cancels, `other` the rest, `damage` breaks fields. All are `impl`
//! blocks of [`Generator`].

mod damage;
mod other;
mod rw;
mod timed;

use crate::abi::{cancel, flag, op};
use crate::program::{ARENA_BYTES, FIXED_BYTES, Op, Program, Shape, Word};
use sheave_base::rng::Rng;
use timed::Pending;

/// Features of the rings that will run a program.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// True if the kernel's side is a block device, so that the end of the device can be tested.
    pub block_device: bool,
    /// True if this process may use the realtime I/O class.
    pub realtime: bool,
}

/// Use of two features that exclude each other: after CQE_SKIP_SUCCESS a ring refuses drains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Drains,
    Skips,
    Both,
}

/// A range of the device that an operation of the running batch may touch.
struct Touched {
    chain: u64,
    start: u64,
    end: u64,
    writes: bool,
}

pub struct Generator {
    rng: Rng,
    limits: Limits,
    style: Style,
    program: Program,
    next_user_data: u64,
    /// True if the ring has seen CQE_SKIP_SUCCESS.
    skip_seen: bool,
    /// True while the kernel is still draining, which lasts until a batch begins with a valid chain without a drain.
    /// Until then the kernel issues late, counts from there, and makes everything wait for pending operations.
    drain_lingers: bool,
    /// True if a drained chain makes the kernel drain the next request too.
    drain_next: bool,
    /// Timeouts that may still be pending.
    pending: Vec<Pending>,
    /// True if an operation that is no longer in `pending` may still be pending; only a cancel of everything clears it.
    maybe_pending: bool,
    /// True if an operation has used the file's position, which is then no longer 0 on Sheave.
    moved: bool,
    batch: Batch,
}

/// Resources that the current batch has used up.
#[derive(Default)]
struct Batch {
    ops: Vec<Op>,
    touched: Vec<Touched>,
    arena_used: u64,
    fixed_used: [u64; 2],
    /// Number of the current chain.
    chain: u64,
    /// Memory of the last operation of this chain, which the next one may use again.
    chain_memory: Option<(u64, u64)>,
    drained: bool,
    has_long: bool,
    /// True if the rest of this chain may run at any later time, so that it must not touch data.
    chain_waits: bool,
    chain_has_drain: bool,
}

/// Returns the program of one seed.
pub fn generate(seed: u64, limits: Limits) -> Program {
    let mut rng = Rng::new(seed);
    let style = *rng.pick(&[Style::Plain, Style::Drains, Style::Drains, Style::Skips, Style::Skips, Style::Both]);
    let hoard = rng.percent(10);
    let shape = match hoard {
        true => Shape { entries: 8, cq_entries: 8, hoard },
        false => Shape { entries: 64, cq_entries: 256, hoard },
    };
    let program = Program { seed, shape, vectors: Vec::new(), times: Vec::new(), batches: Vec::new() };
    let mut generator = Generator {
        rng,
        limits,
        style,
        program,
        next_user_data: 1,
        skip_seen: false,
        drain_lingers: false,
        drain_next: false,
        pending: Vec::new(),
        maybe_pending: false,
        moved: false,
        batch: Batch::default(),
    };
    if hoard {
        generator.hoarding()
    } else {
        generator.mixed()
    }
    generator.program
}

impl Generator {
    fn mixed(&mut self) {
        for _ in 0..self.rng.between(2, 7) {
            match self.rng.below(100) {
                0..16 => self.solo_batch(),
                16..28 if !self.drain_lingers && !self.drain_next => self.instant_batch(),
                _ => self.mixed_batch(),
            }
        }
        for _ in 0..4 {
            self.cancel_everything();
        }
    }

    /// Makes chains of operations that complete with success within the submit. All their CQEs come in the kernel's
    /// order. (The kernel posts the rest of a broken chain later than Sheave.)
    fn instant_batch(&mut self) {
        for _ in 0..self.rng.between(2, 6) {
            let length = self.rng.between(1, 4) as usize;
            let start = self.begin_chain();
            for _ in 0..length {
                let mut op = self.instant();
                op.nature.instant = true;
                op.flags |= if self.rng.percent(40) { flag::HARDLINK } else { flag::LINK };
                self.batch.ops.push(op);
            }
            self.batch.ops[start + length - 1].flags &= !flag::ANY_LINK;
        }
        self.end_batch();
    }

    /// Makes a program whose completions pile up in a small CQ, of operations that complete at once and in order.
    fn hoarding(&mut self) {
        for _ in 0..self.rng.between(1, 5) {
            for _ in 0..self.rng.between(1, 8) {
                let op = self.instant();
                self.batch.ops.push(op);
            }
            self.end_batch();
        }
    }

    fn mixed_batch(&mut self) {
        if self.rng.percent(12) && self.may_stay() {
            self.counted_timeouts();
        }
        if self.rng.percent(8) && self.may_stay() {
            self.timeouts_alike();
        }
        for _ in 0..self.rng.between(1, 6) {
            self.chain();
        }
        self.end_batch();
    }

    fn chain(&mut self) {
        let length = if self.rng.percent(55) { 1 } else { self.rng.between(2, 5) as usize };
        let start = self.begin_chain();
        let may_drain = matches!(self.style, Style::Drains | Style::Both) && !self.anything_pending();
        let drain = may_drain && self.rng.percent(30);
        if drain {
            self.batch.chain_has_drain = true;
            self.batch.drained = true;
        }
        let before = if drain { std::mem::take(&mut self.batch.touched) } else { Vec::new() };
        while self.batch.ops.len() < start + length {
            self.member(start);
        }
        let length = self.batch.ops.len() - start;
        if drain {
            let at = start + self.rng.below(length as u64) as usize;
            self.batch.ops[at].flags |= flag::DRAIN;
        }
        for op in &mut self.batch.ops[start..start + length - 1] {
            let hard = op.nature.fails_softly || self.rng.percent(40);
            op.flags |= if hard { flag::HARDLINK } else { flag::LINK };
            op.flags |= if self.rng.percent(5) { flag::ANY_LINK } else { 0 };
        }
        let clean = !self.batch.ops[start..].iter().any(|op| op.nature.rejected);
        let skips = self.skip_seen || self.batch.ops.iter().any(|op| op.flags & flag::SKIP != 0);
        if !clean || skips {
            // The drain may be refused, and then nothing waits for it.
            self.batch.touched.extend(before);
        }
        // The first request that takes the drain over keeps everything after it waiting.
        self.batch.drained |= self.drain_next && clean;
        self.drain_next = (self.drain_next && !clean) || (drain && length > 1);
    }

    fn begin_chain(&mut self) -> usize {
        self.batch.chain += 1;
        self.batch.chain_memory = None;
        self.batch.chain_waits = false;
        self.batch.chain_has_drain = false;
        self.batch.ops.len()
    }

    /// Adds one operation (or a guarded pair) to the chain that began at `start`.
    fn member(&mut self, start: usize) {
        let first = self.batch.ops.len() == start;
        if self.batch.chain_waits {
            let op = self.quiet();
            self.add(op);
            return;
        }
        match self.rng.below(100) {
            0..44 => self.read_or_write(),
            44..56 => self.nop(),
            56..61 => self.fsync(),
            61..67 => self.fallocate(),
            67..73 => self.short_timeout(),
            73..79 => self.long_timeout(first),
            79..85 => self.cancel(),
            85..89 => self.timeout_remove(),
            89..94 => self.message(),
            94..96 => self.stray_link_timeout(first),
            _ => {
                let mut op = Op::new(self.rng.between(200, 255) as u8, self.user_data());
                op.nature.rejected = true;
                self.add(op);
            }
        }
        let guard = self.rng.percent(12) && !self.batch.chain_waits;
        if guard && self.batch.ops.last().is_some_and(|op| op.opcode != op::LINK_TIMEOUT) {
            self.idle_guard();
        }
    }

    /// Adds a finished operation to the batch, with flags that are valid for any operation.
    fn add(&mut self, mut op: Op) {
        if self.may_be_async(&op) && self.rng.percent(10) {
            op.flags |= flag::ASYNC;
        }
        let skips = matches!(self.style, Style::Skips | Style::Both) && !op.nature.fails_softly;
        if skips && self.rng.percent(25) {
            op.flags |= flag::SKIP;
        }
        self.batch.ops.push(op);
    }

    /// Returns true if a worker of the kernel may begin the operation without a change of the result. A counted timeout
    /// would count from another CQE on, one that is to stay might be cancelled before it has begun, and a cancel by
    /// anything but user data would find itself in the worker's queue.
    fn may_be_async(&self, op: &Op) -> bool {
        match op.opcode {
            op::TIMEOUT => !op.nature.pending && !self.counts(),
            op::ASYNC_CANCEL => op.op_flags & !(cancel::ALL | cancel::USERDATA) == 0,
            _ => true,
        }
    }

    /// Closes the batch, and determines which SQEs are refused because the ring has skipped CQEs before.
    fn end_batch(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        for op in &mut batch.ops {
            let refused_early = op.opcode >= 200
                || op.flags & flag::UNKNOWN != 0
                || (op.flags & flag::BUFFER_SELECT != 0 && !matches!(op.opcode, op::READ | op::READV));
            if refused_early {
                op.nature.rejected = true;
                continue;
            }
            self.skip_seen |= op.flags & flag::SKIP != 0;
            op.nature.rejected |= self.skip_seen && op.flags & flag::DRAIN != 0;
        }
        self.maybe_pending |= batch.has_long;
        let first = Program::chains(&batch.ops).into_iter().next().unwrap_or_default();
        let clean = !first.is_empty() && !batch.ops[first].iter().any(|op| op.nature.rejected);
        self.drain_lingers = batch.drained || (self.drain_lingers && !clean);
        if !batch.ops.is_empty() {
            self.program.batches.push(batch.ops);
        }
    }

    fn user_data(&mut self) -> u64 {
        self.next_user_data += 1;
        self.next_user_data - 1
    }

    /// Returns true if a timeout of this batch may stay pending: no drain would wait for it.
    fn may_stay(&self) -> bool {
        let batch = &self.batch;
        !(batch.drained || batch.chain_has_drain || self.drain_next || self.drain_lingers)
    }

    fn anything_pending(&self) -> bool {
        self.maybe_pending || self.batch.has_long || !self.pending.is_empty()
    }

    /// Returns `len` bytes of the arena that no other operation of this batch uses; `None` when it is used up.
    fn arena(&mut self, len: u64) -> Option<u64> {
        if let Some((start, bytes)) = self.batch.chain_memory
            && bytes >= len
            && self.rng.percent(35)
        {
            return Some(start);
        }
        let start = self.batch.arena_used;
        if start + len > ARENA_BYTES {
            return None;
        }
        self.batch.arena_used = (start + len).next_multiple_of(4096);
        self.batch.chain_memory = Some((start, len));
        Some(start)
    }

    /// Returns `len` bytes of a registered buffer; `None` when it is used up.
    fn fixed(&mut self, slot: usize, len: u64) -> Option<Word> {
        let start = self.batch.fixed_used[slot];
        if start + len > FIXED_BYTES[slot] {
            return None;
        }
        self.batch.fixed_used[slot] = start + len;
        Some(Word::Fixed(slot, start as i64))
    }

    fn time(&mut self, sec: i64, nsec: i64) -> Word {
        self.program.times.push((sec, nsec));
        Word::Time(self.program.times.len() - 1)
    }

    fn vector(&mut self, pieces: Vec<(Word, u64)>) -> Word {
        self.program.vectors.push(pieces);
        Word::Vector(self.program.vectors.len() - 1)
    }

    /// Claims a range of the device. Returns false if another chain of this batch may touch it at the same time.
    fn claim(&mut self, start: u64, end: u64, writes: bool) -> bool {
        let chain = self.batch.chain;
        let clash = |t: &Touched| t.chain != chain && t.start < end && start < t.end && (t.writes || writes);
        if self.batch.touched.iter().any(clash) {
            return false;
        }
        self.batch.touched.push(Touched { chain, start, end, writes });
        true
    }
}
