//! The ring on which a worker issues the operations that rings give it (`IOSQE_ASYNC`).
//!
//! A ring belongs to its thread, so a worker cannot issue on the ring that a request came from. It has its own ring,
//! with its own kernel ring, bios and tags; the devices count its I/O as that of any ring. Work that blocks there
//! (mappings, completion work, syncs) also runs on the worker's thread: the pool of its ring has no threads and runs in
//! steps. Only the result crosses to the ring that the request came from.
//!
//! Owns the worker's ring, and the list of files open in it. Does not own requests or their memory: the ring that a
//! request came from keeps both, and its file, until the result is there.
//!
//! Invariants:
//! - I1: a file is detached here before the last operation on it is reported to have ended. A worker is therefore never
//!   the last to hold a file, and no foreign code runs here because a ring or a file is dropped.
//! - I2: devices stay attached from one operation to the next of the same client, because attaching costs system calls;
//!   [`Issuer::rest`] detaches them.
//! - I3: a device whose driver panics while it opens a queue here cannot be attached; the panic has no other effect.
//!
//! Made by the pool's workers for rings that are built with [`make`].
#![allow(unsafe_code)] // Entries with addresses, and files, which are promised to the ring that they come from.

use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_blk::ctx::{IoCtx, IoCtxOptions};
use sheave_iomap::{File, RawFile};

use crate::core::Core;
use crate::error::RingError;
use crate::held_file::HeldFile;
use crate::io_wq::{IoWq, Issuer, Operation, RingWq};
use crate::queues::Queues;
use crate::ring::Ring;
use crate::ring::inner::Inner;
use crate::rsrc::Fd;
use crate::sqe::Sqe;
use crate::task_work::{RingHandle, TaskWork};

/// Entries of the ring: a worker takes at most this many short items at once.
const ENTRIES: u32 = 64;
/// Number of devices that stay attached.
const WARM: usize = 16;
/// Number of attached files after which the ring is replaced, because the generations of its file table are finite.
const MOST_ATTACHED: u32 = 1 << 16;
/// Polling time of a wait before it sleeps. Short operations end within it.
const SPIN: Duration = Duration::from_micros(5);
/// Longest sleep of a worker: some devices report completions only when they are polled.
const LOOK: Duration = Duration::from_millis(10);

/// A file with operations in flight.
#[derive(Debug)]
struct InUse {
    file: Arc<dyn File>,
    fd: Fd,
    /// True if `fd` is the descriptor of the device itself. It stays attached when the last operation on the file has
    /// ended (I2).
    is_warm: bool,
    pending: u32,
}

#[derive(Debug)]
pub(crate) struct WorkerRing {
    ring: Ring,
    files: Vec<Option<InUse>>,
    warm: Vec<(Device, Fd)>,
    attached: u32,
    /// Scratch list of ended operations, while they are handed over.
    ended: Vec<(u64, i32)>,
}

/// Makes a ring for a worker's thread; `None` if the process has no memory or no descriptor left for one.
pub(crate) fn make() -> Option<Box<dyn Issuer>> {
    let ring = new_ring().ok()?;
    let (files, ended) = (Vec::with_capacity(ENTRIES as usize), Vec::with_capacity(ENTRIES as usize));
    Some(Box::new(WorkerRing { ring, files, warm: Vec::new(), attached: 0, ended }))
}

/// Makes a small ring whose work runs on this thread. Its pool gets no rings for workers: no SQE here has
/// `IOSQE_ASYNC`.
fn new_ring() -> Result<Ring, RingError> {
    let clock = Clock::real();
    let spin_cycles = clock.ns_to_cycles(SPIN.as_nanos() as u64);
    let mut io = IoCtx::new(IoCtxOptions { bios: ENTRIES, kring_entries: ENTRIES, iopoll: false, stats: true, clock })?;
    io.kring_slot().set_may_block();
    let task_work = TaskWork::new(ENTRIES, ENTRIES, io.unparker());
    let pool = IoWq::builder().stepped(true).build()?;
    let wq = RingWq::new(pool, task_work.done_queue(), ENTRIES, || None);
    let core = Core::new(Queues::new(ENTRIES, ENTRIES)?, ENTRIES, false, wq, None);
    Ok(Ring::new(Inner { core, task_work, io, spin_cycles, near: SPIN }))
}

impl WorkerRing {
    /// Does [`open`](Self::open), and returns `None` if the driver panics while it opens a queue. Operations of other
    /// rings may be in flight here, and must survive that.
    #[cfg(not(shuttle))]
    fn try_open(&mut self, file: HeldFile) -> Option<usize> {
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.open(file)));
        opened.map_err(sheave_base::panics::discard).ok().flatten()
    }

    /// Lets panics pass: the model checker reports by panics.
    #[cfg(shuttle)]
    fn try_open(&mut self, file: HeldFile) -> Option<usize> {
        self.open(file)
    }

    /// Returns the place of a file in `files`; `None` if it cannot be attached.
    fn open(&mut self, file: HeldFile) -> Option<usize> {
        let is_this = |open: &Option<InUse>| open.as_ref().is_some_and(|open| file.is(&open.file));
        if let Some(at) = self.files.iter().position(is_this) {
            return Some(at);
        }
        // SAFETY: the item of this file has begun and not ended: its operation is about to be issued (F1).
        let file = unsafe { file.to_arc() };
        if self.attached >= MOST_ATTACHED && self.files.iter().all(Option::is_none) {
            self.warm.clear();
            self.ring = new_ring().ok()?;
            self.attached = 0;
        }
        let warm = self.keep_warm(file.device())?;
        // A file that is its device in all respects needs no descriptor of its own.
        let is_warm = is_raw(&*file);
        let fd = if is_warm {
            warm
        } else {
            self.attached += 1;
            self.ring.attach_file(Arc::clone(&file)).ok()?
        };
        self.files.push(Some(InUse { file, fd, is_warm, pending: 0 }));
        Some(self.files.len() - 1)
    }

    /// Returns the `Fd` of the device itself, which is attached first unless it still is (I2).
    fn keep_warm(&mut self, device: &Device) -> Option<Fd> {
        if let Some((_, fd)) = self.warm.iter().find(|(warm, _)| warm.same(device)) {
            return Some(*fd);
        }
        if self.warm.len() >= WARM {
            let is_used = |fd: Fd| self.files.iter().flatten().any(|open| open.is_warm && open.fd == fd);
            if let Some(at) = self.warm.iter().position(|(_, fd)| !is_used(*fd)) {
                let (_, fd) = self.warm.remove(at);
                self.ring.detach(fd).ok()?;
            }
        }
        let fd = self.ring.attach(device).ok()?;
        self.attached += 1;
        self.warm.push((device.clone(), fd));
        Some(fd)
    }

    /// Ends an operation on a file, and detaches the file after the last (I1).
    fn close(&mut self, at: usize) {
        let Some(Some(open)) = self.files.get_mut(at) else { return };
        open.pending -= 1;
        if open.pending == 0 {
            let detached = if open.is_warm { Ok(()) } else { self.ring.detach(open.fd) };
            debug_assert!(detached.is_ok(), "attached by `open`");
            self.files[at] = None;
        }
        if self.files.iter().all(Option::is_none) {
            self.files.clear();
        }
    }
}

/// Returns true if a file behaves as [`RawFile`] does on its device.
fn is_raw(file: &dyn File) -> bool {
    let raw = RawFile::new(file.device().clone());
    file.is_identity() && file.is_read_only() == raw.is_read_only() && file.block_bytes() == raw.block_bytes()
}

impl Issuer for WorkerRing {
    fn push(&mut self, file: HeldFile, op: &Operation, at: usize) -> bool {
        let Some(place) = self.try_open(file) else { return false };
        let Some(Some(open)) = self.files.get_mut(place) else { return false };
        let user_data = (place as u64) << 32 | at as u64;
        let &Operation { opcode, len, op_flags, off, addr } = op;
        let sqe = Sqe { opcode, fd: open.fd.raw(), off, addr, len, op_flags, user_data, ..Sqe::default() };
        // SAFETY: the memory is that of a request whose ring keeps it, and its promise, until the result is there.
        let pushed = unsafe { self.ring.queue_sqe(&sqe) };
        debug_assert!(pushed, "no more at a time than entries");
        // Counted first, so that `close` detaches a file whose only operation was not pushed.
        open.pending += 1;
        if !pushed {
            self.close(place);
        }
        pushed
    }

    fn submit(&mut self) {
        // Cannot fail: each entry has a slot, and room in the CQ.
        let submitted = self.ring.submit();
        debug_assert!(submitted.is_ok(), "a slot for each entry");
    }

    fn reap(&mut self, end: &mut dyn FnMut(usize, i32)) {
        let mut ended = std::mem::take(&mut self.ended);
        self.ring.take_cqes(|cqe| ended.push((cqe.user_data, cqe.res)));
        for (user_data, res) in ended.drain(..) {
            self.close((user_data >> 32) as usize);
            end(user_data as u32 as usize, res);
        }
        self.ended = ended;
    }

    fn wait(&mut self) {
        // The result is not needed: the caller looks for completions.
        let _ = self.ring.wait(1, Some(LOOK));
    }

    fn waker(&self) -> RingHandle {
        self.ring.handle()
    }

    fn rest(&mut self) {
        for (_, fd) in self.warm.drain(..) {
            let detached = self.ring.detach(fd);
            debug_assert!(detached.is_ok(), "attached by `keep_warm`");
        }
    }
}
