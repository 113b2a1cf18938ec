//! State of a ring: the block layer of its thread, its requests, its workers.
//!
//! Owns the state of a [`Ring`](super::Ring). The ring lends it to each of its calls, and to a wait of its thread for
//! the duration of the wait ([`InnerCell`]). Every other module of this crate works on it.
//!
//! Invariants:
//! - I1: the state has one user at a time: a call of the ring, or a wait of its thread while no call runs.
//! - I2: memory that the ring owns for an operation is returned or freed only after the device is done with it, also
//!   when the ring is dropped in the middle of I/O.
//! - I3: the file of every write that needs completion work is called when the write ends, also when the ring is
//!   dropped.

use std::cell::RefCell;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::grace::own::Complete;
use sheave_base::sync::Arc;
use sheave_blk::Device;
#[cfg(sheave_lab)]
use sheave_blk::bio_set::BioStore;
use sheave_blk::ctx::IoCtx;
use sheave_blk::ctx::lane::Alone;
use sheave_iomap::dio::OpenFile;
use sheave_iomap::{File, RawFile};

use crate::completion::Waited;
use crate::core::Core;
use crate::error::{RingError, SqFull};
use crate::plain_run::PlainOwner;
use crate::prep::{Entry, Late, When};
use crate::req::{NO_FILE, REQ_OLD_BUF};
use crate::rsrc::contained::Contained;
use crate::rsrc::{Fd, MAX_FILES};
use crate::sqe::{IOSQE_IO_LINK, IOSQE_LINKS, opcode};
use crate::task_work::{RingHandle, TaskWork};

/// Limit of the registered file table, as in the kernel.
const MAX_FIXED_FILES: usize = 1 << 20;

const TOO_MANY_FILES: RingError = RingError::TooMany { what: "attached files", limit: MAX_FILES as u64 };

/// State of a ring.
#[derive(Debug)]
pub struct Inner {
    pub(crate) io: IoCtx,
    pub(crate) core: Core,
    pub(crate) task_work: TaskWork,
    pub(crate) spin_cycles: u64,
    /// A device that is due within this time is polled: a sleep would end later.
    pub(crate) near: Duration,
}

/// State of a ring, shared by the ring and the waits of its thread (I1).
#[derive(Debug)]
pub(super) struct InnerCell(pub(super) RefCell<Inner>);

impl Complete for InnerCell {
    fn complete(&self) {
        // Borrowed if the wait was started within one of the ring's own calls.
        let Ok(mut inner) = self.0.try_borrow_mut() else { return };
        inner.reap();
        // Without worker threads, only this thread runs the work that ends a write.
        while inner.core.wq.wants_steps() && inner.core.wq.step_bound() {
            inner.reap();
        }
    }
}

impl Inner {
    pub(super) fn attach(&mut self, device: &Device) -> Result<Fd, RingError> {
        self.open_file(Arc::new(RawFile::new(device.clone())))
    }

    pub(super) fn attach_file(&mut self, file: Arc<dyn File>) -> Result<Fd, RingError> {
        let file = Contained::around(file);
        let bytes = file.block_bytes();
        if !bytes.is_power_of_two() {
            return Err(RingError::BlockBytes(bytes));
        }
        self.open_file(file)
    }

    fn open_file(&mut self, file: Arc<dyn File>) -> Result<Fd, RingError> {
        if !self.core.files.has_room() {
            return Err(TOO_MANY_FILES);
        }
        let bdev = self.io.attach(file.device())?;
        let file = OpenFile::new(file, bdev, &self.io, self.core.times.as_ref().map(|times| &times.ring));
        self.core.add_file(file).ok_or(TOO_MANY_FILES)
    }

    pub(super) fn attach_ring(&mut self, ring: &RingHandle) -> Result<Fd, RingError> {
        self.core.files.add_ring(ring.clone()).ok_or(TOO_MANY_FILES)
    }

    pub(super) fn detach(&mut self, fd: Fd) -> Result<(), RingError> {
        if !self.core.files.detach(fd) {
            return Err(RingError::BadFd(fd));
        }
        self.sweep_files();
        self.core.wq.let_go();
        Ok(())
    }

    pub(super) fn register_files(&mut self, fds: &[Fd]) -> Result<(), RingError> {
        if fds.len() > MAX_FIXED_FILES {
            return Err(RingError::TooMany { what: "registered files", limit: MAX_FIXED_FILES as u64 });
        }
        self.core.files.register(fds).map_err(|at| RingError::BadFd(fds[at]))?;
        self.sweep_files();
        Ok(())
    }

    pub(super) fn update_file(&mut self, index: usize, fd: Fd) -> Result<(), RingError> {
        if index >= self.core.files.registered() {
            return Err(RingError::BadFile(index));
        }
        self.core.files.set_fixed(index, fd).map_err(|_| RingError::BadFd(fd))?;
        self.sweep_files();
        Ok(())
    }

    pub(super) fn unregister_files(&mut self) {
        self.core.files.unregister();
        self.sweep_files();
    }

    #[cfg(sheave_lab)]
    pub(super) fn set_bio_store(&mut self, store: Box<dyn BioStore>) -> Result<(), RingError> {
        if self.io.set_bio_store(store) { Ok(()) } else { Err(RingError::InUse("what stands behind the bio cache")) }
    }

    fn sweep_files(&mut self) {
        let Inner { io, core: Core { files, reqs, .. }, .. } = self;
        let used: Vec<usize> = reqs.iter_live().map(|(_, req)| req.file as usize).collect();
        let by_record = |at: usize| io.any_plain(|owner, _, _| PlainOwner(owner).file() as usize == at);
        for bdev in files.sweep(|at| used.contains(&at) || by_record(at)) {
            self.io.detach(bdev, &mut self.core);
        }
    }

    /// Frees replaced buffers that no record uses any more.
    fn sweep_buffers(&mut self) {
        let Inner { io, core, .. } = self;
        core.bufs.sweep(|base, len| io.any_plain(|_, _, addr| (addr as u64).wrapping_sub(base) < len));
    }

    pub(super) fn register_buffers(&mut self, bufs: Vec<Buf>) -> Result<(), RingError> {
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

    pub(super) fn update_buffer(&mut self, index: u16, buf: Option<Buf>) -> Result<Option<Buf>, RingError> {
        if usize::from(index) >= self.core.bufs.len() {
            return Err(RingError::BadBuffer(index));
        }
        Ok(self.replace_buffer(index, buf))
    }

    fn replace_buffer(&mut self, index: u16, buf: Option<Buf>) -> Option<Buf> {
        // A request that was not issued yet will look the buffer up then. `req.file` is set from the first issue on,
        // also while a worker maps for the request. A request whose address is outside the buffer is refused at issue.
        let uses = |slot: &u32| {
            let req = &self.core.reqs[*slot];
            req.file != NO_FILE && self.core.bufs.covers(index, req.addr, 1)
        };
        let slots: Vec<u32> = self.users_of(index).filter(uses).collect();
        let by_records = self.is_used_by_records(index);
        for &slot in &slots {
            self.core.reqs[slot].rflags |= REQ_OLD_BUF;
        }
        // Prepared kernel SQEs name the buffer by its number and mean the old one: send them before the number changes.
        self.io.commit();
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
        // Requests with the old memory that are not in the kernel yet go there as ordinary memory.
        self.io.forget_fixed_buf(index);
        self.core.bufs.replace(index, new, slots.len() as u32, by_records)
    }

    /// Returns the requests that use the current registered buffer `index`, or will.
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

    /// True if a plain record uses the current registered buffer `index`.
    fn is_used_by_records(&self, index: u16) -> bool {
        // Compares addresses: a record that shares a request with others does not keep the number of its buffer.
        let uses = |_, _, addr| self.core.bufs.covers(index, addr as u64, 1);
        self.core.records != 0 && self.io.any_plain(uses)
    }

    /// True if a request uses the current registered buffer `index`, or will.
    fn is_used(&self, index: u16) -> bool {
        self.users_of(index).next().is_some() || self.is_used_by_records(index)
    }

    /// Returns address and length of a registered buffer that no request uses.
    pub(super) fn unused_buffer(&self, index: u16) -> Option<(*const u8, usize)> {
        let is_used = self.is_used(index);
        self.core.bufs.get(index).filter(|_| !is_used).map(|buf| (buf.as_ptr(), buf.len()))
    }

    /// Returns address and length of a registered buffer that no request uses, for writing.
    pub(super) fn unused_buffer_mut(&mut self, index: u16) -> Option<(*mut u8, usize)> {
        let is_used = self.is_used(index);
        self.core.bufs.get_mut(index).filter(|_| !is_used).map(|buf| (buf.as_mut_ptr(), buf.len()))
    }

    #[inline(always)]
    pub(super) fn push(&mut self, mut entry: Entry) -> Result<(), Box<SqFull>> {
        let at = self.core.queues.sq_filled();
        let Some((index, sqe)) = self.core.queues.sq_next() else {
            return Err(full(entry));
        };
        // Done first, so that fewer words of the entry stay live below.
        if let Some(memory) = entry.owned {
            entry.sqe.user_data = match self.core.owned.put(at, entry.sqe.user_data, memory) {
                Ok(key) => key,
                Err(memory) => {
                    self.core.quiet.own();
                    self.core.owned.put_in_new_place(at, entry.sqe.user_data, memory)
                }
            };
        }
        // The `fd` may be of another ring.
        if entry.ring != self.core.files.ring_number() {
            entry.sqe.fd = fd_of_another_ring(entry.ring, entry.sqe.fd);
        }
        match entry.late {
            Late::Nothing => {}
            Late::Fixed(start, len) => {
                // A range outside the buffer gives `-EFAULT`, like any other wrong address.
                let base = self.core.bufs.base(entry.sqe.buf_index);
                entry.sqe.addr = base.saturating_add(start as u64);
                entry.sqe.len = len.min(u32::MAX as usize) as u32;
            }
            Late::Time(when) => {
                let time = &mut self.core.sq_times[index as usize];
                *time = when.timespec(self.io.clock());
                entry.sqe.addr = std::ptr::from_ref(time) as u64;
            }
            Late::NewTime(after) => {
                let time = &mut self.core.sq_times[index as usize];
                *time = When::After(after).timespec(self.io.clock());
                entry.sqe.off = std::ptr::from_ref(time) as u64;
            }
        }
        *sqe = entry.sqe;
        Ok(())
    }

    /// Queues all of a chain or nothing.
    pub(super) fn push_chain<const N: usize>(&mut self, mut chain: [Entry; N]) -> Result<(), Box<SqFull<[Entry; N]>>> {
        let entries = self.core.queues.sq_entries().min(self.core.reqs.slots()) as usize;
        let filled = self.core.queues.sq_filled().wrapping_sub(self.core.queues.sq_at());
        if filled as usize + N > entries
            && let Err(error) = self.check_room(filled, N)
        {
            return Err(Box::new(SqFull { entry: chain, error }));
        }
        let unlinked = chain.iter_mut().rev().skip(1).filter(|entry| entry.sqe.flags & IOSQE_LINKS == 0);
        unlinked.for_each(|entry| entry.sqe.flags |= IOSQE_IO_LINK);
        for entry in chain {
            let pushed = self.push(entry);
            debug_assert!(pushed.is_ok(), "there was room for all");
        }
        Ok(())
    }

    /// Checks that a chain of `len` fits into the SQ behind `filled` SQEs, and that a submission can take it.
    #[cold]
    fn check_room(&self, filled: u32, len: usize) -> Result<(), RingError> {
        let (entries, slots) = (self.core.queues.sq_entries(), self.core.reqs.slots());
        // The last filled SQEs may be linked to this chain: they are then part of it.
        let (whole, most) = (self.core.linked_before(filled) as usize + len, entries.min(slots));
        if whole > most as usize {
            return Err(RingError::ChainTooLong { len: whole as u64, most: most.into() });
        }
        if filled as usize + len > entries as usize { Err(RingError::SqFull) } else { Ok(()) }
    }

    pub(super) fn submit(&mut self) -> Result<u32, RingError> {
        let taken = match self.submit_alone() {
            Alone::No => self.take_sqes(false).ok_or(RingError::Busy)?,
            Alone::Sent | Alone::Ended => 1,
        };
        self.io.commit();
        // A polled ring looks for completions only when its caller does.
        if !self.core.polled {
            self.reap();
        }
        self.core.queues.cq_publish();
        Ok(taken)
    }

    /// Does [`submit`](Self::submit) without the system call that sends the SQEs drivers have prepared.
    pub(crate) fn submit_unsent(&mut self) -> Result<u32, RingError> {
        let taken = match self.submit_alone() {
            Alone::No => self.take_sqes(false).ok_or(RingError::Busy)?,
            Alone::Sent | Alone::Ended => 1,
        };
        if !(self.io.has_unsent() && self.core.is_settled()) {
            self.reap();
        }
        self.core.queues.cq_publish();
        Ok(taken)
    }

    /// Publishes the filled SQEs. A single SQE on a quiet ring goes straight to its driver.
    #[inline(always)]
    fn submit_alone(&mut self) -> Alone {
        debug_assert!(
            !self.core.quiet.is_quiet() || self.core.is_quiet(),
            "somebody has not said that something waits"
        );
        let one = self.core.queues.sq_publish() == 1;
        if one && self.core.quiet.is_bare() && self.core.available() != 0 {
            return self.send_next_alone();
        }
        if one && self.core.quiet.is_quiet() { self.send_next_owned_alone() } else { Alone::No }
    }

    /// Takes the published SQEs. Returns their number, or `None` if too much is in flight to take any of them.
    #[inline(never)]
    fn take_sqes(&mut self, waits: bool) -> Option<u32> {
        self.core.flush_overflow();
        let taken = self.consume(waits);
        if taken == 0 && self.core.queues.sq_pending() != 0 {
            return None;
        }
        Some(taken)
    }

    /// Does [`take_sqes`](Self::take_sqes) for a wait, and runs work here that a worker would not run any sooner.
    fn take_and_help(&mut self, wanted: u32) -> Option<u32> {
        let taken = self.take_sqes(wanted > self.core.queues.cq_ready())?;
        if self.core.wq.has_helped() {
            self.run_helped();
        }
        Some(taken)
    }

    /// Submits, then waits. A single I/O that ends inline takes the shortest path. `None` if too much is in flight.
    #[inline(always)]
    pub(super) fn submit_and_wait(&mut self, wanted: u32) -> Option<u32> {
        let alone = self.submit_alone();
        if alone == Alone::Ended
            && self.io.has_nothing_to_poll()
            && self.task_work.is_empty()
            && self.core.queues.cq_publish_new() >= wanted
        {
            return Some(1);
        }
        self.submit_then_wait(alone, wanted)
    }

    #[inline(never)]
    fn submit_then_wait(&mut self, alone: Alone, wanted: u32) -> Option<u32> {
        let taken = match alone {
            Alone::No => self.take_and_help(wanted)?,
            Alone::Sent | Alone::Ended => 1,
        };
        // The result is not needed: the caller sees the completions.
        let _ = self.wait(wanted, None);
        Some(taken)
    }

    pub(super) fn wait(&mut self, wanted: u32, timeout: Option<Duration>) -> Waited {
        self.core.queues.cq_publish();
        // The wait sends the prepared kernel SQEs with its own system call. A reap before that would find little, so
        // it is skipped.
        let sends = self.core.queues.cq_ready() < wanted && self.io.has_unsent();
        if sends && timeout.is_none() && self.wait_for_one(wanted) {
            let ready = self.core.queues.cq_ready();
            if ready >= wanted {
                return Waited::Ready(ready);
            }
        }
        if !(sends && self.core.is_settled()) {
            self.reap();
        }
        let ready = self.core.queues.cq_ready();
        if ready >= wanted { Waited::Ready(ready) } else { self.wait_slow(wanted, timeout) }
    }

    /// Waits for one I/O if only plain records are in flight, the block layer can wait for them alone, and one
    /// completion is all that is wanted or possible. Returns true if one ended.
    #[inline(always)]
    fn wait_for_one(&mut self, wanted: u32) -> bool {
        let Inner { io, core, .. } = self;
        let one = core.records == 1 || core.queues.cq_ready() + 1 == wanted;
        let ended = core.quiet.is_quiet() && one && core.live() == core.records && io.wait_for_one(core);
        if ended {
            if !self.task_work.is_empty() {
                self.reap_others(1);
            }
            self.core.queues.cq_publish();
        }
        ended
    }

    pub(super) fn reap(&mut self) {
        let Inner { io, core, .. } = self;
        let ended = io.poll(core);
        if !(self.core.quiet.is_quiet() && self.task_work.is_empty()) {
            self.reap_others(ended);
        }
        debug_assert!(
            !self.core.quiet.is_quiet() || self.core.is_quiet(),
            "somebody has not said that something waits"
        );
        self.core.queues.cq_publish();
    }

    /// Reaps worker results, messages, timeouts and the overflow list, hands queued work to workers, and updates
    /// `quiet`.
    #[inline(never)]
    fn reap_others(&mut self, ended: u32) {
        self.run_task_work(ended);
        self.core.flush_overflow();
        if self.core.timers.is_armed() {
            self.run_timeouts();
        }
        // After everything that may start requests: workers do not see queued work before the commit.
        self.core.wq.commit();
        self.core.quiet.set(self.core.is_quiet());
    }

    /// Takes the requests that workers have ended.
    #[inline]
    pub(super) fn take_done(&mut self) {
        while let Some((slot, how)) = self.task_work.pop_done() {
            self.core.wq.took();
            self.worker_done(slot, how);
        }
    }

    /// Completes results of workers, messages and tasks, starts what waited for them, and sweeps the tables.
    #[inline]
    fn run_task_work(&mut self, ended: u32) {
        self.take_done();
        if !self.core.gathering.is_empty() {
            self.start_batches();
        }
        // With the CQ and the overflow list full, messages stay in the mailbox, which is bounded.
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
        if self.core.bufs.wants_sweep() {
            self.sweep_buffers();
        }
    }

    /// Returns the begin and end of the readable CQEs, or `None` if the CQ must be [filled](Self::fill) first.
    #[inline(always)]
    pub(super) fn readable(&self) -> Option<(u32, u32)> {
        let (head, ready) = (self.core.queues.cq_head(), self.core.queues.cq_ready());
        (ready != 0 && self.core.overflow.is_empty()).then_some((head, head.wrapping_add(ready)))
    }

    /// Fills an empty CQ from the devices. Returns the begin and end of the readable CQEs.
    #[inline(never)]
    pub(super) fn fill(&mut self) -> (u32, u32) {
        if self.readable().is_none() {
            self.reap();
        }
        let head = self.core.queues.cq_head();
        (head, head.wrapping_add(self.core.queues.cq_ready()))
    }

    /// Returns the head of the CQ and the number of readable CQEs, for a caller that takes no memory with them: memory
    /// of typed operations is dropped here.
    #[inline(always)]
    pub(super) fn fill_unowned(&mut self) -> (u32, u32) {
        let ready = self.core.queues.cq_ready();
        if self.core.quiet.is_bare() && ready != 0 {
            return (self.core.queues.cq_head(), ready);
        }
        self.fill_and_drop_owned()
    }

    #[inline(never)]
    fn fill_and_drop_owned(&mut self) -> (u32, u32) {
        let (head, end) = self.fill();
        let ready = end.wrapping_sub(head);
        if !self.core.owned.is_unused() {
            self.drop_owned(head, ready);
        }
        (head, ready)
    }

    /// Drops the memory of `many` CQEs from `head` on, and replaces each key in them by the caller's user data.
    #[cold]
    pub(crate) fn drop_owned(&mut self, head: u32, many: u32) {
        let Core { queues, owned, .. } = &mut self.core;
        let end = head.wrapping_add(many);
        let mut at = head;
        while at != end {
            let (row, has_key) = owned.cq.look(at, end.wrapping_sub(at));
            if !has_key {
                at = at.wrapping_add(row);
                continue;
            }
            let mut memory = None;
            queues.cq_patch(at, |key| {
                // The detail of an error is dropped: a raw CQE has no place for it.
                let user_data;
                (user_data, memory, _) = owned.end_failed(key as u32);
                user_data
            });
            owned.cq.took(at);
            at = at.wrapping_add(1);
            // Last, because dropping a value of the caller's type may panic.
            drop(memory);
        }
    }
}

/// Returns the `fd` to submit for an entry that is not of this ring: `fd` itself if `ring` is 0 (no file, or an index),
/// else [`Fd::NONE`]. Takes the words by value: an entry whose address was taken would be built in memory and copied.
#[cold]
#[inline(never)]
fn fd_of_another_ring(ring: u64, fd: i32) -> i32 {
    if ring == 0 { fd } else { Fd::NONE.raw() }
}

/// Returns the operation that found no room to its caller.
#[cold]
#[inline(never)]
fn full(entry: Entry) -> Box<SqFull> {
    Box::new(SqFull { entry, error: RingError::SqFull })
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task_work.close();
        self.core.wq.go();
        // I2: the devices release all memory first; the memory that requests own is freed after that.
        let Inner { io, core, .. } = self;
        io.shutdown(core);
        self.end_all();
    }
}
