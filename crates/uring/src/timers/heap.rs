//! A pairing heap whose nodes lie in a table: a root, children in a list, no memory of its own.
//!
//! The shape is that of Fredman, Sedgewick, Sleator and Tarjan ("The pairing heap", 1986): two heaps are melded by
//! hanging the later root under the earlier one; taking a root away melds its children in pairs, then the pairs from
//! the last to the first. Arming costs one comparison, taking out O(log n) amortized, and nothing recurses.
//!
//! Invariants:
//! - I1: no node comes before its parent by (deadline, turn).
//! - I2: a root has neither sibling nor `back`.

use sheave_base::clock::Timeline;

use crate::req::NO_SLOT;

/// What a node is armed as; also the index of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A TIMEOUT.
    Timeout = 0,
    /// A LINK_TIMEOUT.
    Guard = 1,
}

/// The target of a timeout without a count.
pub(super) const UNCOUNTED: u64 = u64::MAX;

/// The node of a slot: its place in a heap, and in the list that [`Timers`](super::Timers) keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// ns of its timeline.
    pub(super) at: u64,
    /// It is reached when `seen` is; `UNCOUNTED` without a count.
    pub(super) target: u64,
    /// Who was armed first among equal deadlines.
    pub(super) turn: u32,
    pub(super) child: u32,
    pub(super) sibling: u32,
    /// The sibling before it, the parent for a first child.
    pub(super) back: u32,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) timeline: Timeline,
    pub(super) kind: Option<Kind>,
}

impl Node {
    /// A node that is not armed.
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
    /// Melds on this thread, for tests that count.
    pub(super) static MELDS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn comes_first(nodes: &[Node], a: u32, b: u32) -> bool {
    let (a, b) = (&nodes[a as usize], &nodes[b as usize]);
    // Turns count up and wrap; those armed at the same time are closer to each other than half of all.
    (a.at, a.turn.wrapping_sub(b.turn) as i32) < (b.at, 0)
}

/// Two heaps (or none) become one; its root.
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

/// Takes a node out of the heap with this root; the new root.
pub(super) fn remove(nodes: &mut [Node], root: u32, slot: u32) -> u32 {
    let children = std::mem::replace(&mut nodes[slot as usize].child, NO_SLOT);
    let rest = meld_all(nodes, children);
    if slot == root {
        return rest;
    }
    let Node { sibling, back, .. } = nodes[slot as usize];
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

/// Makes one heap of a list of siblings.
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

/// Makes a node a root (I2); what was behind it.
fn cut(nodes: &mut [Node], slot: u32) -> u32 {
    let node = &mut nodes[slot as usize];
    node.back = NO_SLOT;
    std::mem::replace(&mut node.sibling, NO_SLOT)
}
