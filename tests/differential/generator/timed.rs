//! Timeouts, link timeouts, cancels and removals.
//!
//! Short timeouts fire within a millisecond. Long ones never fire, so they are certainly pending until an operation of
//! the program ends them. Counted ones fire when enough CQEs were posted; they come first in their batch, because they
//! count from the CQEs of that batch on.

use super::{Generator, Style};
use crate::abi::{cancel, flag, op, timeout};
use crate::program::{FdRef, Op, Word};

/// A number of seconds longer than any test runs.
const LONG_SEC: i64 = 100_000;

/// A timeout that is pending until a CANCEL or TIMEOUT_REMOVE names it.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    user_data: u64,
    /// User data of the LINK_TIMEOUT that guards it.
    guard: Option<u64>,
    /// True if the timeout ends by itself when enough CQEs were posted.
    counted: bool,
    /// First batch in which a cancel may name it.
    ready: usize,
}

impl Generator {
    fn clock_flags(&mut self) -> u32 {
        *self.rng.pick(&[0, 0, 0, timeout::BOOTTIME, timeout::REALTIME])
    }

    fn timeout(&mut self, time: Word) -> Op {
        let mut op = Op::new(op::TIMEOUT, self.user_data());
        op.addr = time;
        op.len = 1;
        op.op_flags = self.clock_flags();
        op
    }

    /// Returns true if a counted timeout is pending. No other timeout may fire then: the kernel subtracts a firing
    /// timeout from the count before its CQE is posted, and a look in between counts too many CQEs.
    pub(super) fn counts(&self) -> bool {
        self.pending.iter().any(|p| p.counted)
    }

    /// Adds a timeout that certainly fires soon, or is refused.
    pub(super) fn short_timeout(&mut self) {
        if self.counts() {
            return self.nop();
        }
        let nsec = self.rng.between(0, 900) as i64 * 1000;
        let time = self.time(0, nsec);
        let mut op = self.timeout(time);
        match self.rng.below(10) {
            0 | 1 => op.op_flags |= timeout::ABS, // long ago
            2 | 3 => op.op_flags |= timeout::ETIME_SUCCESS,
            4 => op.off = Word::Value(1 << 32), // only the low half counts
            5 => op.fd = FdRef::Raw(7),
            _ => {}
        }
        if self.rng.percent(25) {
            self.damage_timeout(&mut op);
        }
        self.add(op);
    }

    /// Adds a timeout that stays pending, alone or guarded by a LINK_TIMEOUT; a short one if none may stay.
    pub(super) fn long_timeout(&mut self, first: bool) {
        if !self.may_stay() {
            return self.short_timeout();
        }
        let time = self.time(LONG_SEC, 0);
        let mut op = self.timeout(time);
        if self.rng.percent(10) {
            op.op_flags = timeout::ABS;
            op.addr = self.time(1 << 40, 0);
        }
        if self.rng.percent(10) {
            op.op_flags |= timeout::ETIME_SUCCESS;
        }
        let user_data = op.user_data;
        let guarded = self.rng.percent(45);
        let fires = guarded && !self.counts() && self.rng.percent(60);
        op.nature.pending = !fires;
        self.add(op);
        let guard = guarded.then(|| self.link_timeout(if fires { (0, 400_000) } else { (LONG_SEC, 0) }));
        if !fires {
            self.batch.has_long = true;
            self.batch.chain_waits = true;
            // In the middle of a chain it is certainly pending only when this batch is quiet.
            let ready = self.program.batches.len() + usize::from(!first);
            self.pending.push(Pending { user_data, guard, counted: false, ready });
        }
    }

    /// Adds pure timeouts that share one user data, each as a chain of its own.
    pub(super) fn timeouts_alike(&mut self) {
        let user_data = self.user_data();
        for _ in 0..self.rng.between(2, 4) {
            self.begin_chain();
            let time = self.time(LONG_SEC, 0);
            let mut op = self.timeout(time);
            op.user_data = user_data;
            op.nature.pending = true;
            self.add(op);
        }
        self.batch.has_long = true;
        let ready = self.program.batches.len();
        self.pending.push(Pending { user_data, guard: None, counted: false, ready });
    }

    /// Adds a guard after the last operation of the chain. Returns its user data.
    fn link_timeout(&mut self, (sec, nsec): (i64, i64)) -> u64 {
        let mut op = Op::new(op::LINK_TIMEOUT, self.user_data());
        op.addr = self.time(sec, nsec);
        op.len = 1;
        op.op_flags = self.clock_flags();
        let user_data = op.user_data;
        let before = self.batch.ops.len() - 1;
        let hard = self.batch.ops[before].nature.fails_softly || self.rng.percent(40);
        self.batch.ops[before].flags |= if hard { flag::HARDLINK } else { flag::LINK };
        self.add(op);
        user_data
    }

    /// Adds a guard that never fires, after an operation that ends by itself; sometimes a broken one.
    pub(super) fn idle_guard(&mut self) {
        self.link_timeout((LONG_SEC, 0));
        if self.rng.percent(15) {
            let at = self.batch.ops.len() - 1;
            let mut op = self.batch.ops[at];
            if self.rng.percent(30) {
                op.off = Word::Value(1);
                op.nature.rejected = true;
            } else {
                self.damage_timeout(&mut op);
            }
            self.batch.ops[at] = op;
        }
    }

    /// Adds a LINK_TIMEOUT that guards nothing.
    pub(super) fn stray_link_timeout(&mut self, first: bool) {
        let mut op = Op::new(op::LINK_TIMEOUT, self.user_data());
        op.addr = self.time(LONG_SEC, 0);
        op.len = 1;
        let twice = self.batch.ops.last().is_some_and(|op| op.opcode == op::LINK_TIMEOUT);
        op.nature.rejected = first || twice;
        self.add(op);
    }

    /// Adds timeouts that wait for CQEs, at the start of a batch.
    pub(super) fn counted_timeouts(&mut self) {
        for _ in 0..self.rng.between(1, 3) {
            self.begin_chain();
            let time = self.time(LONG_SEC, 0);
            let mut op = self.timeout(time);
            op.off = Word::Value(self.rng.between(1, 8) | *self.rng.pick(&[0, 0, 0, 1 << 32]));
            op.nature.pending = true;
            let ready = self.program.batches.len() + 1;
            self.pending.push(Pending { user_data: op.user_data, guard: None, counted: true, ready });
            let chained = self.rng.percent(30);
            self.batch.has_long = true;
            self.add(op);
            // A counted timeout that is reached and skips its CQE would make the kernel end all others: it takes back a
            // CQE that was never posted.
            if let Some(op) = self.batch.ops.last_mut() {
                op.flags &= !flag::SKIP;
            }
            if chained {
                let at = self.batch.ops.len() - 1;
                self.batch.ops[at].flags |= if self.rng.percent(50) { flag::LINK } else { flag::HARDLINK };
                let next = self.quiet();
                self.add(next);
            }
        }
    }

    /// Returns a pending timeout that no operation of this batch affects.
    fn target(&mut self) -> Option<usize> {
        if self.batch.drained || self.batch.chain_has_drain || self.counts() {
            return None;
        }
        let batch = self.program.batches.len();
        let found: Vec<usize> = (0..self.pending.len()).filter(|&i| self.pending[i].ready <= batch).collect();
        (!found.is_empty()).then(|| *self.rng.pick(&found))
    }

    pub(super) fn cancel(&mut self) {
        let mut op = Op::new(op::ASYNC_CANCEL, self.user_data());
        op.addr = Word::Value(1_000_000); // nobody
        op.op_flags = *self.rng.pick(&[0, 0, cancel::USERDATA, cancel::ALL, cancel::ALL | cancel::USERDATA]);
        if self.rng.percent(25) {
            self.damage_cancel(&mut op);
        } else if let Some(at) = self.target().filter(|_| self.rng.percent(80)) {
            let target = self.pending[at];
            self.pending[at].ready = self.program.batches.len() + 1;
            let guard = target.guard.filter(|_| self.rng.percent(30));
            op.addr = Word::Value(guard.unwrap_or(target.user_data));
        }
        self.add(op);
    }

    pub(super) fn timeout_remove(&mut self) {
        let mut op = Op::new(op::TIMEOUT_REMOVE, self.user_data());
        op.addr = Word::Value(1_000_000);
        let time = if self.rng.percent(50) { (LONG_SEC, 0) } else { (0, 300_000) };
        let update = *self.rng.pick(&[
            0,
            0,
            timeout::UPDATE,
            timeout::UPDATE,
            timeout::UPDATE | timeout::ABS,
            timeout::UPDATE | timeout::LINK_UPDATE,
        ]);
        op.op_flags = update;
        if update != 0 {
            op.off = self.time(time.0, time.1);
        }
        if self.rng.percent(25) {
            self.damage_remove(&mut op);
        } else if let Some(at) = self.target().filter(|_| self.rng.percent(85)) {
            let target = self.pending[at];
            self.pending[at].ready = self.program.batches.len() + 1;
            let guard = target.guard.filter(|_| update & timeout::LINK_UPDATE != 0 || self.rng.percent(20));
            op.addr = Word::Value(guard.unwrap_or(target.user_data));
            // An absolute time may be in the past.
            if update != 0 && update & timeout::ABS == 0 && time.0 == LONG_SEC && self.rng.percent(40) {
                return self.update_again(op);
            }
        }
        self.add(op);
    }

    /// Adds an update to a time that is never reached, and directly after it, in its chain, another update or a
    /// removal.
    fn update_again(&mut self, update: Op) {
        let target = update.addr;
        self.add(update);
        let at = self.batch.ops.len() - 1;
        self.batch.ops[at].flags |= if self.rng.percent(50) { flag::HARDLINK } else { flag::LINK };
        let mut again = Op::new(op::TIMEOUT_REMOVE, self.user_data());
        again.addr = target;
        if self.rng.percent(50) {
            again.op_flags = update.op_flags & !timeout::ABS;
            let nsec = if self.rng.percent(50) { 300_000 } else { 0 };
            again.off = self.time(if nsec == 0 { LONG_SEC } else { 0 }, nsec);
        }
        self.add(again);
    }

    /// Makes a batch of one cancel (and an operation chained to it) that may hit anything.
    pub(super) fn solo_batch(&mut self) {
        if self.rng.percent(40) {
            return self.cancel_everything();
        }
        self.begin_chain();
        let mut op = Op::new(op::ASYNC_CANCEL, self.user_data());
        let all = *self.rng.pick(&[0, cancel::ALL]);
        let known = self.pending.iter().map(|p| p.user_data).next_back();
        match self.rng.below(4) {
            0 => {
                op.op_flags = cancel::FD | all | *self.rng.pick(&[0, cancel::FD_FIXED]);
                op.fd = FdRef::Raw(*self.rng.pick(&[0, 1, 2, 3, -1, 9999]));
                if op.op_flags & cancel::FD_FIXED == 0 {
                    op.fd = *self.rng.pick(&[FdRef::Device, FdRef::Raw(-1), FdRef::Raw(9999)]);
                }
                if matches!(self.style, Style::Drains | Style::Both) {
                    // After a drain the kernel's cancel finds itself.
                    op.fd = FdRef::Raw(9999);
                }
            }
            1 => {
                op.op_flags = cancel::OP | cancel::ALL;
                op.len = u32::from(*self.rng.pick(&[op::TIMEOUT, op::READ, op::LINK_TIMEOUT, 255]));
            }
            2 => {
                op.op_flags = cancel::OP | cancel::USERDATA | all;
                op.len = u32::from(*self.rng.pick(&[op::TIMEOUT, op::READ]));
                op.addr = Word::Value(known.unwrap_or(5));
            }
            _ => op.addr = Word::Value(known.unwrap_or(5)),
        }
        if op.addr == Word::Value(op.user_data) && matches!(self.style, Style::Drains | Style::Both) {
            op.addr = Word::Value(1_000_000); // Or it would find itself, as above.
        }
        self.add(op);
        if self.rng.percent(40) {
            self.batch.ops[0].flags |= if self.rng.percent(60) { flag::LINK } else { flag::HARDLINK };
            let next = self.quiet();
            self.add(next);
        }
        self.end_batch();
    }

    /// Makes a batch that ends every timeout of the ring.
    pub(super) fn cancel_everything(&mut self) {
        self.begin_chain();
        let mut op = Op::new(op::ASYNC_CANCEL, self.user_data());
        op.op_flags = cancel::ANY | *self.rng.pick(&[0, cancel::ALL, cancel::USERDATA]);
        op.addr = Word::Value(self.rng.below(20));
        self.add(op);
        self.end_batch();
        // Operations that a hard-linked chain started after its timeout was cancelled end by themselves.
        self.pending.clear();
        self.maybe_pending = false;
    }
}
