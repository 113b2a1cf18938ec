//! Forged pools: opening one takes bounded memory and bounded work, or is refused (contract V18, V19).
//!
//! Owns the images. Work is measured by the number of operations that an opening needs, not by the clock. The test
//! runner kills a test that hangs.
#![cfg(not(shuttle))]

use crate::support::hostile::{copy, newest, set, set_in, volume};
use crate::support::open;
use std::collections::BTreeMap;

use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::format::{BLOCK, INDEX_CHILDREN, MAX_LEVEL, MAX_SUMS, MAX_VOLUMES};
use sheave_vol::page::{PagePlace, PageRef, index, sums};
use sheave_vol::record::Record;
use sheave_vol::{CheckOptions, Checksum, CreateOptions, FindingKind, OpenOptions, Pool, PoolError, check_device};

fn with_journal(records: impl Iterator<Item = Record>) -> Device {
    crate::support::hostile::with_journal(Checksum::None, true, false, records)
}

fn refused(device: &Device) -> String {
    let report = check_device(device, &CheckOptions::default()).expect("checks");
    assert!(!report.is_clean(), "what does not open is not clean");
    let error = Pool::open(device, &OpenOptions::default()).expect_err("it is refused");
    assert!(matches!(error, PoolError::Damaged { .. }), "{error}");
    error.to_string()
}

/// Returns the finding of a check about a journal that exceeds a limit, if there is one.
fn too_far(device: &Device) -> Option<String> {
    let report = check_device(device, &CheckOptions::default()).expect("checks");
    let found = report.findings.into_iter().find(|finding| finding.kind == FindingKind::Journal);
    found.map(|finding| finding.means)
}

#[test]
fn too_many_mapping_runs_are_refused() {
    let run = Record::Run { volume: 1, unit: 0, count: 14_000, phys: 1100 };
    let device = with_journal([volume(1)].into_iter().chain(std::iter::repeat(run)));
    assert!(refused(&device).contains("journal"));
}

#[test]
fn more_volumes_than_there_may_be_are_refused() {
    let device = with_journal((1..=MAX_VOLUMES + 1).map(volume));
    assert!(refused(&device).contains("journal"));
    let device = with_journal((1..=2000).map(volume));
    assert_eq!(open(&device).info().volumes, 2000);
}

#[test]
fn more_leaves_than_a_journal_can_change_are_refused() {
    let device = with_journal([volume(1)].into_iter().chain((0..).map(|leaf| set(leaf << 8))));
    assert!(refused(&device).contains("pages of maps"), "as many as that would take GiB of memory");
}

/// Nodes that copies share count once: a pool can make a hundred snapshots of leaves that no checkpoint contains, and
/// continue.
#[test]
fn pages_of_maps_that_copies_share_count_once() {
    let name = "1".into();
    let (size, max_size) = (1 << 40, 1 << 50);
    let create = Record::Create { volume: 1, grows: false, size, max_size, created: 0, name };
    let set = |leaf: u64| Record::Set { volume: 1, unit: leaf << 8, phys: 2000 + leaf, written: [1, 0, 0, 0] };
    let again = (0..17_000).map(|_| set(0));
    let records = [create].into_iter().chain((0..340).map(set)).chain((2..=100).map(copy)).chain(again);
    let device = with_journal(records);
    let report = check_device(&device, &CheckOptions::default()).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(open(&device).info().volumes, 100);
}

/// A check has the same limit as an opening. Counted are leaves, and the nodes above them, that are made, changed, or
/// copied.
#[test]
fn a_check_counts_the_pages_of_maps_that_opening_counts() {
    let leaves = |of: std::ops::Range<u64>| of.map(|leaf| set(leaf << 8));
    let most = 32_768 - 128;
    for (more, opens) in [(0, true), (1, false)] {
        let device = with_journal([volume(1)].into_iter().chain(leaves(0..most + more)));
        assert_eq!(too_far(&device).is_none(), opens, "{more} more than {most}");
        assert_eq!(Pool::open(&device, &OpenOptions::default()).is_ok(), opens, "{more} more than {most}");
    }
    // Half of the limit, and the other half in a copy. Dropped nodes do not count.
    let half = most / 2;
    let copied = |leaves: u64| (0..leaves).map(|leaf| set_in(2, leaf << 8 | 1));
    for (more, opens) in [(0, true), (1, false)] {
        let gone = [volume(7)].into_iter().chain((0..1000).map(|leaf| set_in(7, leaf << 8)));
        let records = [volume(1)].into_iter().chain(gone).chain([Record::Delete { volume: 7 }]);
        let device = with_journal(records.chain(leaves(0..half)).chain([copy(2)]).chain(copied(half + more)));
        let (found, opened) = (too_far(&device), Pool::open(&device, &OpenOptions::default()));
        assert_eq!((found.is_none(), opened.is_ok()), (opens, opens), "{more} more than {half} twice: {found:?}");
    }
}

/// Leaves of the checkpoint that the journal changes count too, though no record makes them.
#[test]
fn a_check_counts_pages_of_the_checkpoint_that_the_journal_changes() {
    let device = with_journal([volume(1)].into_iter().chain((0..32_000).map(|leaf| set(leaf << 8))));
    open(&device).close().expect("closes");
    let more = (0..32_700).map(|leaf| set(leaf << 8 | 1));
    let io = DeviceIo::new(&device).expect("attaches");
    let mut sb = newest(&io);
    (sb.clean, sb.generation) = (false, sb.generation + 1);
    crate::support::hostile::write_journal(&io, &sb, false, more);
    let said = too_far(&device).expect("a finding");
    assert!(said.contains("pages of maps") && refused(&device).contains("pages of maps"), "{said}");
    // 32,641 leaves and the 128 nodes above them are one too many. The check reports what a repair would remove.
    let report = check_device(&device, &CheckOptions::default()).expect("checks");
    let mut repairs = report.findings.iter().filter_map(|finding| finding.repair.as_deref());
    let told = repairs.any(|repair| repair.contains("none of the 59 behind it: what these say is lost"));
    assert!(told, "{:?}", report.findings);
    assert!(check_device(&device, &CheckOptions::default().repair(true)).expect("repairs").repaired);
    drop(open(&device));
}

/// A volume of 1 PiB has one unit at its end. Cutting, copying and deleting it visit only that unit, and not a quarter
/// of a million empty slots.
#[test]
fn empty_space_is_not_walked_through() {
    let far = (1u64 << 34) - 1;
    let resize = |size| Record::Resize { volume: 1, size };
    // Just within the limit on costs: each round makes two nodes and changes the size twice.
    let cut = (0..100_000).flat_map(|_| [set(far), resize(1 << 50), resize(4096)]);
    drop(open(&with_journal([volume(1)].into_iter().chain(cut))));
    let discard = Record::Run { volume: 1, unit: 0, count: far + 1, phys: 0 };
    let discard = (0..200_000).flat_map(|_| [set(far), discard.clone()]);
    drop(open(&with_journal([volume(1)].into_iter().chain(discard))));
    // Nearly as many copies as a journal of this size can have: each is a commit, and a commit takes a block.
    let copies = (2..16_000).flat_map(|volume| [copy(volume), Record::Delete { volume }]);
    drop(open(&with_journal([volume(1), set(far)].into_iter().chain(copies))));
}

#[test]
fn more_changes_of_the_table_than_there_are_blocks_are_refused() {
    let copies = (2..).flat_map(|volume| [copy(volume), Record::Delete { volume }]);
    assert!(refused(&with_journal([volume(1)].into_iter().chain(copies))).contains("one change too many"));
    let name = |at: u64| Record::Rename { volume: 1, name: format!("v{}", at & 1) };
    assert!(refused(&with_journal([volume(1)].into_iter().chain((0..).map(name)))).contains("one change too many"));
}

/// Nodes that are made and dropped again are not dirty, so the limit on dirty nodes does not count them. Records of
/// sizes are small, so the size of the journal does not limit them.
#[test]
fn more_nodes_and_sizes_than_a_journal_makes_are_refused() {
    let discard = Record::Run { volume: 1, unit: 5, count: 1, phys: 0 };
    let cycles = (0..).flat_map(|_| [set(5), discard.clone()]);
    assert!(refused(&with_journal([volume(1)].into_iter().chain(cycles))).contains("more work on maps"));
    let sizes = (0..).map(|at| Record::Resize { volume: 1, size: 4096 * (1 + (at & 1)) });
    assert!(refused(&with_journal([volume(1)].into_iter().chain(sizes))).contains("more work on maps"));
    let origins = std::iter::repeat(Record::Origin { volume: 1, origin: 0 });
    assert!(refused(&with_journal([volume(1)].into_iter().chain(origins))).contains("one change too many"));
}

/// Sharing maps and copying shared nodes is much work for a few bytes of a record.
#[test]
fn more_copies_of_maps_than_a_journal_makes_are_refused() {
    let wide = || [volume(1)].into_iter().chain((0..4000).map(|slot| set(slot << 16)));
    let rollbacks = std::iter::repeat(Record::Rollback { volume: 1, source: 2 });
    let all = wide().chain([copy(2)]).chain(rollbacks);
    assert!(refused(&with_journal(all)).contains("more work on maps than one journal makes"));
    let copies = (2..).flat_map(|number| {
        let leaves = (0..200).map(move |leaf| set_in(number, leaf << 9));
        [copy(number)].into_iter().chain(leaves).chain([Record::Delete { volume: number }])
    });
    let dense = [volume(1)].into_iter().chain((0..200).map(|leaf| set(leaf << 9)));
    assert!(refused(&with_journal(dense.chain(copies))).contains("more work on maps than one journal makes"));
}

#[test]
fn more_open_regions_than_a_pool_has_are_refused() {
    let intents = (0..).map(|at| Record::Intent { first: at << 11, count: 1 << 11 });
    let device = crate::support::hostile::with_journal(Checksum::Crc32c, true, false, intents);
    assert!(refused(&device).contains("journal"));
    // Regions beyond the end of the pool do not count.
    let beyond = (0..).map(|at| Record::Intent { first: 1 << 20 | at, count: 1 });
    drop(open(&crate::support::hostile::with_journal(Checksum::Crc32c, true, false, beyond.take(1000))));
}

/// A check has the same limit as an opening: a region counts once, however many records open it.
#[test]
fn a_check_counts_the_open_regions_that_opening_counts() {
    let with = |records: &[Record]| {
        let spec = "ram:size=20G";
        crate::support::hostile::with_journal_on(spec, Checksum::Crc32c, true, false, records.iter().cloned())
    };
    let intent = |first, count| Record::Intent { first, count };
    let cases: [(&[Record], bool); 4] = [
        (&[intent(0, 4096)], true),
        (&[intent(0, 4096), intent(1000, 96)], true),
        (&[intent(0, 4097)], false),
        (&[intent(0, 4096), intent(4099, 1)], false),
    ];
    for (records, opens) in cases {
        let device = with(records);
        let found = too_far(&device);
        assert_eq!(found.is_none(), opens, "{records:?}: {found:?}");
        assert!(found.is_none_or(|found| found.contains("open regions")));
        assert_eq!(Pool::open(&device, &OpenOptions::default()).is_ok(), opens, "{records:?}");
    }
}

/// Makes a pool whose tree of checksums has the largest height. The tree has region 0, which is open, and empty index
/// pages of level 1 with the numbers `empty`.
fn with_sums(empty: &[u64]) -> Device {
    let device = open_device("ram:size=64M").expect("opens");
    Pool::create(&device, &CreateOptions::default().checksum(Checksum::Crc32c)).expect("formats");
    let io = DeviceIo::new(&device).expect("attaches");
    let mut sb = newest(&io);
    sb.generation += 1;
    let mut address = 40 << 20;
    let mut write = |index, encode: &dyn Fn(&mut [u8; BLOCK], &PagePlace) -> PageRef| {
        let (mut block, at) = ([0; BLOCK], address);
        let place = PagePlace { pool: sb.pool, generation: sb.generation, address: at, second: 0, index, owner: 0 };
        let page = encode(&mut block, &place);
        io.write(at, &block).expect("writes");
        address += BLOCK as u64;
        (index, page)
    };
    let geometry = sb.geometry();
    let region = |block: &mut _, place: &_| {
        sums::encode(block, &geometry, place, true, &[0; MAX_SUMS], &sums::Marked::default())
    };
    let mut pages = BTreeMap::from([write(0, &region)]);
    for level in 1..=MAX_LEVEL {
        let none = [PageRef::NONE; INDEX_CHILDREN];
        let mut above: BTreeMap<u64, _> = empty.iter().filter(|_| level == 1).map(|index| (*index, none)).collect();
        for (index, page) in pages {
            let children = above.entry(index / INDEX_CHILDREN as u64).or_insert(none);
            children[index as usize % INDEX_CHILDREN] = page;
        }
        let written = above
            .into_iter()
            .map(|(at, children)| write(at, &|block: &mut _, place: &_| index::encode(block, place, level, &children)));
        pages = written.collect();
    }
    (sb.sums, sb.sums_level) = (pages[&0], MAX_LEVEL);
    let mut block = [0; BLOCK];
    let at = sb.encode(&mut block);
    io.write(at, &block).expect("writes");
    device
}

/// Reading the last possible page of level 1 would take memory for all pages before it, and its regions would need more
/// pages of a checkpoint.
#[test]
fn pages_of_checksums_beyond_the_end_of_the_pool_are_refused() {
    for beyond in [1, 1 << 8, (1 << 24) - 1] {
        let device = with_sums(&[beyond]);
        assert!(refused(&device).contains("a page of checksums"));
        let rescued = Pool::open(&device, &OpenOptions::default().rescue(true)).expect("all else is well");
        assert_eq!(rescued.info().unsure.len(), 1, "{:?}", rescued.info().unsure);
        drop(rescued);
        assert!(check_device(&device, &CheckOptions::default().repair(true)).expect("repairs").repaired);
        drop(open(&device));
    }
    drop(open(&with_sums(&[])));
}

#[test]
fn a_uuid_of_zeroes_is_refused_when_the_pool_is_made() {
    let device = open_device("ram:size=16M").expect("opens");
    let options = CreateOptions::default().uuid(Some([0; 16]));
    assert!(matches!(Pool::create(&device, &options), Err(PoolError::Invalid { .. })));
}
