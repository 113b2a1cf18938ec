//! The size of a volume that writes make larger.
//!
//! Owns [`Growth`]: the durable size, and the writes that may have raised it further. Its rules:
//!
//! - S1: a write beyond the end raises the size when it has ended; a write that failed does not. A DSYNC write that
//!   failed may have raised the size, like a write that is under way, because only its data or only its commit may have
//!   failed.
//! - S2: a crash leaves the durable size, or a larger one that some write made. In the second case the data of that
//!   write is there, or data written later.
//! - S3: a flush that has ended made durable the size that had been reached when it was issued. A DSYNC write makes its
//!   own end durable.
//! - S4: a copy is durable. It has the size that had been reached when the call began, or a larger one that writes made
//!   that were under way then.
//! - S5: a resize or a rollback leaves its own size, or a larger one that writes made that were under way during the
//!   call. Each block of such a write comes before the call or after it, so the end of any block that it wrote may be
//!   the size. The size stays in doubt until no such write is under way any more and the volume is measured.

use super::cell::{Cell, ZERO};
use super::observed::ObservedVolume;
use super::write::OpenWrite;
use crate::disk::SECTOR;
use crate::sparse::Sparse;
use crate::tag::Value;

/// Used as the time of end of a write that is under way.
const NEVER: u64 = u64::MAX;
/// Used as the time of end of a DSYNC write that failed and may have taken effect.
const FAILED: u64 = NEVER - 1;
/// Bytes of a block. The size of a volume that grows is a multiple of it.
const BLOCK: u64 = 4096;

/// A write beyond the durable end.
#[derive(Clone, Debug)]
struct Raise {
    write: OpenWrite,
    end: u64,
    /// True if the write went beyond the end that readers saw when it was issued.
    beyond: bool,
    ended: u64,
    /// True if a resize or rollback ran during the write. The write may then have been cut at any block (S5).
    parts: bool,
    /// Used only with `parts`. True if the volume has been measured since and has `end` bytes or more.
    found: bool,
}

/// The sizes that a volume may have.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth {
    durable: u64,
    raises: Vec<Raise>,
}

impl Growth {
    /// Returns the growth of a volume whose size is certainly `size`.
    pub(super) fn settled(size: u64) -> Growth {
        Growth { durable: size, raises: Vec::new() }
    }

    /// Records the issue of a write. `size` is the size of the volume in bytes as readers see it.
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

    /// Records the end of a write to a volume of `size` bytes. Returns the size that readers see from now on.
    pub(super) fn end(&mut self, write: &OpenWrite, now: u64, ok: bool, size: u64, horizon: u64) -> u64 {
        let Some(at) = self.raises.iter().position(|one| one.write.is(write)) else { return size };
        if !ok {
            // Kept only for DSYNC, where the write may have raised the size although it failed (S1).
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

    /// Records that a call that began at `since` has left `size` (S5).
    pub(super) fn cut(&mut self, size: u64, since: u64) {
        self.durable = size;
        // A write that ends within this size stays while it is under way, because the next call may cut it.
        self.raises.retain(|one| one.ended == NEVER || one.end > size && one.ended >= since);
        self.raises.iter_mut().for_each(|one| (one.parts, one.found) = (one.end > size, false));
    }

    /// Returns true if the volume may have one of several sizes (S5).
    pub(super) fn is_in_doubt(&self) -> bool {
        self.raises.iter().any(|one| one.parts && !one.found)
    }

    /// Returns the largest size that an ended write may have made.
    pub(super) fn ended_reach(&self) -> u64 {
        self.raises.iter().filter(|one| one.ended != NEVER).map(|one| one.end).max().unwrap_or(0)
    }

    /// Records that the volume was measured at `size` bytes, with no write under way.
    pub(super) fn found(&mut self, size: u64, now: u64) {
        for one in self.raises.iter_mut().filter(|one| one.parts) {
            (one.end, one.ended, one.found) = (one.end.min(size), now, true);
        }
        self.raises.retain(|one| !one.parts || one.end > self.durable && one.end > one.start());
    }

    /// Makes durable the size that writes ended before `since` have reached.
    pub(super) fn sync(&mut self, since: u64, horizon: u64) {
        // Writes that a call has cut at a block do not count before the volume is measured.
        let known = |one: &&Raise| !one.parts || one.found;
        let ended = self.raises.iter().filter(known).filter(|one| one.ended < since).map(|one| one.end).max();
        self.make_durable(ended.unwrap_or(0), horizon);
    }

    /// Returns the growth of a copy. `reached` is the size of its source, in bytes, that readers saw when the call
    /// began (S4).
    pub(super) fn frozen(&self, reached: u64) -> Growth {
        // A copy is durable as it was made, so no later flush may raise its durable size.
        let raises = self.raises.iter().map(|one| Raise { ended: NEVER, ..one.clone() });
        Growth { durable: reached, raises: raises.filter(|one| one.end > reached).collect() }
    }

    /// Returns the sizes that the volume may have had since readers saw `reached` bytes.
    pub(super) fn sizes_from(&self, reached: u64) -> Vec<u64> {
        let raised = self.raises.iter().flat_map(Raise::sizes).filter(|end| *end > reached);
        std::iter::once(reached).chain(raised).collect()
    }

    /// Raises the durable size to `size`, and drops the raises that are at or below it, except for three kinds:
    ///
    /// * a raise that ended after `horizon`: a copy under way may be without it;
    /// * a raise that has not ended: the volume may be shortened before it ends;
    /// * a raise in doubt (S5): a copy under way may have the size that it left before the call began.
    fn make_durable(&mut self, size: u64, horizon: u64) {
        self.durable = self.durable.max(size);
        let in_doubt = |one: &Raise| one.parts && !one.found;
        self.raises.retain(|one| one.end > self.durable || one.ended == NEVER || one.ended > horizon || in_doubt(one));
    }

    /// Returns the largest end of a write, ended or under way, or the durable size if that is larger.
    pub(super) fn reach(&self) -> u64 {
        self.raises.iter().map(|one| one.end).max().unwrap_or(0).max(self.durable)
    }

    /// Returns the reason for which a crash cannot have left this size with this content, or `None` (S2).
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

    /// Returns the sizes that this write may leave, in ascending order.
    fn sizes(&self) -> impl Iterator<Item = u64> + use<> {
        let blocks = if self.parts { self.start() / BLOCK + 1..self.end / BLOCK } else { 0..0 };
        blocks.map(|block| block * BLOCK).chain([self.end])
    }

    fn may_leave(&self, size: u64) -> bool {
        (self.beyond || self.parts) && self.sizes().any(|one| one == size)
    }

    /// Returns true if the data of the write that made the size of `seen` is there. For a write that was cut at a
    /// block, only its last block must be there.
    fn is_whole(&self, cells: &Sparse<Cell>, seen: &ObservedVolume) -> bool {
        let first = if self.parts { seen.size.saturating_sub(BLOCK).max(self.start()) } else { self.start() };
        let range = first / SECTOR as u64..seen.size / SECTOR as u64;
        range.into_iter().all(|sector| {
            let value = seen.value_at(sector);
            value.is_some_and(|value| cells.get(sector).unwrap_or(&ZERO).follows(&self.write).any(|may| may == value))
        })
    }
}
