//! Decides when changes begin while parts of blocks are rewritten ([`BlockLocks`]), and runs the steps of the requests
//! that rewrite such parts.
//!
//! Owns the questions that other reactors ask about changes. The byte positions of edges are in `unaligned`.

use sheave_base::sync::Arc;
use sheave_nbd::session::Command;
use sheave_nbd::wire::cflag;

use super::ops::{Op, Stage};
use super::requests::Io;
use super::unaligned::Unaligned;
use crate::block_locks::{Ask, BlockLocks, Change, Entered, Owner, Standing, blocks_of};
use crate::shared::Order;

const ECANCELED: i32 = 125;

impl Io {
    /// Prepares a request, just given its slot, that begins or ends within a block.
    #[cold]
    pub(super) fn set_unaligned(&mut self, slot: u32, unaligned: Unaligned) {
        let Some(op) = self.ops.get_mut(slot) else { return };
        match (op.request.command, &op.payload) {
            (Command::Read, Some(payload)) => (op.range, op.at) = (unaligned.blocks, payload.blocks_at()),
            (Command::Trim, _) => op.range = unaligned.inner(),
            _ => op.unaligned = Some(Box::new(unaligned)),
        }
    }

    /// Begins a change if it is its turn: the write, trim or zeroing itself, or the read of its edges if it has some.
    pub(super) fn begin_change(&mut self, slot: u32, locks: &Arc<BlockLocks>) {
        let Some(op) = self.ops.get_mut(slot) else { return };
        if op.unaligned.is_none() && locks.is_quiet() {
            op.standing = Standing::Free;
            return self.start(slot);
        }
        self.enter(slot, locks);
    }

    #[cold]
    fn enter(&mut self, slot: u32, locks: &Arc<BlockLocks>) {
        let Some(op) = self.ops.get_mut(slot) else { return };
        let change = match &op.unaligned {
            Some(unaligned) => unaligned.change(),
            None => Change { blocks: blocks_of(op.range, locks.block_bytes()), rewritten: Vec::new() },
        };
        if op.unaligned.is_some() {
            op.edge(Stage::ReadEdge(0));
        }
        let rewritten = change.rewritten.clone();
        match locks.enter(Owner { reactor: self.number, slot }, change) {
            Entered::Free => {
                op.standing = Standing::Free;
                self.start(slot);
            }
            Entered::Entry { ticket, begins, ask } => {
                op.standing = Standing::Entry { locks: locks.clone(), ticket };
                for reactor in ask {
                    let ask = Ask { locks: locks.clone(), ticket, rewritten: rewritten.clone(), left: 0 };
                    if reactor == self.number {
                        self.asks.new.push(ask);
                    } else {
                        self.shared.order(reactor, Order::Ask(ask));
                    }
                }
                if begins {
                    self.start(slot);
                }
            }
        }
    }

    /// Takes a question about changes from another reactor.
    pub(super) fn asked(&mut self, ask: Ask) {
        self.asks.new.push(ask);
    }

    /// Returns true if there are new questions.
    pub(super) fn was_asked(&self) -> bool {
        !self.asks.new.is_empty()
    }

    /// Counts, for each new question, the changes under way here without an entry in the table. Answers the questions
    /// for which there are none; the others wait for the end of those changes.
    pub(super) fn look_for_changes(&mut self) {
        let mut asks = std::mem::take(&mut self.asks.new);
        let mut wanted = Vec::new();
        for (number, ask) in asks.iter().enumerate() {
            let fds = self.files.values().filter(|way| Arc::ptr_eq(way.locks(), &ask.locks)).map(|way| way.fd.raw());
            let block_bytes = ask.locks.block_bytes();
            wanted.extend(fds.flat_map(|fd| ask.rewritten.iter().map(move |block| (fd, block * block_bytes, number))));
        }
        // Sorted, so that each change finds the blocks of its range by a binary search.
        wanted.sort_unstable();
        for op in self.ops.iter().filter(|op| matches!(op.standing, Standing::Free)) {
            let (fd, from, to) = (op.fd, op.range.0, op.range.0 + op.range.1);
            let first = wanted.partition_point(|(other, byte, _)| (*other, *byte) < (fd, from));
            let found = wanted[first..].iter().take_while(|(other, byte, _)| (*other, *byte) < (fd, to));
            found.for_each(|(.., number)| asks[*number].left += 1);
        }
        for ask in asks {
            if ask.left == 0 {
                self.answer_ask(&ask);
            } else {
                self.asks.open.push(ask);
            }
        }
    }

    fn answer_ask(&mut self, ask: &Ask) {
        let begins = ask.locks.heard(ask.ticket, self.number);
        self.tell(begins);
    }

    /// Starts requests whose turn has come, on this reactor or by an order to their own.
    fn tell(&mut self, owners: impl IntoIterator<Item = Owner>) {
        for Owner { reactor, slot } in owners {
            if reactor == self.number {
                self.turn_came(slot);
            } else {
                self.shared.order(reactor, Order::Turn { slot });
            }
        }
    }

    /// Starts a change whose turn has come. If its client is gone, the change ends instead, as canceled.
    pub(super) fn turn_came(&mut self, slot: u32) {
        match self.ops.get(slot) {
            Some(op) if op.abandoned => self.ended.push((slot, -ECANCELED)),
            _ => self.start(slot),
        }
    }

    /// Called when a change, or the part of it that had an entry, has ended.
    #[inline]
    pub(super) fn end_change(&mut self, slot: u32) {
        let Some(op) = self.ops.get_mut(slot) else { return };
        match std::mem::replace(&mut op.standing, Standing::Apart) {
            Standing::Apart => {}
            Standing::Free if self.asks.open.is_empty() => {}
            Standing::Free => {
                let (fd, range) = (op.fd, op.range);
                self.free_change_ended(fd, range);
            }
            Standing::Entry { locks, ticket } => self.tell(locks.end(ticket)),
        }
    }

    #[cold]
    fn free_change_ended(&mut self, fd: i32, range: (u64, u64)) {
        let files = &self.files;
        let is_of = |ask: &Ask| {
            let (first, last) = blocks_of(range, ask.locks.block_bytes());
            files.values().any(|way| way.fd.raw() == fd && Arc::ptr_eq(way.locks(), &ask.locks))
                && ask.rewritten.iter().any(|block| (first..=last).contains(block))
        };
        let mut answered = Vec::new();
        for ask in &mut self.asks.open {
            if is_of(ask) {
                let hits = ask.rewritten.iter();
                let (first, last) = blocks_of(range, ask.locks.block_bytes());
                ask.left -= hits.filter(|block| (first..=last).contains(block)).count();
            }
        }
        let mut at = 0;
        while at < self.asks.open.len() {
            if self.asks.open[at].left == 0 {
                answered.push(self.asks.open.swap_remove(at));
            } else {
                at += 1;
            }
        }
        answered.iter().for_each(|ask| self.answer_ask(ask));
    }

    /// Called when an edge was read or written. Starts the next step of the request; returns false if there is none.
    pub(super) fn edge_moved(&mut self, slot: u32) -> bool {
        let Some(op) = self.ops.get_mut(slot) else { return false };
        let (Some(unaligned), Some(payload)) = (&op.unaligned, &mut op.payload) else { return false };
        // At most two.
        let edges = unaligned.edges.len() as u8;
        match op.stage {
            Stage::ReadEdge(edge) if edge + 1 < edges => op.edge(Stage::ReadEdge(edge + 1)),
            Stage::ReadEdge(_) if op.request.command == Command::Write => {
                unaligned.surround(payload);
                (op.stage, op.range, op.at, op.done) = (Stage::Command, unaligned.blocks, payload.blocks_at(), 0);
            }
            Stage::ReadEdge(_) => {
                unaligned.zero(payload);
                op.edge(Stage::WriteEdge(0));
            }
            Stage::WriteEdge(edge) if edge + 1 < edges => op.edge(Stage::WriteEdge(edge + 1)),
            _ => return self.zero_between(slot),
        }
        self.start(slot);
        true
    }

    /// Zeroes the whole blocks between the edges, once those are written. Returns false if there are none.
    fn zero_between(&mut self, slot: u32) -> bool {
        let Some(op) = self.ops.get_mut(slot) else { return false };
        let Some(unaligned) = op.unaligned.take() else { return false };
        let Standing::Entry { locks, .. } = &op.standing else { return false };
        let locks = locks.clone();
        self.end_change(slot);
        let Some(op) = self.ops.get_mut(slot) else { return false };
        // Between the edges are whole blocks: the entry has ended, and they are a change of their own.
        (op.stage, op.range, op.done) = (Stage::Command, unaligned.inner(), 0);
        if op.range.1 == 0 {
            return false;
        }
        if op.request.has(cflag::NO_HOLE) {
            let has_zeroes = self.take_zeroes(slot);
            debug_assert!(has_zeroes, "they are kept since the request came");
        }
        self.begin_change(slot, &locks);
        true
    }
}

impl Op {
    /// Makes the read or the write of an edge the next operation.
    fn edge(&mut self, stage: Stage) {
        let (Some(unaligned), Some(payload)) = (&self.unaligned, &self.payload) else { return };
        let (Stage::ReadEdge(number) | Stage::WriteEdge(number)) = stage else { return };
        let number = usize::from(number);
        self.range = (unaligned.edges[number].offset, unaligned.block_bytes);
        self.at = payload.aside_at() + number * unaligned.stride(payload.align());
        (self.stage, self.done) = (stage, 0);
    }
}
