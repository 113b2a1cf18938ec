//! The size of a volume that writes make larger.
//!
//! Owns [`Growth`]: what is known of the size beyond what is durable. Its rules:
//!
//! - S1: a write that ends beyond the end has raised the size when it has ended; one that failed has not. One that was
//!   to be durable and failed may have, with its data, like one that is under way: its commit failed, or its data.
//! - S2: a crash leaves the durable size, or a larger one that some write made: then the data of that write is there,
//!   or what came to its place since.
//! - S3: a flush that has ended made the size durable that had been reached when it was asked for. A DSYNC write makes
//!   its own end durable.
//! - S4: a copy is durable with the size that had been reached when its making began, or a larger one, of what was
//!   under way then.
//! - S5: a resize or a rollback leaves the size that it is to leave, or a larger one, of writes that were under way
//!   during the call: each comes before the call or after it, block by block, so the end of any block that it wrote may
//!   be the size. Nobody knows which until the volume is looked at, when no write of that time is under way any more.

use super::cell::{Cell, ZERO};
use super::observed::ObservedVolume;
use super::write::OpenWrite;
use crate::disk::SECTOR;
use crate::sparse::Sparse;
use crate::tag::Value;

/// Not yet.
const NEVER: u64 = u64::MAX;
/// It failed, and may be there all the same.
const FAILED: u64 = NEVER - 1;
/// Sizes of volumes that grow are whole blocks.
const BLOCK: u64 = 4096;

/// A write beyond the durable end.
#[derive(Clone, Debug)]
struct Raise {
    write: OpenWrite,
    /// In bytes.
    end: u64,
    /// It was beyond the end that readers saw when it was issued.
    beyond: bool,
    ended: u64,
    /// A call cut it, or parts of it (S5).
    parts: bool,
    /// Of such a write: somebody has looked since, so the size is `end` or more.
    found: bool,
}

/// What a volume's size may be.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth {
    durable: u64,
    raises: Vec<Raise>,
}

impl Growth {
    /// This size for sure.
    pub(super) fn settled(size: u64) -> Growth {
        Growth { durable: size, raises: Vec::new() }
    }

    /// A write is issued to a volume that readers see with `size` bytes.
    pub(super) fn issue(&mut self, write: &OpenWrite, size: u64) {
        let end = (write.sector + write.sectors) * SECTOR as u64;
        if write.value != 0 {
            self.raises.push(Raise {
                write: write.clone(),
                end,
                beyond: end > size,
                ended: NEVER,
                parts: false,
                found: false,
            });
        }
    }

    /// It has ended; the size that readers see from now on.
    pub(super) fn end(&mut self, write: &OpenWrite, now: u64, ok: bool, size: u64, horizon: u64) -> u64 {
        let Some(at) = self.raises.iter().position(|one| one.write.is(write)) else { return size };
        if !ok {
            self.raises[at].ended = FAILED;
            if !write.dsync {
                self.raises.remove(at);
            }
            return size;
        }
        self.raises[at].ended = now;
        let Raise { end, parts, .. } = self.raises[at];
        if parts {
            return size;
        }
        self.make_durable(if write.dsync { end } else { 0 }, horizon);
        size.max(end)
    }

    /// A call that began at `since` has left `size` (S5).
    pub(super) fn cut(&mut self, size: u64, since: u64) {
        self.durable = size;
        // What is under way and ends within this size may be cut by the next call.
        self.raises.retain(|one| one.ended == NEVER || one.end > size && one.ended >= since);
        self.raises.iter_mut().for_each(|one| (one.parts, one.found) = (one.end > size, false));
    }

    /// Whether the size is one of several (S5).
    pub(super) fn is_in_doubt(&self) -> bool {
        self.raises.iter().any(|one| one.parts && !one.found)
    }

    /// The largest size that a write may have given it which has ended.
    pub(super) fn ended_reach(&self) -> u64 {
        self.raises.iter().filter(|one| one.ended != NEVER).map(|one| one.end).max().unwrap_or(0)
    }

    /// It was found to have this size, when no write was under way.
    pub(super) fn found(&mut self, size: u64, now: u64) {
        for one in self.raises.iter_mut().filter(|one| one.parts) {
            (one.end, one.ended, one.found) = (one.end.min(size), now, true);
        }
        self.raises.retain(|one| !one.parts || one.end > self.durable && one.end > one.start());
    }

    /// What had ended at `since` is durable.
    pub(super) fn sync(&mut self, since: u64, horizon: u64) {
        // Of what a call has cut in parts nobody knows before somebody has looked.
        let known = |one: &&Raise| !one.parts || one.found;
        let ended = self.raises.iter().filter(known).filter(|one| one.ended < since).map(|one| one.end).max();
        self.make_durable(ended.unwrap_or(0), horizon);
    }

    /// That of a copy whose making began when readers saw `reached` bytes: that, or more by what was under way.
    pub(super) fn frozen(&self, reached: u64) -> Growth {
        // No flush has anything to say of the copy: it is durable as it was made.
        let raises = self.raises.iter().map(|one| Raise { ended: NEVER, ..one.clone() });
        Growth { durable: reached, raises: raises.filter(|one| one.end > reached).collect() }
    }

    /// The sizes that it may have had since it had `reached` bytes.
    pub(super) fn sizes_from(&self, reached: u64) -> Vec<u64> {
        let raised = self.raises.iter().flat_map(Raise::sizes).filter(|end| *end > reached);
        std::iter::once(reached).chain(raised).collect()
    }

    /// What ended after the horizon is kept: the copy that is being made may be without it. So is what is under way: a
    /// call may cut it off, and it comes after that.
    fn make_durable(&mut self, size: u64, horizon: u64) {
        self.durable = self.durable.max(size);
        self.raises.retain(|one| one.end > self.durable || one.ended == NEVER || one.ended > horizon);
    }

    /// The end of the last write that is under way, or has ended.
    pub(super) fn reach(&self) -> u64 {
        self.raises.iter().map(|one| one.end).max().unwrap_or(0).max(self.durable)
    }

    /// Why a crash cannot have left this size with this content (S2).
    pub(super) fn why_not(&self, cells: &Sparse<Cell>, seen: &ObservedVolume) -> Option<String> {
        if seen.size == self.durable {
            return None;
        }
        let makers: Vec<&Raise> =
            self.raises.iter().filter(|one| seen.size > self.durable && one.may_leave(seen.size)).collect();
        if makers.is_empty() {
            return Some(format!("{} bytes; {} were durable, and no write made it so", seen.size, self.durable));
        }
        if makers.iter().any(|one| one.is_whole(cells, seen)) {
            return None;
        }
        let values: Vec<Value> = makers.iter().map(|one| one.write.value).collect();
        Some(format!("{} bytes without the data that made it so, which is of write {values:?}", seen.size))
    }
}

impl Raise {
    fn start(&self) -> u64 {
        self.write.sector * SECTOR as u64
    }

    /// The sizes that it may leave, in order.
    fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let blocks = if self.parts { self.start() / BLOCK + 1..self.end / BLOCK } else { 0..0 };
        blocks.map(|block| block * BLOCK).chain([self.end])
    }

    fn may_leave(&self, size: u64) -> bool {
        (self.beyond || self.parts) && self.sizes().any(|one| one == size)
    }

    /// Of a size that was made its data is there: of parts of a write the last one.
    fn is_whole(&self, cells: &Sparse<Cell>, seen: &ObservedVolume) -> bool {
        let first = if self.parts { seen.size.saturating_sub(BLOCK).max(self.start()) } else { self.start() };
        let range = first / SECTOR as u64..seen.size / SECTOR as u64;
        range.into_iter().all(|sector| {
            let value = seen.value_at(sector);
            value.is_some_and(|value| cells.get(sector).unwrap_or(&ZERO).follows(&self.write).any(|may| may == value))
        })
    }
}
