//! When requests that change something begin, while parts of blocks are rewritten ([`BlockLocks`]), and the steps of
//! those that rewrite some.
//!
//! Owns the questions of other reactors. Does not own which bytes go where (`unaligned`).

use sheave_base::sync::Arc;
use sheave_nbd::session::Command;
use sheave_nbd::wire::cflag;

use super::requests::{Io, Op, Stage};
use super::unaligned::Unaligned;
use crate::block_locks::{Ask, BlockLocks, Change, Entered, Owner, Standing, blocks_of};
use crate::shared::Order;

const ECANCELED: i32 = 125;

impl Io {
    /// A request that was just kept begins or ends within a block. Returns whether there is no whole block for a trim.
    #[cold]
    pub(super) fn set_unaligned(&mut self, slot: u32, unaligned: Unaligned) -> bool {
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return false };
        match (op.request.command, &op.payload) {
            (Command::Read, Some(payload)) => (op.range, op.at) = (unaligned.blocks, payload.blocks_at()),
            (Command::Trim, _) => op.range = unaligned.inner(),
            _ => op.unaligned = Some(Box::new(unaligned)),
        }
        op.range.1 == 0
    }

    /// Begins a change, when that is its turn: of the whole blocks of its range, or with edges that are read first.
    pub(super) fn begin_change(&mut self, slot: u32, locks: &Arc<BlockLocks>) {
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return };
        if op.unaligned.is_none() && locks.is_quiet() {
            op.standing = Standing::Free;
            return self.start(slot);
        }
        self.enter(slot, locks);
    }

    #[cold]
    fn enter(&mut self, slot: u32, locks: &Arc<BlockLocks>) {
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return };
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

    /// Somebody asks.
    pub(super) fn asked(&mut self, ask: Ask) {
        self.asks.new.push(ask);
    }

    /// Whether questions have come.
    pub(super) fn was_asked(&self) -> bool {
        !self.asks.new.is_empty()
    }

    /// Looks for changes without an entry, for all questions that have come, and answers where there are none.
    pub(super) fn look_for_changes(&mut self) {
        let mut asks = std::mem::take(&mut self.asks.new);
        let mut wanted = Vec::new();
        for (number, ask) in asks.iter().enumerate() {
            let fds = self.files.values().filter(|way| Arc::ptr_eq(way.locks(), &ask.locks)).map(|way| way.fd.raw());
            let block_bytes = ask.locks.block_bytes();
            wanted.extend(fds.flat_map(|fd| ask.rewritten.iter().map(move |block| (fd, block * block_bytes, number))));
        }
        wanted.sort_unstable();
        for op in self.ops.iter().flatten().filter(|op| matches!(op.standing, Standing::Free)) {
            let (fd, from, to) = (op.fd.raw(), op.range.0, op.range.0 + op.range.1);
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

    /// It is the turn of these.
    fn tell(&mut self, owners: impl IntoIterator<Item = Owner>) {
        for Owner { reactor, slot } in owners {
            if reactor == self.number {
                self.turn_came(slot);
            } else {
                self.shared.order(reactor, Order::Turn { slot });
            }
        }
    }

    /// It is the turn of a change that has waited. It ends at once when its client has gone.
    pub(super) fn turn_came(&mut self, slot: u32) {
        match self.ops.get(slot as usize) {
            Some(Some(op)) if op.abandoned => self.ended.push((slot, -ECANCELED)),
            _ => self.start(slot),
        }
    }

    /// A change has ended, or its part that had an entry.
    #[inline]
    pub(super) fn end_change(&mut self, slot: u32) {
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return };
        match std::mem::replace(&mut op.standing, Standing::Apart) {
            Standing::Apart => {}
            Standing::Free if self.asks.open.is_empty() => {}
            Standing::Free => {
                let (fd, range) = (op.fd, op.range);
                self.free_change_ended(fd.raw(), range);
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

    /// An edge was moved: what is next for the request, which is started; false when nothing is.
    pub(super) fn edge_moved(&mut self, slot: u32) -> bool {
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return false };
        let (Some(unaligned), Some(payload)) = (&op.unaligned, &mut op.payload) else { return false };
        let edges = unaligned.edges.len();
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

    /// The edges of zeroes were written: zeroes what lies between them, if there is something.
    fn zero_between(&mut self, slot: u32) -> bool {
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return false };
        let Some(unaligned) = op.unaligned.take() else { return false };
        let Standing::Entry { locks, .. } = &op.standing else { return false };
        let locks = locks.clone();
        self.end_change(slot);
        let Some(Some(op)) = self.ops.get_mut(slot as usize) else { return false };
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
    /// Moves an edge next.
    fn edge(&mut self, stage: Stage) {
        let (Some(unaligned), Some(payload)) = (&self.unaligned, &self.payload) else { return };
        let (Stage::ReadEdge(number) | Stage::WriteEdge(number)) = stage else { return };
        self.range = (unaligned.edges[number].offset, unaligned.block_bytes);
        self.at = payload.aside_at() + number * unaligned.stride(payload.align());
        (self.stage, self.done) = (stage, 0);
    }
}
