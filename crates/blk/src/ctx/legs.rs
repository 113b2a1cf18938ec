//! Devices of several legs: a bio is cut where it crosses from one leg to the next, a flush goes to all.
//!
//! Owns the bios for which no bio was left to cut them: they are *starved* and go on with the next poll or wait, in
//! order. Invariants of the parent; and
//!
//! - L2: a list of legs is refreshed before anything is sent by it, so what is beyond an extension never goes to the
//!   leg that was last before it, and a flush goes to all.
//! - L1 (progress): a piece may have to be cut again by its queue, so cutting here leaves [`LEAVE`] bios in the
//!   reserve. What takes those is in a driver's hands and comes back without needing another bio.
//!
//! Called by `IoCtx::submit` for what is not a single leg, by `poll` and by `wait`.

use sheave_base::status::Status;

use super::IoCtx;
use crate::bio::{BIO_CHILD, BIO_OWNER, BIO_PREFLUSH, BIO_SPREADING, BIO_STACKED, BioId, Op, SECTOR_SHIFT};
use crate::error::DeviceError;
use crate::split;
use crate::stack::MAX_LEVELS;

/// Bios of the reserve that are left to the queues (L1).
const LEAVE: u32 = crate::bio_set::RESERVE / 2;

impl IoCtx {
    /// A bio beyond the only leg of its device, or of one that is more than that leg by now.
    #[cold]
    pub(super) fn remap_extended(&mut self, id: BioId) {
        let bdev = self.bdevs.get(usize::from(self.core.bios[id].bdev));
        match bdev {
            Some(Some(bdev)) if bdev.device.is_extended() => self.remap_legs(id),
            _ => self.core.end_later(id, Status::IoErr),
        }
    }

    /// Sends the bio to its legs, now or when there are bios for it.
    #[cold]
    pub(super) fn remap_legs(&mut self, id: BioId) {
        let bdev = self.core.bios[id].bdev;
        if self.refresh_legs(bdev).is_err() {
            return self.core.end_later(id, Status::IoErr);
        }
        if !self.core.starved.is_empty() || !self.send_pieces(id) {
            self.core.starved.push_back(&mut self.core.bios, id);
        }
    }

    /// Looks at the legs of a device again if it was extended since the last look. Those that stay keep their hardware
    /// contexts: one is open as long as any leg is on its queue.
    fn refresh_legs(&mut self, number: u16) -> Result<(), DeviceError> {
        let Some(Some(bdev)) = self.bdevs.get(usize::from(number)) else { return Ok(()) };
        if bdev.version == bdev.device.version() {
            return Ok(());
        }
        let device = bdev.device.clone();
        let new = self.open_legs(&device)?;
        let old = self.bdevs[usize::from(number)].replace(new);
        old.iter().flat_map(|bdev| &bdev.legs).for_each(|leg| self.close_idle_hctx(leg.hctx));
        Ok(())
    }

    /// Tries again to send what had no bios for its pieces.
    #[cold]
    pub(super) fn retry_starved(&mut self) {
        // What was sent may make a driver want something of the devices below it: a round for each level.
        for _ in 0..=MAX_LEVELS {
            if !self.retry_once() {
                break;
            }
        }
    }

    /// Whether stacked drivers want more now.
    fn retry_once(&mut self) -> bool {
        let mut starved = self.core.starved.take();
        while let Some(id) = starved.pop(&mut self.core.bios) {
            let bio = &self.core.bios[id];
            if bio.flags & BIO_STACKED != 0 && self.refresh_legs(bio.bdev).is_err() {
                self.core.end_later(id, Status::IoErr);
                continue;
            }
            if !self.send_pieces(id) {
                starved.push_front(&mut self.core.bios, id);
                break;
            }
        }
        // What drivers want of devices below goes first.
        let more = !self.core.starved.is_empty();
        self.core.starved.append(&mut self.core.bios, &mut starved);
        more
    }

    /// False when the bios ran out, with what is left still in the bio.
    fn send_pieces(&mut self, id: BioId) -> bool {
        loop {
            let bio = &self.core.bios[id];
            let (sector, end) = (bio.sector, bio.end_sector());
            let Some(Some(bdev)) = self.bdevs.get(usize::from(bio.bdev)) else {
                self.core.end_later(id, Status::Offline);
                return true;
            };
            if bio.op == Op::Flush {
                return self.send_flushes(id);
            }
            if bio.flags & BIO_PREFLUSH != 0 {
                self.core.end_later(id, Status::NotSupp);
                return true;
            }
            let at = bdev.legs.partition_point(|leg| leg.end <= sector);
            let Some(leg) = bdev.legs.get(at).copied() else {
                self.core.end_later(id, Status::IoErr);
                return true;
            };
            let piece = if end > leg.end {
                let bytes = ((leg.end - sector) << SECTOR_SHIFT) as u32;
                let Some(front) = split::cut(&mut self.core.bios, id, bytes, LEAVE) else {
                    return false;
                };
                front
            } else {
                id
            };
            let bio = &mut self.core.bios[piece];
            bio.sector = sector - leg.start + leg.offset;
            bio.part = leg.part;
            self.add(leg.hctx, piece);
            if piece == id {
                return true;
            }
        }
    }

    /// A child for every hardware context under the device; the flush ends when they have. Its `sector`, which a flush
    /// has no use for, is the mask of those that still get one.
    fn send_flushes(&mut self, id: BioId) -> bool {
        let bio = &self.core.bios[id];
        let mut left = bio.sector;
        if bio.flags & BIO_SPREADING == 0
            && let Some(Some(bdev)) = self.bdevs.get(usize::from(bio.bdev))
        {
            left = bdev.legs.iter().fold(0, |mask, leg| mask | 1 << leg.hctx);
        }
        while left != 0 {
            let Some(child) = split::take_child(&mut self.core.bios, id, LEAVE) else {
                let bio = &mut self.core.bios[id];
                bio.sector = left;
                bio.flags |= BIO_SPREADING;
                return false;
            };
            let hctx = left.trailing_zeros() as u16;
            left &= left - 1;
            let bdev = self.bdevs.get(usize::from(self.core.bios[id].bdev)).and_then(Option::as_ref);
            let leg = bdev.and_then(|bdev| bdev.legs.iter().find(|leg| leg.hctx == hctx));
            let part = leg.map_or(0, |leg| leg.part);
            let parent = &mut self.core.bios[id];
            parent.remaining += 1;
            let owner = parent.flags & BIO_OWNER;
            let bio = &mut self.core.bios[child];
            bio.op = Op::Flush;
            bio.part = part;
            bio.flags |= BIO_CHILD | owner;
            bio.parent = id;
            self.add(hctx, child);
        }
        self.core.end_later(id, Status::Ok);
        true
    }
}
