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

use super::cell::{Cell, ZERO};
use super::observed::ObservedVolume;
use super::write::OpenWrite;
use crate::disk::SECTOR;
use crate::sparse::Sparse;
use crate::tag::Value;

/// Not yet.
const NEVER: u64 = u64::MAX;

/// A write beyond the durable end.
#[derive(Clone, Debug)]
struct Raise {
    write: OpenWrite,
    /// In bytes.
    end: u64,
    /// It was beyond the end that readers saw when it was issued.
    beyond: bool,
    ended: u64,
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
        if end > self.durable && write.value != 0 {
            self.raises.push(Raise { write: write.clone(), end, beyond: end > size, ended: NEVER });
        }
    }

    /// It has ended; the size that readers see from now on.
    pub(super) fn end(&mut self, write: &OpenWrite, now: u64, ok: bool, size: u64, horizon: u64) -> u64 {
        let Some(at) = self.raises.iter().position(|one| one.write.is(write)) else { return size };
        if !ok {
            if !write.dsync {
                self.raises.remove(at);
            }
            return size;
        }
        self.raises[at].ended = now;
        let end = self.raises[at].end;
        if write.dsync {
            self.make_durable(end, horizon);
        }
        size.max(end)
    }

    /// What had ended at `since` is durable.
    pub(super) fn sync(&mut self, since: u64, horizon: u64) {
        let ended = self.raises.iter().filter(|one| one.ended < since).map(|one| one.end).max();
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
        let raised = self.raises.iter().map(|one| one.end).filter(|end| *end > reached);
        std::iter::once(reached).chain(raised).collect()
    }

    /// What ended after the horizon is kept: the copy that is being made may be without it.
    fn make_durable(&mut self, size: u64, horizon: u64) {
        self.durable = self.durable.max(size);
        self.raises.retain(|one| one.end > self.durable || one.ended > horizon);
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
            self.raises.iter().filter(|one| one.beyond && one.end == seen.size && one.end > self.durable).collect();
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
    fn is_whole(&self, cells: &Sparse<Cell>, seen: &ObservedVolume) -> bool {
        let range = self.write.sector..self.write.sector + self.write.sectors;
        range.into_iter().all(|sector| {
            let value = seen.value_at(sector);
            value.is_some_and(|value| cells.get(sector).unwrap_or(&ZERO).follows(&self.write).any(|may| may == value))
        })
    }
}
