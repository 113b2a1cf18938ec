//! Metadata pages: 4 KiB pieces of metadata units.
//!
//! Owns the free pages of metadata units. Pages are written once: a checkpoint takes new ones, and the pages that it
//! replaces are freed when it is durable.
//!
//! - I1: a metadata unit whose last page is freed stops being metadata (except for the pages of `keep`).
//! - I2: a page given up since the last checkpoint is not free yet: the checkpoint on the device needs it.
//! - I3: in a pool with two copies each metadata unit has a partner. The partner is metadata as long as the unit is,
//!   and holds the second copies of its pages at the same offsets. So pages are counted, taken and freed like those of
//!   any other pool; only units are taken and freed in pairs. The partner lies on another member, or else half the pool
//!   away.
//!
//! Called by checkpoints and recovery, under the pool's lock.

use std::collections::BTreeMap;

use super::Units;
use crate::format::BLOCK_SHIFT;
use crate::format::page::PageRef;
use crate::format::superblock::Superblock;

/// Bits of the free pages of a unit.
type Mask = [u64; 4];

#[derive(Debug)]
pub(crate) struct Pages {
    unit_shift: u32,
    partial: BTreeMap<u64, Mask>,
    free: u64,
    used: u64,
    /// True if only pages of fully written units are sure to have space on the host ([`stock`](crate::engine::stock)).
    pub(crate) sparse: bool,
    /// Number of free pages that stay metadata even if their units become empty.
    pub(crate) keep: u64,
    /// Pages of the last durable checkpoint that the next one does not have (I2).
    given_up: Vec<u64>,
    /// Free pages of metadata units that a damaged map page may refer to.
    quarantine: BTreeMap<u64, Mask>,
    /// In a pool with two copies: the partner of each metadata unit (I3).
    partners: Option<BTreeMap<u64, u32>>,
    /// First unit of each member.
    members: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetaUnit {
    pub(crate) unit: u64,
    pub(crate) second: Option<u64>,
}

impl Pages {
    pub(crate) fn new(unit_shift: u32) -> Pages {
        Pages {
            unit_shift,
            partial: BTreeMap::new(),
            free: 0,
            used: 0,
            sparse: false,
            keep: 0,
            given_up: Vec::new(),
            quarantine: BTreeMap::new(),
            partners: None,
            members: vec![0],
        }
    }

    /// Sets the number of page copies and the members that they are spread over.
    pub(crate) fn set_copies(&mut self, sb: &Superblock) {
        let unit = u64::from(sb.unit_bytes);
        self.members = sb.members.iter().map(|(start, _)| start / unit).collect();
        if sb.paired {
            self.partners.get_or_insert_default();
        }
    }

    /// Returns the number of units allocated per unit of pages.
    pub(crate) fn copies(&self) -> u64 {
        if self.partners.is_some() { 2 } else { 1 }
    }

    /// Returns the partner units of these pages, in the same order; empty in a pool with one copy.
    pub(crate) fn seconds_of(&self, addresses: &[u64]) -> Vec<u32> {
        let Some(partners) = &self.partners else { return Vec::new() };
        let partner = |at: &u64| partners.get(&(at >> self.unit_shift)).copied();
        addresses.iter().map(|at| partner(at).expect("invariant: a metadata unit has a partner (I3)")).collect()
    }

    /// Allocates a unit for pages, and in a pool with two copies its partner (I3).
    pub(crate) fn take_unit(&self, units: &mut Units) -> Option<MetaUnit> {
        let unit = units.alloc_meta()?;
        if self.partners.is_none() {
            return Some(MetaUnit { unit, second: None });
        }
        let second = self.find_partner(unit, units);
        let second = second.filter(|second| units.claim_meta(*second));
        if second.is_none() {
            units.release_meta(unit);
        }
        second.map(|second| MetaUnit { unit, second: Some(second) })
    }

    /// Finds a free unit for the second copies: on the next member that has one, else half the pool away.
    fn find_partner(&self, unit: u64, units: &Units) -> Option<u64> {
        let (count, total) = (self.members.len(), units.counts().total);
        let own = self.members.iter().rposition(|start| *start <= unit).unwrap_or(0);
        let range = |member: usize| (self.members[member], self.members.get(member + 1).copied().unwrap_or(total));
        for member in (1..count).map(|more| (own + more) % count) {
            let (start, end) = range(member);
            // Near the end of the member: metadata lies near the end of the pool too, which data reaches last.
            let from = |unit: u64| units.next_free(unit).filter(|unit| *unit < end);
            let found = from(end - (end - start) / 16).or_else(|| from(start));
            if found.is_some() {
                return found;
            }
        }
        units.next_free((unit + total / 2) % total).or_else(|| units.next_free(0))
    }

    /// Releases a unit of `take_unit` that is not used after all.
    pub(crate) fn release_unit(taken: MetaUnit, units: &mut Units) {
        units.release_meta(taken.unit);
        taken.second.into_iter().for_each(|second| units.release_meta(second));
    }

    pub(crate) fn per_unit(&self) -> u64 {
        1 << (self.unit_shift - BLOCK_SHIFT)
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the number of pages that can be taken now.
    pub(crate) fn available(&self, units: &Units) -> u64 {
        self.free + units.counts().free / self.copies() * self.per_unit()
    }

    /// Returns the number of free pages that are sure to have space on the host.
    pub(crate) fn stock(&self) -> u64 {
        if self.sparse { self.free } else { u64::MAX }
    }

    /// Returns the approximate number of units whose space is kept as free pages.
    pub(crate) fn stocked_units(&self) -> u64 {
        if self.sparse { self.free / self.per_unit() } else { 0 }
    }

    /// Returns the free pages of metadata units, beginning with those that would be taken last: a block written to one
    /// of the first of these survives longest. All have space on the host, and nothing else is written to them unless a
    /// checkpoint is in progress.
    pub(crate) fn last_free(&self) -> impl Iterator<Item = u64> {
        let has = |mask: &Mask, page: u64| mask[(page >> 6) as usize] >> (page & 63) & 1 != 0;
        self.partial.iter().rev().flat_map(move |(unit, mask)| {
            let pages = (0..self.per_unit()).rev().filter(move |page| has(mask, *page));
            pages.map(move |page| (unit << self.unit_shift) + (page << BLOCK_SHIFT))
        })
    }

    /// Adds the pages of a metadata unit that has been written as a whole.
    pub(crate) fn add(&mut self, taken: MetaUnit) {
        self.pair(taken);
        self.partial.insert(taken.unit, full_mask(self.per_unit()));
        self.free += self.per_unit();
    }

    fn pair(&mut self, taken: MetaUnit) {
        if let Some((partners, second)) = self.partners.as_mut().zip(taken.second) {
            partners.insert(taken.unit, second as u32);
        }
    }

    /// Takes `count` pages, with ascending addresses within each unit. Large requests take whole units, so that their
    /// pages can be read with one call. If there are too few pages, takes none and returns `None`.
    pub(crate) fn take(&mut self, count: u64, units: &mut Units) -> Option<Vec<u64>> {
        if self.available(units) < count {
            return None;
        }
        let mut pages = Vec::with_capacity(count as usize);
        let plenty = !self.sparse && units.counts().free > units.reserve + self.copies() * (count / self.per_unit());
        while (count - pages.len() as u64) >= self.per_unit() && plenty {
            let Some(taken) = self.take_unit(units) else { break };
            self.pair(taken);
            let unit = taken.unit;
            pages.extend((0..self.per_unit()).map(|page| (unit << self.unit_shift) + (page << BLOCK_SHIFT)));
            self.used += self.per_unit();
        }
        while (pages.len() as u64) < count {
            if self.partial.is_empty() {
                let taken = self.take_unit(units)?;
                self.add(taken);
            }
            self.take_partial(count, &mut pages);
        }
        Some(pages)
    }

    fn take_partial(&mut self, count: u64, pages: &mut Vec<u64>) {
        let Some(mut first) = self.partial.first_entry() else { return };
        let unit = *first.key();
        for (at, word) in first.get_mut().iter_mut().enumerate() {
            while *word != 0 && (pages.len() as u64) < count {
                let page = at as u64 * 64 + u64::from(word.trailing_zeros());
                *word &= *word - 1;
                self.free -= 1;
                self.used += 1;
                pages.push((unit << self.unit_shift) + (page << BLOCK_SHIFT));
            }
        }
        if first.get().iter().all(|word| *word == 0) {
            first.remove();
        }
    }

    /// Recovery: marks a page as in use. Returns false if its unit is something else, if its partner is not the one
    /// that the reference names, or if the page was found before.
    pub(crate) fn claim(&mut self, page: PageRef, units: &mut Units) -> bool {
        let (address, second) = (page.address, u64::from(page.second));
        let unit = address >> self.unit_shift;
        if !units.is_meta(unit) {
            let free = page.second == 0 || !units.is_meta(second) && units.claim_meta(second);
            if !free || !units.claim_meta(unit) {
                return false;
            }
            self.pair(MetaUnit { unit, second: Some(second) });
            self.partial.insert(unit, full_mask(self.per_unit()));
            self.free += self.per_unit();
        }
        if self.partners.as_ref().is_some_and(|partners| partners.get(&unit) != Some(&page.second)) {
            return false;
        }
        let (at, bit) = self.place(address);
        let Some(mask) = self.partial.get_mut(&unit) else { return false };
        if mask[at] & bit == 0 {
            return false;
        }
        mask[at] &= !bit;
        if mask.iter().all(|word| *word == 0) {
            self.partial.remove(&unit);
        }
        self.free -= 1;
        self.used += 1;
        true
    }

    /// Sets the free pages of metadata units aside until [`Pages::end_quarantine`], counted as used: a page that cannot
    /// be read may refer to them.
    pub(crate) fn begin_quarantine(&mut self) {
        self.quarantine = std::mem::take(&mut self.partial);
        self.used += std::mem::take(&mut self.free);
    }

    pub(crate) fn end_quarantine(&mut self, units: &mut Units) {
        for (unit, mask) in std::mem::take(&mut self.quarantine) {
            let pages = (0..self.per_unit()).filter(|page| mask[(page >> 6) as usize] >> (page & 63) & 1 != 0);
            let pages: Vec<u64> = pages.map(|page| (unit << self.unit_shift) + (page << BLOCK_SHIFT)).collect();
            self.put(&pages, units);
        }
    }

    /// Gives up a page that the next checkpoint will not have (I2).
    pub(crate) fn give_up(&mut self, address: u64) {
        self.given_up.push(address);
    }

    /// Returns the number of pages given up since the last checkpoint.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up.len() as u64
    }

    /// Takes the list of pages given up so far. A checkpoint frees them when it is durable.
    pub(crate) fn take_given_up(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.given_up)
    }

    /// Frees pages that nothing on the device needs any more.
    pub(crate) fn put(&mut self, addresses: &[u64], units: &mut Units) {
        let (full, per_unit) = (full_mask(self.per_unit()), self.per_unit());
        for &address in addresses {
            let unit = address >> self.unit_shift;
            let (at, bit) = self.place(address);
            let mask = self.partial.entry(unit).or_default();
            debug_assert_eq!(mask[at] & bit, 0, "page {address} is free already");
            mask[at] |= bit;
            self.free += 1;
            self.used -= 1;
            if *mask == full && self.free - per_unit >= self.keep {
                self.partial.remove(&unit);
                self.free -= per_unit;
                units.release_meta(unit);
                let second = self.partners.as_mut().and_then(|partners| partners.remove(&unit));
                second.into_iter().for_each(|second| units.release_meta(u64::from(second)));
            }
        }
    }

    /// Addresses of both copies of each page in use.
    #[cfg(test)]
    pub(crate) fn pairs_in_use(&self) -> Vec<[u64; 2]> {
        let free = |unit, page: u64| {
            self.partial.get(unit).is_some_and(|mask| mask[page as usize >> 6] >> (page & 63) & 1 != 0)
        };
        let at = |unit: u64, page: u64| (unit << self.unit_shift) + (page << BLOCK_SHIFT);
        let partners = self.partners.iter().flatten();
        let pages = partners.flat_map(|(unit, second)| (0..self.per_unit()).map(move |page| (unit, *second, page)));
        let used = pages.filter(|(unit, _, page)| !free(unit, *page));
        used.map(|(unit, second, page)| [at(*unit, page), at(u64::from(second), page)]).collect()
    }

    fn place(&self, address: u64) -> (usize, u64) {
        let page = (address >> BLOCK_SHIFT) & (self.per_unit() - 1);
        ((page >> 6) as usize, 1 << (page & 63))
    }
}

fn full_mask(pages: u64) -> Mask {
    std::array::from_fn(|at| match pages.saturating_sub(at as u64 * 64) {
        0 => 0,
        left if left >= 64 => u64::MAX,
        left => (1 << left) - 1,
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// Returns the reference to a page of a pool with one copy.
    fn at(address: u64) -> PageRef {
        PageRef { address, checksum: 1, second: 0 }
    }

    /// Returns the pages of a pool with two copies and units of 64 KiB. The members begin at these units.
    fn paired(members: &[u64]) -> Pages {
        Pages { partners: Some(BTreeMap::new()), members: members.to_vec(), ..Pages::new(16) }
    }

    #[test]
    fn the_second_copy_lies_on_another_member_and_goes_with_the_first() {
        let mut units = Units::new(96);
        let mut pages = paired(&[0, 32, 64]);
        let member = |unit: u64| unit / 32;
        let taken = pages.take(100, &mut units).expect("there is room");
        assert_eq!((units.counts().meta, pages.used), (14, 100), "two units for each 16 pages");
        for (at, second) in taken.iter().zip(pages.seconds_of(&taken)) {
            assert!(units.is_meta(u64::from(second)));
            assert_ne!(member(at >> 16), member(u64::from(second)), "unit {} and {second}", at >> 16);
        }
        pages.put(&taken, &mut units);
        assert_eq!((pages.used, units.counts().meta, units.counts().free), (0, 0, 96));
    }

    #[test]
    fn on_one_device_the_second_copy_is_half_of_it_away() {
        let mut units = Units::new(64);
        let mut pages = paired(&[0]);
        let taken = pages.take(16, &mut units).expect("there is room");
        let (unit, second) = (taken[0] >> 16, u64::from(pages.seconds_of(&taken)[0]));
        assert_eq!(second, (unit + 32) % 64);
    }

    #[test]
    fn pages_are_limited_by_pairs_of_units() {
        for free in [7, 8] {
            let mut units = Units::new(free);
            // The last free units are all on one member: a pair there is better than no page.
            let mut pages = paired(&[0, 2]);
            assert_eq!(pages.available(&units), free / 2 * 16);
            assert!(pages.take(free / 2 * 16 + 1, &mut units).is_none());
            assert!(pages.take(free / 2 * 16, &mut units).is_some(), "{free} units");
            assert_eq!(units.counts().free, free % 2);
        }
    }

    #[test]
    fn recovery_claims_the_second_copies_too() {
        let mut units = Units::new(16);
        let mut pages = paired(&[0]);
        let page = |unit: u64, number: u64, second| PageRef { second, ..at((unit << 16) + (number << 12)) };
        assert!(pages.claim(page(5, 0, 9), &mut units) && pages.claim(page(5, 1, 9), &mut units));
        assert_eq!((units.counts().meta, pages.used), (2, 2));
        assert!(!pages.claim(page(5, 2, 10), &mut units), "all pages of a unit have their copies in one");
        assert!(!pages.claim(page(6, 0, 9), &mut units), "a unit has the copies of one");
        assert!(!pages.claim(page(9, 0, 10), &mut units), "and no pages of its own");
        assert!(!units.claim_data(9), "nor data");
        let mut units = Units::new(16);
        assert!(units.claim_data(9) && !paired(&[0]).claim(page(5, 0, 9), &mut units), "data is no second copy");
    }

    #[test]
    fn pages_come_back_as_units() {
        let mut units = Units::new(64);
        assert!(units.fix(0));
        let mut pages = Pages::new(16);
        let mut taken = pages.take(37, &mut units).expect("there is room");
        assert_eq!((taken.len(), pages.used, units.counts().meta), (37, 37, 3));
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 37, "each page once");
        pages.put(&taken, &mut units);
        assert_eq!((pages.used, units.counts().meta, units.counts().free), (0, 0, 63));
    }

    #[test]
    fn taking_too_many_pages_takes_none() {
        let mut units = Units::new(3);
        let mut pages = Pages::new(16);
        assert!(pages.take(49, &mut units).is_none());
        assert_eq!((pages.used, units.counts().free), (0, 3));
        assert_eq!(pages.take(48, &mut units).map(|pages| pages.len()), Some(48), "the reserve is for this");
    }

    #[test]
    fn recovery_claims_each_page_once() {
        for unit_shift in [12, 16, 20] {
            let mut units = Units::new(16);
            let mut pages = Pages::new(unit_shift);
            let address = 5u64 << unit_shift;
            assert!(
                pages.claim(at(address), &mut units) && !pages.claim(at(address), &mut units),
                "a page has one place"
            );
            assert!(!units.claim_data(5), "metadata is no data");
            assert!(units.claim_data(6) && !pages.claim(at(6 << unit_shift), &mut units), "data is no metadata");
            pages.put(&[address], &mut units);
            assert!(units.claim_data(5), "free again");
        }
    }

    /// Units that were written for metadata stay metadata, up to a bound.
    #[test]
    fn pages_with_space_stay_pages() {
        let mut units = Units::new(64);
        let mut pages = Pages::new(16);
        (pages.sparse, pages.keep) = (true, 40);
        let unit = units.alloc_meta().expect("there is room");
        assert_eq!((pages.stock(), pages.stocked_units()), (0, 0), "a unit counts when it was written");
        pages.add(MetaUnit { unit, second: None });
        assert_eq!((pages.stock(), pages.stocked_units()), (16, 1));
        let taken = pages.take(70, &mut units).expect("there is room");
        assert_eq!((units.counts().meta, pages.stock()), (5, 10));
        pages.put(&taken, &mut units);
        assert_eq!((units.counts().meta, pages.stock(), pages.used), (3, 48, 0), "one unit less would be too few");
        pages.keep = 0;
        let taken = pages.take(1, &mut units).expect("there is room");
        pages.put(&taken, &mut units);
        assert_eq!((units.counts().meta, pages.stock()), (2, 32));
    }
}
