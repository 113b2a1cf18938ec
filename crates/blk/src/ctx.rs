//! The block layer of one ring: its bios, its plug, its hardware contexts, its kernel ring.
//!
//! Owns submission ([`IoCtx::submit`]), batches ([`IoCtx::start_plug`], [`IoCtx::finish_plug`]) and completion
//! ([`IoCtx::poll`]). Waiting is in `wait`, the kernel ring in `kernel`, the state that hardware contexts use in
//! `ring_core`. Used by one thread. Only [`HctxShared`](crate::hctx_shared::HctxShared) and the devices' queues are
//! shared with other threads.
//!
//! Invariants:
//! - I1: every submitted bio ends exactly once, by a call of [`EndIo::end_io`] with its owner's number in
//!   [`IoCtx::poll`] or [`IoCtx::shutdown`], never inside [`IoCtx::submit`]. An I/O sent by [`IoCtx::send_alone`] may
//!   end within that call.
//! - I2: a ring has at most 64 hardware contexts (the plug's mask) and at most one kernel ring.
//! - I3: before the ring sleeps, the plug is flushed and its cached time discarded.

mod kernel;
pub mod lane;
mod legs;
mod outside;
pub mod sockets;
mod stacked;
mod wait;

pub use crate::end_io::{EndIo, PlainEnd, RunEnd};
pub use crate::hctx_shared::RecordSeat;

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs, PreciseTs};
use sheave_base::parker::{Parker, Unparker};
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_base::trace::writer::TraceWriter;
use sheave_base::wake_count::WakeCount;
use sheave_kring::Completed;

use crate::bio::{BIO_USER, BVec, BioId, NO_FIXED_BUF, Op};
#[cfg(sheave_lab)]
use crate::bio_set::BioStore;
use crate::bio_set::{BioList, BioSet, CACHE_MAX};
use crate::device::Device;
use crate::error::DeviceError;
use crate::hctx::Hctx;
use crate::hctx_shared::Waker;
use crate::kring_slot::KringSlot;
#[cfg(sheave_lab)]
use crate::plug::EachRead;
use crate::plug::Plug;
use crate::ring_core::Core;
use crate::stats::Split;
use crate::timeout::NextLook;

use self::outside::Outside;

/// Largest number of hardware contexts of one ring (I2).
pub const MAX_HCTXS: usize = 64;
/// Largest number of devices attached to one ring at a time, limited by the width of a bio's device number.
pub const MAX_BDEVS: usize = 1 << 15;
/// Largest number of pieces of memory of one I/O, limited by the width of a bio's count.
pub const MAX_VECS: usize = u16::MAX as usize;

#[derive(Debug)]
struct Bdev {
    device: Device,
    legs: Vec<BdevLeg>,
    /// Version of the device's legs that `legs` was made from.
    version: u32,
    /// True for a device attached by a stacked driver, which only the end of that driver's context detaches.
    below: bool,
}

#[derive(Clone, Copy, Debug)]
struct BdevLeg {
    start: u64,
    end: u64,
    offset: u64,
    part: u16,
    hctx: u16,
}

/// Parameters of `IoCtx::new`.
#[derive(Clone, Debug)]
pub struct IoCtxOptions {
    /// Number of bios; all are allocated at once.
    pub bios: u32,
    /// Entries of the kernel ring, if a device needs one.
    pub kring_entries: u32,
    /// True to make the kernel ring poll the device (IOPOLL).
    pub iopoll: bool,
    /// True to keep statistics.
    pub stats: bool,
    /// Clock of all time stamps.
    pub clock: Clock,
}

/// Parameters of a bio to submit.
#[derive(Clone, Copy, Debug)]
pub struct BioSpec {
    /// Number of the attached device.
    pub bdev: u16,
    /// Operation.
    pub op: Op,
    /// `BIO_FUA`, `BIO_PREFLUSH`, `BIO_NOMERGE`, `BIO_OWNER`.
    pub flags: u16,
    /// First sector on the device.
    pub sector: u64,
    /// Length, a multiple of the logical block size.
    pub bytes: u32,
    /// Number passed back when the bio ends.
    pub owner: u32,
}

/// Block layer of one ring. It belongs to the thread that made it; not even an unused one can move to another thread:
///
/// ```compile_fail,E0277
/// use sheave_base::clock::Clock;
/// use sheave_blk::ctx::{IoCtx, IoCtxOptions};
///
/// let clock = Clock::real();
/// let options = IoCtxOptions { bios: 8, kring_entries: 8, iopoll: false, stats: true, clock };
/// let ctx = IoCtx::new(options).unwrap();
/// std::thread::spawn(move || ctx.is_idle());
/// ```
#[derive(Debug)]
pub struct IoCtx {
    core: Core,
    hctxs: Vec<Option<Box<Hctx>>>,
    bdevs: Vec<Option<Bdev>>,
    parker: Parker,
    /// A timed sleep is requested to end this much earlier, because the kernel ends it late by up to the thread's timer
    /// slack.
    wake_early: Duration,
    /// Number of completions by other threads that the ring sleeps for.
    wanted: Arc<WakeCount>,
    /// Descriptor by which an event loop outside of the ring waits for it.
    outside: Outside,
    next_look: NextLook,
    /// True while the kernel ring polls the parker's descriptor.
    bell_armed: bool,
    /// Expiry of the kernel ring's timer, if armed.
    alarm_at: Option<PreciseTs>,
    /// Buffer for completions of the kernel ring; used only within a poll.
    events: Vec<Completed>,
    /// Completions of socket operations that were not collected yet.
    socket_events: Vec<Completed>,
    /// Socket operations that the kernel ring has not ended.
    socket_ops: u32,
    /// True if the last poll ended with operations prepared and not sent.
    forgotten: bool,
    /// Mask of hardware contexts whose drivers use the kernel ring.
    kernel_users: u64,
    /// Start of the current period in which the kernel has no memory for prepared operations, and the last refusal in
    /// it.
    shortage: Option<(PreciseTs, PreciseTs)>,
    /// Makes the type neither `Send` nor `Sync`, whatever the fields become.
    thread: PhantomData<*const ()>,
}

/// Largest timer slack that is compensated. A thread with more wants late wake-ups, to save power.
const MOST_SLACK: Duration = Duration::from_millis(1);

/// Returns this thread's timer slack: how late the kernel may end a sleep outside of a kernel ring. 50 us by default.
fn timer_slack() -> Duration {
    Duration::from_nanos(rustix::thread::current_timer_slack().unwrap_or(0)).min(MOST_SLACK)
}

impl IoCtx {
    /// Makes a block layer without devices.
    pub fn new(options: IoCtxOptions) -> Result<IoCtx, DeviceError> {
        let parker = Parker::new().map_err(|source| DeviceError::Host {
            what: "making the ring's wake-up descriptor".into(),
            fix: "Raise the limit of open files (ulimit -n)".into(),
            source,
        })?;
        let kring = KringSlot::new(options.kring_entries, options.iopoll);
        let plug = Plug::new(&options.clock);
        Ok(IoCtx {
            core: Core {
                bios: BioSet::new(options.bios, CACHE_MAX),
                plug,
                clock: options.clock,
                kring,
                ended: BioList::default(),
                active: 0,
                broken: 0,
                starved: BioList::default(),
                lowers: Vec::new(),
                stacked: 0,
                stats: options.stats,
                batch_time: None,
                looked: CoarseTs::default(),
                look_at: CoarseTs::default(),
                split: Split::default(),
                trace: None,
            },
            hctxs: Vec::with_capacity(MAX_HCTXS),
            bdevs: Vec::new(),
            parker,
            wake_early: timer_slack(),
            wanted: Arc::new(WakeCount::new()),
            outside: Outside::default(),
            next_look: NextLook::never(),
            bell_armed: false,
            alarm_at: None,
            events: Vec::new(),
            socket_events: Vec::new(),
            socket_ops: 0,
            forgotten: false,
            kernel_users: 0,
            shortage: None,
            thread: PhantomData,
        })
    }

    /// Attaches a device: opens hardware contexts for its legs. Returns the device's number in this ring.
    pub fn attach(&mut self, device: &Device) -> Result<u16, DeviceError> {
        let bdev = self.open_legs(device)?;
        // After `open_legs`, because devices below a stacked one take their numbers there.
        let free = self.bdevs.iter().position(Option::is_none).unwrap_or(self.bdevs.len());
        if free >= MAX_BDEVS {
            bdev.legs.iter().for_each(|leg| self.close_idle_hctx(leg.hctx));
            return Err(DeviceError::Limit {
                what: format!("attaching {}: devices attached to one ring", device.name()),
                limit: MAX_BDEVS as u64,
                fix: "Detach one, or use the number that an earlier attach gave".into(),
            });
        }
        if free == self.bdevs.len() {
            self.bdevs.push(None);
        }
        self.bdevs[free] = Some(bdev);
        Ok(free as u16)
    }

    /// Opens hardware contexts for all legs that the device has now.
    fn open_legs(&mut self, device: &Device) -> Result<Bdev, DeviceError> {
        let version = device.version();
        let mut legs = Vec::with_capacity(device.legs().len());
        for leg in device.legs() {
            let hctx = match catch_unwind(AssertUnwindSafe(|| self.open_hctx(leg))) {
                Ok(Ok(hctx)) => hctx,
                failed => {
                    legs.iter().for_each(|leg: &BdevLeg| self.close_idle_hctx(leg.hctx));
                    failed.unwrap_or_else(|panic| resume_unwind(panic))?
                }
            };
            // A whole device may grow, so that only its queue checks the end of the range (`Queue::check_range`).
            let end = if device.is_whole() { u64::MAX } else { leg.start + leg.sectors };
            legs.push(BdevLeg { start: leg.start, end, offset: leg.offset, part: leg.part, hctx });
        }
        Ok(Bdev { device: device.clone(), legs, version, below: false })
    }

    fn open_hctx(&mut self, leg: &crate::device::Leg) -> Result<u16, DeviceError> {
        let same = |hctx: &Option<Box<Hctx>>| hctx.as_ref().is_some_and(|hctx| Arc::ptr_eq(&hctx.queue, &leg.queue));
        let index = match self.hctxs.iter().position(same) {
            Some(index) => index,
            None => {
                let lower = self.attach_lower(leg)?;
                let index = self.hctxs.iter().position(Option::is_none).unwrap_or(self.hctxs.len());
                if index >= MAX_HCTXS {
                    self.close_lower(lower.as_ref(), &mut |_, _| {});
                    return Err(DeviceError::Limit {
                        what: format!("attaching {}: devices of one ring", leg.queue.name()),
                        limit: MAX_HCTXS as u64,
                        fix: "Detach one, or use another ring".into(),
                    });
                }
                let waker = Waker { unparker: self.parker.unparker(), wanted: self.wanted.clone() };
                let asked = self.core.kring.asked;
                // Runs the driver's code, which may panic. The devices below are then detached, as after an error.
                let hctx = catch_unwind(AssertUnwindSafe(|| {
                    Hctx::open(leg.queue.clone(), index as u16, &mut self.core, waker, lower.clone())
                }));
                let hctx = match hctx {
                    Ok(Ok(hctx)) => hctx,
                    failed => {
                        self.close_lower(lower.as_ref(), &mut |_, _| {});
                        failed.unwrap_or_else(|panic| resume_unwind(panic))?
                    }
                };
                let uses_kernel = u64::from(self.core.kring.asked != asked);
                self.kernel_users = self.kernel_users & !(1 << index) | uses_kernel << index;
                self.know_lower(index, lower);
                if index == self.hctxs.len() {
                    self.hctxs.push(None);
                }
                self.hctxs[index] = Some(Box::new(hctx));
                self.core.active |= 1 << index;
                self.next_look.add(&self.core.clock, leg.queue.timeout());
                // Room for all completions that the kernel ring's completion queue can hold.
                let most = self.core.kring.ring.as_ref().map_or(0, |kring| kring.features().cq_entries);
                self.events.reserve(most as usize);
                index
            }
        };
        if let Some(hctx) = &mut self.hctxs[index] {
            hctx.users += 1;
            hctx.open_part(leg.part);
        }
        Ok(index as u16)
    }

    fn close_hctx(&mut self, index: u16, end: &mut impl EndIo) {
        let Some(hctx) = &mut self.hctxs[usize::from(index)] else { return };
        hctx.users -= 1;
        if hctx.users == 0 {
            self.end_hctx(usize::from(index), end);
        }
    }

    /// Closes a hardware context to which the caller has sent nothing, or which other users keep open. Ends no I/O.
    fn close_idle_hctx(&mut self, index: u16) {
        self.close_hctx(index, &mut |_, _| {
            debug_assert!(false, "no I/O goes through what nobody uses yet, or any more")
        });
    }

    /// Detaches a device. Its I/O ends first: this function waits for it, or cancels it if the driver does not have it
    /// yet. `end` is called as in a poll.
    pub fn detach(&mut self, bdev: u16, end: &mut impl EndIo) {
        let Some(slot) = self.bdevs.get_mut(usize::from(bdev)) else { return };
        // A device attached by a stacked driver stays (T1 of `stacked`).
        if let Some(gone) = slot.take_if(|bdev| !bdev.below) {
            // Before the number can be reused for another device.
            if self.drop_starved(|bio| bio.bdev == bdev) {
                self.core.end_ended(end);
            }
            gone.legs.iter().for_each(|leg| self.close_hctx(leg.hctx, end));
        }
        end.end_poll();
    }

    /// Returns the device with the number that [`IoCtx::attach`] returned.
    pub fn device(&self, bdev: u16) -> Option<&Device> {
        self.bdevs.get(usize::from(bdev))?.as_ref().map(|bdev| &bdev.device)
    }

    /// Submits an I/O on the memory `vecs` (empty for operations without data). Returns false, without any effect, if
    /// no bio is free. `fixed_buf` is the index of the registered buffer that contains the only vector.
    ///
    /// The I/O ends as invalid if the length of the memory differs from its own, or if it has more than [`MAX_VECS`]
    /// pieces. Flags that a submitter may not set are ignored.
    ///
    /// The memory must stay valid until the bio has ended; see the invariants of [`bio`](crate::bio).
    pub fn submit(&mut self, spec: &BioSpec, vecs: &[BVec], fixed_buf: u16) -> bool {
        let len = vecs.iter().fold(0usize, |sum, vec| sum.saturating_add(vec.len));
        if vecs.len() > MAX_VECS || (spec.op.has_data() && len != spec.bytes as usize) {
            return self.core.refuse(spec.owner);
        }
        let Some(id) = self.core.bios.take() else {
            return false;
        };
        let bio = &mut self.core.bios[id];
        bio.owner = spec.owner;
        bio.sector = spec.sector;
        bio.bytes = spec.bytes;
        bio.op = spec.op;
        bio.flags |= spec.flags & BIO_USER;
        bio.bdev = spec.bdev;
        bio.fixed_buf = if vecs.len() == 1 { fixed_buf } else { NO_FIXED_BUF };
        self.core.bios.set_vecs(id, vecs);
        self.remap(id);
        true
    }

    /// Translates the bio's sector to the queue below, and passes it to the hardware context.
    fn remap(&mut self, id: BioId) {
        let bio = &mut self.core.bios[id];
        let Some(Some(bdev)) = self.bdevs.get(usize::from(bio.bdev)) else {
            return self.core.end_later(id, Status::Offline);
        };
        let [leg] = bdev.legs.as_slice() else {
            return self.remap_legs(id);
        };
        if bio.end_sector() > leg.end || bdev.device.is_extended() {
            return self.remap_extended(id);
        }
        bio.sector += leg.offset;
        bio.part = leg.part;
        let hctx = leg.hctx;
        self.add(hctx, id);
    }

    fn add(&mut self, index: u16, id: BioId) {
        self.core.active |= 1 << index;
        match &mut self.hctxs[usize::from(index)] {
            Some(hctx) => {
                hctx.add(&mut self.core, id);
                if !self.core.plug.is_open() {
                    hctx.flush(&mut self.core);
                }
            }
            None => self.core.end_later(id, Status::Offline),
        }
    }

    /// Opens the plug. I/O submitted until [`IoCtx::finish_plug`] goes to the drivers in batches.
    #[inline]
    pub fn start_plug(&mut self, hint: u32) {
        self.core.plug.start(hint);
    }

    /// Closes the plug and passes all gathered requests to the drivers.
    #[inline]
    pub fn finish_plug(&mut self) {
        if self.core.plug.finish() {
            self.flush_plug();
            self.core.plug.invalidate();
        }
    }

    fn flush_plug(&mut self) {
        let mut dirty = self.core.plug.dirty;
        while dirty != 0 {
            let index = dirty.trailing_zeros() as usize;
            dirty &= dirty - 1;
            if let Some(hctx) = &mut self.hctxs[index] {
                hctx.flush(&mut self.core);
                hctx.end_plug();
            }
        }
        self.core.plug.dirty = 0;
        if self.core.stacked != 0 {
            self.send_lower();
        }
    }

    /// Collects completions and calls `end` for each bio that ended. Returns the number of requests ended.
    #[inline]
    pub fn poll(&mut self, end: &mut impl EndIo) -> u32 {
        if self.core.kring.ring.is_some() {
            self.poll_kernel();
        }
        let mut count = 0;
        let mut active = self.core.active;
        let was_active = active != 0;
        while active != 0 {
            let index = active.trailing_zeros() as usize;
            active &= active - 1;
            let Some(hctx) = &mut self.hctxs[index] else { continue };
            count += hctx.poll(&mut self.core, end);
            if !hctx.has_work() && !hctx.works_alone() {
                self.core.active &= !(1 << index);
            }
        }
        // After the polls, so that a request that they have ended is not found overdue.
        let stamp = self.core.batch_time.take();
        let cycles = if was_active && stamp.is_none() { self.core.clock.cycles() } else { 0 };
        self.core.has_looked(stamp, cycles);
        self.core.look_if_due(self.core.looked, end);
        if was_active && self.next_look.is_due(stamp, cycles) {
            self.look_for_overdue();
        }
        if !self.core.starved.is_empty() {
            self.retry_starved();
        }
        if self.core.broken != 0 {
            self.close_broken(end);
        }
        if !self.core.ended.is_empty() {
            count += self.core.end_ended(end);
        }
        if self.core.kring.ring.is_some() {
            self.send_forgotten();
        }
        end.end_poll();
        count
    }

    /// Returns true if `is` accepts a plain record or a plain bio in flight. Its arguments are the owner, the index of
    /// the registered buffer (or [`NO_FIXED_BUF`]) and the address of the memory. Looks at every request and bio.
    pub fn any_plain(&self, mut is: impl FnMut(u32, u16, usize) -> bool) -> bool {
        let memory = |bio: &crate::bio::Bio| bio.vecs().first().map_or(0, |vec| vec.base);
        self.hctxs.iter().flatten().any(|hctx| hctx.any_plain(&mut is))
            || self.core.bios.iter_plain().any(|bio| is(bio.owner, bio.fixed_buf, memory(bio)))
    }

    /// Called when the registered buffer `index` is replaced. I/O in flight that is not in the kernel yet then goes
    /// there as I/O of ordinary memory. Looks at every request and bio.
    pub fn forget_fixed_buf(&mut self, index: u16) {
        self.hctxs.iter_mut().flatten().for_each(|hctx| hctx.forget_fixed_buf(index));
        self.core.bios.forget_fixed_buf(index);
    }

    /// Returns a handle that wakes this ring from another thread.
    pub fn unparker(&self) -> Unparker {
        self.parker.unparker()
    }

    /// Returns true if a poll would find nothing to do.
    #[inline(always)]
    pub fn has_nothing_to_poll(&self) -> bool {
        let core = &self.core;
        core.active == 0 && core.kring.ring.is_none() && core.starved.is_empty() && core.ended.is_empty()
    }

    /// Returns true if no I/O is in flight.
    pub fn is_idle(&self) -> bool {
        self.core.ended.is_empty()
            && self.core.starved.is_empty()
            && self.hctxs.iter().flatten().all(|hctx| !hctx.has_work())
    }

    /// Turns statistics on or off. I/O in flight when they are turned on counts from that moment.
    pub fn set_stats(&mut self, on: bool) {
        self.hctxs.iter_mut().flatten().for_each(|hctx| hctx.set_ring_counts(&self.core, on));
        self.core.stats = on;
    }

    /// Sets the size of the bio cache, by default [`CACHE_MAX`]; 0 disables it. Returns false, without any effect,
    /// while I/O is in flight.
    #[cfg(sheave_lab)]
    #[must_use]
    pub fn set_bio_cache(&mut self, max: u32) -> bool {
        let done = self.core.bios.set_max_cached(max);
        let cacheable = self.core.bios.cacheable();
        self.hctxs.iter_mut().flatten().for_each(|hctx| hctx.set_cacheable(cacheable));
        done
    }

    /// Replaces the store behind the bio cache, which is the ring's own pool at first. Returns false, without any
    /// effect, while I/O is in flight.
    #[cfg(sheave_lab)]
    #[must_use]
    pub fn set_bio_store(&mut self, store: Box<dyn BioStore>) -> bool {
        self.core.bios.set_store(store)
    }

    /// Sets an extra clock read for each request that shares a stamp.
    #[cfg(sheave_lab)]
    pub fn set_each_read(&mut self, each: EachRead) {
        self.core.plug.each = each;
    }

    /// Sets the largest age of a time stamp that requests of a batch share; see [`Plug::set_max_age`].
    pub fn set_stamp_age(&mut self, max_age: Duration) {
        self.core.plug.set_max_age(&self.core.clock, max_age);
    }

    /// Writes the requests that end to `trace` from now on; `None` stops it. Needs statistics, which provide the
    /// stamps. Returns the previous trace.
    pub fn trace_to(&mut self, trace: Option<TraceWriter>) -> Option<TraceWriter> {
        let trace = trace.filter(|_| self.core.stats).map(Box::new);
        std::mem::replace(&mut self.core.trace, trace).map(|before| *before)
    }

    /// Returns the ring's clock.
    pub fn clock(&self) -> &Clock {
        &self.core.clock
    }

    /// Returns the bios, for tests and reports.
    pub fn bios(&self) -> &BioSet {
        &self.core.bios
    }

    /// Returns the slot of the kernel ring, for registering buffers.
    pub fn kring_slot(&mut self) -> &mut KringSlot {
        &mut self.core.kring
    }

    /// Ends all I/O: cancels requests that no driver has, and waits for those whose memory a device may still access.
    pub fn shutdown(&mut self, end: &mut impl EndIo) {
        self.core.plug.invalidate();
        while let Some(id) = self.core.starved.pop(&mut self.core.bios) {
            self.core.end_later(id, Status::Canceled);
        }
        self.core.end_ended(end);
        if self.core.stacked != 0 {
            self.detach_by_levels(end);
        }
        for index in 0..self.hctxs.len() {
            self.end_hctx(index, end);
        }
        self.core.end_ended(end);
        end.end_poll();
        self.core.active = 0;
        self.bdevs.clear();
    }
}

impl Drop for IoCtx {
    fn drop(&mut self) {
        self.shutdown(&mut |_, _| {});
    }
}

const _: () = assert!(NO_FIXED_BUF == u16::MAX, "no buffer has this number");
