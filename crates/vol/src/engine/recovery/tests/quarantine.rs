//! A pool with a damaged map goes on: others are written, nothing that the damaged map may have is touched, and
//! deleting its volumes gives all of it back.

use super::*;
use crate::format::page::free;

/// A closed pool as [`three_volumes`], in units of this size, with a clone of the snapshot too.
fn four_volumes(unit_bytes: u64) -> Device {
    let device = open_device("ram:size=32M").unwrap();
    Pool::create(&device, &CreateOptions { unit_bytes, ..CreateOptions::default() }).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    fill(&pool);
    pool.clone_volume("s", "c").unwrap();
    // A leaf of its own, whose units are the snapshot's but for one.
    write(&pool, "c", PLACES[1] + 7 * unit_bytes);
    pool.close().unwrap();
    device
}

const ALL: [&str; 4] = ["a", "b", "c", "s"];

fn all_places(pool: &Pool) -> BTreeMap<&'static str, Vec<Option<u64>>> {
    ALL.into_iter().map(|name| (name, places(pool, name))).collect()
}

/// Writes to all places of the volumes that open, and takes all space there is. The units that these volumes have now.
fn use_it(pool: &Pool, lost: &[&str]) -> Vec<u64> {
    let unit = pool.info().unit_bytes;
    let token = MayBlock::on_worker();
    let mut units = Vec::new();
    let mut write = |name: &str, at: u64| {
        let volume = pool.open_volume(name).unwrap();
        let there = volume.map(at, 4096, Intent::Write);
        let piece = there.or_else(|_| volume.map_blocking(at, 4096, Intent::Write, &token))?;
        units.push(piece.addr / unit);
        volume.end_write(WriteDone::new(at, 4096, Status::Ok, &[piece]), &token)
    };
    for name in ["a", "b", "c"].into_iter().filter(|name| !lost.contains(name)) {
        for at in PLACES.into_iter().chain([PLACES[1] + 7 * unit]) {
            let written = write(name, at);
            assert!(matches!(written, Ok(()) | Err(Status::NoSpc)), "{name}: {written:?}");
            assert!(name != "b" || at == PLACES[1] + 7 * unit || written.is_ok(), "its own units are written in place");
        }
    }
    // There may be no page for one more volume.
    let made = pool.create_volume("fill", 1 << 30).is_ok();
    let name = ["fill", "b", "c"].into_iter().find(|name| if *name == "fill" { made } else { !lost.contains(name) });
    let mut at = 0;
    while write(name.unwrap(), at).is_ok() {
        at += unit;
    }
    pool.sync().unwrap();
    units
}

#[test]
fn nothing_that_a_page_may_refer_to_is_given_to_others_before_its_volumes_are_deleted() {
    for (unit, has_list) in [(UNIT, true), (UNIT, false), (1 << 20, true), (1 << 20, false)] {
        let (mut writable, mut deletes_only) = (0, 0);
        let whole = four_volumes(unit);
        if !has_list {
            lists(&whole).into_iter().for_each(|at| flip(&whole, at));
        }
        let pages = (0..32 << 20).step_by(BLOCK);
        for at in pages.filter(|at| matches!(kind_at(&whole, *at), Some(kind::LEAF | kind::INDEX))) {
            match unreadable_for_a_while(&whole, unit, at, has_list) {
                None => {}
                Some(true) => deletes_only += 1,
                Some(false) => writable += 1,
            }
        }
        // Without a list there may be no page for a checkpoint.
        assert!(writable + deletes_only >= 12, "{writable} {deletes_only}");
        assert_eq!(deletes_only > 0, !has_list, "{writable} {deletes_only}");
    }
}

/// The places of the list of free units.
fn lists(device: &Device) -> Vec<u64> {
    let (sb, _) = crate::engine::recovery::newest_superblock(&DeviceIo::new(device).unwrap()).unwrap();
    free::places(&sb).unwrap().into()
}

fn copy_of(device: &Device) -> Device {
    let copy = open_device("ram:size=32M").unwrap();
    let mut bytes = vec![0; 32 << 20];
    DeviceIo::new(device).unwrap().read(0, &mut bytes).unwrap();
    DeviceIo::new(&copy).unwrap().write(0, &bytes).unwrap();
    copy
}

/// A page cannot be read, while the pool is used, and then again; then never more, so that its volumes are deleted.
/// Whether the pool took deletes alone; none if nobody needs the page.
fn unreadable_for_a_while(whole: &Device, unit: u64, at: u64, has_list: bool) -> Option<bool> {
    let device = copy_of(whole);
    let before = all_places(&Pool::open(&device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap());
    let pool = open(&device, &[at]).unwrap();
    let opened = pool.info();
    let lost: Vec<&str> = opened.damaged.iter().map(|(name, _)| &**name).collect();
    if lost.is_empty() {
        return None;
    }
    assert!(has_list || opened.quarantined_bytes > 0);
    if !opened.deletes_only {
        let taken = use_it(&pool, &lost);
        let had = before.values().flatten().flatten().map(|at| at / unit).collect::<Vec<_>>();
        let new = taken.iter().filter(|unit| !had.contains(unit)).count();
        assert_eq!(new >= 5, has_list, "page {at}: {new} new units are given out");
        for name in &lost {
            let had: Vec<u64> = before[name].iter().flatten().map(|at| at / unit).collect();
            assert!(taken.iter().all(|unit| !had.contains(unit)), "page {at}: units of '{name}' were given to others");
        }
    }
    pool.close().unwrap();
    // The disk can read the page again: nothing is missing.
    let report = check_device(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "page {at}: {:?}", report.findings);
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    for name in &lost {
        assert_eq!(&places(&pool, name), &before[name], "'{name}' after page {at} could not be read");
    }
    pool.close().unwrap();
    let pool = open(&device, &[at]).unwrap();
    assert_eq!(pool.info().damaged, opened.damaged);
    lost.iter().for_each(|name| pool.delete(name).unwrap());
    let info = pool.info();
    assert_eq!((info.quarantined_bytes, info.deletes_only, info.damaged.len()), (0, false, 0));
    if pool.volume_info("fill").is_ok() {
        pool.delete("fill").unwrap();
    }
    pool.sync().unwrap();
    let info = pool.info();
    assert!(info.pending_bytes == 0 && info.free_bytes > info.size_bytes / 3, "{info:?}");
    drop(pool.create_volume("new", 1 << 30).unwrap());
    write(&pool, "new", 0);
    pool.close().unwrap();
    let report = check_device(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "page {at}: {:?}", report.findings);
    let again = Pool::open(&device, &OpenOptions::default()).unwrap().info();
    let counted = (info.data_bytes + unit, info.volumes + 1);
    assert_eq!((again.data_bytes, again.volumes), counted, "what opening derives is what was counted");
    Some(opened.deletes_only)
}

/// A pool of which no leaf of 'a' alone can be read, with room for a checkpoint.
fn without_a_leaf() -> Pool {
    let device = four_volumes(1 << 20);
    let leaf =
        map_pages(&device).into_iter().find(|page| page.1 == ["a"] && kind_at(&device, page.0) == Some(kind::LEAF));
    open(&device, &[leaf.unwrap().0]).unwrap()
}

#[test]
fn a_damaged_volume_is_not_copied_nor_resized_and_can_be_rolled_back() {
    let pool = without_a_leaf();
    let refused =
        [pool.snapshot("a", "t"), pool.clone_volume("a", "t"), pool.resize("a", 16 << 30), pool.resize("a", 1 << 30)];
    for error in refused {
        assert!(matches!(&error, Err(PoolError::DamagedMap { volume, .. }) if volume == "a"), "{error:?}");
    }
    pool.rename("a", "z").unwrap();
    assert_eq!(pool.info().damaged[0].0, "z");
    pool.rollback("z", "s").unwrap();
    assert_eq!(places(&pool, "z"), places(&pool, "s"));
    let info = pool.info();
    assert_eq!((info.damaged.len(), info.quarantined_bytes), (0, 0));
    write(&pool, "z", PLACES[0]);
    let device = pool.inner.device.clone();
    pool.close().unwrap();
    let report = check_device(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn a_full_pool_says_that_a_damaged_map_keeps_space() {
    let pool = without_a_leaf();
    use_it(&pool, &["a"]);
    let error = (0..10_000).find_map(|number| pool.create_volume(&format!("v{number}"), 1 << 20).err()).unwrap();
    let text = error.to_string();
    assert!(
        matches!(error, PoolError::Full { .. }) && text.contains("volume 'a'") && text.contains("delete"),
        "{text}"
    );
}

/// A list of another checkpoint, or of another time, says nothing of this one.
#[test]
fn a_list_of_free_units_counts_for_its_own_checkpoint_alone() {
    let device = four_volumes(UNIT);
    let io = DeviceIo::new(&device).unwrap();
    let read = |at: u64| {
        let mut block = [0; BLOCK];
        io.read(at, &mut block).unwrap();
        block
    };
    let newest = |pool: &Pool| {
        let sb = pool.inner.lock().sb.clone();
        lists(&device).into_iter().find(|at| free::decode(&read(*at), *at, &sb).is_ok())
    };
    let pool = Pool::open(&device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let (at, old) = newest(&pool).map(|at| (at, read(at))).expect("the checkpoint that closed the pool has a list");
    drop(pool);
    // A leaf far out takes units that were free when the list was written.
    for round in 0..3 {
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        (0..20).for_each(|unit| write(&pool, "a", (6 << 30) + (round * 20 + unit) * UNIT));
        pool.close().unwrap();
        lists(&device).into_iter().for_each(|other| io.write(other, &old).unwrap());
        let leaves = map_pages(&device).into_iter().filter(|page| page.1.contains(&"a"));
        let lost = leaves.max_by_key(|page| page.0).unwrap().0;
        let pool = open(&device, &[lost]).unwrap();
        assert_eq!(newest(&pool).is_some(), !pool.info().deletes_only, "a new checkpoint has a list of its own");
        let free = pool.info().free_bytes + pool.info().reserve_bytes;
        assert!(free < 4 * UNIT, "{at}: {free} bytes are taken for free");
        drop(pool);
    }
    assert!(lists(&device).contains(&at));
}

/// A checkpoint would have the change alone in the place of all that the page said.
#[test]
fn what_the_journal_has_behind_a_damaged_page_waits_until_the_page_can_be_read() {
    let pages = map_pages(&four_volumes(UNIT)).into_iter().filter(|page| page.1 == ["a"]).map(|page| page.0);
    let mut deletes_only = 0;
    for at in pages {
        let device = four_volumes(UNIT);
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        write(&pool, "a", PLACES[0] + 3 * UNIT);
        pool.sync().unwrap();
        let before = all_places(&pool);
        drop(pool);
        for _ in 0..2 {
            let pool = open(&device, &[at]).unwrap();
            let info = pool.info();
            assert_eq!(info.damaged.len(), 1);
            deletes_only += u32::from(info.deletes_only);
            let error = pool.create_volume("new", 1 << 20).map(drop).err();
            let says = matches!(&error, Some(PoolError::DamagedMap { volume, .. }) if volume == "a");
            assert_eq!(says, info.deletes_only, "{error:?}");
            pool.close().unwrap();
        }
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        assert_eq!(all_places(&pool), before, "page {at} can be read again");
        let written = pool.open_volume("a").unwrap().map(PLACES[0] + 3 * UNIT, 4096, Intent::Read).unwrap();
        assert_eq!(written.kind, MappingKind::Mapped, "what the journal has is there");
    }
    assert!(deletes_only > 0);
}

/// A pool that was closed has no page for a checkpoint, and two volumes to delete; it crashes between them.
#[test]
fn a_closed_pool_that_takes_deletes_alone_says_that_it_was_opened() {
    let device = four_volumes(UNIT);
    lists(&device).into_iter().for_each(|at| flip(&device, at));
    let shared = map_pages(&device)
        .into_iter()
        .find(|page| page.1.contains(&"a") && page.1.contains(&"s") && kind_at(&device, page.0) == Some(kind::INDEX));
    let at = shared.unwrap().0;
    let pool = open(&device, &[at]).unwrap();
    let lost: Vec<String> = pool.info().damaged.into_iter().map(|(name, _)| name).collect();
    assert!(pool.info().deletes_only && lost.len() >= 2, "{lost:?}");
    // Without the look at the space that the delete has given back.
    pool.inner.delete(&lost[0]).unwrap();
    assert!(pool.info().deletes_only);
    drop(pool);
    let pool = open(&device, &[at]).unwrap();
    assert_eq!(pool.info().damaged.len(), lost.len() - 1, "the delete is durable");
    lost[1..].iter().for_each(|name| pool.delete(name).unwrap());
    assert!(!pool.info().deletes_only);
    pool.close().unwrap();
    let report = check_device(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}
