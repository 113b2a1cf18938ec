//! What a ring owns of the block layer: its bios, its plug, its hardware contexts, its kernel ring.
//!
//! Owns the way in ([`IoCtx::submit`]), the batch ([`IoCtx::start_plug`], [`IoCtx::finish_plug`]), the way out
//! ([`IoCtx::poll`]); waiting is in `wait`, the kernel ring in `kernel`; what the hardware contexts have of the ring is
//! in `ring_core`, below them. Belongs to one thread; nothing here is shared but what
//! [`HctxShared`](crate::hctx_shared::HctxShared) and the devices' queues show to readers.
//!
//! Invariants:
//! - I1: every submitted bio ends exactly once, by a call of [`EndIo::end_io`] with its owner's number in
//!   [`IoCtx::poll`] or [`IoCtx::shutdown`], never inside [`IoCtx::submit`]. Of what is sent alone
//!   ([`IoCtx::send_alone`]) its owner may hear in that call.
//! - I2: a ring has at most 64 hardware contexts (the plug's mask) and at most one kernel ring.
//! - I3: before sleeping, the plug is flushed and its time forgotten.

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
use crate::outside::Outside;
#[cfg(sheave_lab)]
use crate::plug::EachRead;
use crate::plug::Plug;
use crate::ring_core::Core;
use crate::stats::Split;
use crate::timeout::NextLook;

/// Most hardware contexts of one ring (I2).
pub const MAX_HCTXS: usize = 64;
/// Most devices attached to one ring at a time: what a bio can name.
pub const MAX_BDEVS: usize = 1 << 15;
/// Most pieces of memory of one I/O: what a bio can count.
pub const MAX_VECS: usize = u16::MAX as usize;

#[derive(Debug)]
struct Bdev {
    device: Device,
    legs: Vec<BdevLeg>,
    /// Of the device's legs, when these were made of them.
    version: u32,
    /// A stacked driver has it attached, and nobody else detaches it.
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

/// What to build an [`IoCtx`] with.
#[derive(Clone, Debug)]
pub struct IoCtxOptions {
    /// Bios, preallocated.
    pub bios: u32,
    /// Entries of the kernel ring, should a device need one.
    pub kring_entries: u32,
    /// The kernel ring polls the device (IOPOLL).
    pub iopoll: bool,
    /// Keep statistics.
    pub stats: bool,
    /// Where time comes from.
    pub clock: Clock,
}

/// A bio to submit: what, where, and whose.
#[derive(Clone, Copy, Debug)]
pub struct BioSpec {
    /// The attached device.
    pub bdev: u16,
    /// What to do.
    pub op: Op,
    /// `BIO_FUA`, `BIO_PREFLUSH`, `BIO_NOMERGE`, `BIO_OWNER`.
    pub flags: u16,
    /// First sector.
    pub sector: u64,
    /// Bytes, a multiple of the logical block.
    pub bytes: u32,
    /// Given back when the bio ends.
    pub owner: u32,
}

/// A ring's block layer. It belongs to the thread that made it; not even an empty one can be moved:
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
    /// How much earlier a sleep with a time limit is asked to end than it is to: the thread's timer slack, by which the
    /// kernel ends it later than it was asked to.
    wake_early: Duration,
    /// For how many completions of other threads the ring sleeps.
    wanted: Arc<WakeCount>,
    /// How others wait for this ring.
    outside: Outside,
    next_look: NextLook,
    /// The kernel ring waits on the parker's descriptor.
    bell_armed: bool,
    /// When the kernel ring's alarm rings, if it is armed.
    alarm_at: Option<PreciseTs>,
    /// What the kernel ring has just completed; only used within a poll.
    events: Vec<Completed>,
    /// Completions of operations on sockets that nobody took yet.
    socket_events: Vec<Completed>,
    /// Operations on sockets that the kernel ring has not ended.
    socket_ops: u32,
    /// The last poll left operations prepared.
    forgotten: bool,
    /// Hardware contexts whose drivers have asked for the kernel ring, as a mask.
    kernel_users: u64,
    /// Since when the kernel has had no memory for what is prepared, and when it last said so.
    shortage: Option<(PreciseTs, PreciseTs)>,
    /// Neither `Send` nor `Sync`, whatever the fields become.
    thread: PhantomData<*const ()>,
}

/// Most timer slack that is made up for. A thread with more wants to be late, to save power.
const MOST_SLACK: Duration = Duration::from_millis(1);

/// The timer slack of this thread: how late the kernel may end a sleep that is not a kernel ring's. 50 us unless
/// somebody has set it.
fn timer_slack() -> Duration {
    Duration::from_nanos(rustix::thread::current_timer_slack().unwrap_or(0)).min(MOST_SLACK)
}

impl IoCtx {
    /// An empty block layer.
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

    /// Opens this ring's way into the device; the number is the device's in this ring.
    pub fn attach(&mut self, device: &Device) -> Result<u16, DeviceError> {
        let bdev = self.open_legs(device)?;
        // After that, for devices below a stacked one get their numbers first.
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

    /// Ways to all legs of a device as it is now.
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
                // The driver's own code: it may panic, and then what it stands on is let go as when it fails.
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
                // All that its completion queue can hold.
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

    /// Lets go a hardware context through which this user has sent nothing, or which other users keep: no I/O ends by
    /// this, so nobody has to hear of an end.
    fn close_idle_hctx(&mut self, index: u16) {
        self.close_hctx(index, &mut |_, _| {
            debug_assert!(false, "no I/O goes through what nobody uses yet, or any more")
        });
    }

    /// Closes this ring's way into a device. I/O that is on its way there ends first: it is waited for, or cancelled if
    /// the driver does not have it yet, and `end` hears of it, as in a poll.
    pub fn detach(&mut self, bdev: u16, end: &mut impl EndIo) {
        let Some(slot) = self.bdevs.get_mut(usize::from(bdev)) else { return };
        if let Some(gone) = slot.take_if(|bdev| !bdev.below) {
            // Before the number is another device's.
            if self.drop_starved(|bio| bio.bdev == bdev) {
                self.core.end_ended(end);
            }
            gone.legs.iter().for_each(|leg| self.close_hctx(leg.hctx, end));
        }
        end.end_poll();
    }

    /// The device behind a number that [`IoCtx::attach`] gave.
    pub fn device(&self, bdev: u16) -> Option<&Device> {
        self.bdevs.get(usize::from(bdev))?.as_ref().map(|bdev| &bdev.device)
    }

    /// Submits an I/O whose memory is `vecs` (none for operations without data); false when no bio is free, and then
    /// nothing happened. `fixed_buf` names the registered buffer that holds the only vector.
    ///
    /// Ends as invalid when the memory is not as long as the I/O, or is in more than [`MAX_VECS`] pieces. Of the flags
    /// those count that a submitter may set.
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

    /// Finds the queue for the bio and gives it to the hardware context.
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

    /// Opens the plug: what is submitted until [`IoCtx::finish_plug`] goes to the drivers in batches.
    #[inline]
    pub fn start_plug(&mut self, hint: u32) {
        self.core.plug.start(hint);
    }

    /// Closes the plug and hands everything gathered to the drivers.
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

    /// Ends what is ready: calls `end` for every bio that ended; returns how many requests did.
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
        // After the polls: what they have ended is not overdue.
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

    /// Whether a plain record on its way is one that is asked for: its owner, its registered buffer (or
    /// [`NO_FIXED_BUF`]), where its memory begins. Looks at every request and bio there is.
    pub fn any_plain(&self, mut is: impl FnMut(u32, u16, usize) -> bool) -> bool {
        let memory = |bio: &crate::bio::Bio| bio.vecs().first().map_or(0, |vec| vec.base);
        self.hctxs.iter().flatten().any(|hctx| hctx.any_plain(&mut is))
            || self.core.bios.iter_plain().any(|bio| is(bio.owner, bio.fixed_buf, memory(bio)))
    }

    /// The registered buffer of this number is another one from now on: I/O on its way that is not in the kernel goes
    /// there as I/O of ordinary memory. Looks at every request and bio there is.
    pub fn forget_fixed_buf(&mut self, index: u16) {
        self.hctxs.iter_mut().flatten().for_each(|hctx| hctx.forget_fixed_buf(index));
        self.core.bios.forget_fixed_buf(index);
    }

    /// A handle that wakes this ring from another thread.
    pub fn unparker(&self) -> Unparker {
        self.parker.unparker()
    }

    /// Whether a poll would find nothing to look at.
    #[inline(always)]
    pub fn has_nothing_to_poll(&self) -> bool {
        let core = &self.core;
        core.active == 0 && core.kring.ring.is_none() && core.starved.is_empty() && core.ended.is_empty()
    }

    /// Whether any I/O is on its way.
    pub fn is_idle(&self) -> bool {
        self.core.ended.is_empty()
            && self.core.starved.is_empty()
            && self.hctxs.iter().flatten().all(|hctx| !hctx.has_work())
    }

    /// Turns statistics on or off, also in the middle of I/O: what is in flight then counts from now.
    pub fn set_stats(&mut self, on: bool) {
        self.hctxs.iter_mut().flatten().for_each(|hctx| hctx.set_ring_counts(&self.core, on));
        self.core.stats = on;
    }

    /// Bounds the cache of bios: at most so many, in the place of [`CACHE_MAX`], and with 0 none is kept. False, and
    /// nothing has changed, while I/O is on its way.
    #[cfg(sheave_lab)]
    #[must_use]
    pub fn set_bio_cache(&mut self, max: u32) -> bool {
        let done = self.core.bios.set_max_cached(max);
        let cacheable = self.core.bios.cacheable();
        self.hctxs.iter_mut().flatten().for_each(|hctx| hctx.set_cacheable(cacheable));
        done
    }

    /// Puts a store behind the cache of bios, in place of the one before or of the ring's own pool. False, and nothing
    /// has changed, while I/O is on its way.
    #[cfg(sheave_lab)]
    #[must_use]
    pub fn set_bio_store(&mut self, store: Box<dyn BioStore>) -> bool {
        self.core.bios.set_store(store)
    }

    /// What is read beside that for each request that shares a stamp.
    #[cfg(sheave_lab)]
    pub fn set_each_read(&mut self, each: EachRead) {
        self.core.plug.each = each;
    }

    /// How old a time stamp may be that the requests of a batch share; see [`Plug::set_max_age`].
    pub fn set_stamp_age(&mut self, max_age: Duration) {
        self.core.plug.set_max_age(&self.core.clock, max_age);
    }

    /// Writes the requests that end to a trace from now on; `None` ends that. Only with statistics, which have the
    /// stamps. Gives back the trace before it.
    pub fn trace_to(&mut self, trace: Option<TraceWriter>) -> Option<TraceWriter> {
        let trace = trace.filter(|_| self.core.stats).map(Box::new);
        std::mem::replace(&mut self.core.trace, trace).map(|before| *before)
    }

    /// The ring's clock.
    pub fn clock(&self) -> &Clock {
        &self.core.clock
    }

    /// The bios, for tests and reports.
    pub fn bios(&self) -> &BioSet {
        &self.core.bios
    }

    /// The slot of the kernel ring, to register buffers with it.
    pub fn kring_slot(&mut self) -> &mut KringSlot {
        &mut self.core.kring
    }

    /// Ends everything: cancels what never reached a driver, waits for what a device may still touch.
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
