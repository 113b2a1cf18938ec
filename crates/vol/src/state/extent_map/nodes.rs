//! Bookkeeping of an arena's nodes: parents, use, and checkpoint state of each.
//!
//! Owns these counts and the list of free node numbers. Does not own the words of the nodes, which are in the
//! [`Arena`](super::Arena).
//!
//! - I1: a node without a parent is reused only after it has passed the deferred-free queue.
//! - I2: all parents of a dirty node are dirty, up to its volume. So a checkpoint that descends from the dirty volumes
//!   finds every dirty node, except nodes that are only waiting to be freed.
//!
//! Called by [`Tree`](super::tree::Tree), checkpoints and recovery, under the pool's lock.

use crate::format::page::PageRef;

/// Largest number of nodes of a kind: node numbers stay below the tag.
pub(super) const MAX_NODES: u32 = 1 << 30;

/// Flag in the list of free node numbers: all words of that node are 0.
const BLANK: u32 = 1 << 31;
const _: () = assert!(MAX_NODES <= BLANK);

/// Bookkeeping of one node. Aligned so that it never spans two cache lines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(crate) struct Node {
    pub(crate) parents: u32,
    /// Number of words that are not 0.
    pub(crate) used: u32,
    /// Number of written blocks, for a leaf.
    pub(crate) written: u32,
    /// Page of the node in the last checkpoint. It is up to date unless the node is dirty.
    pub(crate) page: PageRef,
    /// [Epoch](Nodes::begin_epoch) of the last change. The node is dirty if that is the current one.
    changed: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    free: Vec<u32>,
    epoch: u32,
    live: u64,
    dirty: u64,
    total_used: u64,
    total_written: u64,
}

impl Nodes {
    /// Node 0 is reserved to mean "none".
    pub(crate) fn new() -> Nodes {
        Nodes { nodes: vec![Node::default()], epoch: 1, ..Nodes::default() }
    }

    /// Takes a node with one parent, and makes it dirty. The flag is true if all words of the node are known to be 0.
    /// Returns `None` if the numbers are used up.
    pub(crate) fn take(&mut self) -> Option<(u32, bool)> {
        let (id, blank) = match self.free.pop() {
            Some(free) => (free & !BLANK, free & BLANK != 0),
            None => {
                let id = u32::try_from(self.nodes.len()).ok().filter(|id| *id < MAX_NODES)?;
                self.nodes.push(Node::default());
                // A number never used before: the arena provides words that are 0.
                (id, true)
            }
        };
        self.nodes[id as usize] = Node { parents: 1, changed: self.epoch, ..Node::default() };
        self.live += 1;
        self.dirty += 1;
        Some((id, blank))
    }

    /// Adds a parent.
    pub(crate) fn get(&mut self, id: u32) {
        self.nodes[id as usize].parents += 1;
    }

    /// Removes a parent. Returns the node if that was the last one; the caller then passes it to the deferred-free
    /// queue.
    #[must_use]
    pub(crate) fn put(&mut self, id: u32) -> Option<Node> {
        let node = &mut self.nodes[id as usize];
        debug_assert!(node.parents > 0, "node {id} has no parent to put");
        node.parents = node.parents.saturating_sub(1);
        if node.parents > 0 {
            return None;
        }
        let was = *node;
        self.live -= 1;
        self.total_used -= u64::from(was.used);
        self.total_written -= u64::from(was.written);
        self.dirty -= u64::from(was.changed == self.epoch);
        *node = Node::default();
        Some(was)
    }

    /// Frees the number of a node that has passed the deferred-free queue.
    pub(crate) fn release(&mut self, id: u32) {
        self.free.push(id);
    }

    /// Recovery: frees the number of a node at once, because there are no lookups. `was` is the node as `put` returned
    /// it. If no word of it was in use, all its words are 0, because removing a word zeroes it.
    pub(crate) fn release_put(&mut self, id: u32, was: &Node) {
        self.free.push(if was.used == 0 { id | BLANK } else { id });
    }

    pub(crate) fn is_shared(&self, id: u32) -> bool {
        self.nodes[id as usize].parents > 1
    }

    pub(crate) fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    /// Marks a node as dirty.
    #[inline]
    pub(crate) fn touch(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        self.dirty += u64::from(node.changed != self.epoch);
        node.changed = self.epoch;
    }

    /// Records the page that a checkpoint has given to a node. Returns the page that it replaces.
    pub(crate) fn written(&mut self, id: u32, page: PageRef) -> PageRef {
        let node = &mut self.nodes[id as usize];
        self.dirty -= u64::from(node.changed == self.epoch);
        node.changed = 0;
        std::mem::replace(&mut node.page, page)
    }

    pub(crate) fn is_dirty(&self, id: u32) -> bool {
        self.nodes[id as usize].changed == self.epoch
    }

    /// Called when a checkpoint has taken every dirty node: makes all nodes clean, also those that are waiting to be
    /// freed, which the checkpoint did not visit.
    pub(crate) fn begin_epoch(&mut self) {
        self.dirty = 0;
        // When the epochs are used up all nodes are reset, so that no old epoch counts as dirty again.
        self.epoch = self.epoch.checked_add(1).unwrap_or_else(|| {
            self.nodes.iter_mut().for_each(|node| node.changed = 0);
            1
        });
    }

    pub(crate) fn add_used(&mut self, id: u32, count: u32) {
        self.nodes[id as usize].used += count;
        self.total_used += u64::from(count);
    }

    /// Adjusts the number of written blocks of a leaf.
    #[inline]
    pub(crate) fn add_written(&mut self, id: u32, more: u32, fewer: u32) {
        let node = &mut self.nodes[id as usize];
        let now = (node.written + more).saturating_sub(fewer);
        self.total_written = self.total_written + u64::from(now) - u64::from(node.written);
        node.written = now;
    }

    /// Removes a word in use. Returns true if none is left.
    pub(crate) fn sub_used(&mut self, id: u32) -> bool {
        let node = &mut self.nodes[id as usize];
        debug_assert!(node.used > 0, "node {id} has a word to lose");
        self.total_used -= u64::from(node.used > 0);
        node.used = node.used.saturating_sub(1);
        node.used == 0
    }

    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    pub(crate) fn dirty(&self) -> u64 {
        self.dirty
    }

    pub(crate) fn total_used(&self) -> u64 {
        self.total_used
    }

    pub(crate) fn total_written(&self) -> u64 {
        self.total_written
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.nodes.len() as u64 * size_of::<Node>() as u64
    }
}

impl Nodes {
    /// One above the highest number ever used.
    pub(crate) fn end(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Recovery: frees every node without a parent.
    pub(crate) fn free_unused(&mut self) {
        self.free = (1..self.end()).rev().filter(|id| self.nodes[*id as usize].parents == 0).collect();
    }
}
