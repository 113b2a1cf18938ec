//! Reads and writes: plain, vectored and with registered buffers; inside the device and around its end.

use super::Generator;
use crate::abi::{flag, op};
use crate::program::{BLOCK, DEVICE_BYTES, FdRef, Op, Word};

/// The kernel's limit on the number of pieces of one vector.
const MAX_PIECES: u64 = 1024;

/// End of a process's memory: a guard page below the hole on x86-64; elsewhere the highest possible address.
const USER_END: u64 = if cfg!(target_arch = "x86_64") { (1 << 47) - 4096 } else { 1 << 48 };

/// The range of an operation on the device.
#[derive(Clone, Copy)]
struct Extent {
    off: u64,
    len: u64,
}

/// `ioprio` of the realtime class, for which the kernel requires a capability. Sheave has no classes that need one.
const REALTIME: u16 = 0x2000;

impl Generator {
    pub(super) fn read_or_write(&mut self) {
        let kinds = [op::READ, op::READ, op::WRITE, op::WRITE, op::READV, op::WRITEV, op::READ_FIXED, op::WRITE_FIXED];
        let opcode = *self.rng.pick(&kinds);
        let writes = matches!(opcode, op::WRITE | op::WRITEV | op::WRITE_FIXED);
        let at_position = !self.moved && self.rng.percent(3);
        let extent = if at_position { self.at_position(writes) } else { self.extent(writes, opcode) };
        let Some(extent) = extent else { return self.nop() };
        let mut op = Op::new(opcode, self.user_data());
        op.off = Word::Value(extent.off);
        self.device_fd(&mut op);
        let placed = match opcode {
            op::READ | op::WRITE => self.plain_memory(&mut op, extent.len),
            op::READV | op::WRITEV => self.vector_memory(&mut op, extent.len),
            _ => self.fixed_memory(&mut op, extent.len),
        };
        if !placed {
            return self.nop();
        }
        if at_position {
            op.off = Word::Value(u64::MAX);
        } else if self.rng.percent(4) && self.limits.block_device {
            self.longest_rw(&mut op, extent);
        } else if self.rng.percent(22) {
            self.damage_rw(&mut op, extent.len);
            if self.rng.percent(20) {
                self.damage_rw(&mut op, extent.len);
            }
        } else {
            self.harmless_rw(&mut op);
        }
        self.add(op);
    }

    /// Sets the device's descriptor, or its index in the registered table.
    pub(super) fn device_fd(&mut self, op: &mut Op) {
        op.fd = FdRef::Device;
        if self.rng.percent(30) {
            op.fd = FdRef::Raw(*self.rng.pick(&[0, 2]));
            op.flags |= flag::FIXED_FILE;
        }
    }

    /// Returns a range that is free in this batch. Sometimes its length is 0, or it lies at, across or beyond the end.
    fn extent(&mut self, writes: bool, opcode: u8) -> Option<Extent> {
        for _ in 0..8 {
            let extent = self.candidate(opcode);
            let end = (extent.off + extent.len).min(DEVICE_BYTES);
            if extent.off >= end || self.claim(extent.off, end, writes) {
                return Some(extent);
            }
        }
        None
    }

    /// Returns a range at the file's position, which is 0 the first time only: with O_DIRECT the kernel leaves it
    /// there, and Sheave does not.
    fn at_position(&mut self, writes: bool) -> Option<Extent> {
        let len = self.rng.between(1, 16) * BLOCK;
        self.moved = self.claim(0, len, writes);
        self.moved.then_some(Extent { off: 0, len })
    }

    /// Makes an operation with a length around the limit, or above: the end of the device cuts it short. Only if there
    /// is memory for the rest of the device.
    fn longest_rw(&mut self, op: &mut Op, extent: Extent) {
        let len = *self.rng.pick(&[0x7fff_f000, 0x7fff_f001, 0x7fff_f200, 0x7fff_ffff, 0x8000_0000, u32::MAX]);
        let left = DEVICE_BYTES.saturating_sub(extent.off);
        let writes = matches!(op.opcode, op::WRITE | op::WRITEV);
        if !matches!(op.opcode, op::READ | op::WRITE) || !extent.off.is_multiple_of(BLOCK) || left == 0 {
            return;
        }
        let Some(start) = self.arena(left) else { return };
        if self.claim(extent.off, DEVICE_BYTES, writes) {
            (op.addr, op.len) = (Word::Arena(start), len);
        }
    }

    fn candidate(&mut self, opcode: u8) -> Extent {
        let fixed = matches!(opcode, op::READ_FIXED | op::WRITE_FIXED);
        let most = if fixed { 16 } else { 128 };
        let blocks = if self.rng.percent(80) { self.rng.between(1, 16) } else { self.rng.between(1, most) };
        let len = blocks * BLOCK;
        let end = DEVICE_BYTES;
        match self.rng.below(100) {
            0..4 => Extent { off: self.rng.below(end / BLOCK) * BLOCK, len: 0 },
            4..8 if self.limits.block_device => Extent { off: end, len },
            8..11 if self.limits.block_device => {
                Extent { off: end + *self.rng.pick(&[BLOCK, 100, 1 << 20, 1 << 40]), len }
            }
            11..19 if self.limits.block_device => {
                let inside = self.rng.between(1, blocks) * BLOCK;
                Extent { off: end - inside, len: len + *self.rng.pick(&[0, BLOCK, 4096, 65536]) }
            }
            19..20 if self.limits.block_device && !fixed => {
                Extent { off: *self.rng.pick(&[0, BLOCK, end / 2]), len: 2 * end }
            }
            _ => Extent { off: self.rng.below((end - len) / BLOCK + 1) * BLOCK, len },
        }
    }

    fn plain_memory(&mut self, op: &mut Op, len: u64) -> bool {
        let Some(start) = self.arena(len) else { return false };
        op.addr = Word::Arena(start);
        op.len = len as u32;
        true
    }

    fn fixed_memory(&mut self, op: &mut Op, len: u64) -> bool {
        let slot = self.rng.below(2) as usize;
        let Some(word) = self.fixed(slot, len) else { return false };
        op.addr = word;
        op.len = len as u32;
        op.buf_index = slot as u16;
        true
    }

    /// Cuts `len` into pieces of whole blocks with gaps between them, in any order, sometimes with empty ones. Returns
    /// false if there is no memory for them.
    fn vector_memory(&mut self, op: &mut Op, len: u64) -> bool {
        let blocks = len / BLOCK;
        let wanted = if self.rng.percent(95) { self.rng.between(1, 8) } else { self.rng.between(9, MAX_PIECES) };
        let count = wanted.min(blocks);
        let Some(mut at) = self.arena(len + count * BLOCK) else { return false };
        let mut pieces = Vec::new();
        let mut left = blocks;
        for n in 0..count {
            let take = if n + 1 == count { left } else { self.rng.between(1, left - (count - n - 1)) };
            pieces.push((Word::Arena(at), take * BLOCK));
            at += (take + self.rng.below(2)) * BLOCK;
            left -= take;
        }
        if self.rng.percent(30) {
            pieces.reverse();
        }
        if self.rng.percent(15) && (pieces.len() as u64) < MAX_PIECES {
            let at = self.rng.below(pieces.len() as u64 + 1) as usize;
            pieces.insert(at, (Word::Value(0), 0));
        }
        op.len = pieces.len() as u32;
        op.addr = self.vector(pieces);
        true
    }

    /// Sets fields that are ignored or allowed: the result must equal the result of the plain operation.
    fn harmless_rw(&mut self, op: &mut Op) {
        match self.rng.below(40) {
            0 => {
                let class = *self.rng.pick(&[REALTIME, 0x4004, 0x4008, 0x6000]);
                op.ioprio = if class == REALTIME && !self.limits.realtime { 0x4004 } else { class };
            }
            1 => op.op_flags = *self.rng.pick(&[2, 4, 6]), // DSYNC, SYNC
            2 if !matches!(op.opcode, op::READ_FIXED | op::WRITE_FIXED) => op.buf_index = 7,
            3 => op.addr3 = 5,
            4 => op.splice = if op.opcode == op::READ { 1 } else { 0x100 },
            _ => {}
        }
    }

    /// Breaks one field. `len` is the intended length in bytes.
    fn damage_rw(&mut self, op: &mut Op, len: u64) {
        let vectored = matches!(op.opcode, op::READV | op::WRITEV);
        let fixed = matches!(op.opcode, op::READ_FIXED | op::WRITE_FIXED);
        match self.rng.below(12) {
            0 | 1 => self.damage_any(op),
            2 => {
                op.ioprio = *self.rng.pick(&[1, 7, 0x8000, 0xffff]);
                op.nature.rejected = true;
            }
            3 => {
                op.pad = *self.rng.pick(&[2, 4, 1 << 63]); // attr_type_mask with an unknown kind
                op.nature.rejected = true;
            }
            4 | 5 => self.damage_fd(op),
            6 => op.op_flags = *self.rng.pick(&[1, 0x40, 0x200, 0x8000_0000, 1 | 0x8000_0000]),
            7 => op.off = Word::Value(*self.rng.pick(&[-2i64 as u64, 1 << 63, -4096i64 as u64])),
            8 => {
                if let Word::Value(off) = op.off
                    && off < 1 << 62
                {
                    op.off = Word::Value(off + self.rng.between(1, BLOCK - 1));
                }
            }
            9 if vectored => self.damage_vector(op),
            9 | 10 if fixed => self.damage_fixed(op, len),
            10 if vectored => {
                op.len = *self.rng.pick(&[1025, 2000, 0x7fff_ffff, u32::MAX]);
                op.nature.rejected = true;
            }
            9 => op.len = op.len.saturating_add(self.rng.between(1, BLOCK - 1) as u32),
            10 => self.damage_address(op),
            _ => op.flags |= flag::BUFFER_SELECT,
        }
        if op.flags & flag::BUFFER_SELECT != 0 {
            let read = matches!(op.opcode, op::READ | op::READV);
            op.nature.rejected |= !read || (vectored && op.len != 1);
        }
    }

    fn damage_address(&mut self, op: &mut Op) {
        match self.rng.below(2) {
            0 => op.addr = Word::Value(*self.rng.pick(&[0, 16])),
            _ => {
                op.addr = Word::Value(*self.rng.pick(&[1 << 63, u64::MAX - 511, USER_END]));
                op.nature.rejected = true;
            }
        }
    }

    fn damage_fixed(&mut self, op: &mut Op, len: u64) {
        let Word::Fixed(slot, start) = op.addr else { return };
        let size = crate::program::FIXED_BYTES[slot] as i64;
        match self.rng.below(6) {
            0 => op.buf_index = *self.rng.pick(&[2, 3, 100, u16::MAX]),
            1 => op.addr = Word::Fixed(slot, -(BLOCK as i64)),
            2 => op.addr = Word::Fixed(slot, size - len as i64 + 1 + (start & 1)),
            3 => op.addr = Word::Fixed(slot, size + 1),
            4 => op.addr = Word::Value(*self.rng.pick(&[0, 16, u64::MAX - 100])),
            _ => op.len = *self.rng.pick(&[size as u32 + 512, 0x7fff_ffff, 0x8000_0000, u32::MAX]),
        }
    }

    fn damage_vector(&mut self, op: &mut Op) {
        let Word::Vector(n) = op.addr else { return };
        match self.rng.below(6) {
            0 if op.len > 0 => {
                op.addr = Word::Value(*self.rng.pick(&[0, 16, 1 << 63]));
                op.nature.rejected = true;
            }
            1 => self.change_piece(op, n, |piece| piece.1 |= 1 << 63),
            2 => self.change_piece(op, n, |piece| piece.0 = Word::Value(1 << 63)),
            3 => {
                // The sum is not whole blocks: refused, unless the end of the device cuts it.
                if let Some(piece) = self.program.vectors[n].last_mut()
                    && piece.1 > 0
                {
                    piece.1 -= 100;
                }
            }
            4 => op.len = 0,
            _ => {
                if let Some(piece) = self.program.vectors[n].first_mut()
                    && piece.1 > 0
                {
                    piece.0 = Word::Value(16);
                }
            }
        }
    }

    /// Changes the first piece such that copying the vector in fails.
    fn change_piece(&mut self, op: &mut Op, n: usize, change: impl Fn(&mut (Word, u64))) {
        if let Some(piece) = self.program.vectors[n].first_mut()
            && op.len > 0
        {
            change(piece);
            op.nature.rejected = true;
        }
    }
}
