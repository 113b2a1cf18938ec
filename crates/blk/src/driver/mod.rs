//! Interface between the block layer and the drivers.
//!
//! ```text
//!   IoCtx (per ring) ──── Hctx ── Box<dyn HwQueue>     one ring's queue of a device, on the ring's thread
//!                          │
//!   Device ── Queue ── Box<dyn Driver>                 the device, shared by all rings
//! ```
//!
//! A [`Driver`] is the device: limits, size, capabilities. For every ring that attaches the device it opens a
//! [`HwQueue`], which receives requests in batches and ends them into a [`DoneList`]. All calls of a `HwQueue` come
//! from the ring's thread. A driver that completes on another thread passes the request there with [`Remote::send_out`]
//! and ends it with [`RemoteRq::complete`].
//!
//! A driver moves bytes to and from memory that the block layer knows only by address, and tags are used as indices
//! without a check in the path of every I/O. Both traits are therefore `unsafe` to implement: a driver can break memory
//! safety. A driver promises D1 to D7. `unsafe impl` vouches for those marked with a star:
//! - D1 *: every request that it takes ends at most once, in a list of the hardware queue that received it (or
//!   remotely, by its own [`RemoteRq`]), never in that of another queue; and at least once in any case, or its ring
//!   waits forever.
//! - D2 *: once a request is in the `DoneList` (or completed remotely), neither the driver nor its device accesses the
//!   memory. Before, they access at most as many bytes of it as the request has, in the direction of its operation.
//! - D3 *: of a request it changes only `private`. A driver that stacks on another one may change `sector` and lower
//!   `bytes` for as long as that one has the request.
//! - D4: requests that it cannot take now stay in the list, in order (or are returned with `unpop`), and it receives
//!   them again.
//! - D5: no call blocks, except [`HwQueue::shutdown`], and the one system call that a full kernel ring needs.
//! - D6 *: when [`HwQueue::shutdown`] has returned or panicked, and the kernel ring has given back the queue's
//!   operations, the device no longer accesses memory of its requests.
//! - D7 *: [`Driver::open_hctx`] returns queues that accept every request within [`Driver::limits`],
//!   [`Driver::capabilities`] and [`Driver::size_bytes`].
//!
//! A call that panics is a bug of the driver, but the ring goes on: the hardware queue is shut down, requests that it
//! does not give back end with an I/O error, and every later request fails. The block layer catches the panic; one in
//! [`HwQueue::queue_rq`] may reach the caller of the ring first.
//!
//! ```compile_fail,E0200
//! # #[derive(Debug)] struct Disk;
//! # use sheave_blk::{DeviceError, driver::{Capabilities, Driver, HctxOpen, HwQueue}, limits::Limits};
//! // With `forbid(unsafe_code)` a driver cannot be written: it could end a request of another queue by its tag.
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

/// Interface of the host's kernel that a driver sends its I/O through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// The kernel ring (io_uring) of the ring that the I/O comes from.
    IoUring,
    /// Blocking system calls on threads.
    Sync,
}

impl std::fmt::Display for Engine {
    /// Writes the name that a spec of `file:` uses.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Engine::IoUring => "uring",
            Engine::Sync => "sync",
        })
    }
}

/// Features of a device. By default it supports only reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A single write can be made durable.
    pub fua: bool,
    /// Completed writes may be in a cache that a flush empties.
    pub volatile_cache: bool,
    /// Discards are supported: they free the space of a range.
    pub discard: bool,
    /// Ranges can be zeroed without sending zeroes.
    pub write_zeroes: bool,
    /// Completions can be polled for.
    pub polled: bool,
    /// I/O bypasses the page cache of the host.
    pub direct_io: bool,
    /// The device refuses writes.
    pub read_only: bool,
    /// Ranges that were never written may have no space allocated: a write there fails with `NoSpc` if the file system
    /// that contains the device is full.
    pub sparse: bool,
    /// When another client takes over a claim of this process, the storage itself refuses all later I/O of this
    /// process.
    pub fences: bool,
    /// If completed writes may be lost, the next flush of each ring fails for it, once. A ring therefore sends all of
    /// its flushes itself: a flush by a worker would use up the worker's error and not the ring's.
    pub flush_per_ring: bool,
    /// True if a hardware queue only starts an I/O and returns, and the device, the host's kernel or a thread of the
    /// driver moves the data later. Taking a request then costs the ring's thread little, so rings issue reads and
    /// writes with `IOSQE_ASYNC` themselves. On all other devices (the default) workers issue these.
    pub asynchronous: bool,
    /// Interface through which I/O reaches the host's kernel; `None` if the device uses none, or several.
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

/// Part of a device with its content, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// True if all of it reads as zeroes. False if its content is not known.
    pub zero: bool,
}

impl Extent {
    /// Makes an extent of `len` bytes.
    pub fn new(len: u64, zero: bool) -> Extent {
        Extent { len, zero }
    }
}

/// A device, shared by all rings.
///
/// # Safety
/// D7 of the [module](self).
#[allow(unsafe_code)] // The implementor vouches for memory.
pub unsafe trait Driver: Any + Debug + Send + Sync {
    /// Returns the limits of a request.
    fn limits(&self) -> Limits;

    /// Returns the features of the device.
    fn capabilities(&self) -> Capabilities;

    /// Returns the size in bytes when the device was opened. Later changes go through [`HctxOpen::capacity`].
    fn size_bytes(&self) -> u64;

    /// Returns the number of requests that all rings together may have in flight, for a device with one limit for the
    /// host; `None` if every ring has a queue of its own.
    fn host_wide_depth(&self) -> Option<u16> {
        None
    }

    /// Opens the hardware queue of one ring, on the ring's thread.
    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError>;

    /// Locks the storage behind the device against other processes until the claim is dropped. Called by
    /// [`Device::claim`](crate::Device::claim), which separates users within this process.
    fn claim(&self, _: Sharing) -> Result<Claim, DeviceError> {
        Ok(Claim::nothing())
    }

    /// Checks with the storage behind the device that this process still holds its [claim](Driver::claim). Returns an
    /// error if the claim was lost or the storage does not answer, and Ok for a device that takes no claims away. The
    /// answer must not come from a cache. May block for as long as a request may take.
    ///
    /// # Errors
    ///
    /// [`Status::Conflict`] if another client or nobody holds the claim, [`Status::Offline`] if the storage now refuses
    /// all I/O.
    fn still_owns(&self) -> Result<(), Status> {
        Ok(())
    }

    /// Returns two numbers that tell the storage from any other of this host, such as the device and the inode of a
    /// file, if completed writes survive the end of this process. `None` if they may not, or if nothing tells the
    /// storage apart.
    fn lasting(&self) -> Option<[u64; 2]> {
        None
    }

    /// Returns consecutive extents from byte `_from` on, at most some thousands. Empty if nothing is known; a copy of
    /// the device then reads the rest. For copies, not for I/O: may block for as long as a request may take.
    ///
    /// # Errors
    ///
    /// The device's description of its content is inconsistent.
    fn extents(&self, _from: u64) -> Result<Vec<Extent>, DeviceError> {
        Ok(Vec::new())
    }

    /// Returns messages for the user, which are shown once.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Parameters of [`Driver::open_hctx`].
#[derive(Debug)]
pub struct HctxOpen<'a> {
    /// Slot of the ring's kernel ring, which is made on first use.
    pub kring: &'a mut KringSlot,
    /// Largest number of requests in flight. Tags are smaller; the flush request's tag equals it.
    pub depth: u16,
    /// Handle for completing requests from other threads.
    pub remote: Remote,
    /// Limits of a request: the driver's own, with invalid values corrected.
    pub limits: &'a Limits,
    /// Size of the device, for a driver that finds it changed.
    pub capacity: &'a Capacity,
    /// Number of this hardware context within its ring.
    pub hctx: u16,
    /// Clock of the ring.
    pub clock: &'a Clock,
    /// Access to the devices below, for a [stacked](crate::Device::stacked) one.
    pub lower: Option<Lower>,
}

/// Resources that a driver may use during a call.
#[derive(Debug)]
pub struct HwEnv<'a> {
    /// The ring's kernel ring, if a device asked for one.
    pub kring: Option<&'a mut KernelRing>,
    /// Clock of the ring.
    pub clock: &'a Clock,
    /// Number of this hardware context within its ring.
    pub hctx: u16,
}

/// Event that a hardware queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextEvent {
    /// None: it holds no request.
    Idle,
    /// A poll finds completions now.
    Ready,
    /// A poll finds something at this time.
    At(PreciseTs),
    /// A completion of the ring's kernel ring.
    Kernel,
    /// A completion by another thread, which wakes the ring.
    Remote,
    /// The end of an I/O on a device below.
    Lower,
    /// None: only the timeout walk can end its requests.
    Stuck,
}

/// Result of `HwQueue::timed_out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOut {
    /// The driver has ended the request, into the `DoneList`.
    Ended,
    /// The device still has the request and may access its memory. The driver has tried to cancel it and needs more
    /// time.
    Waiting,
}

/// Result of [`HwQueue::queue_rq`].
#[derive(Debug)]
#[must_use = "a request must be completed"]
pub enum Started {
    /// The driver has the request, or has put it into the `DoneList`.
    Taken,
    /// The request has ended within the call.
    Ended(Rq, Status),
    /// The driver cannot take the request now (D4).
    Refused(Rq),
}

/// Hardware queue of one ring. All calls come from the ring's thread.
///
/// # Safety
/// D1, D2, D3 and D6 of the [module](self).
#[allow(unsafe_code)] // The implementor vouches for memory.
pub unsafe trait HwQueue: Debug {
    /// Starts requests: takes as many as it can from the front of `list` and leaves the rest (D4).
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList);

    /// Starts a single request.
    fn queue_rq(&mut self, rq: Rq, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) -> Started {
        let mut list = RqList::of(rq.into_tag());
        self.queue_rqs(&mut list, rqs, env, done);
        list.pop().map_or(Started::Taken, Started::Refused)
    }

    /// Returns true if every request has ended, into `done`, when the call that passed it returns. Such a queue is
    /// never polled. Called once, when the queue is opened.
    fn ends_in_call(&self) -> bool {
        false
    }

    /// Returns true if the queue may have work while it holds no request: operations on the kernel ring that belong to
    /// no request. It is then polled, and `next_event` called, at any time, and one completion of the kernel ring may
    /// end any number of its requests. Called once, when the queue is opened.
    fn works_alone(&self) -> bool {
        false
    }

    /// Ends requests that have completed, without waiting.
    fn poll(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList);

    /// Handles completions of kernel ring operations that were prepared with this hardware context's user data (see
    /// [`kernel_user_data`]).
    fn kernel_done(
        &mut self,
        events: KernelEvents<'_>,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) {
        let _ = (events, rqs, env, done);
    }

    /// Called when another thread has ended a request. Returns the status with which it ends here. For a driver that
    /// stacks on others and inspects their completions.
    fn ended_remotely(&mut self, tag: u16, status: Status, rqs: &mut RqTable<'_>) -> Status {
        let _ = (tag, rqs);
        status
    }

    /// Returns the event that the queue waits for. Called before the ring sleeps.
    fn next_event(&self) -> NextEvent;

    /// Returns the exact number of this queue's operations in the kernel ring, if some of them may never end by
    /// themselves (watches, timers). The shutdown of another driver that has panicked subtracts this number, to find
    /// out when the kernel has no more operations of the other driver.
    fn lasting_in_kernel(&self) -> u32 {
        0
    }

    /// Called when a request exceeded the device's time limit.
    fn timed_out(&mut self, tag: u16, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut;

    /// Ends all requests that the queue holds. Those that only the kernel ring can give back are cancelled here and
    /// end when [`kernel_done`](HwQueue::kernel_done) brings their completion: the ring waits for that and calls again
    /// until the queue holds nothing. The same applies to I/O on devices below. For everything else this call waits.
    /// The ring also waits for a queue without requests that returns [`NextEvent::Kernel`]. Afterwards the queue is
    /// dropped.
    fn shutdown(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList);
}

/// Completion of the kernel ring for one hardware context.
#[derive(Clone, Copy, Debug)]
pub struct KernelEvent {
    /// Tag of the request.
    pub tag: u16,
    /// Kind passed to [`kernel_user_data`] by the driver.
    pub kind: u8,
    /// Result; `-errno` on failure.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
    /// Generation passed to [`with_generation`]; 0 without.
    pub generation: u32,
}

/// Completions of the kernel ring for one hardware context, in order of arrival.
#[derive(Clone, Copy, Debug)]
pub struct KernelEvents<'a>(pub(crate) &'a [Completed]);

impl<'a> KernelEvents<'a> {
    /// Returns the completion if there is exactly one.
    #[inline]
    pub fn only(self) -> Option<KernelEvent> {
        if self.0.len() == 1 { self.iter().next() } else { None }
    }

    /// Returns an iterator over the completions.
    #[inline]
    pub fn iter(self) -> impl ExactSizeIterator<Item = KernelEvent> + Clone + 'a {
        self.0.iter().map(|&Completed { user_data, res, flags }| {
            let (tag, kind, generation) = (user_data as u16, (user_data >> 32) as u8, (user_data >> 40) as u32);
            KernelEvent { tag, kind, res, flags, generation }
        })
    }
}

/// Returns user data for an operation on the kernel ring, by which its completion finds the hardware context. `kind` is
/// up to the driver, except 253 (sockets), 254 (ignore the completion) and 255 (the ring's own operations).
#[inline]
pub const fn kernel_user_data(hctx: u16, tag: u16, kind: u8) -> u64 {
    (kind as u64) << 32 | (hctx as u64) << 16 | tag as u64
}

/// Number of bits that [`with_generation`] stores.
pub const GENERATION_BITS: u32 = 24;

/// Returns `user_data` with a generation, which identifies one use of the tag. For a driver whose operations may
/// outlive their request: a completion or cancellation of one use then never matches the next.
#[inline]
pub const fn with_generation(user_data: u64, generation: u32) -> u64 {
    user_data | (generation as u64) << (u64::BITS - GENERATION_BITS)
}

/// `kind` of the ring's own operations on the kernel ring.
pub(crate) const KIND_RING: u8 = 255;
/// `kind` of socket operations, whose completions the ring's owner collects ([`IoCtx::sockets`]).
///
/// [`IoCtx::sockets`]: crate::ctx::IoCtx::sockets
pub(crate) const KIND_SOCKET: u8 = 253;
/// `kind` of operations whose completion is ignored, such as a cancellation, whose victim has a completion of its own.
pub const KIND_IGNORED: u8 = 254;
/// `kind` of signals, which have a completion only if they fail. No other operation may have it: the kernel ring does
/// not count signals, and recognises them by their `user_data`.
pub(crate) const KIND_SIGNAL: u8 = 252;

/// Handle by which other threads complete requests of one hardware context.
#[derive(Clone, Debug)]
pub struct Remote {
    pub(crate) shared: Arc<HctxShared>,
}

impl Remote {
    /// Makes the ring poll soon, and wakes it if it sleeps. For a driver that receives something other than completions
    /// from another thread.
    pub fn wake(&self) {
        self.shared.unpark();
    }

    /// Turns the token into one that another thread may own.
    pub fn send_out(&self, rq: Rq) -> RemoteRq {
        RemoteRq { tag: Some(rq.into_tag()), shared: self.shared.clone() }
    }
}

/// Token of a request that another thread owns. As with [`Rq`], dropping it is a bug; in release builds the request
/// then ends with an I/O error, so that nothing waits forever.
#[derive(Debug)]
#[must_use = "a request must be completed"]
pub struct RemoteRq {
    tag: Option<u16>,
    shared: Arc<HctxShared>,
}

impl RemoteRq {
    /// Ends the request, and wakes its ring if that sleeps.
    pub fn complete(mut self, status: Status) {
        if let Some(tag) = self.tag.take() {
            self.shared.complete_remotely(tag, status);
        }
    }

    /// Returns the request's tag.
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
