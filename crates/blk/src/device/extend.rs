//! Extension of a device while rings use it.
//!
//! Owns the chain of lists of legs. Each extension appends a new list, and none is ever changed or freed, so that
//! readers need no lock and may keep references. An extension applies to all handles of the device.
//!
//! Called by pools that get another member.

use std::sync::OnceLock;

use super::{Device, Leg, Longer};
use crate::bio::SECTOR_SHIFT;
use crate::error::DeviceError;
use crate::linear::MAX_LEGS;

impl Device {
    /// Extends this device by `other`, as it is now, from byte `at` on. The rest of this device beyond `at` becomes
    /// unreachable.
    ///
    /// Rings that have this device attached notice with their next I/O. `other` must support all features of this one,
    /// because the rings rely on those that they saw when they attached it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Spec`] names the feature that `other` lacks, or the parameter that does not fit.
    #[doc(hidden)]
    pub fn extend(&self, at: u64, other: &Device) -> Result<(), DeviceError> {
        let legs = self.joined(at, other)?;
        let mut last = &self.inner.longer;
        let mut version = 1;
        while let Some(longer) = last.get() {
            (last, version) = (&longer.longer, longer.version + 1);
        }
        let longer = Box::new(Longer { legs, version, longer: OnceLock::new() });
        last.set(longer).map_err(|_| self.unfit("it is being extended by somebody else", "Do it once"))
    }

    /// Returns Ok if [`Device::extend`] would succeed, else the error with which it would fail.
    #[doc(hidden)]
    pub fn can_extend(&self, at: u64, other: &Device) -> Result<(), DeviceError> {
        self.joined(at, other).map(drop)
    }

    /// Returns the legs of this device below `at`, followed by those of `other`.
    fn joined(&self, at: u64, other: &Device) -> Result<Vec<Leg>, DeviceError> {
        let block = u64::from(self.limits().logical_block);
        if at == 0 || !at.is_multiple_of(block) || at > self.size_bytes() {
            let why = format!("it has {} bytes in blocks of {block}, and cannot go on at {at}", self.size_bytes());
            return Err(self.unfit(&why, "Go on at the end of a block within it"));
        }
        self.check_stands_for(other)?;
        let from = at >> SECTOR_SHIFT;
        let mut legs: Vec<Leg> = self.legs().iter().filter(|leg| leg.start < from).cloned().collect();
        if let Some(last) = legs.last_mut() {
            last.sectors = from - last.start;
        }
        let sectors = (other.size_bytes() / block * block) >> SECTOR_SHIFT;
        let end = |leg: &Leg| if other.is_whole() { sectors } else { (leg.start + leg.sectors).min(sectors) };
        let more = other.legs().iter().filter(|leg| leg.start < sectors);
        legs.extend(more.map(|leg| Leg { start: from + leg.start, sectors: end(leg) - leg.start, ..leg.clone() }));
        if sectors == 0 || legs.len() > MAX_LEGS {
            let why = format!("with {} it would have {} pieces, or nothing more", other.name(), legs.len());
            return Err(self.unfit(&why, &format!("{MAX_LEGS} pieces are the most")));
        }
        Ok(legs)
    }

    /// Returns an error if `other` lacks a feature that this device promised to its rings.
    fn check_stands_for(&self, other: &Device) -> Result<(), DeviceError> {
        let (ours, theirs) = (self.limits(), other.limits());
        let (can, could) = (self.capabilities(), other.capabilities());
        let lacks = [
            (theirs.logical_block > ours.logical_block, "smaller blocks"),
            (theirs.dma_alignment > ours.dma_alignment, "memory that is aligned less"),
            (ours.max_discard_sectors > 0 && theirs.max_discard_sectors == 0, "discards"),
            (ours.max_write_zeroes_sectors > 0 && theirs.max_write_zeroes_sectors == 0, "write-zeroes"),
            (can.fua && !could.fua && could.volatile_cache, "FUA"),
            (!can.volatile_cache && could.volatile_cache, "no volatile cache"),
            (can.polled && !could.polled, "polling"),
            (could.read_only && !can.read_only, "writes"),
        ];
        let lacking: Vec<&str> = lacks.iter().filter(|(lacks, _)| *lacks).map(|(_, what)| *what).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let why = format!("{} does not have what its users rely on: {}", other.name(), lacking.join(", "));
        Err(self.unfit(&why, "Use a device of the same kind, opened with the same options"))
    }

    fn unfit(&self, why: &str, fix: &str) -> DeviceError {
        DeviceError::spec(self.name(), format!("cannot be extended: {why}. {fix}"))
    }

    /// Returns true if the device was extended since it was opened.
    #[inline]
    pub(crate) fn is_extended(&self) -> bool {
        self.inner.longer.get().is_some()
    }

    /// Returns the number of extensions.
    pub(crate) fn version(&self) -> u32 {
        self.newest().map_or(0, |longer| longer.version)
    }

    pub(super) fn newest(&self) -> Option<&Longer> {
        let mut newest = self.inner.longer.get()?;
        while let Some(longer) = newest.longer.get() {
            newest = longer;
        }
        Some(newest)
    }

    /// Returns the number of bytes from the start of the device that a ring which attached it before its extension
    /// reaches as one leg.
    #[doc(hidden)]
    #[inline]
    pub fn first_leg_bytes(&self) -> u64 {
        if !self.is_extended() {
            return self.size_bytes();
        }
        self.legs().first().map_or(0, |leg| leg.sectors << SECTOR_SHIFT)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
