//! The seam between the block layer and the drivers.
//!
//! ```text
//!   IoCtx (one a ring) ── Hctx ── Box<dyn HwQueue>     one ring's way into a device, on the ring's thread
//!                          │
//!   Device ── Queue ── Box<dyn Driver>                 the device, shared by all rings
//! ```
//!
//! A [`Driver`] is the device: limits, size, abilities. For every ring that attaches it opens a [`HwQueue`], which
//! gets requests in batches and finishes them into a [`DoneList`]. All calls of a `HwQueue` come from the ring's
//! thread; a driver that completes elsewhere sends the request out with [`Remote::send_out`] and ends it with
//! [`RemoteRq::complete`] on any thread.
//!
//! A driver moves bytes to and from memory that the block layer knows by its address, and tags index without a check
//! on the way of every I/O. So both traits are `unsafe` to implement: code that cannot be wrong about memory cannot be
//! a driver. What a driver promises, D1 to D7; whoever writes `unsafe impl` vouches for those marked with a star:
//! - D1 *: every request it takes ends at most once, in a list of the hardware queue that it came to (or remotely, by
//!   its own [`RemoteRq`]), never in that of another; and at least once, whatever happens, or its ring waits for ever.
//! - D2 *: once a request is in the `DoneList` (or completed remotely), neither the driver nor its device touches the
//!   memory; before, as many bytes of it as the request has, in the direction of its operation.
//! - D3 *: of a request it changes `private` alone. One that stacks on another may change `sector` and lower `bytes`
//!   for as long as that one has the request.
//! - D4: what it cannot take now it leaves in the list (or gives back with `unpop`), in order; it gets it again.
//! - D5: no call blocks, but [`HwQueue::shutdown`], and the one system call of a kernel ring that is full.
//! - D6 *: when [`HwQueue::shutdown`] has returned, or panicked, and the kernel ring has given back what the queue had
//!   there, the device touches no memory of its requests any more.
//! - D7 *: [`Driver::open_hctx`] gives queues that take every request within [`Driver::limits`],
//!   [`Driver::capabilities`] and [`Driver::size_bytes`].
//!
//! A call that panics is a bug of the driver, but not the end of the ring: the hardware queue is shut down, what it
//! does not give back ends with an I/O error, and every request that comes later fails. The panic ends at the block
//! layer; one of [`HwQueue::queue_rq`] may go on to the caller of the ring first.
//!
//! ```compile_fail,E0200
//! # #[derive(Debug)] struct Disk;
//! # use sheave_blk::{DeviceError, driver::{Capabilities, Driver, HctxOpen, HwQueue}, limits::Limits};
//! // With `forbid(unsafe_code)` there is no driver: one could end a request of another queue, whose tag indexes here.
//! impl Driver for Disk {
//!     # fn limits(&self) -> Limits { Limits::default() }
//!     # fn capabilities(&self) -> Capabilities { Capabilities::default() }
//!     # fn size_bytes(&self) -> u64 { 0 }
//!     # fn open_hctx(&self, _: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> { todo!() }
//! }
//! ```

use std::any::Any;
use std::fmt::Debug;

use sheave_base::clock::{Clock, PreciseTs};
use sheave_base::status::Status;
use sheave_base::sync::Arc;

use crate::claim::{Claim, Sharing};
use crate::error::DeviceError;
use crate::hctx_shared::HctxShared;
use crate::kring_slot::KringSlot;
use crate::limits::{Capacity, Limits};
use crate::request::{DoneList, Rq, RqList, RqTable};
use crate::stack::Lower;
use sheave_kring::{Completed, KernelRing};

/// How a driver reaches the kernel of the host with I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// By the kernel ring (io_uring) of the ring that the I/O comes from.
    IoUring,
    /// By system calls that wait, on threads.
    Sync,
}

impl std::fmt::Display for Engine {
    /// As the spec of `file:` has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Engine::IoUring => "uring",
            Engine::Sync => "sync",
        })
    }
}

/// What a device can do; by default nothing but reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A write can be made durable by itself.
    pub fua: bool,
    /// Completed writes may sit in a cache that a flush empties.
    pub volatile_cache: bool,
    /// Discards give space back.
    pub discard: bool,
    /// Ranges can be zeroed without sending zeroes.
    pub write_zeroes: bool,
    /// Completions can be polled for.
    pub polled: bool,
    /// I/O goes past the page cache of the host.
    pub direct_io: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// What was never written may have no space under it: a write there fails with `NoSpc` when the file system that
    /// the device lies in is full.
    pub sparse: bool,
    /// When another client takes over what this process has claimed, the storage itself refuses all that this process
    /// sends from then on.
    pub fences: bool,
    /// When what was written and had ended may be lost, the next flush of each ring fails for it, once. So a ring sends
    /// all of its flushes itself: one that a worker sent would be the worker's.
    pub flush_per_ring: bool,
    /// Its hardware queues begin an I/O and leave: the device, the host's kernel or a thread of the driver moves the
    /// data later, and taking a request costs its ring's thread little. So no worker waits for it: rings issue reads
    /// and writes with `IOSQE_ASYNC` themselves. Of other devices, as by default, workers do these whole.
    pub asynchronous: bool,
    /// How I/O reaches the kernel of the host; `None` for a device that has no use for it, or several ways.
    pub engine: Option<Engine>,
}

sheave_base::setters!(Capabilities {
    fua: bool,
    volatile_cache: bool,
    discard: bool,
    write_zeroes: bool,
    polled: bool,
    direct_io: bool,
    read_only: bool,
    sparse: bool,
    fences: bool,
    flush_per_ring: bool,
    asynchronous: bool,
    engine: Option<Engine>,
});

/// A part of a device, and what is known of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// All of it reads as zeroes; otherwise nothing is known.
    pub zero: bool,
}

impl Extent {
    /// So many bytes, which are zeroes or may be anything.
    pub fn new(len: u64, zero: bool) -> Extent {
        Extent { len, zero }
    }
}

/// A device, shared by all rings.
///
/// # Safety
/// D7 of the [module](self).
#[allow(unsafe_code)] // Whoever implements it vouches for memory.
pub unsafe trait Driver: Any + Debug + Send + Sync {
    /// What a request may look like.
    fn limits(&self) -> Limits;

    /// What the device can do.
    fn capabilities(&self) -> Capabilities;

    /// Size in bytes when the device was opened; later changes go through [`HctxOpen::capacity`].
    fn size_bytes(&self) -> u64;

    /// Requests that all rings together may have in flight, for a device with one limit for the host; `None` when
    /// every ring has a queue of its own.
    fn host_wide_depth(&self) -> Option<u16> {
        None
    }

    /// Opens one ring's way into the device, on the ring's thread.
    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError>;

    /// Locks what the device stands on against other processes, until the claim is dropped. For
    /// [`Device::claim`](crate::Device::claim), which keeps apart those within this process.
    fn claim(&self, _: Sharing) -> Result<Claim, DeviceError> {
        Ok(Claim::nothing())
    }

    /// Asks what the device stands on whether who has [claimed](Driver::claim) it has it still: an error when it was
    /// taken away, or nobody answers. Nothing is known of a device that takes nothing away. No cache may answer it; it
    /// may block for as long as a request may take.
    ///
    /// # Errors
    ///
    /// [`Status::Conflict`] when another has it or nobody, [`Status::Offline`] when all I/O is refused by now.
    fn still_owns(&self) -> Result<(), Status> {
        Ok(())
    }

    /// What is known of the content from this byte on: extents that follow one another, some thousands at most. None
    /// when nothing is known: whoever copies the device reads the rest of it. For copies, not for I/O: it may block for
    /// as long as a request may take.
    ///
    /// # Errors
    ///
    /// What the device says of itself cannot be right.
    fn extents(&self, _from: u64) -> Result<Vec<Extent>, DeviceError> {
        Ok(Vec::new())
    }

    /// What the user should know, in plain words, once.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What a driver gets to open a hardware queue.
#[derive(Debug)]
pub struct HctxOpen<'a> {
    /// The ring's kernel ring; made when first asked for.
    pub kring: &'a mut KringSlot,
    /// Requests in flight at most; tags are below it, the flush request's tag equals it.
    pub depth: u16,
    /// To complete from other threads.
    pub remote: Remote,
    /// What requests may look like: the driver's own limits, with what was wrong with them put right.
    pub limits: &'a Limits,
    /// The size of the device, for a driver that finds out that it has changed.
    pub capacity: &'a Capacity,
    /// The number of this hardware context within its ring.
    pub hctx: u16,
    /// The ring's clock.
    pub clock: &'a Clock,
    /// The way to the devices that the driver stands on, for one that was [made so](crate::Device::stacked).
    pub lower: Option<Lower>,
}

/// What a driver may use during a call.
#[derive(Debug)]
pub struct HwEnv<'a> {
    /// The ring's kernel ring, if any device asked for one.
    pub kring: Option<&'a mut KernelRing>,
    /// The ring's clock.
    pub clock: &'a Clock,
    /// The number of this hardware context within its ring.
    pub hctx: u16,
}

/// What a hardware queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextEvent {
    /// It holds nothing.
    Idle,
    /// A poll would find completions now.
    Ready,
    /// A poll will find something at this time.
    At(PreciseTs),
    /// The ring's kernel ring will complete something.
    Kernel,
    /// Another thread will complete something and wake the ring.
    Remote,
    /// A device below will end something.
    Lower,
    /// Only the timeout walk will end what it holds.
    Stuck,
}

/// A driver's answer to a request that takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOut {
    /// The driver has ended it, into the `DoneList`.
    Ended,
    /// The device still has it and may touch its memory; the driver has tried to cancel it, and asks for more time.
    Waiting,
}

/// A driver's answer to a request that came alone.
#[derive(Debug)]
#[must_use = "a request must be completed"]
pub enum Started {
    /// It has the request, or has put it into the `DoneList`.
    Taken,
    /// The request has ended at once.
    Ended(Rq, Status),
    /// It cannot take the request now (D4).
    Refused(Rq),
}

/// One ring's way into a device. All calls come from the ring's thread.
///
/// # Safety
/// D1, D2, D3 and D6 of the [module](self).
#[allow(unsafe_code)] // Whoever implements it vouches for memory.
pub unsafe trait HwQueue: Debug {
    /// Starts requests: takes from the front of `list` what it can, leaves the rest (D4).
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList);

    /// Starts one request that comes alone.
    fn queue_rq(&mut self, rq: Rq, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) -> Started {
        let mut list = RqList::of(rq.into_tag());
        self.queue_rqs(&mut list, rqs, env, done);
        list.pop().map_or(Started::Taken, Started::Refused)
    }

    /// Whether every request that it takes has ended, into `done`, when the call returns that it came with. Then it
    /// is never polled. Asked once, when the queue is opened.
    fn ends_in_call(&self) -> bool {
        false
    }

    /// Whether it may have something to do while it has no request: operations on the kernel ring that are no
    /// request's. Then it is polled, and asked what it waits for, at any time, and one completion of the kernel ring
    /// may end any number of its requests. Asked once, when the queue is opened.
    fn works_alone(&self) -> bool {
        false
    }

    /// Finishes what is ready, without waiting.
    fn poll(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList);

    /// The kernel ring completed operations that were prepared with the user data of this hardware context
    /// (see [`kernel_user_data`]).
    fn kernel_done(
        &mut self,
        events: KernelEvents<'_>,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) {
        let _ = (events, rqs, env, done);
    }

    /// Another thread has ended a request; the status it ends with here. For a driver that stacks on others and looks
    /// at what they end.
    fn ended_remotely(&mut self, tag: u16, status: Status, rqs: &mut RqTable<'_>) -> Status {
        let _ = (tag, rqs);
        status
    }

    /// What it waits for; asked before the ring sleeps.
    fn next_event(&self) -> NextEvent;

    /// Operations of its own that the kernel ring has, counted exactly, where some of them do not end by themselves
    /// (watches, timers). Beside them the ring tells when the kernel has nothing more of a driver that has panicked.
    fn lasting_in_kernel(&self) -> u32 {
        0
    }

    /// A request exceeded the device's time limit.
    fn timed_out(&mut self, tag: u16, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut;

    /// Ends everything it holds. What only the kernel ring can give back it cancels, leaves as it is, and ends when
    /// [`kernel_done`](HwQueue::kernel_done) brings it: the ring waits for that and calls again, until nothing is
    /// held. So it is with children that the devices below have. Everything else is waited for here. A queue that says
    /// [`NextEvent::Kernel`] is waited for even when it has no request. Afterwards the queue is dropped.
    fn shutdown(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList);
}

/// A completion of the kernel ring, for the hardware context that asked for it.
#[derive(Clone, Copy, Debug)]
pub struct KernelEvent {
    /// Tag of the request.
    pub tag: u16,
    /// The driver's own kind, as given to [`kernel_user_data`].
    pub kind: u8,
    /// Result, `-errno` on failure.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
    /// As given to [`with_generation`]; 0 without.
    pub generation: u32,
}

/// Completions of the kernel ring for one hardware context, in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub struct KernelEvents<'a>(pub(crate) &'a [Completed]);

impl<'a> KernelEvents<'a> {
    /// The one that there is, if there are no others.
    #[inline]
    pub fn only(self) -> Option<KernelEvent> {
        if self.0.len() == 1 { self.iter().next() } else { None }
    }

    /// Each of them.
    #[inline]
    pub fn iter(self) -> impl ExactSizeIterator<Item = KernelEvent> + Clone + 'a {
        self.0.iter().map(|&Completed { user_data, res, flags }| {
            let (tag, kind, generation) = (user_data as u16, (user_data >> 32) as u8, (user_data >> 40) as u32);
            KernelEvent { tag, kind, res, flags, generation }
        })
    }
}

/// User data for an operation on the kernel ring, so that its completion finds the hardware context.
/// `kind` is the driver's; 255 is the ring's own, 253 that of sockets, 254 asks for the completion to be ignored.
#[inline]
pub const fn kernel_user_data(hctx: u16, tag: u16, kind: u8) -> u64 {
    (kind as u64) << 32 | (hctx as u64) << 16 | tag as u64
}

/// The number of bits that [`with_generation`] has room for.
pub const GENERATION_BITS: u32 = 24;

/// User data of [`kernel_user_data`] for one use of a tag: for a driver whose operations are not ended by the end of
/// a request, so that neither a completion nor a cancellation of one use finds the next.
#[inline]
pub const fn with_generation(user_data: u64, generation: u32) -> u64 {
    user_data | (generation as u64) << (u64::BITS - GENERATION_BITS)
}

/// The `kind` of the ring's own operations on the kernel ring.
pub(crate) const KIND_RING: u8 = 255;
/// The `kind` of operations on sockets, whose completions the ring's owner takes ([`IoCtx::sockets`]).
///
/// [`IoCtx::sockets`]: crate::ctx::IoCtx::sockets
pub(crate) const KIND_SOCKET: u8 = 253;
/// The `kind` of operations whose completion nobody wants, such as a cancellation (its victim's says enough).
pub const KIND_IGNORED: u8 = 254;

/// Lets another thread complete requests of one hardware context.
#[derive(Clone, Debug)]
pub struct Remote {
    pub(crate) shared: Arc<HctxShared>,
}

impl Remote {
    /// Has the ring poll soon, also when it sleeps: for a driver that takes from another thread what is not a request.
    pub fn wake(&self) {
        self.shared.unpark();
    }

    /// Turns the token into one that another thread may hold.
    pub fn send_out(&self, rq: Rq) -> RemoteRq {
        RemoteRq { tag: Some(rq.into_tag()), shared: self.shared.clone() }
    }
}

/// A request in the hands of another thread. Like [`Rq`], dropping it is a bug: in release builds the request then
/// ends with an I/O error, so that nothing hangs.
#[derive(Debug)]
#[must_use = "a request must be completed"]
pub struct RemoteRq {
    tag: Option<u16>,
    shared: Arc<HctxShared>,
}

impl RemoteRq {
    /// Ends the request and wakes its ring if that sleeps.
    pub fn complete(mut self, status: Status) {
        if let Some(tag) = self.tag.take() {
            self.shared.complete_remotely(tag, status);
        }
    }

    /// The request's tag.
    pub fn tag(&self) -> Option<u16> {
        self.tag
    }
}

impl Drop for RemoteRq {
    fn drop(&mut self) {
        if let Some(tag) = self.tag.take() {
            self.shared.complete_remotely(tag, Status::IoErr);
            if cfg!(debug_assertions) && !std::thread::panicking() {
                panic!("request with tag {tag} dropped by a foreign thread without being completed");
            }
        }
    }
}
