//! Which nodes of an arena are in use, by how many parents, and what a checkpoint must know of each.
//!
//! Owns the numbers. Does not own the words of the nodes, which are in the [`Arena`](super::Arena).
//!
//! - I1: a node with no parent is given back through limbo, and only then used again.
//! - I2: a dirty node has only dirty parents, up to its volume; so a checkpoint that goes down from the dirty volumes
//!   finds each. What it does not find only waits to be given back.
//!
//! Called by [`Tree`](super::tree::Tree), checkpoints and recovery, under the pool's lock.

use crate::format::page::PageRef;

/// Most nodes of a kind: numbers end below the tag.
pub(super) const MAX_NODES: u32 = 1 << 30;

/// In the list of free numbers: all words of the node are 0.
const BLANK: u32 = 1 << 31;
const _: () = assert!(MAX_NODES <= BLANK);

/// What is known of a node. Never in two lines of a cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(crate) struct Node {
    /// Parents.
    pub(crate) parents: u32,
    /// Words that are not empty.
    pub(crate) used: u32,
    /// Of a leaf: written blocks.
    pub(crate) written: u32,
    /// The page that it has on the device, if that is what it says.
    pub(crate) page: PageRef,
    /// The [epoch](Nodes::begin_epoch) in which it was changed last; dirty if that is the current one.
    changed: u32,
}

/// The nodes of one kind.
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
    /// Node 0 is none.
    pub(crate) fn new() -> Nodes {
        Nodes { nodes: vec![Node::default()], epoch: 1, ..Nodes::default() }
    }

    /// A new node with one parent, dirty, and whether all its words are 0 for certain; `None` when there are no more
    /// numbers.
    pub(crate) fn take(&mut self) -> Option<(u32, bool)> {
        let (id, blank) = match self.free.pop() {
            Some(free) => (free & !BLANK, free & BLANK != 0),
            None => {
                let id = u32::try_from(self.nodes.len()).ok().filter(|id| *id < MAX_NODES)?;
                self.nodes.push(Node::default());
                // Nobody has had the number: the arena gives words that are 0.
                (id, true)
            }
        };
        self.nodes[id as usize] = Node { parents: 1, changed: self.epoch, ..Node::default() };
        self.live += 1;
        self.dirty += 1;
        Some((id, blank))
    }

    /// One more parent.
    pub(crate) fn get(&mut self, id: u32) {
        self.nodes[id as usize].parents += 1;
    }

    /// One parent less; the node, if that was the last: then it belongs into limbo.
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

    /// A node leaves limbo: its number is free.
    pub(crate) fn release(&mut self, id: u32) {
        self.free.push(id);
    }

    /// Recovery: a node was put and nobody looks anything up: its number is free. `was`: as it was put. One without
    /// words in use has none that is not 0, for each that was taken away was made 0.
    pub(crate) fn release_put(&mut self, id: u32, was: &Node) {
        self.free.push(if was.used == 0 { id | BLANK } else { id });
    }

    pub(crate) fn is_shared(&self, id: u32) -> bool {
        self.nodes[id as usize].parents > 1
    }

    pub(crate) fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    /// The next checkpoint writes it.
    #[inline]
    pub(crate) fn touch(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        self.dirty += u64::from(node.changed != self.epoch);
        node.changed = self.epoch;
    }

    /// A checkpoint has written it there; the page that it had before.
    pub(crate) fn written(&mut self, id: u32, page: PageRef) -> PageRef {
        let node = &mut self.nodes[id as usize];
        self.dirty -= u64::from(node.changed == self.epoch);
        node.changed = 0;
        std::mem::replace(&mut node.page, page)
    }

    /// Whether the next checkpoint writes it.
    pub(crate) fn is_dirty(&self, id: u32) -> bool {
        self.nodes[id as usize].changed == self.epoch
    }

    /// A checkpoint has taken every dirty node that a volume has: none is dirty now. Nodes that only wait to be given
    /// back are not looked for, and do not count any more either.
    pub(crate) fn begin_epoch(&mut self) {
        self.dirty = 0;
        self.epoch = self.epoch.checked_add(1).unwrap_or_else(|| {
            self.nodes.iter_mut().for_each(|node| node.changed = 0);
            1
        });
    }

    pub(crate) fn add_used(&mut self, id: u32, count: u32) {
        self.nodes[id as usize].used += count;
        self.total_used += u64::from(count);
    }

    /// Blocks of a leaf became written, or were and are not.
    #[inline]
    pub(crate) fn add_written(&mut self, id: u32, more: u32, fewer: u32) {
        let node = &mut self.nodes[id as usize];
        let now = (node.written + more).saturating_sub(fewer);
        self.total_written = self.total_written + u64::from(now) - u64::from(node.written);
        node.written = now;
    }

    /// One word less; true when none is left.
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

    /// Nodes that the next checkpoint writes.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Words in use in all nodes.
    pub(crate) fn total_used(&self) -> u64 {
        self.total_used
    }

    /// Written blocks of all leaves.
    pub(crate) fn total_written(&self) -> u64 {
        self.total_written
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.nodes.len() as u64 * size_of::<Node>() as u64
    }
}

impl Nodes {
    /// One above the highest number ever used.
    pub(crate) fn end(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Recovery: every node without a parent is free.
    pub(crate) fn free_unused(&mut self) {
        self.free = (1..self.end()).rev().filter(|id| self.nodes[*id as usize].parents == 0).collect();
    }
}
