//! Volumes by their numbers, in order.
//!
//! Owns where a volume is found, and knows nothing of it. Numbers follow each other, with gaps where volumes were
//! deleted, so they are kept in pages of neighbours: among ten thousand volumes one is found by few steps, where a tree
//! of single volumes takes four times as many. A replay does that for millions of records.
//!
//! - N1: a page has at least one volume. Numbers as far apart as they can be take a page each: 256 bytes a volume.
//!
//! Called by the table of volumes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Numbers of a page, as a power of two.
const PAGE_SHIFT: u32 = 5;
const PAGE: usize = 1 << PAGE_SHIFT;

/// Neighbours, and how many of them there are. Boxed, so that pages are small.
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

/// All volumes.
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

/// The numbers of a page.
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

    /// Adds a volume, in the place of one of its number.
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

    /// All of them.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.pages.values().flat_map(|page| page.vols.iter().filter_map(Option::as_deref))
    }

    /// Those of these numbers, the last not included.
    pub(super) fn range(&self, first: u32, end: u32) -> impl Iterator<Item = &T> {
        let pages = self.pages.range(place(first).0..=place(end.max(first)).0);
        let all = pages.flat_map(|(page, vols)| vols.vols.iter().zip(ids(*page)));
        all.filter(move |(_, id)| (first..end).contains(id)).filter_map(|(vol, _)| vol.as_deref())
    }

    /// As [`Numbers::range`], to be changed.
    pub(super) fn range_mut(&mut self, first: u32, end: u32) -> impl Iterator<Item = &mut T> {
        let pages = self.pages.range_mut(place(first).0..=place(end.max(first)).0);
        let all = pages.flat_map(|(page, vols)| vols.vols.iter_mut().zip(ids(*page)));
        all.filter(move |(_, id)| (first..end).contains(id)).filter_map(|(vol, _)| vol.as_deref_mut())
    }
}
