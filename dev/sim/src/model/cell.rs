//! One sector: the writes to it that still matter.
//!
//! Owns [`Cell`]. Invariant I1: an entry that no reader can see and no crash can leave is dropped, so a cell stays
//! short.

use super::write::OpenWrite;
use crate::tag::Value;

/// Used as the time of end of a write that is under way.
const NEVER: u64 = u64::MAX;

/// One write to one sector.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    value: Value,
    issued: u64,
    ended: u64,
    ok: bool,
    durable: bool,
}

impl Entry {
    pub(super) fn issued(value: Value, issued: u64) -> Entry {
        Entry { value, issued, ended: NEVER, ok: false, durable: false }
    }

    const fn settled(value: Value) -> Entry {
        Entry { value, issued: 0, ended: 0, ok: true, durable: true }
    }

    /// Returns true if this write had ended before the other one was issued.
    fn is_before(&self, other: &Entry) -> bool {
        self.ended < other.issued
    }
}

/// The writes to one sector. Never empty, hence `first`.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    first: Entry,
    more: Vec<Entry>,
}

/// A sector that was never written.
pub(super) static ZERO: Cell = Cell::settled(0);

impl Cell {
    /// Returns a sector that holds `value` for sure.
    pub(super) const fn settled(value: Value) -> Cell {
        Cell { first: Entry::settled(value), more: Vec::new() }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        std::iter::once(&self.first).chain(&self.more)
    }

    pub(super) fn issue(&mut self, entry: Entry) {
        self.more.push(entry);
    }

    pub(super) fn end(&mut self, write: &OpenWrite, now: u64, ok: bool, horizon: u64) {
        if let Some(entry) = self.more.iter_mut().find(|one| one.value == write.value && one.issued == write.issued) {
            (entry.ended, entry.ok, entry.durable) = (now, ok, ok && write.dsync);
        }
        if ok && write.dsync {
            self.forget(horizon);
        }
    }

    /// Returns true if a flush may change the cell.
    pub(super) fn is_loose(&self) -> bool {
        !self.more.is_empty()
    }

    /// Makes durable the entries that ended before `since`, when the flush was issued.
    pub(super) fn sync(&mut self, since: u64, horizon: u64) {
        if self.more.is_empty() {
            return;
        }
        self.first.durable |= self.first.ok && self.first.ended < since;
        self.more.iter_mut().for_each(|one| one.durable |= one.ok && one.ended < since);
        self.forget(horizon);
    }

    /// Drops the entries before a durable one that had ended by `horizon` (I1). No reader under way may see the dropped
    /// ones, because all of them began at `horizon` or later.
    fn forget(&mut self, horizon: u64) {
        let hides = |later: &Entry, one: &Entry| later.durable && later.ended <= horizon && one.is_before(later);
        let keep = |one: &Entry| !self.entries().any(|later| hides(later, one));
        let kept: Vec<Entry> = self.entries().filter(|one| keep(one)).copied().collect();
        if let Some((first, more)) = kept.split_first() {
            (self.first, self.more) = (*first, more.to_vec());
        }
    }

    /// Returns the values that a reader who began at `since` may see (R2).
    pub(super) fn readable(&self, since: u64) -> impl Iterator<Item = Value> + '_ {
        let hides = move |later: &Entry, one: &Entry| later.ok && later.ended <= since && one.is_before(later);
        self.entries().filter(move |one| !self.entries().any(|later| hides(later, one))).map(|one| one.value)
    }

    /// Returns the values that a crash may leave (R3).
    pub(super) fn survivors(&self) -> impl Iterator<Item = Value> + '_ {
        self.entries()
            .filter(|one| !self.entries().any(|later| later.durable && one.is_before(later)))
            .map(|one| one.value)
    }

    /// Returns the values that this sector may hold if `write` took effect: the value of `write`, or that of a later
    /// write.
    pub(super) fn follows(&self, write: &OpenWrite) -> impl Iterator<Item = Value> + '_ {
        let own = self.entries().find(|one| one.value == write.value && one.issued == write.issued).copied();
        let hidden = move |one: &Entry| {
            self.entries().any(|later| later.durable && one.is_before(later))
                || own.is_some_and(|own| one.is_before(&own))
        };
        self.entries().filter(move |one| !hidden(one)).map(|one| one.value)
    }

    /// Drops a failed write beyond the end of its volume, unless another write that is still under way may raise the
    /// end and make the sector visible.
    pub(super) fn withdraw(&mut self, write: &OpenWrite) {
        if self.more.iter().all(|one| one.ended != NEVER || one.value == 0) {
            self.more.retain(|one| one.value != write.value || one.issued != write.issued);
        }
    }

    /// Makes durable the values that a call that began at `since` put here.
    pub(super) fn end_change(&mut self, since: u64, now: u64, horizon: u64) {
        let theirs = self.more.iter_mut().filter(|one| one.issued == since);
        let mut any = false;
        theirs.for_each(|one| (one.ended, one.ok, one.durable, any) = (now, true, true, true));
        if any {
            self.forget(horizon);
        }
    }

    /// Drops the values that a call that began at `since` was to put here.
    pub(super) fn withdraw_change(&mut self, since: u64) {
        self.more.retain(|one| one.issued != since);
    }

    /// Returns the cell of a copy whose call began at `since`, durable (R5).
    pub(super) fn frozen(&self, since: u64) -> Cell {
        if self.more.is_empty() {
            return Cell::settled(self.first.value);
        }
        let mut values: Vec<Value> = self.readable(since).collect();
        values.sort_unstable();
        values.dedup();
        // Each of the values may be the one in the copy. All of them are durable, because the copy is.
        let first = values.first().copied().unwrap_or(0);
        Cell { first: Entry::settled(first), more: values.iter().skip(1).map(|&value| Entry::settled(value)).collect() }
    }
}
