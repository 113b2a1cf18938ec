//! V32: pools whose first 8 KiB were overwritten. A copy of the superblock replaces both, and the check reports that.
#![cfg(not(shuttle))]

use crate::support::{User, open, pattern};
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::format::SUPERBLOCKS;
use sheave_vol::superblock::{COPY_GRID, Superblock, copy_places};
use sheave_vol::{
    AddOptions, CheckOptions, CheckReport, CreateOptions, FindingKind, OpenOptions, Pool, PoolError, check_device, join,
};

const UNIT: u64 = 65536;
const SIZE: u64 = 64 << 20;

fn ram(bytes: u64) -> Device {
    open_device(&format!("ram:size={bytes}")).expect("opens")
}

fn put(device: &Device, at: u64, bytes: &[u8]) {
    DeviceIo::new(device).expect("attaches").write(at, bytes).expect("writes");
}

fn get(device: &Device, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    DeviceIo::new(device).expect("attaches").read(at, &mut bytes).expect("reads");
    bytes
}

fn copy(device: &Device) -> Device {
    let other = ram(device.size_bytes());
    put(&other, 0, &get(device, 0, device.size_bytes() as usize));
    other
}

fn checked(device: &Device, repair: bool) -> CheckReport {
    check_device(device, &CheckOptions::default().repair(repair)).expect("checks")
}

/// Makes a pool with a volume of 20 written units. It is closed, or as a crash leaves it, with records in the journal.
fn pool(options: &CreateOptions, close: bool) -> Device {
    let device = ram(SIZE);
    Pool::create(&device, options).expect("formats");
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    (0..20).for_each(|unit| user.write(unit * UNIT, &pattern(unit, UNIT as usize)).expect("writes"));
    user.sync().expect("syncs");
    drop(user);
    if close {
        pool.close().expect("closes");
    }
    device
}

fn holds(pool: &Pool) {
    let user = User::new(pool.open_volume("v").expect("is there"));
    assert!((0..20).all(|unit| user.read(unit * UNIT, UNIT as usize).expect("reads") == pattern(unit, UNIT as usize)));
}

fn places() -> [u64; 2] {
    copy_places(SIZE, UNIT).expect("it is large enough")
}

/// Damages both superblocks: with zeroes, with other data as `sfdisk` leaves it (a protective partition table, then the
/// GPT), or by a few flipped bytes.
fn ruin(device: &Device, how: usize) {
    match how {
        0 => put(device, 0, &[0; 8192]),
        1 => put(device, 0, &[0x55; 8192]),
        _ => SUPERBLOCKS.into_iter().for_each(|at| {
            let mut block = get(device, at, 4096);
            block[200] ^= 1;
            put(device, at, &block);
        }),
    }
}

#[test]
fn a_pool_whose_superblocks_are_lost_is_rebuilt_from_a_copy() {
    for unit in [4096, UNIT, 1 << 20] {
        for close in [true, false] {
            for how in 0..3 {
                let what = format!("units of {unit}, closed {close}, ruined {how}");
                let device = pool(&CreateOptions::default().unit_bytes(unit), close);
                ruin(&device, how);
                let error = Pool::open(&device, &OpenOptions::default()).expect_err("it has no superblock");
                let words = format!("byte {} has a copy, of checkpoint", places()[0].min(places()[1]));
                let text = error.to_string();
                assert!(text.contains("has a copy, of checkpoint") && text.contains("--repair"), "{what}: {text}");
                assert!(
                    places().iter().any(|at| text.contains(&format!("byte {at} has"))),
                    "{what}: {words} in {text}"
                );
                let before = get(&device, 0, SIZE as usize);
                let rescued = Pool::open(&device, &OpenOptions::default().rescue(true)).expect("is read");
                holds(&rescued);
                assert!(rescued.info().unsure.iter().any(|said| said.contains("both superblocks are lost")), "{what}");
                drop(rescued);
                let report = checked(&device, false);
                assert!(report.is_repairable(), "{what}: {:?}", report.findings);
                let lost = report.findings.iter().filter(|found| found.kind == FindingKind::Superblock);
                assert!(lost.clone().count() == 2, "{what}: {:?}", report.findings);
                for found in lost {
                    assert!(found.means.contains("A copy of the superblock at byte"), "{what}: {found}");
                    assert_eq!(found.means.contains("The pool was not closed"), !close, "{what}: {found}");
                }
                assert!(get(&device, 0, SIZE as usize) == before, "{what}: nothing is written without a repair");
                assert!(checked(&device, true).repaired, "{what}");
                assert!(checked(&device, false).is_clean(), "{what}");
                let pool = open(&device);
                holds(&pool);
                pool.close().expect("closes");
                assert!(checked(&device, false).is_clean(), "{what}");
            }
        }
    }
}

/// After each checkpoint each copy is as new as the superblocks and sufficient alone. The check reports a damaged copy
/// of a closed pool, and the next opening repairs it.
#[test]
fn each_copy_is_of_the_newest_checkpoint() {
    let device = pool(&CreateOptions::default(), true);
    let block = |at: u64| get(&device, at, 4096).try_into().expect("a block");
    let newest = SUPERBLOCKS
        .map(|at| Superblock::decode(&block(at), at, u64::MAX).expect("intact"))
        .into_iter()
        .max_by_key(|sb| sb.generation)
        .expect("two");
    for at in places() {
        assert_eq!(Superblock::decode_copy(&block(at), at, u64::MAX).expect("intact"), newest);
        assert!(Superblock::decode(&block(at), at, u64::MAX).is_err(), "it is no superblock");
        let other = copy(&device);
        put(&other, at, &[0xee; 4096]);
        let report = checked(&other, false);
        assert!(report.is_repairable() && report.findings.len() == 1, "{:?}", report.findings);
        assert_eq!(report.findings[0].place.address, Some(at));
        let mended = copy(&other);
        assert!(checked(&mended, true).repaired && checked(&mended, false).is_clean());
        ruin(&other, 0);
        assert!(checked(&other, true).repaired, "the other copy is enough");
        open(&other).close().expect("closes");
        assert!(checked(&other, false).is_clean());
    }
    // The check reports a copy of an earlier checkpoint.
    let old = places().map(|at| get(&device, at, 4096));
    open(&device).close().expect("closes");
    put(&device, places()[1], &old[1]);
    let report = checked(&device, false);
    assert!(
        report.findings.len() == 1 && report.findings[0].means.contains("it is of checkpoint"),
        "{:?}",
        report.findings
    );
}

/// An old copy is never used as the newest state: the journal has blocks of a later opening.
#[test]
fn a_copy_that_is_older_than_the_journal_is_refused() {
    let device = pool(&CreateOptions::default(), true);
    let old = places().map(|at| get(&device, at, 4096));
    for _ in 0..2 {
        let pool = open(&device);
        let user = User::new(pool.open_volume("v").expect("is there"));
        user.write(30 * UNIT, &pattern(1, 4096)).expect("writes");
        user.punch(30 * UNIT, UNIT).expect("punches");
        user.sync().expect("syncs");
    }
    places().into_iter().zip(&old).for_each(|(at, block)| put(&device, at, block));
    ruin(&device, 0);
    let report = checked(&device, false);
    assert!(report.findings.iter().any(|found| found.kind == FindingKind::SuperblockLost), "{:?}", report.findings);
    assert!(!report.is_repairable());
}

/// The places of the copies belong to the pool: no volume gets them, however full it is, and no trim discards them.
#[test]
fn no_volume_and_no_trim_uses_the_places_of_copies() {
    let device = ram(SIZE);
    Pool::create(&device, &CreateOptions::default().discard(true)).expect("formats");
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    let full = (0..1024u64).find(|unit| user.write(unit * UNIT, &[7; UNIT as usize]).is_err()).expect("is full");
    assert!(full > 900, "{full}");
    user.sync().expect("syncs");
    let given = user.volume.extents(0, 1 << 30).expect("is open");
    for at in places() {
        let inside =
            given.iter().find(|extent| extent.addr > 0 && (extent.addr..extent.addr + extent.len).contains(&at));
        assert!(inside.is_none(), "byte {at}: {inside:?}");
    }
    drop(user);
    pool.delete("v").expect("deletes");
    pool.trim(&mut |_| std::ops::ControlFlow::Continue(())).expect("trims");
    while pool.discard_freed().expect("discards") > 0 {}
    pool.close().expect("closes");
    assert!(checked(&device, false).is_clean());
    for at in places() {
        assert!(Superblock::decode_copy(&get(&device, at, 4096).try_into().unwrap(), at, u64::MAX).is_ok());
    }
}

/// After adding a member or growing, the copies do not lie where a new pool of that size has them.
#[test]
fn copies_of_a_pool_that_has_grown_are_found() {
    let (a, b) = (pool(&CreateOptions::default(), true), ram(SIZE));
    let grown = open(&a);
    grown.add_member(&b, &AddOptions::default()).expect("adds");
    drop(grown);
    let all = |a: &Device, b: &Device| join("a+b", &[copy(a), copy(b)]).expect("joins");
    let device = copy(&all(&a, &b));
    assert!(device.size_bytes() == 2 * SIZE && copy_places(2 * SIZE, UNIT) != copy_places(SIZE, UNIT));
    ruin(&device, 1);
    assert!(checked(&device, true).repaired);
    let pool = open(&device);
    assert_eq!(pool.info().members.len(), 2);
    holds(&pool);
}

/// A pool of an older program has no copies. An upgrade adds them, also if it is cut off and repeated.
#[test]
fn an_upgrade_gives_a_pool_copies() {
    let device = pool(&CreateOptions::default(), true);
    for at in SUPERBLOCKS {
        let mut block = get(&device, at, 4096).try_into().expect("a block");
        let sb = Superblock::decode(&block, at, u64::MAX).expect("intact");
        Superblock { copies: [0; 2], owner: [0; 16], labels_at: 0, ..sb }.encode(&mut block);
        put(&device, at, &block);
    }
    places().into_iter().for_each(|at| put(&device, at, &[0; 4096]));
    assert!(checked(&device, false).is_clean());
    let pool = open(&device);
    holds(&pool);
    // Data lies at the places where a new pool has its copies.
    let names: Vec<&str> = pool.upgrades().iter().map(|upgrade| upgrade.name).collect();
    assert_eq!(names, ["owners", "copies"]);
    let user = User::new(pool.create_volume("w", 1 << 30).expect("creates"));
    let taken = (0..600u64).find(|unit| {
        user.write(unit * UNIT, &[9; UNIT as usize]).expect("there is room");
        user.volume.extents(unit * UNIT, UNIT).expect("is open")[0].addr == places()[0]
    });
    user.sync().expect("syncs");
    drop(user);
    assert_eq!(pool.upgrade().expect("upgrades").len(), 2);
    assert!(pool.upgrades().is_empty());
    pool.close().expect("closes");
    assert!(checked(&device, false).is_clean());
    let block = get(&device, 0, 4096).try_into().expect("a block");
    let sb = Superblock::decode(&block, 0, u64::MAX).expect("intact");
    assert!(sb.copies.iter().all(|at| *at > 0 && at.is_multiple_of(COPY_GRID)), "{:?}", sb.copies);
    assert!(taken.is_none() || sb.copies[0] != places()[0], "data stays where it is");
    ruin(&device, 0);
    assert!(checked(&device, true).repaired);
    holds(&open(&device));
}

/// A device without a pool, and a pool too small for copies, give the same errors as before copies existed.
#[test]
fn without_a_copy_there_is_no_pool() {
    let device = ram(SIZE);
    let error = Pool::open(&device, &OpenOptions::default()).expect_err("nothing is there");
    assert!(matches!(error, PoolError::Format { .. }) && error.to_string().contains("there is no pool"), "{error}");
    let report = checked(&device, false);
    assert!(!report.is_repairable() && report.findings.iter().all(|found| found.kind == FindingKind::NoPool));
    assert_eq!(copy_places(32 << 20, 1 << 20), Some([16 << 20, 30 << 20]));
    assert_eq!([copy_places((32 << 20) - 1, 1 << 20), copy_places(127 * 4096, 4096)], [None, None]);
    assert_eq!(copy_places(128 * 4096, 4096), Some([64 * 4096, 112 * 4096]));
}

/// Writes a volume of one unit into a pool and closes it. Returns the superblock.
fn written(device: &Device) -> Superblock {
    let pool = open(device);
    let user = User::new(pool.create_volume("small", 1 << 20).expect("creates"));
    user.write(0, &pattern(7, 4096)).expect("writes");
    user.sync().expect("syncs");
    drop(user);
    pool.close().expect("closes");
    newest(device)
}

/// Verifies that a pool without superblocks is rebuilt from either copy alone.
fn is_rebuilt(device: &Device, sb: &Superblock) {
    for lost in [0, 1] {
        let device = copy(device);
        ruin(&device, 0);
        put(&device, sb.copies[lost], &[0; 4096]);
        assert!(checked(&device, true).repaired, "{:?}", sb.copies);
        let pool = open(&device);
        let user = User::new(pool.open_volume("small").expect("is there"));
        assert_eq!(user.read(0, 4096).expect("reads"), pattern(7, 4096));
        drop(user);
        pool.close().expect("closes");
        assert!(checked(&device, false).is_clean());
    }
}

/// V32 for pools below 32 MiB: new ones, grown ones, ones with another member behind them, and ones of older programs
/// that were upgraded.
#[test]
fn small_pools_have_copies_too() {
    for (bytes, unit) in [(16 << 20, UNIT), (31 << 20, 4096), (4 << 20, 4096), (24 << 20, 131_072)] {
        let device = ram(bytes);
        Pool::create(&device, &CreateOptions::default().unit_bytes(unit)).expect("formats");
        let sb = written(&device);
        assert_eq!(Some(sb.copies), copy_places(bytes, unit), "{bytes} in {unit}");
        is_rebuilt(&device, &sb);
        // The pool lies on a larger device and has grown.
        let grown = ram(48 << 20);
        put(&grown, 0, &get(&device, 0, bytes as usize));
        let pool = open(&grown);
        pool.grow().expect("grows");
        pool.close().expect("closes");
        is_rebuilt(&grown, &written_again(&grown, &sb));
        // A pool as an older program made it opens unchanged, and has copies once it is upgraded.
        let old = copy(&device);
        let mut without = sb.clone();
        without.copies = [0; 2];
        for sb in [without.stand_by(), without] {
            let mut block = [0; 4096];
            let at = sb.encode(&mut block);
            put(&old, at, &block);
        }
        let pool = open(&old);
        assert_eq!(pool.upgrades().iter().map(|upgrade| upgrade.name).collect::<Vec<_>>(), ["copies"]);
        pool.sync().expect("syncs");
        assert_eq!(pool.upgrade().expect("upgrades").len(), 1);
        pool.close().expect("closes");
        is_rebuilt(&old, &newest(&old));
    }
}

/// Returns the newer superblock.
fn newest(device: &Device) -> Superblock {
    let decode = |at: u64| Superblock::decode(&get(device, at, 4096).try_into().expect("a block"), at, u64::MAX);
    SUPERBLOCKS.into_iter().filter_map(|at| decode(at).ok()).max_by_key(|sb| sb.generation).expect("one is intact")
}

/// Returns the newer superblock, and asserts that the copies have their old places.
fn written_again(device: &Device, before: &Superblock) -> Superblock {
    let sb = newest(device);
    assert_eq!(sb.copies, before.copies);
    sb
}
