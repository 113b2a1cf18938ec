//! `IOSQE_ASYNC`: gives a whole operation to a worker, and not only the part of it that blocks.
//!
//! Owns the choice of operations and their description for the worker. A worker issues on a ring of its own
//! ([`worker_ring`](crate::worker_ring)), which makes all checks of issue. Everything that only this ring has (its file
//! table, registered buffers, the position of a file) is looked up here.
//!
//! Invariants:
//! - I1: until its result is there, the slot is `Queued` at [`Step::Runs`], holds its file, its buffers and its memory,
//!   and has no bio in this ring.
//! - I2: operations on the ring itself (timeouts, cancels, messages) begin on its thread: they never block, and a
//!   timeout runs from its submission, as in the kernel.
//! - I4: writes of one device whose data goes into the host's page cache run in the order of their submission, one at a
//!   time: such a file has one lock for its writers, and a second worker would only wait for it.
//! - I3: an operation that a worker has begun keeps its own result, even if it was cancelled meanwhile.
//! - I5: a device may report lost writes to each ring, as a failure of that ring's next flush. A ring sends the flushes
//!   of such a device itself: one sent by a worker's ring would report to that ring.
//! - I6: a read or write on an [asynchronous](sheave_blk::driver::Capabilities::asynchronous) device is issued by its
//!   own ring. A worker could only begin it, which never blocks (D5 of the driver's seam) and costs less than the
//!   hand-over; and a worker that waited for the device would limit the queue depth to the number of workers. Bio, tag
//!   and completion are the ring's own, so cancels, chains and drains find it as any other I/O. A worker still does the
//!   parts that block or compute: a mapping that the file has to read, the checksum of its memory, completion work, a
//!   sync.

use sheave_base::sync::Arc;
use sheave_iomap::dio::{MAX_RW_COUNT, OpenFile};
use sheave_iomap::kiocb::IOCB_USE_POS;

use crate::core::Core;
use crate::held_file::HeldFile;
use crate::io_wq::{Kind, Operation, Work};
use crate::op::file_of;
use crate::op::rw::is_write;
use crate::req::{REQ_LINKED, REQ_SLOW_END, Step};
use crate::ring::inner::Inner;
use crate::sqe::{IOSQE_ASYNC, IOSQE_BUFFER_SELECT, IOSQE_FIXED_FILE, RWF_HIPRI, opcode};
use crate::work_done::WorkDone;

/// Longest read or write that counts as short. A worker takes up to 64 of them at once, so others wait for at most a
/// mebibyte of copies.
const SHORT_BYTES: u32 = 16 << 10;

impl Inner {
    /// Queues a request with `IOSQE_ASYNC` for a worker. Returns false if it is to be issued here. FSYNC and FALLOCATE
    /// on a file that is more than its device are issued here, because their issue uses a worker itself.
    pub(crate) fn offload(&mut self, slot: u32) -> bool {
        let (opcode, res) = (self.core.reqs[slot].opcode, self.core.reqs[slot].res);
        let (work, kind) = match opcode {
            opcode::NOP if res == 0 => (Work::Nothing, Kind::Short),
            // A result that `can_tell` refuses collides with a word of another meaning: that NOP ends on this ring.
            opcode::NOP if WorkDone::can_tell(res) => (Work::Known(res), Kind::Short),
            opcode::FSYNC | opcode::FALLOCATE if self.is_on_device(slot) => {
                if opcode == opcode::FSYNC && self.hears_of_losses(slot) {
                    return false; // I5
                }
                let op = self.whole_op(slot);
                let Some(work) = self.run_of(slot, op) else { return false };
                (work, Kind::Bound)
            }
            op if opcode::is_rw(op) => {
                if self.is_begun_here(slot) {
                    return false; // I6
                }
                let Some(op) = self.rw_op(slot) else { return false };
                let short = self.core.reqs[slot].len <= SHORT_BYTES;
                let kind = match self.is_on_device(slot) {
                    true if let Some(hash) = self.order_of(slot) => Kind::Ordered(hash),
                    true if short => Kind::Short,
                    true => Kind::Bound,
                    // Unbound, because its mapping may block for long.
                    false => Kind::Unbound,
                };
                let Some(work) = self.run_of(slot, op) else { return false };
                (work, kind)
            }
            _ => return false,
        };
        // A request outside of a chain whose result is one CQE may be waited for by number (I6 of `task_work`).
        let req = &self.core.reqs[slot];
        let alone = req.flags & !(IOSQE_ASYNC | IOSQE_FIXED_FILE) == 0 && req.rflags & REQ_LINKED == 0;
        if !self.core.wq.offload(slot, work, kind, alone) {
            return false;
        }
        self.core.enqueue(slot);
        self.core.enter_worker(slot);
        self.core.reqs[slot].step = Step::Runs;
        true
    }

    /// Returns true if the file of a request is its device. The request holds the file from now on.
    fn is_on_device(&mut self, slot: u32) -> bool {
        let Ok(file) = file_of(self, slot) else { return false };
        self.core.files.get(file).is_some_and(OpenFile::is_identity)
    }

    /// Returns true if a worker would only begin the request and wait for its device (I6).
    fn is_begun_here(&mut self, slot: u32) -> bool {
        let Ok(file) = file_of(self, slot) else { return true };
        self.core.files.get(file).is_some_and(OpenFile::is_asynchronous)
    }

    /// Returns true if a flush by this ring reports what its device may have lost (I5).
    fn hears_of_losses(&self, slot: u32) -> bool {
        let file = self.core.files.get(self.core.reqs[slot].file as usize);
        file.is_some_and(|file| file.file.device().capabilities().flush_per_ring)
    }

    /// Returns the hash of a write into a page cache (I4); `None` for everything else.
    fn order_of(&self, slot: u32) -> Option<u32> {
        let req = &self.core.reqs[slot];
        let device = self.core.files.get(req.file as usize).filter(|_| is_write(req.opcode))?.file.device();
        let capabilities = device.capabilities();
        if capabilities.direct_io || !capabilities.volatile_cache {
            return None;
        }
        // All partitions of a device are one file of the host, with one lock.
        let queue = device.legs().first().map_or(0, |leg| Arc::as_ptr(&leg.queue).addr() as u64);
        Some((queue >> 6 ^ queue >> 38) as u32)
    }

    fn run_of(&self, slot: u32, op: Operation) -> Option<Work> {
        let file = self.core.files.get(self.core.reqs[slot].file as usize)?;
        Some(Work::Run(HeldFile::new(&file.file), op))
    }

    /// Describes a request that uses no memory and nothing else of this ring.
    fn whole_op(&self, slot: u32) -> Operation {
        let req = &self.core.reqs[slot];
        Operation { opcode: req.opcode, len: req.len, op_flags: req.op_flags, off: req.off, addr: req.addr }
    }

    /// Describes a read or write. `None` if its issue here must find the error.
    fn rw_op(&mut self, slot: u32) -> Option<Operation> {
        let file = file_of(self, slot).ok()?;
        let Core { files, reqs, bufs, cold, polled, .. } = &mut self.core;
        let req = &mut reqs[slot];
        if req.flags & IOSQE_BUFFER_SELECT != 0 || (req.op_flags & RWF_HIPRI != 0 && !*polled) {
            return None;
        }
        let (mut op, mut addr, mut len) = (req.opcode, req.addr, req.len);
        match op {
            opcode::READ_FIXED | opcode::WRITE_FIXED => {
                // The request keeps the memory, also if the registered buffer is replaced.
                if !bufs.covers(req.buf_index, addr, u64::from(len.min(MAX_RW_COUNT))) {
                    return None;
                }
                op = if op == opcode::READ_FIXED { opcode::READ } else { opcode::WRITE };
            }
            opcode::READV | opcode::WRITEV => {
                // The vectors were read and checked, and do not change while the slot is in use.
                let vecs = &cold[slot as usize].vecs;
                (addr, len) = (vecs.as_ptr() as u64, vecs.len() as u32);
            }
            _ => {}
        }
        let mut off = req.off;
        if off == u64::MAX {
            off = files.pos(file);
            req.kiocb.flags |= IOCB_USE_POS;
            req.rflags |= REQ_SLOW_END;
        }
        Some(Operation { opcode: op, len, op_flags: req.op_flags & !RWF_HIPRI, off, addr })
    }
}
