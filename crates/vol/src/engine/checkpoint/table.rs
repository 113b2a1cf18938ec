//! The volume table of a checkpoint: rewrites the pages whose volumes changed.
//!
//! Owns the distribution of volumes over pages. A page holds the volumes from its own first number up to the first
//! number of the next page. New volumes have the highest numbers and go to the last page. A page without volumes is a
//! hole in the tree.
//!
//! - T1: a page is rewritten if one of its volumes differs from the page, or if a volume was added or removed. The
//!   volumes are compared with their pages to find that, so that no change can be forgotten; names are compared only if
//!   they changed.
//! - T2: from the first page on whose volumes no longer fit into it, all volumes are packed into new pages.
//! - T3: there are never more pages, holes included, than the account counts (`Table::most_pages`). If there would be
//!   more, because many volumes were deleted, the whole table is packed into new pages.
//!
//! Called by checkpoints, under the pool's lock.

use crate::format::page::index::build_upper;
use crate::format::page::table::{LEAST_BYTES, ROOM, encode_each};
use crate::format::page::{PagePlace, PageRef};
use crate::state::plan::Draft;
use crate::state::table::{Table, TablePage};

/// Pages that stay, and volumes that are packed into new pages.
#[derive(Debug)]
struct Layout {
    /// One item per page that stays, from the first page on: `Some(true)` is rewritten, `Some(false)` is unchanged,
    /// `None` is a hole.
    stay: Vec<Option<bool>>,
    /// Volumes from this number on are packed into new pages behind those that stay.
    pack_from: Option<u32>,
}

/// Adds the changed pages to the draft, and calls `give_up` for the pages that they replace. Returns the root and level
/// of the table.
pub(super) fn draft(
    table: &mut Table,
    place: &PagePlace,
    draft: &mut Draft,
    give_up: &mut dyn FnMut(u64),
) -> (PageRef, u16) {
    let layout = survey(table);
    let pages = std::mem::take(&mut table.pages.leaves);
    let is_same = |(page, stay): (&TablePage, &Option<bool>)| stay.map_or(page.page.is_none(), |written| !written);
    let same =
        layout.pack_from.is_none() && layout.stay.len() == pages.len() && pages.iter().zip(&layout.stay).all(is_same);
    if same {
        table.pages.leaves = pages;
        return table.pages.root;
    }
    let mut leaves = Vec::with_capacity(pages.len() + 1);
    let ends: Vec<u32> = pages.iter().skip(1).map(|page| page.first).chain([u32::MAX]).collect();
    for (at, old) in pages.into_iter().enumerate() {
        let stay = layout.stay.get(at).copied().flatten();
        if stay != Some(false) && !old.page.is_none() {
            give_up(old.page.address);
        }
        match stay {
            _ if at >= layout.stay.len() => {}
            None => leaves.push(TablePage { page: PageRef::NONE, count: 0, ..old }),
            Some(false) => leaves.push(old),
            Some(true) => leaves.push(encode_page(table, place, draft, leaves.len(), old.first, ends[at]).0),
        }
    }
    let mut from = layout.pack_from;
    while let Some(first) = from.filter(|first| table.range(*first, u32::MAX).any(|vol| !vol.unborn)) {
        let (page, last) = encode_page(table, place, draft, leaves.len(), first, u32::MAX);
        leaves.push(page);
        from = last.map(|last| last + 1);
    }
    std::mem::take(&mut table.pages.upper).into_iter().for_each(&mut *give_up);
    let refs: Vec<PageRef> = leaves.iter().map(|leaf| leaf.page).collect();
    let before = draft.used();
    table.pages.root = build_upper(draft, place, 0, 0, &refs).unwrap_or((PageRef::NONE, 0));
    table.pages.upper = draft.since(before).to_vec();
    table.pages.leaves = leaves;
    table.pages.root
}

/// Writes a page with the volumes from `first` to before `end`, as many as fit. Returns the page and the number of the
/// last volume in it.
fn encode_page(
    table: &mut Table,
    place: &PagePlace,
    draft: &mut Draft,
    index: usize,
    first: u32,
    end: u32,
) -> (TablePage, Option<u32>) {
    let (spot, block) = draft.next();
    let place = place.at(spot, index as u64);
    let volumes = table.range(first, end).filter(|vol| !vol.unborn).map(|vol| (vol.fields(), &*vol.name));
    let (page, count) = encode_each(block, &place, volumes);
    let last = table.mark_written(first, end, count);
    (TablePage { first, page, count: count as u32 }, last)
}

/// Compares all volumes with their pages, once (T1).
fn survey(table: &Table) -> Layout {
    let most = table.most_pages();
    let pages = &table.pages.leaves;
    let ends = pages.iter().skip(1).map(|page| page.first).chain([u32::MAX]);
    let (mut stay, mut done) = (Vec::with_capacity(pages.len()), 0);
    for (page, end) in pages.iter().zip(ends) {
        let (mut count, mut bytes, mut changed) = (0, 0, false);
        for vol in table.range(page.first, end).filter(|vol| !vol.unborn) {
            count += 1;
            bytes += vol.entry_bytes();
            changed |= vol.is_changed();
        }
        if bytes > ROOM {
            let behind = (table.bytes() - done).div_ceil(LEAST_BYTES);
            let fits = stay.len() as u64 + behind <= most;
            return if fits { Layout { stay, pack_from: Some(page.first) } } else { Layout::packed() };
        }
        done += bytes;
        stay.push((count > 0).then_some(changed || count != page.count));
    }
    let used = stay.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    stay.truncate(used);
    if used as u64 > most || pages.is_empty() {
        return Layout::packed();
    }
    Layout { stay, pack_from: None }
}

impl Layout {
    /// Packs the whole table into new pages.
    fn packed() -> Layout {
        Layout { stay: Vec::new(), pack_from: Some(0) }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
