//! Breaks fields of an operation, and records whether the SQE is then refused before it is queued.

use super::Generator;
use crate::abi::{cancel, flag, timeout};
use crate::program::{FdRef, Op, Word};

impl Generator {
    /// Makes an error that is one for any operation: unknown opcode or flags, buffer selection, a personality.
    pub(super) fn damage_any(&mut self, op: &mut Op) {
        match self.rng.below(4) {
            0 => op.opcode = self.rng.between(200, 255) as u8,
            1 => op.flags |= flag::UNKNOWN,
            2 => op.personality = *self.rng.pick(&[1, u16::MAX]),
            _ => {
                op.flags |= flag::BUFFER_SELECT;
                // Reads support buffer selection; they fail later, as there is no such group.
                if matches!(op.opcode, crate::abi::op::READ | crate::abi::op::READV) {
                    return;
                }
            }
        }
        op.nature.rejected = true;
    }

    pub(super) fn damage_fd(&mut self, op: &mut Op) {
        if self.rng.percent(50) {
            op.flags &= !flag::FIXED_FILE;
            op.fd = FdRef::Raw(*self.rng.pick(&[-1, 9999, i32::MAX, i32::MIN]));
        } else {
            op.flags |= flag::FIXED_FILE;
            op.fd = FdRef::Raw(*self.rng.pick(&[1, 3, 1000, -1, i32::MIN]));
        }
    }

    /// Breaks a TIMEOUT or LINK_TIMEOUT. All of these are refused at once.
    pub(super) fn damage_timeout(&mut self, op: &mut Op) {
        match self.rng.below(12) {
            0 => op.len = *self.rng.pick(&[0, 2, u32::MAX]),
            1 => op.buf_index = 1,
            2 => op.splice = 1,
            3 => op.op_flags |= timeout::UPDATE,
            4 => op.op_flags |= timeout::LINK_UPDATE,
            5 => op.op_flags |= timeout::BOOTTIME | timeout::REALTIME,
            6 => op.op_flags |= *self.rng.pick(&[0x100, 0x8000_0000]),
            7 => op.addr = Word::Value(*self.rng.pick(&[0, 16, 1 << 63])),
            8 => op.addr = self.time(-1, 0),
            9 => op.addr = self.time(0, -1),
            10 => op.ioprio = 1,
            _ => return self.damage_any(op),
        }
        op.nature.rejected = true;
    }

    pub(super) fn damage_remove(&mut self, op: &mut Op) {
        match self.rng.below(10) {
            0 => op.flags |= flag::FIXED_FILE,
            1 => op.buf_index = 1,
            2 => op.len = 1,
            3 => op.splice = 1,
            4 => op.op_flags = *self.rng.pick(&[timeout::ABS, timeout::BOOTTIME, 0x40, 0x100, 0x8000_0000]),
            5 => {
                let odd = *self.rng.pick(&[timeout::BOOTTIME, timeout::REALTIME, 0x20, 0x40, 0x100]);
                op.op_flags = timeout::UPDATE | odd;
                op.off = self.time(1, 0);
            }
            6 => {
                op.op_flags = timeout::UPDATE;
                op.off = Word::Value(*self.rng.pick(&[0, 16, 1 << 63]));
            }
            7 => {
                op.op_flags = timeout::UPDATE;
                op.off = self.time(-1, 0);
            }
            8 => op.ioprio = 1,
            _ => return self.damage_any(op),
        }
        op.nature.rejected = true;
    }

    pub(super) fn damage_cancel(&mut self, op: &mut Op) {
        match self.rng.below(8) {
            0 => op.off = Word::Value(1),
            1 => op.splice = 1,
            2 => op.op_flags = *self.rng.pick(&[0x40, 0x80, 0x100, 0x8000_0000]),
            3 => op.op_flags = cancel::FD | cancel::ANY,
            4 => op.op_flags = cancel::OP | cancel::ANY,
            5 => op.ioprio = 1,
            6 => {
                op.op_flags = cancel::FD;
                op.fd = FdRef::Raw(-1);
                return; // looked up when it runs
            }
            _ => return self.damage_any(op),
        }
        op.nature.rejected = true;
    }
}
