//! A wait-free queue of preallocated nodes: many producers, one consumer.
//!
//! Owns the order of the nodes. Does not own their content: a node is an index below the capacity, and its payload
//! lives wherever the caller keeps it. Nothing is allocated after `new`, and the queue is never full.
//!
//! The algorithm is Dmitry Vyukov's intrusive MPSC queue with indices for pointers and one change: the consumer takes
//! the last node by an exchange of `head` back to `EMPTY`, not by pushing a stub node, so that the producer that finds
//! `EMPTY` knows exactly that the queue was empty.
//!
//! ```text
//!   next[EMPTY] -> a -> b -> c          head = c: producers swap themselves in here, then link
//!                  ^ tail (consumer's)
//! ```
//!
//! * I1: a node is queued at most once; its owner pushes it, and owns it again after the pop.
//! * I2: `next[n]` is `NIL` for each node outside of the queue, so a push need not reset it.
//! * I3: `head == EMPTY` exactly when every pushed node was popped.
//! * I4: a producer's writes before `push` are visible to the consumer after the `pop` of that node.
//! * I5: nodes of one producer come out in the order of their pushes.
//!
//! Called by the task work of a ring: driver threads, workers and other rings push, the ring's owner pops.

use crossbeam_utils::CachePadded;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU32, Ordering};

/// End of the list: no successor yet.
const NIL: u32 = u32::MAX;

/// The largest capacity: indices below it, `EMPTY` (the capacity itself) and `NIL` are all different.
pub const MAX_CAPACITY: u32 = u32::MAX - 1;

/// Producers' side. A clone refers to the same queue.
#[derive(Debug, Clone)]
pub struct MpscQueue {
    shared: Arc<Nodes>,
}

/// Consumer's side: there is one, and `pop` needs it exclusively.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Nodes>,
    /// The next node to pop, or `EMPTY`: then the next node is `next[EMPTY]`.
    tail: u32,
    /// `EMPTY`, copied here so that a poll needs no load of `next.len()`.
    empty: u32,
}

#[derive(Debug)]
struct Nodes {
    /// The node pushed last, or `EMPTY` (I3). The only word that all producers write.
    head: CachePadded<AtomicU32>,
    /// The successor of each node, or `NIL`; one more entry at `EMPTY` for the first node.
    next: Box<[AtomicU32]>,
}

impl MpscQueue {
    /// Makes an empty queue for the nodes `0..capacity`.
    ///
    /// # Panics
    /// When `capacity` is above [`MAX_CAPACITY`].
    #[must_use]
    pub fn new(capacity: u32) -> (Self, Consumer) {
        assert!(capacity <= MAX_CAPACITY, "a queue holds at most {MAX_CAPACITY} nodes, not {capacity}");
        let shared = Arc::new(Nodes {
            head: CachePadded::new(AtomicU32::new(capacity)),
            next: (0..=capacity).map(|_| AtomicU32::new(NIL)).collect(),
        });
        (Self { shared: Arc::clone(&shared) }, Consumer { shared, tail: capacity, empty: capacity })
    }

    /// Appends `node`: one exchange and one store, whatever the other threads do.
    ///
    /// Returns true if the queue was empty, so that a consumer that went to sleep after [`Consumer::is_empty`] must be
    /// woken, and only by this producer.
    ///
    /// The caller owns `node` (I1); pushing a node that is queued breaks the queue (though never memory).
    ///
    /// # Panics
    /// When `node` is not below the capacity.
    #[inline]
    pub fn push(&self, node: u32) -> bool {
        let shared = &*self.shared;
        let empty = shared.empty();
        assert!(node < empty, "a node is an index below the capacity");
        // Relaxed: the owner of a node got it from the consumer that reset it (I2).
        debug_assert_eq!(
            shared.next[node as usize].load(Ordering::Relaxed),
            NIL,
            "a node was pushed while it was queued"
        );
        // Release hands the consumer's reset of `next` (I2) on to the producer that swaps next and links behind this
        // node. Acquire pairs with that Release, and with the one in `take_last`.
        let before = shared.head.swap(node, Ordering::AcqRel);
        debug_assert_ne!(before, node, "a node was pushed while it was queued");
        // Until this store the consumer cannot get past `before`: that is why `pop` may return `None` though the queue
        // is not empty.
        // Release pairs with the Acquire loads in `Consumer::pop` (I4).
        shared.next[before as usize].store(node, Ordering::Release);
        before == empty
    }

    /// Appends `nodes` together, in order: one exchange for all. Like [`push`](Self::push) otherwise; returns false if
    /// there are none.
    ///
    /// # Panics
    /// When a node is not below the capacity.
    #[inline]
    pub fn push_all(&self, nodes: impl IntoIterator<Item = u32>) -> bool {
        let shared = &*self.shared;
        let empty = shared.empty();
        let mut nodes = nodes.into_iter();
        let Some(first) = nodes.next() else { return false };
        assert!(first < empty, "a node is an index below the capacity");
        let mut last = first;
        for node in nodes {
            assert!(node < empty, "a node is an index below the capacity");
            // Relaxed: the consumer gets here through the linking store below, the next producer through the exchange.
            shared.next[last as usize].store(node, Ordering::Relaxed);
            last = node;
        }
        // As in `push`: AcqRel pairs with the exchanges of other producers and of `take_last`.
        let before = shared.head.swap(last, Ordering::AcqRel);
        // Release pairs with the Acquire loads in `Consumer::pop` (I4).
        shared.next[before as usize].store(first, Ordering::Release);
        before == empty
    }

    /// Returns true if the queue was empty a moment ago. For statistics and heuristics on any thread; the consumer has
    /// the exact [`Consumer::is_empty`].
    #[inline]
    #[must_use]
    pub fn is_empty_hint(&self) -> bool {
        self.shared.is_empty()
    }

    /// Returns the number of nodes: `0..capacity` are valid.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.shared.empty()
    }
}

impl Consumer {
    /// Takes the oldest node.
    ///
    /// `None` does not mean empty: a producer may have exchanged `head` and not linked its node yet. Before a sleep
    /// call [`is_empty`](Self::is_empty).
    #[inline(always)]
    pub fn pop(&mut self) -> Option<u32> {
        // Inlined part: most polls find the queue empty.
        if self.is_empty() { None } else { self.pop_linked() }
    }

    #[inline(never)]
    fn pop_linked(&mut self) -> Option<u32> {
        let shared = &*self.shared;
        let empty = shared.empty();
        if self.tail == empty {
            // Acquire pairs with the linking store in `push` (I4).
            let first = shared.next[empty as usize].load(Ordering::Acquire);
            if first == NIL {
                return None;
            }
            // Relaxed: producers see it through the exchange in `take_last` (I2).
            shared.next[empty as usize].store(NIL, Ordering::Relaxed);
            self.tail = first;
        }
        let node = self.tail;
        // Acquire pairs with the linking store in `push` (I4).
        let next = shared.next[node as usize].load(Ordering::Acquire);
        if next == NIL {
            return self.take_last();
        }
        // Relaxed: the next owner of the node gets it from this thread (I1, I2).
        shared.next[node as usize].store(NIL, Ordering::Relaxed);
        self.tail = next;
        Some(node)
    }

    /// Takes the node at `tail` if it is the last one; returns `None` while a producer is linking behind it.
    #[inline]
    fn take_last(&mut self) -> Option<u32> {
        let shared = &*self.shared;
        let empty = shared.empty();
        // Release pairs with the Acquire of the swap in `push`: the producer that finds `EMPTY` stores to
        // `next[EMPTY]` after our reset of it. Relaxed on failure: nothing was read.
        shared.head.compare_exchange(self.tail, empty, Ordering::Release, Ordering::Relaxed).ok()?;
        Some(std::mem::replace(&mut self.tail, empty))
    }

    /// Returns true if every pushed node was popped (I3).
    ///
    /// To sleep without losing a wake-up: announce the sleep, then call `is_empty`, and stay awake if it returns false,
    /// even if `pop` returned nothing. `push` returns true to a producer that comes later.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // Relaxed: as in `Nodes::is_empty`.
        self.shared.head.load(Ordering::Relaxed) == self.empty
    }
}

impl Nodes {
    /// Returns `EMPTY`: the value of `head` for an empty queue, and the index of the entry for the first node.
    #[inline]
    fn empty(&self) -> u32 {
        (self.next.len() - 1) as u32
    }

    #[inline]
    fn is_empty(&self) -> bool {
        // Relaxed: ordered against producers by the sleeper's announcement (see `parker`), not by this load.
        self.head.load(Ordering::Relaxed) == self.empty()
    }
}

#[cfg(all(test, any(shuttle, loom)))]
mod model;
#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
