//! The ring: what embedders hold.
//!
//! Owns the block layer of its thread ([`IoCtx`]), the state of requests and the workers; its methods are the calls
//! of io_uring: fill, submit, wait, reap. A ring belongs to the thread that made it and is not `Send`; other threads
//! reach it through its [`RingHandle`].
//!
//! Invariants:
//! - I1: a call never blocks but [`Ring::submit_and_wait`], [`Ring::wait`], [`Ring::drain`] and dropping the ring.
//! - I2: memory that the ring owns for an operation is given back or freed after the device is done with it, also
//!   when the ring is dropped in the middle of I/O.
//! - I3: a file hears of the end of every write that needs its completion work, also when the ring is dropped.

mod wait;

use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_blk::bio_set::BioStore;
use sheave_blk::ctx::IoCtx;
use sheave_iomap::dio::OpenFile;
use sheave_iomap::{File, RawFile};

use crate::builder::RingBuilder;
use crate::core::Core;
use crate::cqe::{Completion, LateCompletions};
use crate::error::{RingError, SqFull};
use crate::io_wq::IoWq;
use crate::prep::{Entry, Late, Owned, When};
use crate::queues::Offsets;
use crate::req::{REQ_OLD_BUF, State};
use crate::rsrc::Fd;
use crate::sqe::{Sqe, opcode};
use crate::task_work::{RingHandle, TaskWork};

/// Most entries of the registered file table, as in the kernel.
const MAX_FIXED_FILES: usize = 1 << 20;

/// An io_uring-shaped ring over the block layer. See [`crate`] for an example.
#[derive(Debug)]
pub struct Ring {
    pub(crate) io: IoCtx,
    pub(crate) core: Core,
    pub(crate) task_work: TaskWork,
    pub(crate) spin_cycles: u64,
}

impl Ring {
    /// Settings for a new ring.
    pub fn builder() -> RingBuilder {
        RingBuilder::default()
    }

    /// Opens this ring's way into a device.
    pub fn attach(&mut self, device: &Device) -> Result<Fd, RingError> {
        self.attach_file(Arc::new(RawFile::new(device.clone())))
    }

    /// Opens this ring's way into a file.
    pub fn attach_file(&mut self, file: Arc<dyn File>) -> Result<Fd, RingError> {
        let bdev = self.io.attach(file.device())?;
        let file = OpenFile::new(file, bdev, &self.io);
        Ok(self.core.add_file(file))
    }

    /// Makes another ring (or this one) a target of MSG_RING.
    pub fn attach_ring(&mut self, ring: &RingHandle) -> Fd {
        self.core.files.add_ring(ring.clone())
    }

    /// Takes an entry out of the file table. Requests in flight keep the file until they have ended; new ones get
    /// `-EBADF`.
    pub fn detach(&mut self, fd: Fd) -> Result<(), RingError> {
        if !self.core.files.detach(fd) {
            return Err(RingError::BadFd(fd));
        }
        self.sweep_files();
        Ok(())
    }

    /// Makes the table that `IOSQE_FIXED_FILE` indexes, in place of the one before; an `Fd(-1)` leaves its entry empty.
    /// A wrong `fd` changes nothing.
    pub fn register_files(&mut self, fds: &[Fd]) -> Result<(), RingError> {
        if fds.len() > MAX_FIXED_FILES {
            return Err(RingError::TooMany { what: "registered files", limit: MAX_FIXED_FILES as u64 });
        }
        self.core.files.register(fds).map_err(|at| RingError::BadFd(fds[at]))?;
        self.sweep_files();
        Ok(())
    }

    /// Changes one entry of the registered table, also while requests use the old file.
    pub fn update_file(&mut self, index: usize, fd: Fd) -> Result<(), RingError> {
        if index >= self.core.files.registered() {
            return Err(RingError::BadFile(index));
        }
        self.core.files.set_fixed(index, fd).map_err(|_| RingError::BadFd(fd))?;
        self.sweep_files();
        Ok(())
    }

    /// Drops the registered table.
    pub fn unregister_files(&mut self) {
        self.core.files.unregister();
        self.sweep_files();
    }

    /// Puts a store behind the ring's cache of bios, in place of the ring's own pool: who wants to know where bios come
    /// from, or to limit them, sees there each one that the cache does not serve.
    pub fn set_bio_store(&mut self, store: Box<dyn BioStore>) -> Result<(), RingError> {
        if self.io.set_bio_store(store) { Ok(()) } else { Err(RingError::InUse("what stands behind the bio cache")) }
    }

    fn sweep_files(&mut self) {
        let Core { files, reqs, .. } = &mut self.core;
        let used: Vec<usize> = reqs.iter_live().map(|(_, req)| req.file as usize).collect();
        for bdev in files.sweep(|at| used.contains(&at)) {
            self.io.detach(bdev);
        }
    }

    /// Registers buffers for READ_FIXED and WRITE_FIXED, in place of those registered before. The ring owns them.
    pub fn register_buffers(&mut self, bufs: Vec<Buf>) -> Result<(), RingError> {
        if bufs.len() > usize::from(u16::MAX) {
            return Err(RingError::TooMany { what: "registered buffers", limit: u16::MAX.into() });
        }
        for index in 0..self.core.bufs.len() as u16 {
            self.replace_buffer(index, None);
        }
        self.core.bufs.resize(bufs.len());
        for (index, buf) in bufs.into_iter().enumerate() {
            self.replace_buffer(index as u16, Some(buf));
        }
        Ok(())
    }

    /// Puts another buffer in a place, also while requests use the old one; gives the old one back unless they do,
    /// and then frees it after the last of them.
    pub fn update_buffer(&mut self, index: u16, buf: Option<Buf>) -> Result<Option<Buf>, RingError> {
        if usize::from(index) >= self.core.bufs.len() {
            return Err(RingError::BadBuffer(index));
        }
        Ok(self.replace_buffer(index, buf))
    }

    fn replace_buffer(&mut self, index: u16, buf: Option<Buf>) -> Option<Buf> {
        // Who has not begun looks at the table when it does; who names another address never gets there.
        let uses = |slot: &u32| {
            let req = &self.core.reqs[*slot];
            req.state == State::Issued && self.core.bufs.covers(index, req.addr, 1)
        };
        let slots: Vec<u32> = self.users_of(index).filter(uses).collect();
        for &slot in &slots {
            self.core.reqs[slot].rflags |= REQ_OLD_BUF;
        }
        let new = buf.map(|mut buf| (buf.as_mut_ptr() as u64, buf.len() as u64, Some(buf)));
        match &new {
            Some((base, len, _)) => {
                let (base, len) = (*base as usize, *len as usize);
                // SAFETY: I2; the slot of the buffer is replaced or emptied before its memory is freed.
                #[allow(unsafe_code)]
                unsafe {
                    self.io.kring_slot().register_buffer(index, base, len);
                }
            }
            None => self.io.kring_slot().unregister_buffer(index),
        }
        self.core.bufs.replace(index, new, slots.len() as u32)
    }

    /// Requests that use a registered buffer as it is now, or will.
    fn users_of(&self, index: u16) -> impl Iterator<Item = u32> + '_ {
        self.core
            .reqs
            .iter_live()
            .filter(move |(_, req)| {
                matches!(req.opcode, opcode::READ_FIXED | opcode::WRITE_FIXED)
                    && req.buf_index == index
                    && req.rflags & REQ_OLD_BUF == 0
            })
            .map(|(slot, _)| slot)
    }

    /// A registered buffer, to look at; `None` while a request uses it, or when there is none.
    pub fn buffer(&self, index: u16) -> Option<&[u8]> {
        if self.users_of(index).next().is_some() {
            return None;
        }
        self.core.bufs.get(index).map(|buf| &buf[..])
    }

    /// A registered buffer, to change; `None` while a request uses it, or when there is none.
    pub fn buffer_mut(&mut self, index: u16) -> Option<&mut [u8]> {
        if self.users_of(index).next().is_some() {
            return None;
        }
        self.core.bufs.get_mut(index).map(|buf| &mut buf[..])
    }

    /// Address and length of a registered buffer, for SQEs filled by hand.
    pub fn buffer_range(&self, index: u16) -> Option<(u64, u64)> {
        self.core.bufs.range(index)
    }

    /// Free SQEs.
    #[inline]
    pub fn sq_space(&self) -> u32 {
        self.core.queues.sq_space()
    }

    /// Queues an operation; a full SQ gives it back.
    pub fn push(&mut self, mut entry: Entry) -> Result<(), Box<SqFull>> {
        let Some((index, sqe)) = self.core.queues.sq_next() else {
            return Err(Box::new(SqFull { entry, error: RingError::SqFull }));
        };
        let time = &mut self.core.sq_times[index as usize];
        match entry.late {
            Late::Nothing => {}
            Late::Fixed(start, len) => {
                // A range outside gives `-EFAULT` like any other wrong address.
                let base = self.core.bufs.range(entry.sqe.buf_index).map_or(0, |(base, _)| base);
                entry.sqe.addr = base.saturating_add(start as u64);
                entry.sqe.len = len.min(u32::MAX as usize) as u32;
            }
            Late::Time(when) => {
                *time = when.timespec(self.io.clock());
                entry.sqe.addr = std::ptr::from_ref(time) as u64;
            }
            Late::NewTime(after) => {
                *time = When::After(after).timespec(self.io.clock());
                entry.sqe.off = std::ptr::from_ref(time) as u64;
            }
        }
        *sqe = entry.sqe;
        if let Some(owned) = entry.owned {
            self.core.sq_owned[index as usize] = Some(owned);
            self.core.nr_owned += 1;
        }
        Ok(())
    }

    /// Queues an SQE as it is; false when the SQ is full.
    ///
    /// # Safety
    /// Every address in the SQE must be of memory that stays valid, and is not used otherwise, until the request's
    /// completion was posted; vectors and timespecs until the SQE was submitted.
    #[allow(unsafe_code)] // The raw interface of io_uring.
    #[inline]
    pub unsafe fn push_sqe(&mut self, sqe: &Sqe) -> bool {
        match self.core.queues.sq_next() {
            Some((_, slot)) => {
                *slot = *sqe;
                true
            }
            None => false,
        }
    }

    /// The next free SQE, to be filled in place; it still has what it had last. `None` when the SQ is full.
    ///
    /// # Safety
    /// As for [`Ring::push_sqe`], for what the SQE says when it is submitted.
    #[allow(unsafe_code)] // The raw interface of io_uring.
    #[inline]
    pub unsafe fn get_sqe(&mut self) -> Option<&mut Sqe> {
        self.core.queues.sq_next().map(|(_, sqe)| sqe)
    }

    /// Submits what was pushed and hands it to the devices; never blocks. Returns how many SQEs were taken: fewer
    /// than pushed when too much is in flight, and an error when nothing could be taken for that reason.
    #[inline]
    pub fn submit(&mut self) -> Result<u32, RingError> {
        let taken = self.take_sqes()?;
        self.io.commit();
        if !self.core.polled {
            self.reap();
        }
        self.core.queues.cq_publish();
        Ok(taken)
    }

    #[inline]
    fn take_sqes(&mut self) -> Result<u32, RingError> {
        self.core.queues.sq_publish();
        self.core.flush_overflow();
        let taken = self.consume();
        if taken == 0 && self.core.queues.sq_pending() != 0 {
            return Err(RingError::Busy);
        }
        Ok(taken)
    }

    /// Submits, then waits until `wanted` completions can be read (or nothing is left that could complete).
    #[inline]
    pub fn submit_and_wait(&mut self, wanted: u32) -> Result<u32, RingError> {
        let taken = self.take_sqes()?;
        self.wait(wanted, None);
        Ok(taken)
    }

    /// Waits until `wanted` completions can be read, nothing is left that could complete, or the time is over.
    /// Returns how many can be read.
    pub fn wait(&mut self, wanted: u32, timeout: Option<Duration>) -> u32 {
        self.reap();
        let ready = self.core.queues.cq_ready();
        if ready >= wanted { ready } else { self.wait_slow(wanted, timeout) }
    }

    /// Completes what is ready: devices, workers, messages; then starts what waited for it. Never blocks.
    pub fn reap(&mut self) {
        let Ring { io, core, .. } = self;
        let ended = io.poll(core);
        self.run_task_work(ended);
        self.core.flush_overflow();
        if self.core.timers.is_armed() {
            self.run_timeouts();
        }
        // After everything that may start requests: what is queued and not handed over, no worker knows of.
        self.core.wq.commit();
        self.core.queues.cq_publish();
    }

    /// What a reap does beside the devices.
    #[inline]
    fn run_task_work(&mut self, ended: u32) {
        while let Some((slot, res)) = self.task_work.pop_done() {
            self.core.wq.took();
            self.worker_done(slot, res);
        }
        if !self.core.gathering.is_empty() {
            self.start_batches();
        }
        // Behind a full CQ and a full list of what did not fit, messages stay in the mailbox, which is bounded.
        while self.core.overflow.len() < self.core.overflow_max
            && let Some(cqe) = self.task_work.pop_message()
        {
            self.core.post(cqe, None);
        }
        if !self.core.tasks.is_empty() {
            self.run_tasks();
        }
        if ended > 0 && !self.core.retry.is_empty() {
            let Core { ready, retry, .. } = &mut self.core;
            ready.append(retry);
        }
        self.start_waiting();
        if self.core.files.wants_sweep() {
            self.sweep_files();
        }
    }

    /// Reads completions; an empty CQ is filled from the devices first. What is not iterated stays.
    #[inline]
    pub fn completions(&mut self) -> Completions<'_> {
        if self.core.queues.cq_ready() == 0 || !self.core.overflow.is_empty() {
            self.reap();
        }
        let head = self.core.queues.cq_head();
        let end = head.wrapping_add(self.core.queues.cq_ready());
        Completions { ring: self, head, end }
    }

    /// Requests submitted and not yet completed.
    pub fn in_flight(&self) -> u32 {
        self.core.reqs.live()
    }

    /// How many I/Os did not complete at once where they were reaped, but later: a share that is not small says why
    /// writes are slow.
    pub fn late_completions(&self) -> LateCompletions {
        self.core.late
    }

    /// Whether completions wait behind a full CQ (`IORING_SQ_CQ_OVERFLOW`).
    pub fn cq_overflowed(&self) -> bool {
        self.core.queues.sq_flags() & crate::sqe::SQ_CQ_OVERFLOW != 0
    }

    /// The workers of this ring, its own or shared: limits and counts.
    pub fn io_wq(&self) -> &IoWq {
        self.core.wq.pool()
    }

    /// A handle by which other threads send messages to this ring and wake it.
    pub fn handle(&self) -> RingHandle {
        self.task_work.handle().clone()
    }

    /// The ring memory and where everything lies in it, in the kernel's layout.
    pub fn memory(&self) -> (&[u8], Offsets) {
        let (memory, offsets) = self.core.queues.memory();
        (&memory[..], offsets)
    }

    /// The block layer of this ring, for reports and tests.
    pub fn io(&self) -> &IoCtx {
        &self.io
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.task_work.close();
        // I2: the devices let go of all memory first; what the requests own is freed after that.
        let Ring { io, core, .. } = self;
        io.shutdown(core);
        self.end_all();
    }
}

/// Iterator over completions; what it gave is consumed, also when it is dropped early.
#[derive(Debug)]
pub struct Completions<'a> {
    ring: &'a mut Ring,
    head: u32,
    end: u32,
}

impl Iterator for Completions<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        if self.head == self.end {
            return None;
        }
        if self.ring.core.nr_owned > 0 {
            return self.next_owned();
        }
        let (_, cqe) = self.ring.core.queues.cq_read(self.head);
        self.head = self.head.wrapping_add(1);
        Some(Completion { user_data: cqe.user_data, res: cqe.res, flags: cqe.flags, owned: None })
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end.wrapping_sub(self.head) as usize;
        (left, Some(left))
    }
}

impl Completions<'_> {
    /// The next, when some operations own memory.
    #[cold]
    #[inline(never)]
    fn next_owned(&mut self) -> Option<Completion> {
        let core = &mut self.ring.core;
        let (index, cqe) = core.queues.cq_read(self.head);
        self.head = self.head.wrapping_add(1);
        let owned = core.cq_owned[index as usize].take();
        core.nr_owned -= u32::from(owned.is_some());
        Some(Completion { user_data: cqe.user_data, res: cqe.res, flags: cqe.flags, owned })
    }
}

impl ExactSizeIterator for Completions<'_> {}

impl Drop for Completions<'_> {
    #[inline]
    fn drop(&mut self) {
        self.ring.core.queues.cq_advance(self.head);
    }
}

const _: () = {
    // A completion's memory is either given to the caller or dropped with the iterator's item.
    assert!(size_of::<Option<Owned>>() <= 64);
};
