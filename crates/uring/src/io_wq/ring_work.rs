//! What workers do for a ring.
//!
//! Owns what a ring's items are ([`Work`]), what a worker keeps for rings ([`RingContext`]), and the way of a result
//! back: into the ring's task-work queue, a batch at a time, with one wake-up.
//!
//! Invariants:
//! - I1: a worker gives every reference to a file up before the item that it came with ends: it is never the last to
//!   hold a file, and no foreign destructor runs here.
//! - I2: when a ring goes, no worker waits for a device or for another ring on its behalf: what is in flight is taken
//!   back, and what waits for a file is told.

use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard};
use sheave_blk::bio::BVec;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::{Intent, Pieces};
use sheave_iomap::{FallocateMode, File, Kiocb, dio};

use super::work::{CANCELLED, Ends, Section, Source, WorkFlags};
use crate::file_work::{EndList, lock};
use crate::held_file::HeldFile;
use crate::task_work::{DoneQueue, RingHandle};
use crate::work_done::WorkDone;

/// An I/O whose memory a file is to see.
#[derive(Debug)]
pub(crate) struct Sum {
    pub(crate) kiocb: Kiocb,
    pub(crate) pieces: Pieces,
    pub(crate) vecs: Vec<BVec>,
}

impl Sum {
    /// Shows it.
    pub(crate) fn run(&self, file: &dyn File, token: &MayBlock<'_>) -> i32 {
        dio::end_summed_blocking(file, &self.kiocb, self.pieces.as_slice(), &self.vecs, token)
    }
}

/// An operation on a file, for a worker's own ring: what is left of an SQE when its ring has looked up all that only
/// the ring knows. Half of an SQE, for each is written by one thread and read by another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) opcode: u8,
    pub(crate) len: u32,
    pub(crate) op_flags: u32,
    pub(crate) off: u64,
    pub(crate) addr: u64,
}

/// What a worker does for a slot.
#[derive(Debug)]
pub(crate) enum Work {
    /// `IOSQE_ASYNC` where workers have no threads: the ring issues the request when it comes back.
    Issue,
    /// `IOSQE_ASYNC` on a NOP.
    Nothing,
    /// `IOSQE_ASYNC` on a NOP whose result its SQE names.
    Known(i32),
    /// `IOSQE_ASYNC`: an operation on a file.
    Run(HeldFile, Operation),
    /// The completion work of a batch of writes to one file.
    Complete(Arc<dyn File>, Arc<Mutex<EndList>>),
    /// A file looks at the memory of one I/O, where that blocks.
    Sum(Arc<dyn File>, Box<Sum>),
    /// A sync of a file.
    Sync(Arc<dyn File>),
    /// A mapping that blocks, perhaps for long: position and length.
    Map(Arc<dyn File>, u64, u64, Intent),
    /// FALLOCATE on a file: position and length.
    Fallocate(Arc<dyn File>, FallocateMode, u64, u64),
}

/// How long the work of an operation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Little, and it waits for nothing but a device: done with others like it.
    Short,
    /// It ends by itself.
    Bound,
    /// It ends by itself, and runs in order with, and never beside, other work with this hash.
    Ordered(u32),
    /// It may wait for others.
    Unbound,
}

impl From<Kind> for WorkFlags {
    fn from(kind: Kind) -> WorkFlags {
        match kind {
            Kind::Short => WorkFlags::SHORT,
            Kind::Bound => WorkFlags::BOUND,
            Kind::Ordered(hash) => WorkFlags::hashed(hash),
            Kind::Unbound => WorkFlags::UNBOUND,
        }
    }
}

/// What issues the operations of [`Work::Run`] on a worker's thread, and lets them end there.
pub(crate) trait Issuer {
    /// Prepares an operation; false when that cannot be. `at` is its name here.
    fn push(&mut self, file: HeldFile, op: &Operation, at: usize) -> bool;

    /// Begins what was prepared.
    fn submit(&mut self);

    /// Tells which operations have ended, and how.
    fn reap(&mut self, end: &mut dyn FnMut(usize, i32));

    /// Waits until one has, or somebody wakes the waker.
    fn wait(&mut self);

    /// What ends a wait, from any thread.
    fn waker(&self) -> RingHandle;

    /// Lets go of what it keeps for the next operation.
    fn rest(&mut self);
}

/// Makes an [`Issuer`] on the thread that calls it.
pub(crate) type MakeIssuer = fn() -> Option<Box<dyn Issuer>>;

/// What a worker keeps for rings: how it issues their operations, made for the first of them.
#[derive(Default)]
pub struct RingContext(Option<Box<dyn Issuer>>);

impl std::fmt::Debug for RingContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RingContext").field(&self.0.is_some()).finish()
    }
}

impl RingContext {
    fn push(&mut self, make: MakeIssuer, file: HeldFile, op: &Operation, at: usize) -> bool {
        if self.0.is_none() {
            self.0 = make();
        }
        self.0.as_mut().is_some_and(|issuer| issuer.push(file, op, at))
    }
}

/// The work of a slot. Its flag says whether there is any: NOPs, which are many, take no lock.
#[derive(Debug, Default)]
struct Load {
    full: AtomicBool,
    work: Mutex<Option<Work>>,
}

/// A ring as the pool calls it.
#[derive(Debug)]
pub struct RingSource {
    done: Arc<DoneQueue>,
    loads: Box<[Load]>,
    make: MakeIssuer,
    /// The ring is being dropped: what workers have begun for it is not waited for.
    going: AtomicBool,
    /// Workers that wait for operations of this ring.
    waiting: Mutex<Vec<RingHandle>>,
}

impl RingSource {
    /// Work of a ring with so many slots, for the ring's queue of results.
    pub(super) fn new(done: Arc<DoneQueue>, slots: u32, make: MakeIssuer) -> RingSource {
        let loads = (0..slots).map(|_| Load::default()).collect();
        RingSource { done, loads, make, going: AtomicBool::new(false), waiting: Mutex::new(Vec::new()) }
    }

    /// The ring goes: workers give up what they wait for.
    pub(super) fn go(&self) {
        // Relaxed: the lock orders it. Either `wait` sees this, or this sees the waker of `wait`.
        self.going.store(true, Ordering::Relaxed);
        for waker in self.waiting().iter() {
            waker.wake();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<RingHandle>> {
        self.waiting.lock().expect("invariant: no panic under this lock")
    }

    /// Waits until an operation has ended; false when the ring goes.
    fn wait(&self, issuer: &mut dyn Issuer) -> bool {
        let waker = issuer.waker();
        self.waiting().push(waker.clone());
        // Relaxed, twice: see `go`.
        if !self.going.load(Ordering::Relaxed) {
            issuer.wait();
        }
        self.waiting().retain(|other| !other.same(&waker));
        !self.going.load(Ordering::Relaxed)
    }

    /// The work of a slot that is about to be queued.
    #[inline]
    pub(super) fn put(&self, slot: u32, work: Work) {
        let load = &self.loads[slot as usize];
        let mut place = load.work.lock().expect("invariant: no panic under this lock");
        if place.is_some() {
            drop(place);
            self.forget(slot);
            place = load.work.lock().expect("invariant: no panic under this lock");
        }
        *place = Some(work);
        // Relaxed: published with the item.
        load.full.store(true, Ordering::Relaxed);
    }

    /// The work of a slot will not be done.
    #[cold]
    pub(super) fn forget(&self, slot: u32) {
        // Foreign code: not under the lock.
        drop(self.take(slot));
    }

    #[inline]
    fn take(&self, slot: u32) -> Option<Work> {
        let load = &self.loads[slot as usize];
        // Relaxed, both: published with the item.
        if !load.full.load(Ordering::Relaxed) {
            return None;
        }
        load.full.store(false, Ordering::Relaxed);
        load.work.lock().expect("invariant: no panic under this lock").take()
    }

    /// What the ring is to do with a slot that it has taken back.
    pub(super) fn take_back(&self, slot: u32) -> WorkDone {
        match self.take(slot) {
            None | Some(Work::Nothing) => WorkDone::Result(0),
            Some(Work::Known(res)) => WorkDone::Result(res),
            // The ring holds the file too: this is not the last.
            Some(_) => WorkDone::Reissue,
        }
    }

    /// Issues one operation and waits for it.
    fn issue(&self, context: &mut RingContext, file: HeldFile, op: &Operation) -> WorkDone {
        if !context.push(self.make, file, op, 0) {
            return WorkDone::Reissue;
        }
        let Some(issuer) = &mut context.0 else { return WorkDone::Reissue };
        let mut done = None;
        issuer.submit();
        loop {
            issuer.reap(&mut |_, res| done = Some(WorkDone::Result(res)));
            if let Some(done) = done {
                return done;
            }
            if !self.wait(&mut **issuer) {
                // With its ring goes what is in flight: devices let go of the memory first.
                context.0 = None;
                return CANCELLED;
            }
        }
    }
}

impl Source for RingSource {
    type Context = RingContext;

    fn run(&self, context: &mut RingContext, slot: u32, section: &Section<'_>) -> WorkDone {
        let token = section.token();
        match self.take(slot) {
            Some(Work::Complete(file, list)) => {
                let tell = |slot, res| self.done.finish(&[(slot, WorkDone::Result(res))]);
                lock(&list).run(&*file, token, tell);
                WorkDone::Result(0)
            }
            Some(Work::Sum(file, sum)) => WorkDone::Result(sum.run(&*file, token)),
            Some(Work::Sync(file)) => dio::sync(&*file, token).into(),
            Some(Work::Map(file, pos, len, intent)) => WorkDone::of_mapping(map_range(&*file, pos, len, intent, token)),
            Some(Work::Fallocate(file, mode, pos, len)) => {
                WorkDone::of_fallocate(file.fallocate(mode, pos, len, token))
            }
            Some(Work::Run(file, op)) => self.issue(context, file, &op),
            Some(Work::Known(res)) => WorkDone::Result(res),
            Some(Work::Nothing) => WorkDone::Result(0),
            Some(Work::Issue) | None => WorkDone::Reissue,
        }
    }

    fn run_short(&self, context: &mut RingContext, slots: &[u32], ends: &mut impl Ends) {
        let mut issued = 0;
        for (at, &slot) in slots.iter().enumerate() {
            let how = match self.take(slot) {
                None => WorkDone::Result(0),
                Some(Work::Known(res)) => WorkDone::Result(res),
                Some(Work::Run(file, op)) => {
                    if context.push(self.make, file, &op, at) {
                        issued += 1;
                        continue;
                    }
                    WorkDone::Reissue
                }
                Some(_) => WorkDone::Reissue,
            };
            ends.end(at, how);
        }
        let Some(issuer) = context.0.as_mut().filter(|_| issued > 0) else { return };
        issuer.submit();
        loop {
            issuer.reap(&mut |at, res| {
                issued -= 1;
                ends.end(at, WorkDone::Result(res));
            });
            if issued == 0 {
                return;
            }
            let mut goes_on = true;
            ends.blocking(|| goes_on = self.wait(&mut **issuer));
            if !goes_on {
                // As above. What has not ended is cancelled.
                context.0 = None;
                return ends.end_rest(CANCELLED);
            }
        }
    }

    fn finish(&self, done: &[(u32, WorkDone)]) {
        self.done.finish(done);
    }

    /// A NOP puts no work into its slot, and would do what was left there.
    fn not_run(&self, slot: u32) {
        self.forget(slot);
    }

    fn starved(&self) {
        self.done.wake();
    }

    fn rest(context: &mut RingContext) {
        if let Some(issuer) = &mut context.0 {
            issuer.rest();
        }
    }
}

/// Has a file find its answers for the whole of a range. One piece is not enough: the ring asks for all of them again,
/// and would come back for ever with the second one, which nobody was asked to map.
fn map_range(file: &dyn File, pos: u64, len: u64, intent: Intent, token: &MayBlock) -> Result<(), Status> {
    let end = pos.saturating_add(len);
    let mut at = pos;
    while at < end {
        // A file that answers with nothing is the ring's to refuse.
        at = at.saturating_add(file.map_blocking(at, end - at, intent, token)?.len.max(1));
    }
    Ok(())
}
