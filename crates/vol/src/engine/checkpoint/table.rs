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
mod tests {
    use std::collections::BTreeMap;

    use sheave_base::rng::Rng;
    use sheave_blk::Device;
    use sheave_drivers::open_device;

    use crate::{CheckOptions, CreateOptions, OpenOptions, Pool, check_device};

    fn formatted() -> Device {
        let device = open_device("ram:size=64M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        device
    }

    fn open(device: &Device) -> Pool {
        Pool::open(device, &OpenOptions::default()).unwrap()
    }

    fn name(n: u64) -> String {
        format!("volume-{n:04}")
    }

    /// Returns the addresses of the pages of level 0; 0 for a hole.
    fn pages(pool: &Pool) -> Vec<u64> {
        pool.inner.lock().table.pages.leaves.iter().map(|leaf| leaf.page.address).collect()
    }

    /// Makes `change`, then a checkpoint. Returns the number of table pages of level 0 that it writes, and the number
    /// of pages that the account expected in all.
    fn writes(pool: &Pool, change: impl FnOnce(&Pool)) -> (usize, u64) {
        change(pool);
        let (before, due) = (pages(pool), pool.inner.lock().pages_due());
        let generation = pool.inner.lock().sb.generation;
        pool.inner.checkpoint().unwrap();
        let state = pool.inner.lock();
        assert_eq!(state.sb.generation, generation + 2);
        let table = &state.table;
        assert!(table.pages.leaves.len() as u64 <= table.most_pages(), "T3");
        drop(state);
        let new = pages(pool).into_iter().filter(|page| *page != 0 && !before.contains(page)).count();
        assert!(new as u64 <= due, "M2");
        (new, due)
    }

    #[test]
    fn a_checkpoint_writes_the_pages_whose_volumes_changed() {
        let device = formatted();
        let pool = open(&device);
        (0..1000).for_each(|n| drop(pool.create_volume(&name(n), 1 << 20).unwrap()));
        pool.inner.checkpoint().unwrap();
        assert!(pages(&pool).len() >= 15, "{:?}", pages(&pool));
        assert_eq!(writes(&pool, |_| ()).0, 0, "nothing has changed");
        assert_eq!(writes(&pool, |pool| pool.resize(&name(500), 2 << 20).unwrap()).0, 1);
        assert_eq!(writes(&pool, |pool| pool.rename(&name(500), "volume-now").unwrap()).0, 1);
        assert_eq!(writes(&pool, |pool| pool.delete(&name(0)).unwrap()).0, 1);
        assert_eq!(writes(&pool, |pool| drop(pool.create_volume("new", 1 << 20).unwrap())).0, 1, "the last one");
        assert_eq!(writes(&pool, |pool| [3, 990].iter().for_each(|n| pool.delete(&name(*n)).unwrap())).0, 2);
        // The copy names its source as origin, so a delete of the source changes the entry of the copy too.
        pool.snapshot(&name(700), "copy").unwrap();
        assert_eq!(writes(&pool, |_| ()).0, 1);
        assert_eq!(writes(&pool, |pool| pool.delete(&name(700)).unwrap()).0, 2);
        pool.close().unwrap();
        let pool = open(&device);
        assert_eq!(writes(&pool, |_| ()).0, 0, "what was loaded is what was written");
        assert_eq!(writes(&pool, |pool| pool.resize(&name(1), 2 << 20).unwrap()).0, 1);
    }

    #[test]
    fn a_longer_name_repacks_the_pages_behind_it() {
        let device = formatted();
        let pool = open(&device);
        (0..1000).for_each(|n| drop(pool.create_volume(&name(n), 1 << 20).unwrap()));
        pool.inner.checkpoint().unwrap();
        let all = pages(&pool);
        let long = "x".repeat(255);
        let (new, _) = writes(&pool, |pool| pool.rename(&name(500), &long).unwrap());
        let now = pages(&pool);
        let kept = all.iter().zip(&now).take_while(|(a, b)| a == b).count();
        assert!(kept > 0 && new + kept == now.len(), "{new} new, {kept} kept of {}", now.len());
        pool.close().unwrap();
        assert!(check_device(&device, &CheckOptions::default()).unwrap().is_clean());
        assert_eq!(open(&device).info().volumes, 1000);
    }

    /// Many volumes are deleted at one end, at the other, and everywhere: the table gets fewer pages.
    #[test]
    fn a_table_of_which_much_has_gone_is_packed() {
        let parts: [fn(u64) -> bool; 4] = [|n| n >= 40, |n| n < 960, |n| !n.is_multiple_of(25), |_| true];
        for which in parts {
            let device = formatted();
            let pool = open(&device);
            (0..1000).for_each(|n| drop(pool.create_volume(&name(n), 1 << 20).unwrap()));
            pool.inner.checkpoint().unwrap();
            (0..1000).filter(|n| which(*n)).for_each(|n| pool.delete(&name(n)).unwrap());
            writes(&pool, |_| ());
            let left = (0..1000).filter(|n| !which(*n)).count();
            assert!(pages(&pool).len() <= left.div_ceil(40), "{:?} for {left} volumes", pages(&pool));
            pool.close().unwrap();
            assert!(check_device(&device, &CheckOptions::default()).unwrap().is_clean());
            assert_eq!(open(&device).info().volumes as usize, left);
        }
    }

    /// Random changes, with checkpoints and openings in between, against a model of names and sizes.
    #[test]
    fn the_table_survives_random_changes_and_reopening() {
        for seed in 0..8 {
            let mut rng = Rng::new(seed);
            let device = formatted();
            let mut pool = open(&device);
            let mut model: BTreeMap<String, u64> = BTreeMap::new();
            for step in 0..600 {
                let some = model.keys().nth(rng.below(model.len().max(1) as u64) as usize).cloned();
                let fresh = format!("{step}-{}", "y".repeat(rng.below(240) as usize));
                match (rng.below(12), some) {
                    (0..5, _) | (_, None) => {
                        pool.create_volume(&fresh, 1 << 20).unwrap();
                        model.insert(fresh, 1 << 20);
                    }
                    (5..7, Some(old)) => {
                        pool.delete(&old).unwrap();
                        model.remove(&old);
                    }
                    (7..9, Some(old)) => {
                        pool.rename(&old, &fresh).unwrap();
                        let size = model.remove(&old).unwrap();
                        model.insert(fresh, size);
                    }
                    (9, Some(old)) => {
                        pool.resize(&old, 4 << 20).unwrap();
                        model.insert(old, 4 << 20);
                    }
                    (10, Some(old)) => {
                        pool.clone_volume(&old, &fresh).unwrap();
                        model.insert(fresh, model[&old]);
                    }
                    _ => drop(writes(&pool, |_| ())),
                }
                if step % 100 == 99 {
                    if rng.below(2) == 0 {
                        pool.close().unwrap();
                    } else {
                        drop(pool);
                    }
                    assert!(check_device(&device, &CheckOptions::default()).unwrap().is_clean());
                    pool = open(&device);
                    let found: BTreeMap<String, u64> =
                        pool.volumes().into_iter().map(|vol| (vol.name, vol.size_bytes)).collect();
                    assert_eq!(found, model, "seed {seed}, step {step}");
                }
            }
        }
    }
}
