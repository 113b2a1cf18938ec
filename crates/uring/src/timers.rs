//! Pending timeouts: the deadline of each, the number of CQEs it waits for, and the order of the search by cancels.
//!
//! Owns one preallocated node per request slot, with everything intrusive: a pairing heap by deadline for each clock
//! ([`heap`]), and two lists. Does not own requests: the caller that takes a timeout out ends its request. A deadline
//! stays on its own clock, so a jump of the clock moves it.
//!
//! Invariants:
//! - I1: an armed node is in one heap and in one list; a node that is not armed is in neither.
//! - I2: the list of timeouts starts with the counted ones, by their target count; then come the others, in the order
//!   of their issue or last update. The kernel searches in this order.
//! - I3: nothing is allocated after `new`, and a ring with nothing armed pays one load of `armed`.
//!
//! Called by the operations in `op::timeout`, by cancel, and by every reap while anything is armed.

pub(crate) mod heap;

use std::time::Duration;

use sheave_base::clock::{Clock, Timeline};

use crate::req::NO_SLOT;
pub(crate) use heap::Kind;
use heap::{Node, UNCOUNTED};

const TIMELINES: [Timeline; 3] = [Timeline::Monotonic, Timeline::Boottime, Timeline::Realtime];

/// Longest sleep of a ring that waits for a clock that can be set or that runs through suspend: the delay until a jump
/// is noticed.
const JUMPY_ROUND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Debug)]
pub(crate) struct Timers {
    nodes: Box<[Node]>,
    roots: [u32; 3],
    lists: [List; 2],
    armed: u32,
    turn: u32,
    /// Number of CQEs that count, up to the last [`Timers::look_at`].
    seen: u64,
    /// Tail of the CQ at the last [`Timers::look_at`], less `uncounted`.
    last: u32,
    /// Number of CQEs that do not count: those of timeouts that fired or reached their count.
    uncounted: u32,
}

impl Timers {
    pub(crate) fn new(slots: u32) -> Timers {
        Timers {
            nodes: vec![Node::IDLE; slots as usize].into(),
            roots: [NO_SLOT; 3],
            lists: [List { first: NO_SLOT, last: NO_SLOT }; 2],
            armed: 0,
            turn: 0,
            seen: 1 << 62, // Far from 0, because it may go back a little.
            last: 0,
            uncounted: 0,
        }
    }

    /// Returns true if anything is pending. The only check of a ring without timeouts (I3).
    #[inline(always)]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed != 0
    }

    /// Returns true if a timeout waits for CQEs.
    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        let first = self.lists[Kind::Timeout as usize].first;
        first != NO_SLOT && self.nodes[first as usize].target != UNCOUNTED
    }

    #[inline]
    pub(crate) fn armed_as(&self, slot: u32) -> Option<Kind> {
        self.nodes[slot as usize].kind
    }

    /// Arms a slot that is not armed.
    pub(crate) fn arm(&mut self, slot: u32, kind: Kind, timeline: Timeline, at: u64) {
        self.start(slot, kind, timeline, at, UNCOUNTED);
        self.insert_behind(slot, kind, self.lists[kind as usize].last);
    }

    /// Arms a timeout that also ends when `count` CQEs were posted after `tail`.
    pub(crate) fn arm_counted(&mut self, slot: u32, timeline: Timeline, at: u64, tail: u32, count: u32) {
        self.look_at(tail);
        let target = self.seen + u64::from(count);
        self.start(slot, Kind::Timeout, timeline, at, target);
        let mut before = self.lists[Kind::Timeout as usize].last;
        while before != NO_SLOT && self.nodes[before as usize].target > target {
            before = self.nodes[before as usize].prev;
        }
        self.insert_behind(slot, Kind::Timeout, before);
    }

    /// Gives an armed slot another deadline. A timeout loses its count, and goes to the end of the list.
    pub(crate) fn rearm(&mut self, slot: u32, timeline: Timeline, at: u64) {
        match self.nodes[slot as usize].kind {
            Some(Kind::Timeout) => {
                self.disarm(slot);
                self.arm(slot, Kind::Timeout, timeline, at);
            }
            Some(Kind::Guard) => {
                self.leave_heap(slot);
                self.enter_heap(slot, timeline, at);
            }
            None => debug_assert!(false, "only what is armed is armed again"),
        }
    }

    /// Takes a slot out. Returns false if it was not armed.
    pub(crate) fn disarm(&mut self, slot: u32) -> bool {
        let Some(kind) = self.nodes[slot as usize].kind.take() else { return false };
        self.leave_heap(slot);
        let Node { prev, next, .. } = self.nodes[slot as usize];
        let list = &mut self.lists[kind as usize];
        match prev {
            NO_SLOT => list.first = next,
            _ => self.nodes[prev as usize].next = next,
        }
        match next {
            NO_SLOT => list.last = prev,
            _ => self.nodes[next as usize].prev = prev,
        }
        self.armed -= 1;
        true
    }

    /// Returns the first armed slot of a kind, in the order of I2.
    pub(crate) fn first(&self, kind: Kind) -> u32 {
        self.lists[kind as usize].first
    }

    /// Returns the armed slot behind this one, or `NO_SLOT`.
    pub(crate) fn after(&self, slot: u32) -> u32 {
        self.nodes[slot as usize].next
    }

    /// Takes out the first slot that is due. Reads only the clocks that a timeout is armed on.
    pub(crate) fn pop_due(&mut self, clock: &Clock) -> Option<u32> {
        for timeline in TIMELINES {
            let root = self.roots[timeline as usize];
            if root != NO_SLOT && self.nodes[root as usize].at <= clock.now_ns(timeline) {
                self.disarm(root);
                return Some(root);
            }
        }
        None
    }

    /// Returns the time until a slot is due; `None` if nothing is armed.
    pub(crate) fn wait_limit(&self, clock: &Clock) -> Option<Duration> {
        let limit = |timeline: Timeline| {
            let root = self.roots[timeline as usize];
            if root == NO_SLOT {
                return None;
            }
            let left = Duration::from_nanos(self.nodes[root as usize].at.saturating_sub(clock.now_ns(timeline)));
            Some(if timeline == Timeline::Monotonic { left } else { left.min(JUMPY_ROUND) })
        };
        TIMELINES.into_iter().filter_map(limit).min()
    }

    /// Counts the CQEs posted since the last call, given the tail of the CQ.
    pub(crate) fn look_at(&mut self, tail: u32) {
        let now = tail.wrapping_sub(self.uncounted);
        // Negative if the CQE of a timeout waits behind a full CQ: it is subtracted already, and not yet in the tail.
        self.seen = self.seen.wrapping_add_signed(i64::from(now.wrapping_sub(self.last) as i32));
        self.last = now;
    }

    /// Takes out a timeout whose count was reached at the last [`Timers::look_at`].
    pub(crate) fn pop_reached(&mut self) -> Option<u32> {
        let first = self.lists[Kind::Timeout as usize].first;
        if first == NO_SLOT || self.nodes[first as usize].target > self.seen {
            return None;
        }
        self.disarm(first);
        Some(first)
    }

    /// Excludes the CQE that a timeout is about to post from the count.
    pub(crate) fn uncount(&mut self) {
        self.uncounted = self.uncounted.wrapping_add(1);
    }

    fn start(&mut self, slot: u32, kind: Kind, timeline: Timeline, at: u64, target: u64) {
        debug_assert!(self.nodes[slot as usize].kind.is_none(), "a slot is armed once (I1)");
        self.armed += 1;
        self.nodes[slot as usize].kind = Some(kind);
        self.nodes[slot as usize].target = target;
        self.enter_heap(slot, timeline, at);
    }

    fn enter_heap(&mut self, slot: u32, timeline: Timeline, at: u64) {
        let node = &mut self.nodes[slot as usize];
        (node.at, node.timeline, node.turn) = (at, timeline, self.turn);
        (node.child, node.sibling, node.back) = (NO_SLOT, NO_SLOT, NO_SLOT);
        self.turn = self.turn.wrapping_add(1);
        let root = &mut self.roots[timeline as usize];
        *root = heap::meld(&mut self.nodes, *root, slot);
    }

    fn leave_heap(&mut self, slot: u32) {
        let root = &mut self.roots[self.nodes[slot as usize].timeline as usize];
        *root = heap::remove(&mut self.nodes, *root, slot);
    }

    /// Inserts a slot into its list behind `before`, or first if that is `NO_SLOT`.
    fn insert_behind(&mut self, slot: u32, kind: Kind, before: u32) {
        let list = &mut self.lists[kind as usize];
        let next = match before {
            NO_SLOT => std::mem::replace(&mut list.first, slot),
            _ => std::mem::replace(&mut self.nodes[before as usize].next, slot),
        };
        match next {
            NO_SLOT => list.last = slot,
            _ => self.nodes[next as usize].prev = slot,
        }
        let node = &mut self.nodes[slot as usize];
        (node.prev, node.next) = (before, next);
    }
}

/// Returns the number of melds on this thread, for tests that count them.
#[cfg(all(test, not(shuttle)))]
pub(crate) fn melds() -> u64 {
    heap::MELDS.get()
}

#[cfg(all(test, not(shuttle)))]
mod tests;
