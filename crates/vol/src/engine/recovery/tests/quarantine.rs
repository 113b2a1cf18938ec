//! A pool with a damaged map remains in use: other volumes are written, nothing that the damaged map may refer to is
//! touched, and deleting its volumes frees all of that.

use super::*;
use crate::format::page::free;

/// Returns a closed pool as in [`three_volumes`], in units of this size, with a clone of the snapshot too.
fn four_volumes(unit_bytes: u64) -> Device {
    let device = open_device("ram:size=32M").unwrap();
    Pool::create(&device, &CreateOptions { unit_bytes, ..CreateOptions::default() }).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    fill(&pool);
    pool.clone_volume("s", "c").unwrap();
    // The clone gets a leaf of its own, in which all units but one are the snapshot's.
    write(&pool, "c", PLACES[1] + 7 * unit_bytes);
    pool.close().unwrap();
    device
}

const ALL: [&str; 4] = ["a", "b", "c", "s"];

fn all_places(pool: &Pool) -> BTreeMap<&'static str, Vec<Option<u64>>> {
    ALL.into_iter().map(|name| (name, places(pool, name))).collect()
}

/// Writes to all places of the volumes that open, and then until no space is left. Returns the units that these volumes
/// have now.
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
    // There may be no page for another volume.
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

/// Returns the addresses of all places where the list of free units can be.
fn lists(device: &Device) -> Vec<u64> {
    let (sb, _) = crate::engine::recovery::newest_superblock(&DeviceIo::new(device).unwrap()).unwrap();
    free::places(&sb).into_iter().flatten().collect()
}

fn copy_of(device: &Device) -> Device {
    let copy = open_device("ram:size=32M").unwrap();
    let mut bytes = vec![0; 32 << 20];
    DeviceIo::new(device).unwrap().read(0, &mut bytes).unwrap();
    DeviceIo::new(&copy).unwrap().write(0, &bytes).unwrap();
    copy
}

/// Lets a page be unreadable while the pool is used, then readable again, then unreadable until the end, so that its
/// volumes are deleted. Returns true if the pool accepted only deletes, and `None` if no volume needs the page.
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

/// Returns a pool in which only a leaf that no volume but `a` needs cannot be read, with room for a checkpoint.
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

/// F2: with either copy of the list of free units, a damaged map withholds no space that was free. Without both copies,
/// it withholds all free space.
#[test]
fn one_copy_of_the_list_of_free_units_is_enough() {
    let whole = four_volumes(UNIT);
    let pairs: Vec<u64> = lists(&whole);
    assert_eq!(pairs.len(), 4, "behind the journal and behind a copy of the superblock");
    let leaf =
        map_pages(&whole).into_iter().find(|page| page.1 == ["a"] && kind_at(&whole, page.0) == Some(kind::LEAF));
    let at = leaf.unwrap().0;
    for (lost, is_known) in [(&pairs[..2], true), (&pairs[2..], true), (&pairs[..], false)] {
        let device = copy_of(&whole);
        // Skips the places that have no list yet: a new pool has written its list only once.
        lost.iter().filter(|at| kind_at(&device, **at).is_some()).for_each(|at| flip(&device, *at));
        let info = open(&device, &[at]).unwrap().info();
        assert_eq!((info.damaged.len(), info.free_bytes > info.size_bytes / 2), (1, is_known), "{info:?}");
    }
}

/// A list of another or an older checkpoint does not count for this one.
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

/// Returns the addresses of the volume's data at these places; `None` for a hole.
fn map_of(pool: &Pool, name: &str, at: &[u64]) -> Vec<Option<u64>> {
    let volume = pool.open_volume(name).unwrap();
    let map = |at: &u64| volume.map(*at, 4096, Intent::Read).unwrap();
    at.iter().map(map).map(|found| (found.kind == MappingKind::Mapped).then_some(found.addr)).collect()
}

/// Makes changes of `a`, and of a copy of it made in between, that a crash leaves in the journal: units that get space,
/// units that lose it, and a range that is cut off and comes back.
fn change_and_crash(device: &Device, cloned: bool) -> Vec<(&'static str, Vec<Option<u64>>)> {
    let at: Vec<u64> = (0..12).flat_map(|unit| PLACES.map(|place| place + unit * UNIT)).collect();
    let pool = Pool::open(device, &OpenOptions::default()).unwrap();
    write(&pool, "a", PLACES[0] + 3 * UNIT);
    if cloned {
        pool.clone_volume("a", "t").unwrap();
        write(&pool, "t", PLACES[0] + 3 * UNIT);
        write(&pool, "t", PLACES[2] + 4 * UNIT);
    }
    write(&pool, "a", PLACES[1] + 5 * UNIT);
    write(&pool, "a", PLACES[2] + 4096);
    write(&pool, "a", PLACES[2] + 6 * UNIT);
    pool.sync().unwrap();
    pool.open_volume("a").unwrap().punch(PLACES[1], UNIT, &MayBlock::on_worker()).unwrap();
    pool.resize("a", PLACES[2] + 4096).unwrap();
    pool.resize("a", 8 << 30).unwrap();
    write(&pool, "a", PLACES[2] + 7 * UNIT);
    pool.sync().unwrap();
    let names = if cloned { vec!["a", "b", "s", "t"] } else { vec!["a", "b", "s"] };
    names.into_iter().map(|name| (name, map_of(&pool, name, &at))).collect()
}

/// A pool accepts everything but changes of the damaged map, however often it is opened. When the page can be read
/// again, the changes of that map in the journal are applied.
#[test]
fn what_the_journal_has_behind_a_damaged_page_is_kept_until_the_page_can_be_read() {
    let (mut kept, mut waits) = (0, 0);
    for copies in [1, 2] {
        let make = || {
            let device = open_device("ram:size=32M").unwrap();
            Pool::create(&device, &CreateOptions { metadata_copies: Some(copies), ..CreateOptions::default() })
                .unwrap();
            let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
            fill(&pool);
            pool.close().unwrap();
            device
        };
        let pages: Vec<u64> =
            map_pages(&make()).into_iter().filter(|page| page.1.contains(&"a")).map(|page| page.0).collect();
        for (at, cloned) in pages.into_iter().flat_map(|at| [(at, false), (at, true)]) {
            let device = make();
            let second = second_of(&device, at);
            let before = change_and_crash(&device, cloned);
            let bad: Vec<u64> = [Some(at), second].into_iter().flatten().collect();
            for round in 0..3 {
                let pool = open(&device, &bad).unwrap();
                let info = pool.info();
                let lost: Vec<&str> = info.damaged.iter().map(|(name, _)| &name[..]).collect();
                assert!(lost.contains(&"a") && !lost.contains(&"b"), "page {at}: {lost:?}");
                if info.deletes_only {
                    // A page above shared pages, which cannot be in two maps.
                    assert!(cloned && info.damaged[0].1.range == (0, 8 << 30), "page {at}");
                    break;
                }
                kept += u32::from(!pool.inner.lock().sb.kept.is_none());
                drop(pool.create_volume(&format!("new{round}"), 1 << 20).unwrap());
                write(&pool, &format!("new{round}"), 0);
                write(&pool, "b", PLACES[0]);
                pool.sync().unwrap();
                // The pool is cut off, except in round 1, where it is closed.
                if round == 1 {
                    pool.close().unwrap();
                }
            }
            let report = check_device(&device, &CheckOptions::default()).unwrap();
            assert!(report.is_clean(), "page {at}: {:?}", report.findings);
            let pool = Pool::open(&device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
            assert_same(&pool, &before, at);
            drop(pool);
            let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
            assert_same(&pool, &before, at);
            assert!(pool.inner.lock().sb.kept.is_none(), "what was kept is in the maps");
            pool.close().unwrap();
            waits += 1;
            let report = check_device(&device, &CheckOptions::default()).unwrap();
            assert!(report.is_clean(), "page {at}: {:?}", report.findings);
        }
    }
    assert!(kept > 20 && waits > 20, "{kept} {waits}");
}

fn assert_same(pool: &Pool, before: &[(&str, Vec<Option<u64>>)], page: u64) {
    let at: Vec<u64> = (0..12).flat_map(|unit| PLACES.map(|place| place + unit * UNIT)).collect();
    for (name, map) in before {
        assert_eq!(&map_of(pool, name, &at), map, "'{name}': page {page} can be read again");
    }
}

/// Returns the place of a page's second copy, if it has one.
fn second_of(device: &Device, at: u64) -> Option<u64> {
    let pool = Pool::open(device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let state = pool.inner.lock();
    let unit = state.tree.pages.seconds_of(&[at]).first().copied()?;
    Some(crate::format::page::second_address(at, unit, u64::from(state.sb.unit_bytes)))
}

/// Deleting the damaged volumes, or rolling them back, drops the records kept for them; a repair applies these.
#[test]
fn kept_records_are_dropped_with_their_damaged_map() {
    for how in 0..3 {
        let device = four_volumes(UNIT);
        let leaf =
            map_pages(&device).into_iter().find(|page| page.1 == ["a"] && kind_at(&device, page.0) == Some(kind::LEAF));
        let at = leaf.unwrap().0;
        change_and_crash(&device, false);
        let pool = open(&device, &[at]).unwrap();
        assert!(!pool.inner.lock().sb.kept.is_none());
        match how {
            0 => pool.delete("a").unwrap(),
            1 => pool.rollback("a", "s").unwrap(),
            _ => {}
        }
        pool.sync().unwrap();
        drop(pool);
        if how == 2 {
            flip(&device, at);
            assert!(check_device(&device, &CheckOptions { repair: true }).unwrap().repaired);
        }
        // The page can be read again, and its kept records have no effect any more.
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        assert!(pool.inner.lock().sb.kept.is_none());
        match how {
            0 => assert!(matches!(pool.open_volume("a"), Err(PoolError::NoVolume { .. }))),
            1 => assert_eq!(places(&pool, "a"), places(&pool, "s")),
            _ => assert!(map_of(&pool, "a", &[PLACES[0] + 3 * UNIT])[0].is_some(), "a repair puts it into the hole"),
        }
        pool.close().unwrap();
        let report = check_device(&device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{how}: {:?}", report.findings);
    }
}

/// The pool does not open if a page of the kept records (`KeptHead`) is damaged. A repair leaves that page out, and
/// then the pool opens.
#[test]
fn a_damaged_page_of_what_is_kept_is_told_and_repaired() {
    let device = four_volumes(UNIT);
    let at = map_pages(&device).into_iter().find(|page| page.1 == ["a"]).unwrap().0;
    change_and_crash(&device, false);
    let pool = open(&device, &[at]).unwrap();
    let kept = pool.inner.lock().sb.kept.address;
    pool.close().unwrap();
    flip(&device, kept);
    let error = Pool::open(&device, &OpenOptions::default()).unwrap_err();
    assert!(matches!(&error, PoolError::Damaged { at, .. } if *at == kept), "{error}");
    let rescued = Pool::open(&device, &OpenOptions { rescue: true, ..OpenOptions::default() }).unwrap();
    assert!(rescued.info().unsure.iter().any(|words| words.contains("damaged maps")));
    drop(rescued);
    let report = check_device(&device, &CheckOptions { repair: true }).unwrap();
    assert!(report.repaired && report.findings.iter().any(|found| found.place.address == Some(kept)));
    Pool::open(&device, &OpenOptions::default()).unwrap().close().unwrap();
}

/// The pool was closed, has no page for a checkpoint and at least two damaged volumes. It crashes after the first of
/// their deletes.
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
    // `Pool::delete` would also check whether the pool has space now.
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
