//! A pairing heap whose nodes lie in a table: a root, with its children in a list. Owns no memory.
//!
//! The algorithm is that of Fredman, Sedgewick, Sleator and Tarjan ("The pairing heap", 1986): two heaps are melded by
//! hanging the later root under the earlier one; removing a root melds its children in pairs, then the pairs from the
//! last to the first. Arming costs one comparison, removal O(log n) amortized, and nothing recurses.
//!
//! Invariants:
//! - I1: no node comes before its parent by (deadline, turn).
//! - I2: a root has neither sibling nor `back`.

use sheave_base::clock::Timeline;

use crate::req::NO_SLOT;

/// Kind of an armed node, and the index of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Timeout = 0,
    Guard = 1,
}

/// The target of a timeout without a count.
pub(super) const UNCOUNTED: u64 = u64::MAX;

/// Node of a slot: its links in a heap, and in the list of [`Timers`](super::Timers).
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// Deadline in ns of its timeline.
    pub(super) at: u64,
    /// Value of `Timers::seen` at which the count is reached; `UNCOUNTED` without a count.
    pub(super) target: u64,
    /// Order of arming, for equal deadlines.
    pub(super) turn: u32,
    pub(super) child: u32,
    pub(super) sibling: u32,
    /// Previous sibling, or the parent of a first child.
    pub(super) back: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) timeline: Timeline,
    pub(super) kind: Option<Kind>,
}

impl Node {
    pub(super) const IDLE: Node = Node {
        at: 0,
        target: UNCOUNTED,
        turn: 0,
        child: NO_SLOT,
        sibling: NO_SLOT,
        back: NO_SLOT,
        prev: NO_SLOT,
        next: NO_SLOT,
        timeline: Timeline::Monotonic,
        kind: None,
    };
}

#[cfg(all(test, not(shuttle)))]
std::thread_local! {
    /// Number of melds on this thread, for tests that count them.
    pub(super) static MELDS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn comes_first(nodes: &[Node], a: u32, b: u32) -> bool {
    let (a, b) = (&nodes[a as usize], &nodes[b as usize]);
    // Turns wrap. Nodes armed at the same time differ by less than half of the range.
    (a.at, a.turn.wrapping_sub(b.turn) as i32) < (b.at, 0)
}

/// Melds two heaps, either of which may be empty. Returns the root.
pub(super) fn meld(nodes: &mut [Node], a: u32, b: u32) -> u32 {
    #[cfg(all(test, not(shuttle)))]
    MELDS.set(MELDS.get() + 1);
    if a == NO_SLOT || b == NO_SLOT {
        return if a == NO_SLOT { b } else { a };
    }
    let (top, under) = if comes_first(nodes, a, b) { (a, b) } else { (b, a) };
    let child = std::mem::replace(&mut nodes[top as usize].child, under);
    nodes[under as usize].sibling = child;
    nodes[under as usize].back = top;
    if child != NO_SLOT {
        nodes[child as usize].back = under;
    }
    top
}

/// Removes a node from the heap with this root. Returns the new root.
pub(super) fn remove(nodes: &mut [Node], root: u32, slot: u32) -> u32 {
    let children = std::mem::replace(&mut nodes[slot as usize].child, NO_SLOT);
    let rest = meld_all(nodes, children);
    if slot == root {
        return rest;
    }
    let Node { sibling, back, .. } = nodes[slot as usize];
    // `back` is the parent of a first child, and the sibling before any other.
    if nodes[back as usize].child == slot {
        nodes[back as usize].child = sibling;
    } else {
        nodes[back as usize].sibling = sibling;
    }
    if sibling != NO_SLOT {
        nodes[sibling as usize].back = back;
    }
    meld(nodes, root, rest)
}

/// Melds a list of siblings into one heap. Returns its root.
fn meld_all(nodes: &mut [Node], first: u32) -> u32 {
    let mut pairs = NO_SLOT;
    let mut at = first;
    while at != NO_SLOT {
        let second = cut(nodes, at);
        let next = if second == NO_SLOT { NO_SLOT } else { cut(nodes, second) };
        let pair = meld(nodes, at, second);
        nodes[pair as usize].sibling = pairs;
        pairs = pair;
        at = next;
    }
    let mut root = NO_SLOT;
    while pairs != NO_SLOT {
        let next = cut(nodes, pairs);
        root = meld(nodes, root, pairs);
        pairs = next;
    }
    root
}

/// Makes a node a root (I2). Returns the sibling that followed it.
fn cut(nodes: &mut [Node], slot: u32) -> u32 {
    let node = &mut nodes[slot as usize];
    node.back = NO_SLOT;
    std::mem::replace(&mut node.sibling, NO_SLOT)
}
