//! Devices of several legs: a bio is cut where it crosses from one leg to the next, a flush goes to all.
//!
//! Called by `IoCtx::submit` for what is not a single leg.

use sheave_base::status::Status;

use super::IoCtx;
use crate::bio::{BIO_CHILD, BIO_REMAPPED, BioId, Op};

impl IoCtx {
    /// A device of several legs: cuts the bio where it crosses from one to the next; a flush goes to all.
    #[cold]
    pub(super) fn remap_legs(&mut self, id: BioId) {
        loop {
            let bio = &self.core.bios[id];
            let (sector, end, op) = (bio.sector, bio.end_sector(), bio.op);
            let Some(Some(bdev)) = self.bdevs.get(usize::from(bio.bdev)) else { return };
            if op == Op::Flush {
                let hctxs: Vec<u16> = bdev.legs.iter().map(|leg| leg.hctx).collect();
                return self.flush_legs(id, &hctxs);
            }
            if bio.flags & crate::bio::BIO_PREFLUSH != 0 {
                return self.core.end_later(id, Status::NotSupp);
            }
            let at = bdev.legs.partition_point(|leg| leg.end <= sector);
            let Some(leg) = bdev.legs.get(at).copied() else {
                return self.core.end_later(id, Status::IoErr);
            };
            let piece = if end > leg.end {
                let bytes = ((leg.end - sector) << crate::bio::SECTOR_SHIFT) as u32;
                match crate::split::cut(&mut self.core.bios, id, bytes) {
                    Some(front) => front,
                    None => return self.core.end_later(id, Status::Again),
                }
            } else {
                id
            };
            let bio = &mut self.core.bios[piece];
            bio.sector = sector - leg.start + leg.offset;
            bio.part = leg.part;
            bio.flags |= BIO_REMAPPED;
            self.add(leg.hctx, piece);
            if piece == id {
                return;
            }
        }
    }

    fn flush_legs(&mut self, id: BioId, hctxs: &[u16]) {
        for (at, &hctx) in hctxs.iter().enumerate() {
            if hctxs[..at].contains(&hctx) {
                continue;
            }
            let Some(child) = self.core.bios.take() else {
                self.core.end_later(id, Status::Again);
                return;
            };
            self.core.bios[id].remaining += 1;
            let bio = &mut self.core.bios[child];
            bio.op = Op::Flush;
            bio.flags |= BIO_CHILD | BIO_REMAPPED;
            bio.parent = id;
            self.add(hctx, child);
        }
        self.core.end_later(id, Status::Ok);
    }
}
