//! The ring: what embedders hold.
//!
//! Owns the calls of io_uring: fill, submit, wait, reap. What they work on is in [`inner`]: the block layer of the
//! ring's thread ([`IoCtx`]), the state of requests and the workers. A ring belongs to the thread that made it and is
//! not `Send`; other threads reach it through its [`RingHandle`].
//!
//! A thread that waits for a file (for a snapshot, say) while its ring has I/O to that file would wait for itself. So
//! the ring is in its thread's list of what such a wait may run ([`own`]), and is reaped there: completions stay in the
//! CQ for the caller to read.
//!
//! Invariants:
//! - R1: a call never blocks but [`Ring::submit_and_wait`], [`Ring::wait`], [`Ring::drain`] and dropping the ring.
//! - R2: the memory of a registered buffer stays where it is until a call with `&mut self` replaces the buffer. While
//!   no request names it, none can come to: only submissions make requests.
//! - R3: between two calls of the ring nothing has its state but a wait of its thread, which has returned before the
//!   next one.
//!
//! Called by embedders, and by waits of its thread.
#![allow(unsafe_code)] // The raw interface of io_uring, and memory of buffers that outlives a look at the state.

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
    /// Leaves the thread's list before the state goes.
    _registered: Registered,
    shared: Rc<InnerCell>,
    io_wq: IoWq,
}

impl Ring {
    /// A ring with this state, on its thread.
    pub(crate) fn new(inner: Inner) -> Ring {
        let io_wq = inner.core.wq.pool().clone();
        let shared = Rc::new(InnerCell(RefCell::new(inner)));
        Ring { _registered: own::register(&shared), shared, io_wq }
    }

    /// Opens this ring's way into a device.
    pub fn attach(&mut self, device: &Device) -> Result<Fd, RingError> {
        self.inner().attach(device)
    }

    /// Opens this ring's way into a file.
    pub fn attach_file(&mut self, file: Arc<dyn File>) -> Result<Fd, RingError> {
        self.inner().attach_file(file)
    }

    /// Makes another ring (or this one) a target of MSG_RING.
    pub fn attach_ring(&mut self, ring: &RingHandle) -> Result<Fd, RingError> {
        self.inner().attach_ring(ring)
    }

    /// Takes an entry out of the file table. Requests in flight keep the file until they have ended; new ones get
    /// `-EBADF`.
    pub fn detach(&mut self, fd: Fd) -> Result<(), RingError> {
        self.inner().detach(fd)
    }

    /// Makes the table that `IOSQE_FIXED_FILE` indexes, in place of the one before; [`Fd::NONE`] leaves its entry
    /// empty. A wrong `fd` changes nothing.
    pub fn register_files(&mut self, fds: &[Fd]) -> Result<(), RingError> {
        self.inner().register_files(fds)
    }

    /// Changes one entry of the registered table, also while requests use the old file.
    pub fn update_file(&mut self, index: usize, fd: Fd) -> Result<(), RingError> {
        self.inner().update_file(index, fd)
    }

    /// Drops the registered table.
    pub fn unregister_files(&mut self) {
        self.inner().unregister_files();
    }

    /// Puts a store behind the ring's cache of bios, in place of the ring's own pool: who wants to know where bios come
    /// from, or to limit them, sees there each one that the cache does not serve.
    #[cfg(sheave_lab)]
    pub fn set_bio_store(&mut self, store: Box<dyn BioStore>) -> Result<(), RingError> {
        self.inner().set_bio_store(store)
    }

    /// Registers buffers for READ_FIXED and WRITE_FIXED, in place of those registered before. The ring owns them.
    pub fn register_buffers(&mut self, bufs: Vec<Buf>) -> Result<(), RingError> {
        self.inner().register_buffers(bufs)
    }

    /// Puts another buffer in a place, also while requests use the old one; gives the old one back unless they do,
    /// and then frees it after the last of them.
    pub fn update_buffer(&mut self, index: u16, buf: Option<Buf>) -> Result<Option<Buf>, RingError> {
        self.inner().update_buffer(index, buf)
    }

    /// A registered buffer, to look at; `None` while a request uses it, or when there is none.
    pub fn buffer(&self, index: u16) -> Option<&[u8]> {
        let (base, len) = self.look().unused_buffer(index)?;
        // SAFETY: R2.
        Some(unsafe { std::slice::from_raw_parts(base, len) })
    }

    /// A registered buffer, to change; `None` while a request uses it, or when there is none.
    pub fn buffer_mut(&mut self, index: u16) -> Option<&mut [u8]> {
        let (base, len) = self.inner().unused_buffer_mut(index)?;
        // SAFETY: R2.
        Some(unsafe { std::slice::from_raw_parts_mut(base, len) })
    }

    /// Free SQEs.
    #[inline]
    pub fn sq_space(&self) -> u32 {
        self.look().core.queues.sq_space()
    }

    /// Queues an operation; a full SQ gives it back.
    #[inline(always)]
    pub fn push(&mut self, op: impl Op) -> Result<(), Box<SqFull>> {
        self.brief().push(op.into())
    }

    /// Queues operations that run one after the other: each but the last is [linked](Entry::link) to the next, unless
    /// it is [hard-linked](Entry::hardlink). All or, when the SQ has too little room, none: then they come back.
    /// So a full SQ never parts a write from the fsync behind it.
    ///
    /// A chain is taken whole, so it may have no more operations than the ring has entries, and than may be in flight
    /// ([`RingError::ChainTooLong`]). One that has grown beyond that by [`Entry::link`] is refused when it is
    /// submitted: `-E2BIG` for its first member, `-ECANCELED` for the others, and nothing of it runs.
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

    /// Queues an SQE as it is; false when the SQ is full.
    ///
    /// # Safety
    /// As for `Ring::push_sqe`.
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

    /// Submits what was pushed and hands it to the devices; never blocks. Returns how many SQEs were taken: fewer
    /// than pushed when too much is in flight, and an error when nothing could be taken for that reason.
    #[inline]
    pub fn submit(&mut self) -> Result<u32, RingError> {
        self.hot().submit()
    }

    /// Submits, then waits until `wanted` completions can be read, or as [`Ring::wait`] without a time limit ends.
    #[inline]
    pub fn submit_and_wait(&mut self, wanted: u32) -> Result<u32, RingError> {
        self.submit_then_wait(wanted).ok_or(RingError::Busy)
    }

    /// In one function and with a result that fits into registers: an I/O alone costs little more.
    #[inline(never)]
    fn submit_then_wait(&mut self, wanted: u32) -> Option<u32> {
        self.hot().submit_and_wait(wanted)
    }

    /// Waits until `wanted` completions can be read, another thread [wakes](RingHandle::wake) the ring, or the time is
    /// over. Without a time limit, a ring with nothing in flight that nobody has a [`RingHandle`] of does not wait: it
    /// would for ever.
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

    /// Completes what is ready: devices, workers, messages; then starts what waited for it. Never blocks.
    pub fn reap(&mut self) {
        self.hot().reap();
    }

    /// Waits until everything submitted has completed. Completions stay to be read; those that find the CQ full are
    /// kept behind it.
    pub fn drain(&mut self) {
        self.inner().drain();
    }

    /// For an event loop that is not the ring's own (epoll, tokio, glib): reaps, and unless there are completions to
    /// read or something else to do, announces that the loop is going to wait for the ring's descriptor ([`AsFd`]).
    /// That is readable when a device has completed something, a worker has finished, or another thread has sent a
    /// message or [woken](RingHandle::wake) the ring.
    ///
    /// `None`: read the completions, then ask again. Otherwise wait, no longer than [`WaitOn::timeout`], and then ask
    /// again; also ask again after each submission, which may have given the ring other things to wait for.
    ///
    /// A wait by `epoll_wait` may end with EINTR though no signal has come: the kernel interrupts the thread to
    /// complete I/O of a device's kernel ring. Ask again then, as after a wake-up.
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

    /// Cancels operations that wait, without an SQE: the first that matches, or all ([`Cancel::all`],
    /// [`Cancel::everything`]). Returns how many; each of them completes with `-ECANCELED`. `ENOENT` when there is
    /// none, `EBADF` when the file is not there, `EINVAL` for conditions that exclude each other.
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

    /// Reads completions; an empty CQ is filled from the devices first. What is not iterated stays.
    #[inline]
    pub fn completions(&mut self) -> Completions<'_> {
        let (head, end) = match self.brief().readable() {
            Some(readable) => readable,
            None => self.hot().fill(),
        };
        // In a ring none of whose operations ever owned anything, no CQE has a key.
        let row_end = if self.brief().core.owned.is_unused() { end } else { head };
        Completions { ring: self, head, row_end, has_keys: false, end }
    }

    /// Takes the oldest completion that can be read; an empty CQ is filled from the devices first, and `None` says that
    /// they have none either. In contrast to [`Ring::completions`] it leaves the ring free to push the next operation
    /// for each that has ended.
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

    /// Shows `each` the CQEs that can be read, and takes them: `Ring::for_each_cqe`.
    #[inline(always)]
    pub(crate) fn take_cqes(&mut self, mut each: impl FnMut(&Cqe)) -> u32 {
        let mut inner = self.hot();
        let (head, all) = inner.fill_unowned();
        let (row, rest) = inner.core.queues.cq_rows(head, all);
        // One loop over both: a closure that is called in two places is not inlined in either.
        for row in [row, rest] {
            for cqe in row {
                each(cqe);
            }
        }
        inner.core.queues.cq_advance(head.wrapping_add(all));
        all
    }

    /// Requests submitted and not yet completed.
    pub fn in_flight(&self) -> u32 {
        self.look().core.live()
    }

    /// How many I/Os did not complete at once where they were reaped, but later: a share that is not small says why
    /// writes are slow.
    #[cfg(sheave_lab)]
    pub fn late_completions(&self) -> LateCompletions {
        self.look().core.late
    }

    /// Whether completions wait behind a full CQ (`IORING_SQ_CQ_OVERFLOW`).
    pub fn cq_overflowed(&self) -> bool {
        self.look().core.queues.sq_flags() & crate::sqe::SQ_CQ_OVERFLOW != 0
    }

    /// The workers of this ring, its own or shared: limits and counts.
    pub fn io_wq(&self) -> &IoWq {
        &self.io_wq
    }

    /// What this ring has done on files, all of them together, and where the time of that went: for any thread to read,
    /// at any time. `None` of a ring without statistics.
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

    /// The last I/Os of this ring that were slow, each with where its time went: for any thread to read, at any time.
    /// `None` of a ring without statistics.
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

    /// Writes each request that ends on a device to a [trace](sheave_base::trace) from now on; `None` ends that. Gives
    /// back the trace before it. A ring without statistics has no stamps, and writes none.
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

    /// A handle by which other threads send messages to this ring and wake it.
    pub fn handle(&self) -> RingHandle {
        self.look().task_work.handle().clone()
    }

    /// The block layer of this ring, for reports and tests; no part of the library's promise.
    #[doc(hidden)]
    pub fn io(&self) -> Ref<'_, IoCtx> {
        Ref::map(self.look(), |inner| &inner.io)
    }

    /// The state, to look at; also while [`Ring::io`] or [`Ring::memory`] lends a part of it.
    fn look(&self) -> Ref<'_, Inner> {
        self.shared.0.borrow()
    }

    /// The state, for a call of a server ([`sockets`](crate::sockets)).
    pub(crate) fn state(&self) -> RefMut<'_, Inner> {
        self.hot()
    }

    /// The state, for one call (I1 of [`inner`]) that may change anything.
    fn inner(&self) -> RefMut<'_, Inner> {
        let mut inner = self.hot();
        inner.core.quiet.stir();
        inner
    }

    /// The state, for a call in which no code but the ring's own runs, and which therefore need not say that the state
    /// is in use.
    ///
    /// # Panics
    /// When it is in use: code of a driver or a file, which a wait of this thread runs, has called.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "as `RefCell::borrow_mut`, for the time of one call")]
    fn brief(&self) -> &mut Inner {
        // SAFETY: the state is looked at for the time of the question alone.
        if unsafe { self.shared.0.try_borrow_unguarded() }.is_err() {
            in_use();
        }
        // SAFETY: R3. Nobody has it to change it, as was just asked. Nobody has it to look at it either: both callers
        // have the ring for themselves, so no `Ref` of it is lent.
        unsafe { &mut *self.shared.0.as_ptr() }
    }

    /// The state, for a call that says itself when its ring is not quiet any more.
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

/// The descriptor for [`Ring::prepare_wait`], made when it is first asked for. For polling only, and the same for the
/// ring's whole life.
impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let raw = self.look().io.wait_fd().as_raw_fd();
        // SAFETY: the descriptor is closed with the state of the ring, which the ring owns, and never replaced.
        unsafe { BorrowedFd::borrow_raw(raw) }
    }
}

/// Iterator over completions. What it gave is consumed at once, whether it is dropped early or forgotten.
#[derive(Debug)]
pub struct Completions<'a> {
    ring: &'a Ring,
    head: u32,
    /// Up to here all CQEs have a key as their user data, or all have none (`has_keys`).
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
