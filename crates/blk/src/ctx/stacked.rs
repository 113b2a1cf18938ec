//! Stacked devices: a hardware context whose driver sends I/O to devices below it on the same ring.
//!
//! Owns the attaching and detaching of those devices, and the order in which stacked contexts end: from the top, so
//! that the I/O that a driver has sent down comes back to it. The path of that I/O is in [`stack`](crate::stack).
//!
//! Invariants:
//! - T1: a device attached by a stacked driver is detached by nobody else.
//! - T2: a stacked context ends before those below it. Exception: contexts below that nobody else uses end first,
//!   because that makes their drivers give back requests that they would otherwise keep forever.

use super::IoCtx;
use crate::bio::{BIO_STACKED, Bio};
use crate::device::Leg;
use crate::end_io::EndIo;
use crate::error::DeviceError;
use crate::stack::{Lower, MAX_LEVELS};

impl IoCtx {
    /// Attaches the devices below the driver of this leg, if it is stacked.
    pub(super) fn attach_lower(&mut self, leg: &Leg) -> Result<Option<Lower>, DeviceError> {
        let Some(devices) = &leg.lower else { return Ok(None) };
        let mut bdevs = Vec::with_capacity(devices.len());
        for device in devices.iter() {
            match self.attach(device) {
                Ok(bdev) => bdevs.push(bdev),
                Err(error) => {
                    bdevs.into_iter().for_each(|bdev| self.detach(bdev, &mut |_, _| {}));
                    return Err(error);
                }
            }
        }
        let hctxs = bdevs.iter().filter_map(|&bdev| self.bdevs[usize::from(bdev)].as_ref());
        let hctxs = hctxs.flat_map(|bdev| &bdev.legs).map(|leg| usize::from(leg.hctx));
        let levels = hctxs.filter_map(|hctx| self.core.lowers.get(hctx)?.as_ref()).map(|lower| lower.level() + 1);
        let level = levels.max().unwrap_or(0);
        for &bdev in &bdevs {
            if let Some(bdev) = &mut self.bdevs[usize::from(bdev)] {
                bdev.below = true; // T1
            }
        }
        let lower = Lower::new(bdevs, level);
        if level >= MAX_LEVELS {
            self.close_lower(Some(&lower), &mut |_, _| {});
            return Err(DeviceError::Limit {
                what: format!("attaching {}: stacked devices on top of each other", leg.queue.name()),
                limit: u64::from(MAX_LEVELS),
                fix: "Stack fewer".into(),
            });
        }
        Ok(Some(lower))
    }

    /// Registers the access of hardware context `index` to the devices below.
    pub(super) fn know_lower(&mut self, index: usize, lower: Option<Lower>) {
        if self.core.lowers.len() <= index {
            self.core.lowers.resize(index + 1, None);
        }
        self.core.stacked |= u64::from(lower.is_some()) << index;
        self.core.lowers[index] = lower;
    }

    /// Unregisters the access of hardware context `index`, which has ended, and detaches the devices below.
    pub(super) fn forget_lower(&mut self, index: usize, lower: Option<Lower>, end: &mut impl EndIo) {
        self.know_lower(index, None);
        self.core.stacked &= !(1 << index);
        self.close_lower(lower.as_ref(), end);
    }

    /// Detaches the devices below.
    pub(super) fn close_lower(&mut self, lower: Option<&Lower>, end: &mut impl EndIo) {
        for bdev in lower.map(Lower::take_bdevs).unwrap_or_default() {
            if let Some(Some(bdev)) = self.bdevs.get_mut(usize::from(bdev)) {
                bdev.below = false;
            }
            self.detach(bdev, end);
        }
    }

    /// Sends I/O of stacked drivers to the devices below.
    #[cold]
    pub(super) fn send_lower(&mut self) {
        let mut stacked = self.core.stacked;
        while stacked != 0 {
            let index = stacked.trailing_zeros() as usize;
            stacked &= stacked - 1;
            if let Some(hctx) = &mut self.hctxs[index] {
                hctx.kick(&mut self.core);
            }
        }
        self.retry_starved();
    }

    /// Called before the ring sleeps: sends I/O of stacked drivers level by level, because nothing would wake the ring
    /// for it.
    #[cold]
    pub(super) fn send_off_lower(&mut self) {
        for _ in 0..=MAX_LEVELS {
            self.send_lower();
            self.hctxs.iter_mut().flatten().for_each(|hctx| hctx.send_off(&mut self.core));
        }
    }

    /// Called while a stacked context ends: closes the devices below it (T2) so that its I/O comes back, and ends I/O
    /// of others on them.
    pub(super) fn end_lower_io(&mut self, index: usize, end: &mut impl EndIo) {
        let lower = self.core.lowers.get(index).cloned().flatten();
        self.drop_starved(|bio| bio.flags & BIO_STACKED != 0 && usize::from(bio.owner as u16) == index);
        self.core.end_ended(end);
        self.close_lower(lower.as_ref(), end);
        for other in (0..self.hctxs.len()).filter(|&other| other != index) {
            if let Some(hctx) = &mut self.hctxs[other] {
                hctx.poll(&mut self.core, end);
            }
        }
        self.look_for_overdue();
        self.retry_starved();
        self.core.end_ended(end);
        self.wait_shutdown();
    }

    /// Cancels the starved bios that `is_one` accepts. Returns true if there were any.
    pub(super) fn drop_starved(&mut self, is_one: impl Fn(&Bio) -> bool) -> bool {
        let mut some = false;
        let mut starved = self.core.starved.take();
        let mut others = crate::bio_set::BioList::default();
        while let Some(id) = starved.pop(&mut self.core.bios) {
            if is_one(&self.core.bios[id]) {
                some = true;
                self.core.end_later(id, sheave_base::status::Status::Canceled);
            } else {
                others.push_back(&mut self.core.bios, id);
            }
        }
        self.core.starved = others;
        some
    }

    /// Detaches all devices, those without devices below first. A stacked context that ends later is then the last user
    /// of the contexts below it, and closes them (T2).
    pub(super) fn detach_by_levels(&mut self, end: &mut impl EndIo) {
        for level in 0..=u16::from(MAX_LEVELS) {
            for number in 0..self.bdevs.len() {
                let bdev = self.bdevs[number].as_ref().filter(|bdev| !bdev.below);
                let legs = bdev.into_iter().flat_map(|bdev| &bdev.legs);
                let lowers = legs.filter_map(|leg| self.core.lowers.get(usize::from(leg.hctx))?.as_ref());
                let own = lowers.map(|lower| u16::from(lower.level()) + 1).max().unwrap_or(0);
                if own == level {
                    self.detach(number as u16, end);
                }
            }
        }
    }
}
