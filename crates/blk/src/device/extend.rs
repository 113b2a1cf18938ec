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
    /// Appends `other` to this device: bytes from `at` on are those of `other`. Uses the legs that `other` has at this
    /// moment. What this device had beyond `at` becomes unreachable.
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
mod tests {
    use super::*;
    use crate::bio::Op;
    use crate::claim::Sharing;
    use crate::linear;
    use crate::support::{BLOCK, Puppet, Rig};
    use sheave_base::status::Status;

    fn puppet() -> Puppet {
        Puppet::new().caps(|caps| caps.volatile_cache = true)
    }

    fn ops(puppet: &Puppet) -> Vec<(Op, u64)> {
        std::mem::take(&mut puppet.script().seen).iter().map(|seen| (seen.op, seen.sector)).collect()
    }

    #[test]
    fn a_ring_that_had_it_attached_reaches_all_of_it() {
        let (first, second, third) = (puppet(), puppet(), puppet());
        let device = first.device();
        let mut rig = Rig::new(&[&device]);
        let route = rig.ctx.route(0);
        rig.io(Op::Write, 0, BLOCK, 0);
        rig.drain();
        assert_eq!((rig.take_ok(), ops(&first)), (vec![0], vec![(Op::Write, 0)]));
        // The extension begins at 1 MiB, before the end of the first device; sectors behind that are the second's from
        // now on.
        device.extend(1 << 20, &second.device()).expect("extends");
        let whole = second.device().size_bytes();
        assert_eq!((device.size_bytes(), device.first_leg_bytes()), ((1 << 20) + whole, 1 << 20));
        assert!(device.whole_queue().is_none() && device.legs().len() == 2);
        rig.io(Op::Write, 2047, 2 * 512, 1);
        rig.io(Op::Read, 8, BLOCK, 2);
        rig.io(Op::Write, 2048 + 80, BLOCK, 3);
        rig.flush(4);
        rig.drain();
        let mut ended = rig.take_ok();
        ended.sort_unstable();
        assert_eq!(ended, [1, 2, 3, 4]);
        assert_eq!(ops(&first), [(Op::Write, 2047), (Op::Read, 8), (Op::Flush, 0)]);
        assert_eq!(ops(&second), [(Op::Write, 0), (Op::Write, 80), (Op::Flush, 0)]);
        assert!(route.is_some() && rig.ctx.route(0).is_none(), "a lane is for one leg");
        // A second extension. Only a flush makes the ring notice it.
        device.extend((1 << 20) + whole, &third.device()).expect("extends");
        rig.flush(5);
        rig.drain();
        assert_eq!((rig.take_ok(), ops(&first), ops(&second)), (vec![5], vec![(Op::Flush, 0)], vec![(Op::Flush, 0)]));
        assert_eq!(ops(&third), [(Op::Flush, 0)]);
        rig.io(Op::Read, device.size_bytes() / 512, BLOCK, 6);
        rig.drain();
        assert_eq!(rig.take_ended(), [(6, Status::IoErr)]);
    }

    #[test]
    fn what_comes_after_is_cut_off_when_it_is_extended_anew() {
        let (first, wrong, right) = (puppet(), puppet(), puppet());
        let device = first.device();
        let mut rig = Rig::new(&[&device]);
        for other in [&wrong, &right] {
            device.extend(1 << 20, &other.device()).expect("extends");
            rig.io(Op::Write, 2048, BLOCK, 0);
            rig.drain();
            assert_eq!((rig.take_ok(), ops(other)), (vec![0], vec![(Op::Write, 0)]));
        }
        assert_eq!(device.legs().len(), 2);
        assert!(ops(&wrong).is_empty() && ops(&first).is_empty());
    }

    #[test]
    fn rings_that_attach_later_and_stacks_see_it_too() {
        let (first, second) = (puppet(), puppet());
        let device = linear::partition("part", &first.device(), 4096, 1 << 20).expect("a piece");
        device
            .extend(1 << 20, &linear::partition("other", &second.device(), 8192, 4096).expect("a piece"))
            .expect("extends");
        assert_eq!(device.size_bytes(), (1 << 20) + 4096);
        let _claim = device.claim(Sharing::Alone).expect("nobody has it");
        let mut rig = Rig::new(&[&device]);
        rig.io(Op::Write, 2040, 2 * BLOCK, 0);
        rig.drain();
        assert_eq!(
            (rig.take_ok(), ops(&first), ops(&second)),
            (vec![0], vec![(Op::Write, 2048)], vec![(Op::Write, 16)])
        );
    }

    #[test]
    fn a_device_that_does_less_is_refused() {
        let device = Puppet::new().caps(|caps| caps.fua = true).device();
        let refused = |other: Device, word: &str| {
            let error = device.extend(1 << 20, &other).expect_err("refused").to_string();
            assert!(error.contains(word), "{error}");
        };
        refused(Puppet::new().caps(|caps| (caps.fua, caps.volatile_cache) = (false, true)).device(), "FUA");
        refused(
            Puppet::new().caps(|caps| (caps.fua, caps.volatile_cache) = (true, true)).device(),
            "no volatile cache",
        );
        refused(Puppet::new().caps(|caps| (caps.fua, caps.read_only) = (true, true)).device(), "writes");
        refused(
            Puppet::new().caps(|caps| caps.fua = true).limits(|limits| limits.logical_block = 4096).device(),
            "blocks",
        );
        for at in [0, 100, device.size_bytes() + 512] {
            let error = device.extend(at, &puppet().device()).expect_err("refused").to_string();
            assert!(error.contains("cannot go on at"), "{error}");
        }
        assert_eq!(device.legs().len(), 1);
    }

    #[test]
    fn a_device_may_be_extended_by_itself() {
        let first = puppet();
        let device = first.device();
        let mut rig = Rig::new(&[&device]);
        let whole = device.size_bytes();
        device.extend(whole, &device).expect("extends");
        assert_eq!(device.size_bytes(), 2 * whole, "by what it was");
        rig.io(Op::Write, whole / 512 + 8, BLOCK, 0);
        rig.flush(1);
        rig.drain();
        assert_eq!((rig.take_ok(), ops(&first)), (vec![0, 1], vec![(Op::Write, 8), (Op::Flush, 0)]));
        device.extend(whole, &device).expect("extends");
        assert_eq!(device.size_bytes(), 3 * whole);
    }
}
