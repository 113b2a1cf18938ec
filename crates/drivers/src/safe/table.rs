//! The requests that a driver without unsafe code has, and their children below.
//!
//! Owns the state of a tag and the records of children. A request is *held* from its start to its end; its *verdict* is
//! the status with which it ends, once it has no child. The cited invariants are those of `queue`.

use std::ops::Range;

use sheave_base::buf::Buf;
use sheave_base::status::Status;

/// State of a tag.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) held: bool,
    /// Number of this use of the tag (Q4 of `queue`).
    pub(super) generation: u64,
    /// Status with which the request ends when its children and operations have.
    pub(super) verdict: Option<Status>,
    pub(super) children: u32,
    /// Number of operations of the kernel ring that hold the request.
    pub(super) ops: u32,
    pub(super) joined: Status,
    pub(super) note: u64,
}

/// A child that has been sent to a device below.
#[derive(Debug)]
pub(super) struct ChildOf {
    pub(super) tag: u16,
    pub(super) number: u32,
    /// Its memory, if that is not the request's.
    pub(super) buf: Option<Buf>,
    /// Part of the request's memory that the child writes to.
    pub(super) range: Option<Range<usize>>,
}

/// The children that have not ended, by token.
#[derive(Debug, Default)]
pub(super) struct Children {
    all: Vec<Option<ChildOf>>,
    free: Vec<usize>,
    /// Tokens of children that could not be sent, because the driver has no device below.
    pub(super) rejected: Vec<u64>,
}

impl Children {
    pub(super) fn insert(&mut self, child: ChildOf) -> u64 {
        let at = self.free.pop().unwrap_or(self.all.len());
        if at == self.all.len() {
            self.all.push(None);
        }
        self.all[at] = Some(child);
        at as u64
    }

    pub(super) fn reject(&mut self, token: u64) {
        self.rejected.push(token);
    }

    pub(super) fn take(&mut self, token: u64) -> Option<ChildOf> {
        let child = self.all.get_mut(token as usize)?.take()?;
        self.free.push(token as usize);
        Some(child)
    }

    /// Returns true if a child of this request writes to a part of the range.
    pub(super) fn uses(&self, tag: u16, range: &Range<usize>) -> bool {
        let overlap = |of: &Range<usize>| of.start < range.end && range.start < of.end;
        self.all.iter().flatten().any(|child| child.tag == tag && child.range.as_ref().is_some_and(overlap))
    }
}

/// Returns the slot of this tag, if its request is this use of the tag and has no verdict yet.
pub(super) fn held_slot_mut(slots: &mut [Slot], tag: u16, generation: u64) -> Option<&mut Slot> {
    if held_slot(slots, tag, generation) { slots.get_mut(usize::from(tag)) } else { None }
}

/// Returns true if [`held_slot_mut`] would return a slot.
pub(super) fn held_slot(slots: &[Slot], tag: u16, generation: u64) -> bool {
    let is = |slot: &Slot| slot.generation == generation && slot.held && slot.verdict.is_none();
    slots.get(usize::from(tag)).is_some_and(is)
}

/// Sets the verdict of a request, and ends it if it has no child and no operation (Q2 of `queue`).
pub(super) fn settle(slot: &mut Slot, tag: u16, verdict: Option<Status>, settled: &mut Vec<(u16, Status)>) {
    slot.verdict = slot.verdict.or(verdict);
    if let (true, Some(verdict), 0) = (slot.held, slot.verdict, slot.children + slot.ops) {
        slot.held = false; // Q1 of `queue`
        settled.push((tag, verdict));
    }
}
