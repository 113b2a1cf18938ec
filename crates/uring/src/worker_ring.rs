//! The ring on which a worker issues the operations that rings give it (`IOSQE_ASYNC`).
//!
//! A ring belongs to its thread, so a worker cannot issue on the ring that a request came from. It has one of its own,
//! with a kernel ring, bios and tags of its own: the devices count what workers do as they count any ring's I/O. What
//! blocks there (mappings, completion work, syncs) runs on the worker's thread too, by the steps of a pool without
//! threads. Only the result crosses to the ring that the request came from.
//!
//! Owns the worker's ring, and which files it has open in it. Does not own requests, nor their memory: the ring that a
//! request came from keeps both, its file too, until the result is there.
//!
//! Invariants:
//! - I1: a file is detached here before the last operation on it is reported to have ended. So a worker is never the
//!   last to hold a file, and no foreign code runs here because a ring or a file went.
//! - I2: devices stay attached from one operation to the next of the same client, for attaching them costs system
//!   calls; [`Issuer::rest`] lets go of them.
//! - I3: a driver that panics when it is to open a queue here cannot be attached; nothing else hears of that.
//!
//! Made by the pool's workers for rings that are built with [`make`].
#![allow(unsafe_code)] // Entries with addresses, which are promised to the ring that they come from.

use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_blk::ctx::{IoCtx, IoCtxOptions};
use sheave_iomap::{File, RawFile};

use crate::core::Core;
use crate::error::RingError;
use crate::io_wq::{IoWq, Issuer, Operation, RingWq};
use crate::queues::Queues;
use crate::ring::Ring;
use crate::ring::inner::Inner;
use crate::rsrc::Fd;
use crate::sqe::Sqe;
use crate::task_work::{RingHandle, TaskWork};

/// Operations at a time: a worker takes no more short items at once.
const ENTRIES: u32 = 64;
/// Devices that stay attached.
const WARM: usize = 4;
/// A ring that has attached so many files is replaced: the numbers of its file table are used up at some time.
const MOST_ATTACHED: u32 = 1 << 16;
/// How long a wait polls before it sleeps. What is short ends within it.
const SPIN: Duration = Duration::from_micros(5);
/// A worker that sleeps looks again after this time: some devices tell what has ended only when they are asked.
const LOOK: Duration = Duration::from_millis(10);

/// A file with operations under way.
#[derive(Debug)]
struct InUse {
    file: Arc<dyn File>,
    fd: Fd,
    /// The descriptor is that of the device, which stays attached.
    is_warm: bool,
    pending: u32,
}

/// A worker's ring.
#[derive(Debug)]
pub(crate) struct WorkerRing {
    ring: Ring,
    files: Vec<Option<InUse>>,
    warm: Vec<(Device, Fd)>,
    attached: u32,
    /// What has ended, while it is handed over.
    ended: Vec<(u64, i32)>,
}

/// A ring for a worker's thread; `None` when the process has no memory or no descriptor left for one.
pub(crate) fn make() -> Option<Box<dyn Issuer>> {
    let ring = new_ring().ok()?;
    let (files, ended) = (Vec::with_capacity(ENTRIES as usize), Vec::with_capacity(ENTRIES as usize));
    Some(Box::new(WorkerRing { ring, files, warm: Vec::new(), attached: 0, ended }))
}

/// A small ring whose workers are this thread. Those have no use for a ring of their own: nothing here is asynchronous.
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
    /// [`open`](Self::open), or `None` where the driver that is to open a queue panics. Other operations are on their
    /// way here, maybe of other rings: what it does must not be their end.
    #[cfg(not(shuttle))]
    fn try_open(&mut self, file: Arc<dyn File>) -> Option<usize> {
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.open(file)));
        opened.map_err(sheave_base::panics::discard).ok().flatten()
    }

    /// The model checker speaks through panics.
    #[cfg(shuttle)]
    fn try_open(&mut self, file: Arc<dyn File>) -> Option<usize> {
        self.open(file)
    }

    /// The place of a file in `files`; `None` when it cannot be attached.
    fn open(&mut self, file: Arc<dyn File>) -> Option<usize> {
        let is_this = |open: &Option<InUse>| open.as_ref().is_some_and(|open| Arc::ptr_eq(&open.file, &file));
        if let Some(at) = self.files.iter().position(is_this) {
            return Some(at);
        }
        if self.attached >= MOST_ATTACHED && self.files.iter().all(Option::is_none) {
            self.warm.clear();
            self.ring = new_ring().ok()?;
            self.attached = 0;
        }
        let warm = self.keep_warm(file.device())?;
        // A file that is its device, and says nothing else of it, needs no descriptor of its own.
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

    /// Attaches the device by itself (I2).
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

    /// An operation on a file has ended (I1).
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

/// Whether a file answers everything as [`RawFile`] does on its device.
fn is_raw(file: &dyn File) -> bool {
    let raw = RawFile::new(file.device().clone());
    file.is_identity() && file.is_read_only() == raw.is_read_only() && file.block_bytes() == raw.block_bytes()
}

impl Issuer for WorkerRing {
    fn push(&mut self, file: Arc<dyn File>, op: &Operation, at: usize) -> bool {
        let Some(place) = self.try_open(file) else { return false };
        let Some(Some(open)) = self.files.get_mut(place) else { return false };
        let user_data = (place as u64) << 32 | at as u64;
        let &Operation { opcode, len, op_flags, off, addr } = op;
        let sqe = Sqe { opcode, fd: open.fd.raw(), off, addr, len, op_flags, user_data, ..Sqe::default() };
        // SAFETY: the memory is that of a request whose ring keeps it, and its promise, until the result is there.
        let pushed = unsafe { self.ring.queue_sqe(&sqe) };
        debug_assert!(pushed, "no more at a time than entries");
        // With the one that is closed at once the file goes again when nothing uses it.
        open.pending += 1;
        if !pushed {
            self.close(place);
        }
        pushed
    }

    fn submit(&mut self) {
        // All that was pushed has a slot, and room in the CQ.
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
        // However it ends: the caller looks.
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
