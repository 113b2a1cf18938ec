//! Pools with two copies of their metadata, one of them damaged or unreadable, for pages of any kind.

use super::*;
use crate::format::page::index;
use crate::{Checksum, FindingKind};

const MEMBER: u64 = 8 << 20;

fn device() -> Device {
    open_device("linear:over=ram:size=8M+ram:size=8M").unwrap()
}

/// Returns a closed pool of two members; pools with several members have two copies. Its trees have index pages of each
/// level: maps of two levels, and a volume table of several pages.
fn pool(checksum: Checksum) -> Device {
    let device = device();
    Pool::create(&device, &CreateOptions { checksum, ..CreateOptions::default() }).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    fill(&pool);
    for number in 0..70 {
        drop(pool.create_volume(&format!("an-empty-volume-with-a-long-name-{number}"), 1 << 20).unwrap());
    }
    pool.close().unwrap();
    device
}

fn copy_of(device: &Device) -> Device {
    let copy = super::pairs::device();
    DeviceIo::new(&copy).unwrap().write(0, &bytes_of(device)).unwrap();
    copy
}

fn kind_and_level(device: &Device, at: u64) -> (u16, u16) {
    let mut block = [0; BLOCK];
    DeviceIo::new(device).unwrap().read(at, &mut block).unwrap();
    let (head, _) = identify(&block).unwrap();
    (head.kind, head.level)
}

/// Returns both copies of each page that the newest checkpoint has.
fn pages(device: &Device) -> Vec<[u64; 2]> {
    let pool = Pool::open(device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let volume = pool.open_volume("b").unwrap();
    volume.pool().lock().tree.pages.pairs_in_use()
}

/// Scrubs the pool. Returns the number of rewritten copies, and the number of other findings. Findings about data are
/// not counted, because these tests write no data.
fn scrub(pool: &Pool) -> (u64, usize) {
    let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.completed);
    let found = report.findings.iter().filter(|finding| finding.kind != FindingKind::Data).count();
    (report.mended_copies, found)
}

const NAMES: [&str; 3] = ["a", "b", "s"];

fn all_places(pool: &Pool) -> Vec<Vec<Option<u64>>> {
    NAMES.iter().map(|name| places(pool, name)).collect()
}

/// Checks that the pool is undamaged, with `bad_copies` bad copies of pages, and that all volumes have the `wanted`
/// maps.
fn is_whole(pool: &Pool, wanted: &[Vec<Option<u64>>], bad_copies: u64) {
    let info = pool.info();
    assert_eq!((info.damaged.len(), info.deletes_only, info.quarantined_bytes), (0, false, 0));
    assert_eq!((info.metadata_copies, info.bad_copies), (2, bad_copies));
    assert_eq!(all_places(pool), wanted);
}

/// V33: each copy of each page of metadata is damaged or unreadable in turn.
#[test]
fn a_damaged_copy_of_any_page_costs_nothing_and_a_scrub_writes_it_anew() {
    for checksum in [Checksum::None, Checksum::Crc32c] {
        let whole = pool(checksum);
        let wanted = all_places(&Pool::open(&copy_of(&whole), &OpenOptions::default()).unwrap());
        let mut kinds = BTreeMap::new();
        for pair in pages(&whole) {
            *kinds.entry(kind_and_level(&whole, pair[0])).or_insert(0) += 1;
            assert_eq!(kind_and_level(&whole, pair[0]), kind_and_level(&whole, pair[1]));
            assert_ne!(pair[0] < MEMBER, pair[1] < MEMBER, "the copies lie on different members");
            for (which, unreadable) in [(0, false), (1, false), (0, true), (1, true)] {
                let device = copy_of(&whole);
                let at = pair[which];
                if !unreadable {
                    flip(&device, at);
                }
                let pool = open(&device, if unreadable { &pair[which..=which] } else { &[] }).unwrap();
                // The second copy is read only if the first is bad, and by scrubs.
                is_whole(&pool, &wanted, u64::from(which == 0));
                assert_eq!(scrub(&pool), (1, 0), "page {at}");
                is_whole(&pool, &wanted, 0);
                assert_eq!(scrub(&pool), (0, 0), "page {at}");
                pool.close().unwrap();
                // Now the other copy may be damaged.
                flip(&device, pair[1 - which]);
                let pool = open(&device, &[]).unwrap();
                // With checksums, the scrub has marked blocks as bad that were never written. Their pages of checksums
                // have moved.
                let moved = checksum != Checksum::None;
                is_whole(&pool, &wanted, if moved { pool.info().bad_copies } else { u64::from(which == 1) });
                for name in ["a", "b"] {
                    write(&pool, name, PLACES[1] + UNIT);
                }
                pool.sync().unwrap();
                scrub(&pool);
                pool.close().unwrap();
                assert_eq!(check_device(&device, &CheckOptions::default()).unwrap().findings, []);
            }
        }
        let both = [(kind::LEAF, 0), (kind::INDEX, 1), (kind::INDEX, 2), (kind::TABLE, 0)];
        let sums = [(kind::SUMS, 0)].into_iter().filter(|_| checksum != Checksum::None);
        assert!(both.into_iter().chain(sums).all(|kind| kinds.contains_key(&kind)), "{kinds:?}");
    }
}

#[test]
fn damage_to_both_copies_acts_as_in_a_pool_with_one_copy() {
    let whole = pool(Checksum::Crc32c);
    let (mut refused, mut quarantined) = (0, 0);
    for pair in pages(&whole) {
        let device = copy_of(&whole);
        pair.iter().for_each(|at| flip(&device, *at));
        let found = check_device(&device, &CheckOptions::default()).unwrap();
        assert!(found.findings.iter().all(|finding| finding.kind != FindingKind::PageCopy), "{:?}", found.findings);
        assert!(!found.is_clean() && found.is_repairable());
        match Pool::open(&device, &OpenOptions::default()) {
            Err(error) => {
                assert!(matches!(error, PoolError::Damaged { at, .. } if at == pair[0]), "{error}");
                refused += 1;
            }
            Ok(pool) => {
                let damaged: Vec<String> = pool.info().damaged.into_iter().map(|(name, _)| name).collect();
                assert!(!damaged.is_empty() && damaged.len() < NAMES.len(), "{damaged:?}");
                drop(pool.create_volume("new", 1 << 20).unwrap());
                damaged.iter().for_each(|name| pool.delete(name).unwrap());
                assert_eq!(pool.info().quarantined_bytes, 0);
                pool.close().unwrap();
                assert_eq!(check_device(&device, &CheckOptions::default()).unwrap().findings, []);
                quarantined += 1;
            }
        }
        // A repair writes both copies of the pages that are left.
        let device = copy_of(&whole);
        pair.iter().for_each(|at| flip(&device, *at));
        assert!(check_device(&device, &CheckOptions::default().repair(true)).unwrap().repaired);
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        assert_eq!((scrub(&pool), pool.info().metadata_copies), ((0, 0), 2));
        for pair in pool.inner.lock().tree.pages.pairs_in_use() {
            assert_ne!(pair[0] < MEMBER, pair[1] < MEMBER, "the copies lie on different members");
        }
    }
    assert!(refused >= 4 && quarantined >= 8, "{refused} {quarantined}");
}

#[test]
fn a_check_names_a_bad_copy_and_a_repair_writes_it_where_it_was() {
    let whole = pool(Checksum::Crc32c);
    let before = bytes_of(&whole);
    for at in pages(&whole).into_iter().flatten() {
        let device = copy_of(&whole);
        flip(&device, at);
        let found = check_device(&device, &CheckOptions::default()).unwrap();
        let kinds: Vec<_> = found.findings.iter().map(|finding| (finding.kind, finding.place.address)).collect();
        assert_eq!(kinds, [(FindingKind::PageCopy, Some(at))], "{:?}", found.findings);
        assert!(check_device(&device, &CheckOptions::default().repair(true)).unwrap().repaired);
        assert!(bytes_of(&device) == before, "the copy at {at} is as it was, and so is all else");
    }
}

#[test]
fn a_pool_with_two_copies_that_is_full_flushes_deletes_and_leaks_nothing() {
    let device = device();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    let free = |pool: &Pool| {
        let info = pool.info();
        info.free_bytes + info.pending_bytes
    };
    let before = free(&pool);
    for round in 0..3 {
        let (volume, token) = (pool.create_volume("v", 64 << 30).unwrap(), MayBlock::on_worker());
        // Each unit in a leaf of its own: as much metadata as data.
        let mut at = 0;
        while let Ok(piece) = volume.map_blocking(at, 4096, Intent::Write, &token) {
            volume.end_write(WriteDone::new(at, 4096, Status::Ok, &[piece]), &token).unwrap();
            at += 16 << 20;
        }
        assert!(at >= 40 * (16 << 20), "round {round}: {at}");
        drop(volume);
        pool.sync().unwrap();
        {
            let state = pool.inner.lock();
            let pairs = state.tree.pages.pairs_in_use().len() as u64;
            assert_eq!(pairs, state.tree.pages.used());
            assert_eq!(state.tree.units.counts().meta % 2, 0, "units of metadata come in pairs");
        }
        pool.delete("v").unwrap();
        pool.sync().unwrap();
        pool.inner.checkpoint().unwrap();
        assert_eq!(free(&pool), before, "round {round}: all of it is free again");
    }
    pool.close().unwrap();
    assert_eq!(check_device(&device, &CheckOptions::default()).unwrap().findings, []);
}

#[test]
fn a_check_finds_a_unit_that_has_second_copies_and_other_pages() {
    let whole = pool(Checksum::None);
    let pages = pages(&whole);
    let (sb, _) = crate::engine::recovery::newest_superblock(&DeviceIo::new(&whole).unwrap()).unwrap();
    // The root of the table names a second copy in another unit of pages.
    let other = pages.iter().map(|pair| pair[0] / UNIT).find(|unit| *unit != sb.table.address / UNIT);
    let second = other.unwrap_or(pages[0][0] / UNIT + 1) as u32;
    let mut wrong = sb.clone();
    wrong.table.second = second;
    let io = DeviceIo::new(&whole).unwrap();
    for sb in [wrong.stand_by(), wrong] {
        let mut block = [0; BLOCK];
        let at = sb.encode(&mut block);
        io.write(at, &block).unwrap();
    }
    drop(io);
    let error = Pool::open(&whole, &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, PoolError::Damaged { .. }), "{error}");
    let found = check_device(&whole, &CheckOptions::default()).unwrap();
    assert!(found.findings.iter().any(|finding| finding.kind == FindingKind::SharedWrongly), "{:?}", found.findings);
}

#[test]
fn a_pool_that_grows_keeps_the_number_of_its_copies() {
    for copies in [1, 2] {
        let device = open_device("linear:over=ram:size=8M").unwrap();
        Pool::create(&device, &CreateOptions { metadata_copies: Some(copies), ..CreateOptions::default() }).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        drop(pool.create_volume("b", 8 << 30).unwrap());
        pool.sync().unwrap();
        pool.add_member(&open_device("ram:size=8M").unwrap(), &crate::AddOptions::default()).unwrap();
        // More leaves than the only unit of pages has room for.
        (0..20).for_each(|leaf| write(&pool, "b", leaf << 24));
        pool.sync().unwrap();
        pool.inner.checkpoint().unwrap();
        assert_eq!(pool.info().metadata_copies, copies);
        let pairs = pool.inner.lock().tree.pages.pairs_in_use();
        assert_eq!(pairs.is_empty(), copies == 1);
        let apart = |pair: &[u64; 2]| (pair[0] < MEMBER) != (pair[1] < MEMBER);
        assert!(copies == 1 || pairs.iter().any(apart), "new pages lie on both members: {pairs:?}");
        pool.close().unwrap();
        assert_eq!(check_device(&device, &CheckOptions::default()).unwrap().findings, []);
    }
}

/// References of pools with one and with two copies survive a round trip through the disk format.
#[test]
fn a_reference_has_its_second_unit_on_the_disk() {
    let (geometry, place) = (crate::format::block::samples::superblock(65536).geometry(), [7; 16]);
    let place =
        crate::format::page::PagePlace { pool: place, generation: 1, address: 1 << 20, second: 0, index: 0, owner: 1 };
    let geometry = crate::format::superblock::Geometry { paired: true, total_units: 1 << 32, ..geometry };
    for second in [17, 0xFFF, 0x1000, 0xF000, 0x1_0000, 0xFFFF_FFFE] {
        let page = crate::format::page::PageRef { address: 700 << 16, checksum: 9, second };
        let mut block = [0; BLOCK];
        let own = index::encode(&mut block, &place, 1, &[page]);
        let expect = crate::format::page::Expect { pool: [7; 16], generation: 1, page: own, index: 0 };
        let mut children = [Default::default(); crate::format::INDEX_CHILDREN];
        index::decode(&block, &geometry, &expect, 1, &mut children).unwrap();
        assert_eq!(children[0], page, "{second:#x}");
        let plain = crate::format::superblock::Geometry { paired: false, ..geometry };
        assert!(index::decode(&block, &plain, &expect, 1, &mut children).is_err(), "a pool with one copy has none");
    }
}

/// The reserve counts pages, each of which takes space for two: a pool that is full of data still has room for all
/// pages that are reserved for metadata.
#[test]
fn a_pool_with_two_copies_that_is_full_of_data_has_all_pages_of_the_reserve() {
    let device = device();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    let (volume, token) = (pool.create_volume("v", 64 << 30).unwrap(), MayBlock::on_worker());
    let mut at = 0;
    while let Ok(piece) = volume.map_blocking(at, 4096, Intent::Write, &token) {
        volume.end_write(WriteDone::new(at, 4096, Status::Ok, &[piece]), &token).unwrap();
        at += UNIT;
    }
    assert!(at > 100 * UNIT, "{at}");
    drop(volume);
    pool.sync().unwrap();
    let state = pool.inner.lock();
    let (there, promised) = (state.tree.pages.available(&state.tree.units), state.spare_pages);
    assert!(there + state.pages_due() >= promised, "{there} pages of {promised}");
    drop(state);
    // Volumes can be created while half of the reserve is there.
    drop(pool.create_volume("w", 1 << 20).unwrap());
    pool.snapshot("v", "s").unwrap();
    pool.close().unwrap();
}

struct Counted {
    io: DeviceIo,
    flushes: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl BlockIo for Counted {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.io.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

/// V33: two copies cost writes but no flush, in a commit and in a checkpoint.
#[test]
fn two_copies_take_no_more_flushes_than_one() {
    for copies in [1, 2] {
        let device = device();
        Pool::create(&device, &CreateOptions { metadata_copies: Some(copies), ..CreateOptions::default() }).unwrap();
        let flushes = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
        let io = Counted { io: DeviceIo::new(&device).unwrap(), flushes: flushes.clone() };
        let pool = Pool::open_through(&device, Box::new(io), &OpenOptions::default()).unwrap();
        drop(pool.create_volume("v", 1 << 30).unwrap());
        write(&pool, "v", 0);
        flushes.store(0, Ordering::SeqCst);
        pool.sync().unwrap();
        assert_eq!(flushes.swap(0, Ordering::SeqCst), 2, "a commit of records with {copies} copies");
        write(&pool, "v", UNIT);
        pool.inner.checkpoint().unwrap();
        assert_eq!(flushes.swap(0, Ordering::SeqCst), 3, "a checkpoint with {copies} copies");
        pool.close().unwrap();
    }
}
