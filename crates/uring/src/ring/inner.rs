//! What a ring is inside: the block layer of its thread, the state of its requests, its workers.
//!
//! Owns the state of a [`Ring`](super::Ring), which lends it to each of its calls, and for the time of a wait to the
//! wait itself ([`InnerCell`]). Every other module of this crate works on it.
//!
//! Invariants:
//! - I1: whoever has the state has it alone: a call of the ring, or a wait of its thread while no call runs.
//! - I2: memory that the ring owns for an operation is given back or freed after the device is done with it, also when
//!   the ring is dropped in the middle of I/O.
//! - I3: a file hears of the end of every write that needs its completion work, also when the ring is dropped.

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

/// Most entries of the registered file table, as in the kernel.
const MAX_FIXED_FILES: usize = 1 << 20;

/// A ring has no place for another file.
const TOO_MANY_FILES: RingError = RingError::TooMany { what: "attached files", limit: MAX_FILES as u64 };

/// The state of a ring.
#[derive(Debug)]
pub struct Inner {
    pub(crate) io: IoCtx,
    pub(crate) core: Core,
    pub(crate) task_work: TaskWork,
    pub(crate) spin_cycles: u64,
    /// A device that has something within this time is polled for: a sleep would end later.
    pub(crate) near: Duration,
}

/// The state of a ring, as the ring and the waits of its thread share it (I1).
#[derive(Debug)]
pub(super) struct InnerCell(pub(super) RefCell<Inner>);

impl Complete for InnerCell {
    fn complete(&self) {
        // In use: the wait is in one of the ring's own calls.
        let Ok(mut inner) = self.0.try_borrow_mut() else { return };
        inner.reap();
        // Where workers have no threads, nobody but this one does what ends a write.
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
        // A request that has not begun looks at the table when it does; it has its file from its first issue on, also
        // while a worker maps for it. One that names another address never gets there.
        let uses = |slot: &u32| {
            let req = &self.core.reqs[*slot];
            req.file != NO_FILE && self.core.bufs.covers(index, req.addr, 1)
        };
        let slots: Vec<u32> = self.users_of(index).filter(uses).collect();
        let by_records = self.is_used_by_records(index);
        for &slot in &slots {
            self.core.reqs[slot].rflags |= REQ_OLD_BUF;
        }
        // What is prepared for the kernel and names the buffer by its number is to get the old one.
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
        // What has the old memory and is not in the kernel yet goes there as ordinary memory.
        self.io.forget_fixed_buf(index);
        self.core.bufs.replace(index, new, slots.len() as u32, by_records)
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

    /// Whether a plain record uses a registered buffer as it is now.
    fn is_used_by_records(&self, index: u16) -> bool {
        // By its address: whoever shares a request with others does not say by which number it named the buffer.
        let uses = |_, _, addr| self.core.bufs.covers(index, addr as u64, 1);
        self.core.records != 0 && self.io.any_plain(uses)
    }

    /// Whether a request uses a registered buffer as it is now, or will.
    fn is_used(&self, index: u16) -> bool {
        self.users_of(index).next().is_some() || self.is_used_by_records(index)
    }

    /// Address and length of a registered buffer that no request uses.
    pub(super) fn unused_buffer(&self, index: u16) -> Option<(*const u8, usize)> {
        let is_used = self.is_used(index);
        self.core.bufs.get(index).filter(|_| !is_used).map(|buf| (buf.as_ptr(), buf.len()))
    }

    /// Address, to write there, and length of a registered buffer that no request uses.
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
        // First, so that few words of the entry are left for the rest.
        if let Some(memory) = entry.owned {
            entry.sqe.user_data = match self.core.owned.put(at, entry.sqe.user_data, memory) {
                Ok(key) => key,
                Err(memory) => {
                    self.core.quiet.own();
                    self.core.owned.put_in_new_place(at, entry.sqe.user_data, memory)
                }
            };
        }
        // An `fd` of another ring.
        if entry.ring != self.core.files.ring_number() {
            entry.sqe.fd = fd_of_another_ring(entry.ring, entry.sqe.fd);
        }
        match entry.late {
            Late::Nothing => {}
            Late::Fixed(start, len) => {
                // A range outside gives `-EFAULT` like any other wrong address.
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

    /// All of a chain or nothing.
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

    /// Whether a chain of `len` goes into the SQ, behind `filled` SQEs, and will be taken from it.
    #[cold]
    fn check_room(&self, filled: u32, len: usize) -> Result<(), RingError> {
        let (entries, slots) = (self.core.queues.sq_entries(), self.core.reqs.slots());
        // Whatever is linked to it is one chain with it.
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
        if !self.core.polled {
            self.reap();
        }
        self.core.queues.cq_publish();
        Ok(taken)
    }

    /// [`submit`](Self::submit) without the system call that sends what drivers have prepared.
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

    /// Shows the SQEs that were filled. If that is one, and there is nothing beside it to look at, it goes straight to
    /// its driver.
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

    /// Takes the SQEs that were shown; `None` when there are some, and too much is in flight for any.
    #[inline(never)]
    fn take_sqes(&mut self, waits: bool) -> Option<u32> {
        self.core.flush_overflow();
        let taken = self.consume(waits);
        if taken == 0 && self.core.queues.sq_pending() != 0 {
            return None;
        }
        Some(taken)
    }

    /// [`take_sqes`](Self::take_sqes) for a wait, which runs what workers would do no sooner.
    fn take_and_help(&mut self, wanted: u32) -> Option<u32> {
        let taken = self.take_sqes(wanted > self.core.queues.cq_ready())?;
        if self.core.wq.has_helped() {
            self.run_helped();
        }
        Some(taken)
    }

    /// Submits, then waits; straight from the SQE to its CQE where that is all there is. `None`: too much is in flight.
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
        // However it ends: the caller sees which completions there are.
        let _ = self.wait(wanted, None);
        Some(taken)
    }

    pub(super) fn wait(&mut self, wanted: u32, timeout: Option<Duration>) -> Waited {
        self.core.queues.cq_publish();
        // The wait sends what drivers have prepared for the kernel: a look for completions before it finds few.
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

    /// Waits for one I/O, if the ring has nothing but plain records for which the block layer can wait alone, and no
    /// more than one is wanted or to be had; whether it has ended.
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

    /// What a reap does when something waits beside the devices.
    #[inline(never)]
    fn reap_others(&mut self, ended: u32) {
        self.run_task_work(ended);
        self.core.flush_overflow();
        if self.core.timers.is_armed() {
            self.run_timeouts();
        }
        // After everything that may start requests: what is queued and not handed over, no worker knows of.
        self.core.wq.commit();
        self.core.quiet.set(self.core.is_quiet());
    }

    /// Takes what workers have ended.
    #[inline]
    pub(super) fn take_done(&mut self) {
        while let Some((slot, how)) = self.task_work.pop_done() {
            self.core.wq.took();
            self.worker_done(slot, how);
        }
    }

    /// What a reap does beside the devices.
    #[inline]
    fn run_task_work(&mut self, ended: u32) {
        self.take_done();
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
        if self.core.bufs.wants_sweep() {
            self.sweep_buffers();
        }
    }

    /// Where the entries of the CQ begin and end; `None` when it is to be [filled](Self::fill) first.
    #[inline(always)]
    pub(super) fn readable(&self) -> Option<(u32, u32)> {
        let (head, ready) = (self.core.queues.cq_head(), self.core.queues.cq_ready());
        (ready != 0 && self.core.overflow.is_empty()).then_some((head, head.wrapping_add(ready)))
    }

    /// Fills an empty CQ from the devices; where its entries begin and end.
    #[inline(never)]
    pub(super) fn fill(&mut self) -> (u32, u32) {
        if self.readable().is_none() {
            self.reap();
        }
        let head = self.core.queues.cq_head();
        (head, head.wrapping_add(self.core.queues.cq_ready()))
    }

    /// The head of the CQ and how many CQEs can be read, for a caller that takes no memory with them: what typed
    /// operations own is dropped here.
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

    /// Drops what belongs to so many CQEs from a head on, which get the user data of their caller.
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
                // What there is to say of an error is forgotten with it.
                let user_data;
                (user_data, memory, _) = owned.end_failed(key as u32);
                user_data
            });
            owned.cq.took(at);
            at = at.wrapping_add(1);
            // Last: a value of the caller's type may panic.
            drop(memory);
        }
    }
}

/// What stands for an `fd` that is not of this ring: itself, if it is of none, as that of an operation on no file. By
/// value: an entry whose address was given away would be put together in memory, and copied.
#[cold]
#[inline(never)]
fn fd_of_another_ring(ring: u64, fd: i32) -> i32 {
    if ring == 0 { fd } else { Fd::NONE.raw() }
}

/// The operation that finds no room, back to its caller.
#[cold]
#[inline(never)]
fn full(entry: Entry) -> Box<SqFull> {
    Box::new(SqFull { entry, error: RingError::SqFull })
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task_work.close();
        self.core.wq.go();
        // I2: the devices let go of all memory first; what the requests own is freed after that.
        let Inner { io, core, .. } = self;
        io.shutdown(core);
        self.end_all();
    }
}
