//! [`Ring`]: the type that embedders hold.
//!
//! Owns the calls of io_uring: fill, submit, wait, reap. They work on the state in [`inner`]: the block layer of the
//! ring's thread ([`IoCtx`]), the requests and the workers. A ring belongs to the thread that made it and is not
//! `Send`; other threads reach it through its [`RingHandle`].
//!
//! A thread that waits for a file (for a snapshot, say) while its own ring has I/O on that file would deadlock. The
//! ring is therefore registered with its thread ([`own`]), and such a wait reaps it. Completions stay in the CQ for the
//! caller to read.
//!
//! Invariants:
//! - R1: no call blocks except [`Ring::submit_and_wait`], [`Ring::wait`], [`Ring::drain`] and dropping the ring.
//! - R2: the memory of a registered buffer stays where it is until a call with `&mut self` replaces the buffer. While
//!   no request names the buffer, none begins to: only submissions make requests, and they need `&mut self`, too.
//! - R3: between two calls of the ring only a wait of its thread borrows the state, and that wait returns before the
//!   next call.
//!
//! Called by embedders, and by waits of its thread.
#![allow(unsafe_code)] // The raw interface of io_uring, and slices of buffers that outlive a borrow of the state.

pub(crate) mod inner;
#[cfg(feature = "raw")]
mod raw;
mod wait;

use std::cell::{Ref, RefCell, RefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::grace::own::{self, Registered};
use sheave_base::status::Errno;
use sheave_base::sync::Arc;
use sheave_base::trace::writer::TraceWriter;
use sheave_blk::Device;
#[cfg(sheave_lab)]
use sheave_blk::bio_set::BioStore;
use sheave_blk::ctx::IoCtx;
use sheave_iomap::File;
use sheave_iomap::io_stats::IoGroup;
use sheave_iomap::slow::FlightRecorder;

use self::inner::{Inner, InnerCell};
use crate::completion::{Completion, CompletionFlags, WaitOn, Waited};
use crate::cqe::Cqe;
#[cfg(sheave_lab)]
use crate::cqe::LateCompletions;
use crate::error::{RingError, SqFull};
use crate::io_wq::IoWq;
use crate::owned::Detail;
use crate::prep::{Cancel, Entry, Op};
use crate::rsrc::Fd;
use crate::sqe::Sqe;
use crate::task_work::RingHandle;

/// An io_uring-shaped ring over the block layer. See [`crate`] for an example.
#[derive(Debug)]
pub struct Ring {
    /// Declared first: the ring leaves its thread's list before the state is dropped.
    _registered: Registered,
    shared: Rc<InnerCell>,
    io_wq: IoWq,
}

impl Ring {
    pub(crate) fn new(inner: Inner) -> Ring {
        let io_wq = inner.core.wq.pool().clone();
        let shared = Rc::new(InnerCell(RefCell::new(inner)));
        Ring { _registered: own::register(&shared), shared, io_wq }
    }

    /// Attaches a block device. Returns the [`Fd`] that operations of this ring name it by.
    pub fn attach(&mut self, device: &Device) -> Result<Fd, RingError> {
        self.inner().attach(device)
    }

    /// Attaches a file. Returns the [`Fd`] that operations of this ring name it by.
    pub fn attach_file(&mut self, file: Arc<dyn File>) -> Result<Fd, RingError> {
        self.inner().attach_file(file)
    }

    /// Attaches another ring (or this one) as a target of MSG_RING.
    pub fn attach_ring(&mut self, ring: &RingHandle) -> Result<Fd, RingError> {
        self.inner().attach_ring(ring)
    }

    /// Removes an entry of the file table. Requests in flight keep the file until they have ended; new ones get
    /// `-EBADF`.
    pub fn detach(&mut self, fd: Fd) -> Result<(), RingError> {
        self.inner().detach(fd)
    }

    /// Replaces the table that `IOSQE_FIXED_FILE` indexes. [`Fd::NONE`] leaves an entry empty. An invalid `fd` changes
    /// nothing.
    pub fn register_files(&mut self, fds: &[Fd]) -> Result<(), RingError> {
        self.inner().register_files(fds)
    }

    /// Changes one entry of the registered table. Requests that use the old file keep it.
    pub fn update_file(&mut self, index: usize, fd: Fd) -> Result<(), RingError> {
        self.inner().update_file(index, fd)
    }

    /// Drops the registered table.
    pub fn unregister_files(&mut self) {
        self.inner().unregister_files();
    }

    /// Replaces the pool behind the ring's cache of bios by `store`, which then sees each bio that the cache cannot
    /// serve. For observing where bios come from, or limiting them.
    #[cfg(sheave_lab)]
    pub fn set_bio_store(&mut self, store: Box<dyn BioStore>) -> Result<(), RingError> {
        self.inner().set_bio_store(store)
    }

    /// Registers buffers for READ_FIXED and WRITE_FIXED, replacing those registered before. The ring owns them.
    pub fn register_buffers(&mut self, bufs: Vec<Buf>) -> Result<(), RingError> {
        self.inner().register_buffers(bufs)
    }

    /// Replaces one registered buffer. Returns the old buffer; if requests still use it, returns `None` and frees it
    /// after the last of them.
    pub fn update_buffer(&mut self, index: u16, buf: Option<Buf>) -> Result<Option<Buf>, RingError> {
        self.inner().update_buffer(index, buf)
    }

    /// Returns a registered buffer for reading. `None` while a request uses it, or if there is none.
    pub fn buffer(&self, index: u16) -> Option<&[u8]> {
        let (base, len) = self.look().unused_buffer(index)?;
        // SAFETY: R2.
        Some(unsafe { std::slice::from_raw_parts(base, len) })
    }

    /// Returns a registered buffer for writing. `None` while a request uses it, or if there is none.
    pub fn buffer_mut(&mut self, index: u16) -> Option<&mut [u8]> {
        let (base, len) = self.inner().unused_buffer_mut(index)?;
        // SAFETY: R2.
        Some(unsafe { std::slice::from_raw_parts_mut(base, len) })
    }

    /// Returns the number of free SQEs.
    #[inline]
    pub fn sq_space(&self) -> u32 {
        self.look().core.queues.sq_space()
    }

    /// Queues an operation. If the SQ is full, the error returns it.
    #[inline(always)]
    pub fn push(&mut self, op: impl Op) -> Result<(), Box<SqFull>> {
        self.brief().push(op.into())
    }

    /// Queues operations that run one after the other: each but the last is [linked](Entry::link) to the next, unless
    /// it is [hard-linked](Entry::hardlink). Queues all of them or, if the SQ has too little room, none, and the error
    /// returns them. A full SQ therefore never parts a write from the fsync behind it.
    ///
    /// A chain is taken whole, so its length is limited by the entries of the ring and by the requests that may be in
    /// flight ([`RingError::ChainTooLong`]). A chain that has grown beyond that by [`Entry::link`] is refused when it
    /// is submitted: its first member gives `-E2BIG`, the others `-ECANCELED`, and none of them runs.
    ///
    /// ```
    /// # use sheave_uring::{prep, Ring};
    /// # use sheave_base::buf::Buf;
    /// # let mut ring = Ring::builder().build()?;
    /// # let fd = ring.attach(&sheave_drivers::open_device("null:size=1M")?)?;
    /// let record = Buf::zeroed(4096, 4096)?;
    /// ring.push_chain([prep::write(fd, record).user_data(1).into(), prep::fsync(fd).user_data(2).into()])?;
    /// ring.submit_and_wait(2)?;
    /// assert!(ring.completions().all(|done| done.result().is_ok()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn push_chain<const N: usize>(&mut self, chain: [Entry; N]) -> Result<(), Box<SqFull<[Entry; N]>>> {
        self.hot().push_chain(chain)
    }

    /// Queues a copy of an SQE. Returns false if the SQ is full.
    ///
    /// # Safety
    /// The requirements of `Ring::push_sqe`.
    #[inline(always)]
    pub(crate) unsafe fn queue_sqe(&mut self, sqe: &Sqe) -> bool {
        // SAFETY: R3.
        match unsafe { &mut *self.shared.0.as_ptr() }.core.queues.sq_next() {
            Some((_, slot)) => {
                *slot = *sqe;
                true
            }
            None => false,
        }
    }

    /// Submits the queued operations and hands them to the devices. Never blocks. Returns the number of SQEs taken:
    /// fewer than queued if too much is in flight, and an error if none could be taken for that reason.
    #[inline]
    pub fn submit(&mut self) -> Result<u32, RingError> {
        self.hot().submit()
    }

    /// Submits, then waits until `wanted` completions can be read, as [`Ring::wait`] does without a timeout. Returns as
    /// [`Ring::submit`].
    #[inline]
    pub fn submit_and_wait(&mut self, wanted: u32) -> Result<u32, RingError> {
        self.submit_then_wait(wanted).ok_or(RingError::Busy)
    }

    /// Kept as one function whose result fits into registers: its cost shows in the latency of a single I/O.
    #[inline(never)]
    fn submit_then_wait(&mut self, wanted: u32) -> Option<u32> {
        self.hot().submit_and_wait(wanted)
    }

    /// Waits until `wanted` completions can be read, another thread [wakes](RingHandle::wake) the ring, or `timeout` is
    /// over. Without a timeout, a ring with nothing in flight and no [`RingHandle`] elsewhere returns at once: nothing
    /// could end the wait.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use sheave_uring::{Ring, Waited};
    ///
    /// let mut ring = Ring::builder().build()?;
    /// assert_eq!(ring.wait(1, None), Waited::Idle);
    /// assert_eq!(ring.wait(1, Some(Duration::from_millis(2))), Waited::TimedOut);
    /// let handle = ring.handle();
    /// let waker = std::thread::spawn(move || handle.wake());
    /// assert_eq!(ring.wait(1, None), Waited::Woken);
    /// # waker.join().unwrap();
    /// # Ok::<(), sheave_uring::RingError>(())
    /// ```
    pub fn wait(&mut self, wanted: u32, timeout: Option<Duration>) -> Waited {
        self.hot().wait(wanted, timeout)
    }

    /// Completes requests that devices and workers have ended, takes messages, then starts the requests that waited for
    /// those. Never blocks.
    pub fn reap(&mut self) {
        self.hot().reap();
    }

    /// Waits until everything submitted has completed. Completions stay to be read; those that find the CQ full are
    /// kept in the overflow list.
    pub fn drain(&mut self) {
        self.inner().drain();
    }

    /// Prepares a wait of an event loop that is not the ring's own (epoll, tokio, glib). Reaps first. Returns `None` if
    /// there are completions to read or other work to do. Otherwise makes the ring's descriptor ([`AsFd`]) become
    /// readable when a device has completed something, a worker has finished, or another thread has sent a message or
    /// [woken](RingHandle::wake) the ring.
    ///
    /// On `None`, read the completions, then call again. Otherwise wait for the descriptor, no longer than
    /// [`WaitOn::timeout`], and then call again. Also call again after each submission, which may have given the ring
    /// other things to wait for.
    ///
    /// A wait by `epoll_wait` may end with EINTR although no signal has come: the kernel interrupts the thread to
    /// complete I/O of a device's kernel ring. Treat it as a wake-up and call again.
    ///
    /// ```
    /// # use sheave_uring::{prep, Ring};
    /// # use std::os::fd::AsFd;
    /// # use rustix::event::{PollFd, PollFlags, Timespec, poll};
    /// # let mut ring = Ring::builder().build()?;
    /// # let handle = ring.handle();
    /// # let other = std::thread::spawn(move || handle.send(1, 2));
    /// let done = loop {
    ///     if let Some(done) = ring.pop() {
    ///         break done;
    ///     }
    ///     if let Some(wait) = ring.prepare_wait() {
    ///         let timeout = wait.timeout.map(|time| Timespec::try_from(time).expect("not in centuries"));
    ///         poll(&mut [PollFd::new(&ring.as_fd(), PollFlags::IN)], timeout.as_ref())?;
    ///     }
    /// };
    /// assert_eq!((done.user_data, done.res), (1, 2));
    /// # other.join().expect("no panic")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare_wait(&mut self) -> Option<WaitOn> {
        self.inner().prepare_wait().map(|timeout| WaitOn { timeout })
    }

    /// Cancels waiting operations without an SQE: the first that matches, or all of them ([`Cancel::all`],
    /// [`Cancel::everything`]). Returns their number; each of them completes with `-ECANCELED`. Errors: `ENOENT` if
    /// none matches, `EBADF` if the file is not there, `EINVAL` for conditions that exclude each other.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use sheave_uring::{prep, prep::Cancel, Ring};
    /// # let mut ring = Ring::builder().build()?;
    /// ring.push(prep::timeout(Duration::from_secs(60)).user_data(1))?;
    /// ring.submit()?;
    /// assert_eq!(ring.cancel(Cancel::user_data(1)), Ok(1));
    /// ring.drain();
    /// assert_eq!(ring.completions().next().map(|c| (c.user_data, c.res)), Some((1, -125)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(&mut self, what: Cancel) -> Result<u32, Errno> {
        self.inner().cancel(what)
    }

    /// Returns an iterator that consumes completions. An empty CQ is filled from the devices first. Completions not
    /// iterated stay in the CQ.
    #[inline]
    pub fn completions(&mut self) -> Completions<'_> {
        let (head, end) = match self.brief().readable() {
            Some(readable) => readable,
            None => self.hot().fill(),
        };
        // If no operation of the ring has owned memory so far, no CQE has a key: all of them are one row.
        let row_end = if self.brief().core.owned.is_unused() { end } else { head };
        Completions { ring: self, head, row_end, has_keys: false, end }
    }

    /// Takes the oldest completion. An empty CQ is filled from the devices first; `None` if they have none either.
    /// Unlike [`Ring::completions`], it leaves the ring free to push the next operation between two completions.
    ///
    /// ```
    /// # use sheave_uring::{prep, Ring};
    /// let mut ring = Ring::builder().entries(8).build()?;
    /// ring.push(prep::nop().user_data(3))?;
    /// ring.submit_and_wait(1)?;
    /// let mut seen = 0;
    /// while let Some(done) = ring.pop() {
    ///     seen += 1;
    ///     if done.user_data > 0 {
    ///         ring.push(prep::nop().user_data(done.user_data - 1))?;
    ///         ring.submit_and_wait(1)?;
    ///     }
    /// }
    /// assert_eq!(seen, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn pop(&mut self) -> Option<Completion> {
        self.completions().next()
    }

    /// Passes the readable CQEs to `each` and consumes them. Returns their number. Implements `Ring::for_each_cqe`.
    #[inline(always)]
    pub(crate) fn take_cqes(&mut self, mut each: impl FnMut(&Cqe)) -> u32 {
        let mut inner = self.hot();
        let (head, all) = inner.fill_unowned();
        let (row, rest) = inner.core.queues.cq_rows(head, all);
        // One loop over both rows: a closure that is called in two places is inlined in neither.
        for row in [row, rest] {
            for cqe in row {
                each(cqe);
            }
        }
        inner.core.queues.cq_advance(head.wrapping_add(all));
        all
    }

    /// Returns the number of requests submitted and not yet completed.
    pub fn in_flight(&self) -> u32 {
        self.look().core.live()
    }

    /// Returns the counts of I/Os that did not complete where they were reaped, but later. A large share of such I/Os
    /// explains slow writes.
    #[cfg(sheave_lab)]
    pub fn late_completions(&self) -> LateCompletions {
        self.look().core.late
    }

    /// Returns true while completions wait behind a full CQ (`IORING_SQ_CQ_OVERFLOW`).
    pub fn cq_overflowed(&self) -> bool {
        self.look().core.queues.sq_flags() & crate::sqe::SQ_CQ_OVERFLOW != 0
    }

    /// Returns the workers of this ring, its own or shared: limits and counts.
    pub fn io_wq(&self) -> &IoWq {
        &self.io_wq
    }

    /// Returns the counters of the I/O on all files of this ring together, and of the time spent in each stage. Any
    /// thread may read them at any time. `None` for a ring without statistics.
    ///
    /// ```
    /// # use sheave_uring::{prep, Ring};
    /// # use sheave_base::buf::Buf;
    /// # let mut ring = Ring::builder().build()?;
    /// # let fd = ring.attach(&sheave_drivers::open_device("null:size=1M")?)?;
    /// let counts = ring.io_group().expect("statistics are on");
    /// ring.push(prep::read(fd, Buf::zeroed(4096, 4096)?))?;
    /// ring.submit_and_wait(1)?;
    /// let ios = std::thread::spawn(move || counts.counts().ios()).join().expect("no panic");
    /// assert_eq!(ios, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn io_group(&self) -> Option<Arc<IoGroup>> {
        self.look().core.times.as_ref().map(|times| times.ring.group.clone())
    }

    /// Returns the recorder of this ring's last slow I/Os, each with the time it spent in each stage. Any thread may
    /// read it at any time. `None` for a ring without statistics.
    ///
    /// ```
    /// # use sheave_uring::{prep, Ring};
    /// # use sheave_base::buf::Buf;
    /// # use std::time::Duration;
    /// let mut ring = Ring::builder().slow_limit(Duration::from_millis(2)).build()?;
    /// let fd = ring.attach(&sheave_drivers::open_device("null:size=1M,latency=5ms")?)?;
    /// let recorder = ring.flight_recorder().expect("statistics are on");
    /// ring.push(prep::read(fd, Buf::zeroed(4096, 4096)?))?;
    /// ring.submit_and_wait(1)?;
    /// for slow in recorder.read(0).ios {
    ///     println!("{}", slow.explain("the disk"));
    /// }
    /// # assert_eq!(recorder.read(0).ios.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flight_recorder(&self) -> Option<Arc<FlightRecorder>> {
        self.look().core.times.as_ref().map(|times| times.ring.recorder.clone())
    }

    /// Writes each request that ends on a device to a [trace](sheave_base::trace) from now on; `None` ends that.
    /// Returns the previous trace. A ring without statistics takes no time stamps and writes nothing.
    ///
    /// ```
    /// # use sheave_uring::{prep, Ring};
    /// # use sheave_base::buf::Buf;
    /// # let mut ring = Ring::builder().build()?;
    /// # let fd = ring.attach(&sheave_drivers::open_device("null:size=1M")?)?;
    /// # let path = std::env::temp_dir().join(format!("sheave-doc-{}.trace", std::process::id()));
    /// use sheave_base::trace::{reader::Trace, writer::TraceWriter};
    ///
    /// ring.trace_to(Some(TraceWriter::create(&path, 0, 2 << 20)?));
    /// ring.push(prep::read(fd, Buf::zeroed(4096, 4096)?))?;
    /// ring.submit_and_wait(1)?;
    /// drop(ring.trace_to(None)); // writes the entries that wait for others
    /// assert_eq!(Trace::read(&path)?.entries[0].bytes, 4096);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trace_to(&mut self, trace: Option<TraceWriter>) -> Option<TraceWriter> {
        self.inner().io.trace_to(trace)
    }

    /// Returns a handle by which other threads send messages to this ring and wake it.
    pub fn handle(&self) -> RingHandle {
        self.look().task_work.handle().clone()
    }

    /// Returns the block layer of this ring, for reports and tests. Not covered by the library's stability promise.
    #[doc(hidden)]
    pub fn io(&self) -> Ref<'_, IoCtx> {
        Ref::map(self.look(), |inner| &inner.io)
    }

    /// Borrows the state for reading, also while [`Ring::io`] or [`Ring::memory`] lends a part of it.
    fn look(&self) -> Ref<'_, Inner> {
        self.shared.0.borrow()
    }

    /// Borrows the state for the calls of a server's loop, which are in [`sockets`](crate::sockets).
    pub(crate) fn state(&self) -> RefMut<'_, Inner> {
        self.hot()
    }

    /// Borrows the state for one call (I1 of [`inner`]) that may change anything, and marks the ring noisy.
    fn inner(&self) -> RefMut<'_, Inner> {
        let mut inner = self.hot();
        inner.core.quiet.stir();
        inner
    }

    /// Borrows the state for a call in which only the ring's own code runs. The `RefCell` is checked but not marked as
    /// borrowed.
    ///
    /// # Panics
    /// If the state is borrowed: a driver or a file, called by a wait of this thread, has called the ring.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "as `RefCell::borrow_mut`, for the time of one call")]
    fn brief(&self) -> &mut Inner {
        // SAFETY: the shared borrow ends with this expression.
        if unsafe { self.shared.0.try_borrow_unguarded() }.is_err() {
            in_use();
        }
        // SAFETY: R3. No mutable borrow exists, as was just checked. No shared borrow exists either: every caller has
        // the ring mutably borrowed, so no `Ref` of it is lent.
        unsafe { &mut *self.shared.0.as_ptr() }
    }

    /// Borrows the state for a call that marks the ring noisy itself when necessary.
    #[inline(always)]
    fn hot(&self) -> RefMut<'_, Inner> {
        self.shared.0.borrow_mut()
    }
}

#[cold]
#[inline(never)]
fn in_use() -> ! {
    panic!("a ring was called from within one of its own calls");
}

/// Returns the descriptor for [`Ring::prepare_wait`], created on first use. For polling only; it stays the same for the
/// ring's life.
impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let raw = self.look().io.wait_fd().as_raw_fd();
        // SAFETY: the descriptor is closed with the state of the ring, which the ring owns, and never replaced.
        unsafe { BorrowedFd::borrow_raw(raw) }
    }
}

/// Iterator over completions. Each item is consumed when it is returned, also if the iterator is dropped early or
/// forgotten.
#[derive(Debug)]
pub struct Completions<'a> {
    ring: &'a Ring,
    head: u32,
    /// End of the row at `head`: consecutive CQEs that all have a key as their user data (`has_keys`), or all have
    /// none.
    row_end: u32,
    has_keys: bool,
    end: u32,
}

impl Iterator for Completions<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        if self.head == self.row_end {
            if self.head == self.end {
                return None;
            }
            let rows = &mut self.ring.brief().core.owned.cq;
            let (many, has_keys) = rows.look(self.head, self.end.wrapping_sub(self.head));
            (self.row_end, self.has_keys) = (self.head.wrapping_add(many), has_keys);
        }
        let core = &mut self.ring.brief().core;
        let Cqe { user_data, res, flags } = core.queues.cq_read(self.head);
        self.head = self.head.wrapping_add(1);
        core.queues.cq_advance(self.head);
        let flags = CompletionFlags::from_bits(flags);
        if !self.has_keys {
            return Some(Completion { user_data, res, flags, detail: Detail::default(), owned: None });
        }
        if res < 0 {
            let (user_data, owned, detail) = core.owned.end_failed(user_data as u32);
            return Some(Completion { user_data, res, flags, detail, owned });
        }
        let (user_data, owned) = core.owned.end(user_data as u32);
        Some(Completion { user_data, res, flags, detail: Detail::default(), owned })
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end.wrapping_sub(self.head) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Completions<'_> {}
