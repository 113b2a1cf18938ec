//! Ordered map from volume number to volume.
//!
//! Owns only the lookup structure. Numbers are dense, with gaps where volumes were deleted, so neighbours share a page.
//! Among ten thousand volumes a lookup takes a quarter of the steps of a tree with one volume per node. Replay looks up
//! volumes for millions of records.
//!
//! - N1: a page has at least one volume. In the worst case, numbers far apart, each volume takes a page of 256 bytes.
//!
//! Called by the table of volumes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

const PAGE_SHIFT: u32 = 5;
const PAGE: usize = 1 << PAGE_SHIFT;

/// A page of neighbouring numbers. Volumes are boxed to keep pages small.
#[derive(Debug)]
struct Page<T> {
    vols: [Option<Box<T>>; PAGE],
    count: u32,
}

impl<T> Default for Page<T> {
    fn default() -> Page<T> {
        Page { vols: [const { None }; PAGE], count: 0 }
    }
}

#[derive(Debug)]
pub(super) struct Numbers<T> {
    pages: BTreeMap<u32, Box<Page<T>>>,
    count: usize,
}

impl<T> Default for Numbers<T> {
    fn default() -> Numbers<T> {
        Numbers { pages: BTreeMap::new(), count: 0 }
    }
}

fn place(id: u32) -> (u32, usize) {
    (id >> PAGE_SHIFT, id as usize % PAGE)
}

fn ids(page: u32) -> std::ops::RangeInclusive<u32> {
    page << PAGE_SHIFT..=(page << PAGE_SHIFT | (PAGE as u32 - 1))
}

impl<T> Numbers<T> {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&T> {
        let (page, at) = place(id);
        self.pages.get(&page)?.vols[at].as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let (page, at) = place(id);
        self.pages.get_mut(&page)?.vols[at].as_deref_mut()
    }

    /// Adds a volume, replacing one of the same number.
    pub(super) fn insert(&mut self, id: u32, vol: T) {
        let (page, at) = place(id);
        let page = self.pages.entry(page).or_default();
        if page.vols[at].replace(Box::new(vol)).is_none() {
            page.count += 1;
            self.count += 1;
        }
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let (page, at) = place(id);
        let Entry::Occupied(mut page) = self.pages.entry(page) else { return None };
        let vol = page.get_mut().vols[at].take()?;
        self.count -= 1;
        page.get_mut().count -= 1;
        if page.get().count == 0 {
            page.remove(); // N1
        }
        Some(*vol)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.pages.values().flat_map(|page| page.vols.iter().filter_map(Option::as_deref))
    }

    /// Returns the volumes with numbers in `first..end`.
    pub(super) fn range(&self, first: u32, end: u32) -> impl Iterator<Item = &T> {
        // `BTreeMap::range` panics if the end lies before the start.
        let pages = self.pages.range(place(first).0..=place(end.max(first)).0);
        let all = pages.flat_map(|(page, vols)| vols.vols.iter().zip(ids(*page)));
        all.filter(move |(_, id)| (first..end).contains(id)).filter_map(|(vol, _)| vol.as_deref())
    }

    pub(super) fn range_mut(&mut self, first: u32, end: u32) -> impl Iterator<Item = &mut T> {
        // `BTreeMap::range_mut` panics if the end lies before the start.
        let pages = self.pages.range_mut(place(first).0..=place(end.max(first)).0);
        let all = pages.flat_map(|(page, vols)| vols.vols.iter_mut().zip(ids(*page)));
        all.filter(move |(_, id)| (first..end).contains(id)).filter_map(|(vol, _)| vol.as_deref_mut())
    }
}
