//! Hardware queue of one ring into a device with faults: applies decisions to requests, and undoes changes at their
//! end.
//!
//! Owns the requests that it holds back: delayed ones, overdue ones that could not be sent down yet, and stuck ones.
//! All others are held by the lower hardware queue, under the same tag.
//!
//! | fault | effect on the request |
//! |---|---|
//! | error | ended at once with an I/O error |
//! | short, torn | sent down with fewer bytes; then its length is restored and it ends with an I/O error |
//! | short, torn, of one block | ended at once with an I/O error |
//! | delay | held in `delayed`, then sent down unchanged |
//! | dropped flush | ended at once with success |
//! | stuck | held in `stuck` |
//! | misdirect | sent down with another sector; then its sector is restored and it ends |
//!
//! Invariants:
//! - H1: a changed request (`Slot::change`) is in the lower queue, and is changed back before it leaves this queue in
//!   any way: its end is found in the `DoneList` after each call, or by `ended_remotely`.
//! - H2: each request is decided about once: if the lower queue refuses it, its slot keeps the decision until it is
//!   offered again. A slot is valid for one generation of its tag.
//! - H3: the delay is constant, so `delayed` is in the order of `due`.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use sheave_base::clock::PreciseTs;
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_base::sync::Arc;

use super::plan::{FaultCounts, FaultKind, Odds};
use sheave_blk::bio::SECTOR_SHIFT;
use sheave_blk::driver::{HctxOpen, HwEnv, HwQueue, KernelEvents, NextEvent, TimedOut};
use sheave_blk::limits::Capacity;
use sheave_blk::request::{DoneList, Request, Rq, RqList, RqQueue, RqTable};

/// Delay before a request is offered again that the lower queue refused, if that queue holds no request whose end could
/// trigger the retry.
const RETRY: Duration = Duration::from_millis(1);

/// Decision about a request.
#[derive(Clone, Copy, Debug, Default)]
enum Fate {
    /// Sent down unchanged.
    #[default]
    Pass,
    /// Sent down with its first bytes only.
    Cut(u32),
    /// Sent down with another first sector.
    Move(u64),
    /// Ended here, with this status.
    End(Status),
    /// Sent down later.
    Delay,
    /// Held until it times out.
    Stick,
}

/// Difference of a request in the lower queue from the block layer's request.
#[derive(Clone, Copy, Debug, Default)]
enum Change {
    #[default]
    None,
    /// The request had this many bytes.
    Bytes(u32),
    /// The request had this first sector.
    Sector(u64),
}

/// State of a tag's request.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    change: Change,
    /// Generation and decision of a request that the lower queue refused (H2).
    refused: Option<(u32, Fate)>,
}

/// Faults of one queue: rates, ranges, delay and counts. All its rings share them.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    pub(super) odds: Odds,
    /// Sector ranges of the queue that belong to the device: a misdirected request stays within its range.
    pub(super) reach: Vec<Range<u64>>,
    pub(super) delay_time: Duration,
    pub(super) counts: Arc<FaultCounts>,
}

#[derive(Debug)]
pub(super) struct FaultQueue {
    lower: Box<dyn HwQueue>,
    /// Bytes of a logical block.
    block: u32,
    capacity: Capacity,
    faults: Faults,
    rng: Rng,
    /// Unit of the distance by which a misdirected request moves, in sectors. The distance is a multiple of it, so the
    /// request's distance to the boundaries in the limits stays the same.
    step: u64,
    slots: Box<[Slot]>,
    /// Number of slots with a change.
    changed: u32,
    delayed: RqQueue,
    /// Times at which the requests of `delayed` are sent down (H3).
    due: VecDeque<PreciseTs>,
    /// Requests whose delay is over, but which could not be sent down yet.
    overdue: RqQueue,
    stuck: RqQueue,
    /// Time of the next retry after the lower queue refused a request.
    retry_at: Option<PreciseTs>,
}

impl FaultQueue {
    pub(super) fn new(faults: Faults, lower: Box<dyn HwQueue>, open: &HctxOpen<'_>, rng: Rng) -> FaultQueue {
        let slots = usize::from(open.depth) + 1;
        let limits = open.limits;
        FaultQueue {
            lower,
            block: limits.logical_block,
            capacity: open.capacity.clone(),
            faults,
            rng,
            step: u64::from((limits.logical_block >> SECTOR_SHIFT).max(limits.chunk_sectors)),
            slots: vec![Slot::default(); slots].into(),
            changed: 0,
            delayed: RqQueue::with_depth(open.depth),
            due: VecDeque::with_capacity(slots),
            overdue: RqQueue::with_depth(open.depth),
            stuck: RqQueue::with_depth(open.depth),
            retry_at: None,
        }
    }

    /// Decides about a request that is offered (H2).
    #[inline]
    fn fate_of(&mut self, rq: &Request, tag: u16) -> Fate {
        match self.slots[usize::from(tag)].refused.take() {
            Some((generation, fate)) if generation == rq.generation() => fate,
            _ => match self.faults.odds.draw(rq.op, &mut self.rng) {
                Some(kind) => self.fate_by(kind, rq),
                None => Fate::Pass,
            },
        }
    }

    #[cold]
    fn fate_by(&mut self, kind: FaultKind, rq: &Request) -> Fate {
        let fate = match kind {
            FaultKind::Error => Fate::End(Status::IoErr),
            FaultKind::Short | FaultKind::Torn => {
                let block = self.block;
                match rq.bytes / block {
                    0 | 1 => Fate::End(Status::IoErr),
                    blocks => Fate::Cut((1 + self.rng.below(u64::from(blocks - 1)) as u32) * block),
                }
            }
            FaultKind::Delay => Fate::Delay,
            FaultKind::DroppedFlush => Fate::End(Status::Ok),
            FaultKind::Stuck => Fate::Stick,
            FaultKind::Misdirect => match self.other_place(rq) {
                Some(sector) => Fate::Move(sector),
                None => return Fate::Pass,
            },
        };
        self.faults.counts.count(kind);
        fate
    }

    /// Returns another place for the request; `None` if the device has none. The distance is a multiple of the
    /// request's length, so that a request of equal size later finds a whole block of another place; in a small device
    /// it is as short as the limits allow.
    fn other_place(&mut self, rq: &Request) -> Option<u64> {
        let reach = self.faults.reach.iter().find(|reach| reach.contains(&rq.sector))?;
        let end = reach.end.min(self.capacity.sectors());
        let (before, after) = (rq.sector - reach.start, end.checked_sub(rq.end_sector())?);
        let own = u64::from(rq.bytes >> SECTOR_SHIFT).next_multiple_of(self.step);
        let stride = if before.max(after) >= own { own } else { self.step };
        let (before, after) = (before / stride, after / stride);
        if before + after == 0 {
            return None;
        }
        let at = self.rng.below(before + after);
        Some(match at.checked_sub(before) {
            None => rq.sector - (at + 1) * stride,
            Some(at) => rq.sector + (at + 1) * stride,
        })
    }

    /// Changes a request before it is sent down (H1).
    fn change(&mut self, rq: &mut Request, tag: u16, fate: Fate) {
        let change = match fate {
            Fate::Cut(bytes) => Change::Bytes(std::mem::replace(&mut rq.bytes, bytes)),
            Fate::Move(sector) => Change::Sector(std::mem::replace(&mut rq.sector, sector)),
            _ => return,
        };
        self.slots[usize::from(tag)].change = change;
        self.changed += 1;
    }

    /// Undoes [`FaultQueue::change`]. Returns the fate that the request had.
    fn restore(&mut self, rq: &mut Request, tag: u16) -> Fate {
        let slot = &mut self.slots[usize::from(tag)];
        let fate = match std::mem::take(&mut slot.change) {
            Change::None => return Fate::Pass,
            Change::Bytes(bytes) => Fate::Cut(std::mem::replace(&mut rq.bytes, bytes)),
            Change::Sector(sector) => Fate::Move(std::mem::replace(&mut rq.sector, sector)),
        };
        self.changed -= 1;
        fate
    }

    /// Restores a request that ended in the lower queue (H1). Returns the status to end it with.
    fn mend(&mut self, tag: u16, status: Status, rqs: &mut RqTable<'_>) -> Status {
        match self.restore(rqs.by_tag_mut(tag), tag) {
            Fate::Cut(_) if status.is_ok() => Status::IoErr,
            _ => status,
        }
    }

    /// Restores the requests that the last call of the lower queue has ended.
    #[inline]
    fn mend_since(&mut self, before: usize, rqs: &mut RqTable<'_>, done: &mut DoneList) {
        if self.changed > 0 {
            done.mend_since(before, |tag, status| self.mend(tag, status, rqs));
        }
    }

    /// Sends requests down; refused ones stay in `list`, restored.
    fn send(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        let before = done.len();
        self.lower.queue_rqs(list, rqs, env, done);
        self.mend_since(before, rqs, done);
        if list.is_empty() {
            self.retry_at = None;
            return;
        }
        self.retry_at = Some(env.clock.precise().after(RETRY));
        for &tag in list.tags() {
            let rq = rqs.by_tag_mut(tag);
            let (generation, fate) = (rq.generation(), self.restore(rq, tag));
            self.slots[usize::from(tag)].refused = Some((generation, fate));
        }
    }

    /// Sends down the requests whose delay is over.
    fn send_due(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        let now = env.clock.precise();
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        while self.due.front().is_some_and(|&due| due <= now) {
            self.due.pop_front();
            if let Some(rq) = self.delayed.pop() {
                self.overdue.push(rq);
            }
        }
        while !self.overdue.is_empty() {
            let mut list = RqList::default();
            while !list.is_full() {
                let Some(rq) = self.overdue.pop() else { break };
                list.add(rq);
            }
            self.send(&mut list, rqs, env, done);
            if !list.is_empty() {
                return self.overdue.put_back(&mut list);
            }
        }
    }

    fn holds(&self) -> bool {
        !(self.delayed.is_empty() && self.overdue.is_empty() && self.stuck.is_empty())
    }

    /// Takes a request that this queue holds back.
    fn take_held(&mut self, tag: u16) -> Option<Rq> {
        if let Some(at) = self.delayed.position(tag) {
            self.due.remove(at);
            return self.delayed.remove(tag);
        }
        self.overdue.remove(tag).or_else(|| self.stuck.remove(tag))
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: a request is held back by its token, or is with the queue below, which keeps the same promise.
// `sector` and `bytes` of a request handed down are changed as D3 allows, and restored (H1).
unsafe impl HwQueue for FaultQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        let mut down = RqList::default();
        let mut due = None;
        while let Some(rq) = list.pop() {
            let tag = rq.tag();
            let fate = self.fate_of(rqs.get(&rq), tag);
            match fate {
                Fate::Pass => down.add(rq),
                Fate::Cut(_) | Fate::Move(_) => {
                    self.change(rqs.get_mut(&rq), tag, fate);
                    down.add(rq);
                }
                Fate::End(status) => done.push(rq, status),
                Fate::Delay => {
                    let due = *due.get_or_insert_with(|| env.clock.precise().after(self.faults.delay_time));
                    self.due.push_back(due);
                    self.delayed.push(rq);
                }
                Fate::Stick => self.stuck.push(rq),
            }
        }
        if down.is_empty() {
            return;
        }
        self.send(&mut down, rqs, env, done);
        // D4: refused requests go back in order, the last one first.
        list.unpop_all(&mut down);
    }

    fn works_alone(&self) -> bool {
        self.lower.works_alone()
    }

    fn poll(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        let before = done.len();
        self.lower.poll(rqs, env, done);
        self.mend_since(before, rqs, done);
        if !self.due.is_empty() || !self.overdue.is_empty() || self.retry_at.is_some() {
            self.send_due(rqs, env, done);
        }
    }

    fn kernel_done(
        &mut self,
        events: KernelEvents<'_>,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) {
        let before = done.len();
        self.lower.kernel_done(events, rqs, env, done);
        self.mend_since(before, rqs, done);
    }

    fn ended_remotely(&mut self, tag: u16, status: Status, rqs: &mut RqTable<'_>) -> Status {
        let status = self.lower.ended_remotely(tag, status, rqs);
        self.mend(tag, status, rqs)
    }

    fn next_event(&self) -> NextEvent {
        let lower = self.lower.next_event();
        let retry = self.retry_at.filter(|_| lower == NextEvent::Idle && self.holds());
        let at = match (self.due.front().copied(), retry) {
            (Some(due), Some(retry)) => Some(due.min(retry)),
            (due, retry) => due.or(retry),
        };
        match (lower, at) {
            (NextEvent::Ready, _) => NextEvent::Ready,
            (NextEvent::At(lower), Some(at)) => NextEvent::At(lower.min(at)),
            // Completions of the kernel ring and of other threads wake the ring earlier by themselves.
            (_, Some(at)) => NextEvent::At(at),
            (NextEvent::Idle, None) if self.holds() => NextEvent::Stuck,
            (lower, None) => lower,
        }
    }

    fn lasting_in_kernel(&self) -> u32 {
        self.lower.lasting_in_kernel()
    }

    fn timed_out(&mut self, tag: u16, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut {
        if let Some(rq) = self.take_held(tag) {
            done.push(rq, Status::Timeout);
            return TimedOut::Ended;
        }
        let before = done.len();
        let answer = self.lower.timed_out(tag, rqs, env, done);
        self.mend_since(before, rqs, done);
        answer
    }

    fn shutdown(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        self.due.clear();
        for held in [&mut self.delayed, &mut self.overdue, &mut self.stuck] {
            while let Some(rq) = held.pop() {
                done.push(rq, Status::Canceled);
            }
        }
        let before = done.len();
        self.lower.shutdown(rqs, env, done);
        self.mend_since(before, rqs, done);
    }
}
