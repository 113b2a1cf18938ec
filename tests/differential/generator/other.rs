//! NOP, FSYNC, FALLOCATE and MSG_RING.

use super::Generator;
use crate::abi::{falloc, op};
use crate::program::{BLOCK, DEVICE_BYTES, FdRef, Op, Word};

impl Generator {
    pub(super) fn nop(&mut self) {
        let mut op = Op::new(op::NOP, self.user_data());
        match self.rng.below(20) {
            0 => self.damage_any(&mut op),
            1 => {
                op.op_flags = 1; // give back `len`
                op.len = *self.rng.pick(&[0, 5, -5i32 as u32, -22i32 as u32]);
            }
            2 => {
                op.op_flags = *self.rng.pick(&[0x40, 0x80, 0x8000_0000]);
                op.nature.rejected = true;
            }
            3 => {
                op.ioprio = 1;
                op.nature.rejected = true;
            }
            4 => {
                // All of these are ignored.
                op.fd = FdRef::Raw(9999);
                op.off = Word::Value(3);
                op.addr = Word::Value(16);
                op.buf_index = 9;
                op.splice = 3;
                op.addr3 = 1;
            }
            _ => {}
        }
        self.add(op);
    }

    /// Returns an operation that touches no data and may therefore run at any time.
    pub(super) fn quiet(&mut self) -> Op {
        let opcode = *self.rng.pick(&[op::NOP, op::NOP, op::NOP, op::FSYNC, op::READ]);
        let mut op = Op::new(opcode, self.user_data());
        match opcode {
            op::FSYNC => op.fd = FdRef::Device,
            op::READ => op.fd = FdRef::Raw(-1), // a bad descriptor
            _ => {}
        }
        op
    }

    /// Returns an operation that completes within the submit, for rings whose CQ is to overflow in a known order.
    pub(super) fn instant(&mut self) -> Op {
        let mut op = Op::new(op::NOP, self.user_data());
        if self.rng.percent(25) {
            op.op_flags = 1;
            op.len = self.rng.below(1000) as u32;
        }
        op
    }

    pub(super) fn fsync(&mut self) {
        let mut op = Op::new(op::FSYNC, self.user_data());
        self.device_fd(&mut op);
        op.op_flags = *self.rng.pick(&[0, 1]);
        match self.rng.below(16) {
            0 => {
                op.off = Word::Value(*self.rng.pick(&[512, 1 << 40]));
                op.len = *self.rng.pick(&[0, 4096, u32::MAX]);
            }
            1 => {
                op.off = Word::Value(*self.rng.pick(&[-1i64 as u64, 1 << 63]));
                op.nature.rejected = true;
            }
            2 | 3 => {
                match self.rng.below(4) {
                    0 => op.addr = Word::Value(1),
                    1 => op.buf_index = 1,
                    2 => op.splice = 1,
                    _ => op.op_flags = *self.rng.pick(&[2, 3, 0x8000_0000]),
                }
                op.nature.rejected = true;
            }
            4 => self.damage_fd(&mut op),
            5 => self.damage_any(&mut op),
            6 => {
                op.ioprio = 0x4004;
                op.nature.rejected = true;
            }
            7 => op.addr3 = 9,
            _ => {}
        }
        self.add(op);
    }

    pub(super) fn fallocate(&mut self) {
        let mut op = Op::new(op::FALLOCATE, self.user_data());
        self.device_fd(&mut op);
        let punch = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
        let zero = falloc::ZERO_RANGE;
        op.len = *self.rng.pick(&[punch, punch, zero, zero | falloc::KEEP_SIZE]);
        let blocks = self.rng.between(1, 32);
        let mut off = self.rng.below(DEVICE_BYTES / BLOCK - blocks + 1) * BLOCK;
        let mut len = blocks * BLOCK;
        let at_end = self.limits.block_device && self.rng.percent(20);
        if at_end {
            (off, len) = match self.rng.below(5) {
                0 => (DEVICE_BYTES - BLOCK, 600),
                1 => (DEVICE_BYTES - 4096, 8192),
                2 => (DEVICE_BYTES + *self.rng.pick(&[0, 512, 100]), 4096),
                3 => (off + 100, len),
                _ => (off, len - 100),
            };
        }
        if !self.claim(off, (off + len).min(DEVICE_BYTES).max(off), true) {
            return self.nop();
        }
        op.off = Word::Value(off);
        op.addr = Word::Value(len);
        op.nature.fails_softly = at_end;
        if self.rng.percent(25) {
            self.damage_fallocate(&mut op);
        }
        self.add(op);
    }

    fn damage_fallocate(&mut self, op: &mut Op) {
        match self.rng.below(6) {
            0 => self.damage_any(op),
            1 => self.damage_fd(op),
            2 if self.limits.block_device => {
                op.len = *self.rng.pick(&[0, 1, 2, 8, 0x20, 0x21, 0x40, 4, 7, 0x12, 0x13, 0x100, 1 << 31]);
                op.nature.fails_softly = true;
            }
            3 => {
                op.addr = Word::Value(*self.rng.pick(&[0, -1i64 as u64, 1 << 63]));
                op.nature.fails_softly = true;
            }
            4 => {
                op.off = Word::Value(*self.rng.pick(&[-1i64 as u64, -512i64 as u64, (1 << 63) - 512]));
                op.nature.fails_softly = true;
            }
            _ => {
                match self.rng.below(4) {
                    0 => op.buf_index = 1,
                    1 => op.splice = 1,
                    2 => op.op_flags = 1,
                    _ => op.ioprio = 1,
                }
                op.nature.rejected = true;
            }
        }
    }

    pub(super) fn message(&mut self) {
        let mut op = Op::new(op::MSG_RING, self.user_data());
        op.fd = FdRef::Ring;
        op.off = Word::Value(self.user_data());
        op.len = *self.rng.pick(&[0, 1, 77, -5i32 as u32, u32::MAX]);
        match self.rng.below(14) {
            0 => op.fd = FdRef::Device, // not a ring
            1 => self.damage_fd(&mut op),
            2 => self.damage_any(&mut op),
            3 => {
                op.op_flags = 2; // pass flags on
                op.splice = *self.rng.pick(&[0, 3, 0x55]);
            }
            4 => op.splice = 5,
            5 => op.op_flags = 1,
            6 => op.addr = Word::Value(*self.rng.pick(&[2, 3, 1 << 40])), // no such command
            7 => op.addr3 = 5,
            8 | 9 => {
                match self.rng.below(3) {
                    0 => op.buf_index = 1,
                    1 => op.ioprio = 1,
                    _ => op.op_flags = *self.rng.pick(&[4, 8, 0x8000_0000]),
                }
                op.nature.rejected = true;
            }
            _ => {}
        }
        self.add(op);
    }
}
