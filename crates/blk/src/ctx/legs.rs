//! Devices with several legs: a bio that crosses from one leg to the next is cut there, and a flush goes to all.
//!
//! Owns the *starved* bios, for whose pieces no bio was free. They go on in order with the next poll or wait.
//! Invariants of the parent, and
//!
//! - L2: the list of legs is refreshed before a bio is sent by it, so that sectors of an extension never go to the leg
//!   that was last before, and a flush reaches all legs.
//! - L1 (progress): the queue of a piece may have to cut it again, so cutting here leaves [`LEAVE`] bios in the
//!   reserve. A bio taken from those is in a driver and comes back without needing another one.
//!
//! Called by `IoCtx::submit` for devices that are not a single leg, by `poll` and by `wait`.

use sheave_base::status::Status;

use super::IoCtx;
use crate::bio::{BIO_CHILD, BIO_OWNER, BIO_PREFLUSH, BIO_SPREADING, BIO_STACKED, BioId, Op, SECTOR_SHIFT};
use crate::error::DeviceError;
use crate::split;
use crate::stack::MAX_LEVELS;

/// Bios of the reserve that are left to the queues (L1).
const LEAVE: u32 = crate::bio_set::RESERVE / 2;

impl IoCtx {
    /// Handles a bio beyond the end of the only leg, or for a device that was extended since.
    #[cold]
    pub(super) fn remap_extended(&mut self, id: BioId) {
        let bdev = self.bdevs.get(usize::from(self.core.bios[id].bdev));
        match bdev {
            Some(Some(bdev)) if bdev.device.is_extended() => self.remap_legs(id),
            _ => self.core.end_later(id, Status::IoErr),
        }
    }

    /// Sends the bio to its legs, now or when bios are free for its pieces.
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

    /// Reopens the legs of a device if it was extended since the last call. Legs that stay keep their hardware
    /// contexts, because the new list uses them before the old one gives them up.
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

    /// Retries bios that had no free bios for their pieces.
    #[cold]
    pub(super) fn retry_starved(&mut self) {
        // The I/O just sent may make a driver send more to the devices below it, so one round per level.
        for _ in 0..=MAX_LEVELS {
            if !self.retry_once() {
                break;
            }
        }
    }

    /// Sends starved bios. Returns true if stacked drivers have more to send now.
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
        // I/O of stacked drivers to the devices below goes first, because bios above wait for it.
        let more = !self.core.starved.is_empty();
        self.core.starved.append(&mut self.core.bios, &mut starved);
        more
    }

    /// Sends the bio, cut into pieces at the ends of legs. Returns false if no bios are free, with the rest still in
    /// it.
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

    /// Sends a child flush to every hardware context under the device; the flush `id` ends when all of them have.
    /// Returns false if bios run out. Then the `sector` of the flush, which has no other use, holds the mask of the
    /// contexts that still need a child.
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
