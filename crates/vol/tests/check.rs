//! The offline check on pools that the pool's own code wrote: clean after any work and any end. A damaged block of
//! metadata is refused by opening or named by the check, and never used.
#![cfg(not(shuttle))]

use crate::support::{User, format, open, pattern};
use sheave_base::rng::Rng;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block::identify;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::format::kind;
use sheave_vol::{CheckOptions, CheckReport, FindingKind, OpenOptions, Pool, check_device};

fn report(device: &Device) -> CheckReport {
    check_device(device, &CheckOptions::default().repair(false)).expect("the check itself works")
}

/// Does random work: writes of all alignments, discards, snapshots, clones, rollbacks, deletions, resizes, syncs.
fn work(pool: &Pool, rng: &mut Rng, steps: usize) {
    for step in 0..steps {
        let names: Vec<String> = pool.volumes().into_iter().map(|info| info.name).collect();
        let name = names[rng.below(names.len() as u64) as usize].clone();
        let info = pool.volume_info(&name).expect("it is there");
        let random = rng.draw();
        let result = match random % 16 {
            0 if names.len() < 12 => pool.snapshot(&name, &format!("s{step}-{}", random % 9999)),
            1 if names.len() < 12 => pool.clone_volume(&name, &format!("c{step}-{}", random % 9999)),
            2 if names.len() > 3 => pool.delete(&name),
            3 if !info.snapshot => pool.resize(&name, (random >> 8) % (24 << 20) / 512 * 512),
            4 if !info.snapshot => match info.origin {
                Some(origin) => pool.rollback(&name, &origin),
                None => Ok(()),
            },
            5 => pool.rename(&name, &format!("n{step}-{}", random % 9999)),
            6 => pool.sync(),
            _ if info.snapshot || info.size_bytes == 0 => Ok(()),
            what => {
                let user = User::new(pool.open_volume(&name).expect("opens"));
                let len = 4096 * (1 + (random >> 20) % 40);
                let pos = (random >> 30) % info.size_bytes / 4096 * 4096;
                let len = len.min(info.size_bytes.saturating_sub(pos) / 4096 * 4096);
                match what {
                    _ if len == 0 => {}
                    7 => user.punch(pos, len).expect("punches"),
                    _ => user.write(pos, &pattern(random, len as usize)).expect("writes"),
                }
                Ok(())
            }
        };
        if let Err(error) = result {
            let text = error.to_string();
            assert!(["in use", "already", "rolled back"].iter().any(|word| text.contains(word)), "{text}");
        }
    }
}

#[test]
fn pools_are_clean_after_any_work_and_any_end() {
    for seed in sheave_testkit::seeds(6) {
        let unit = 4096 << (seed % 9);
        let device = open_device("ram:size=256M").expect("opens");
        format(&device, unit);
        let mut rng = Rng::new(seed);
        let pool = open(&device);
        pool.create_volume("a", 16 << 20).expect("creates");
        pool.create_volume("b", 16 << 20).expect("creates");
        drop(pool);
        for round in 0..4 {
            let pool = open(&device);
            work(&pool, &mut rng, 60);
            if round % 2 == 0 {
                pool.sync().expect("syncs");
            }
            if round == 3 {
                pool.close().expect("closes");
            } else {
                drop(pool);
            }
            let found = report(&device);
            assert_eq!(found.findings, [], "SHEAVE_SEED={seed}, units of {unit}, round {round}");
            let pool = open(&device);
            let info = pool.info();
            let totals = found.totals;
            assert_eq!(info.data_bytes, totals.data_units * unit, "SHEAVE_SEED={seed}, round {round}: {totals:?}");
            assert_eq!(u64::from(info.volumes), totals.volumes, "SHEAVE_SEED={seed}, round {round}");
            drop(pool);
        }
    }
}

/// Makes a pool that uses all kinds of metadata, dropped with a journal to replay.
fn small_pool() -> (Device, Vec<(String, Vec<u8>)>) {
    let device = open_device("linear:over=ram:size=8M+ram:size=8M").expect("opens");
    format(&device, 65536);
    let pool = open(&device);
    pool.create_volume("vm", 4 << 30).expect("creates");
    let user = User::new(pool.open_volume("vm").expect("opens"));
    user.write(0, &pattern(1, 200_000 / 4096 * 4096)).expect("writes");
    user.write(1 << 30, &pattern(2, 65536)).expect("writes");
    drop(user);
    pool.snapshot("vm", "vm-monday").expect("snapshots");
    let user = User::new(pool.open_volume("vm").expect("opens"));
    user.write(4096, &pattern(3, 8192)).expect("writes");
    drop(user);
    pool.close().expect("closes");
    let pool = open(&device);
    let user = User::new(pool.open_volume("vm").expect("opens"));
    user.write(2 << 30, &pattern(4, 4096)).expect("writes");
    user.sync().expect("syncs");
    user.write(16384, &pattern(5, 4096)).expect("writes");
    user.sync().expect("syncs");
    drop((user, pool));
    let contents = contents(&device).expect("opens");
    (device, contents)
}

/// Opens a copy of the device, so that the device itself is unchanged, and reads the places that were written.
fn contents(device: &Device) -> Result<Vec<(String, Vec<u8>)>, sheave_vol::PoolError> {
    let copy = copy(device);
    let pool = Pool::open(&copy, &OpenOptions::default())?;
    let mut all = Vec::new();
    for info in pool.volumes() {
        let user = User::new(pool.open_volume(&info.name)?);
        let mut bytes = Vec::new();
        for pos in [0, 1 << 30, 2 << 30] {
            bytes.extend(user.read(pos, 262_144).expect("reads"));
        }
        all.push((info.name, bytes));
    }
    Ok(all)
}

const SIZE: usize = 16 << 20;

fn copy(device: &Device) -> Device {
    let copy = open_device("linear:over=ram:size=8M+ram:size=8M").expect("opens");
    let mut bytes = vec![0; SIZE];
    DeviceIo::new(device).expect("attaches").read(0, &mut bytes).expect("reads");
    DeviceIo::new(&copy).expect("attaches").write(0, &bytes).expect("writes");
    copy
}

/// Returns address and kind of each block of metadata, in use or left over.
fn metadata(device: &Device) -> Vec<(u64, u16)> {
    let mut bytes = vec![0; SIZE];
    DeviceIo::new(device).expect("attaches").read(0, &mut bytes).expect("reads");
    let (blocks, _) = bytes.as_chunks::<4096>();
    let found = (0..).step_by(4096).zip(blocks).filter_map(|(at, block)| Some((at, identify(block).ok()?.0.kind)));
    found.collect()
}

#[test]
fn every_damaged_metadata_block_is_refused_or_named_and_never_served() {
    let (good, expected) = small_pool();
    assert_eq!(report(&good).findings, []);
    let blocks = metadata(&good);
    for wanted in [kind::SUPERBLOCK, kind::JOURNAL, kind::LEAF, kind::INDEX, kind::TABLE, kind::LABEL] {
        assert!(blocks.iter().any(|block| block.1 == wanted), "the pool has a block of kind {wanted}");
    }
    let (mut refused, mut repaired) = (0, 0);
    let mut last_commit = 0;
    for (at, kind) in blocks {
        let device = copy(&good);
        let io = DeviceIo::new(&device).expect("attaches");
        let mut block = [0; 4096];
        io.read(at, &mut block).expect("reads");
        block[(at / 4096 * 37 % 4096) as usize] ^= 0x10;
        io.write(at, &block).expect("writes");
        drop(io);
        let found = report(&device);
        match contents(&device) {
            Ok(read) if read == expected => {
                let spare = found.findings.iter().all(|finding| finding.kind == FindingKind::Superblock);
                assert!(spare, "block {at} of kind {kind}: opens, and yet {:#?}", found.findings);
            }
            Ok(_) => {
                // Damage to the last commit before a crash looks like a torn commit: docs/reference/on-disk-format.md.
                assert_eq!(
                    (kind, last_commit),
                    (kind::JOURNAL, 0),
                    "block {at} of kind {kind}: wrong bytes were served"
                );
                last_commit += 1;
            }
            Err(error) => {
                assert!(!found.is_clean(), "block {at} of kind {kind}: {error}");
                let text = error.to_string();
                let named = text.contains(&at.to_string()) || found.findings[0].place.address == Some(at);
                assert!(named || kind == kind::SUPERBLOCK, "block {at} of kind {kind}: {text} {:#?}", found.findings);
                refused += 1;
            }
        }
        if !found.is_clean() && found.is_repairable() {
            assert!(check_device(&device, &CheckOptions::default().repair(true)).expect("repairs").repaired);
            assert_eq!(report(&device).findings, [], "block {at} of kind {kind}");
            contents(&device).expect("a repaired pool opens");
            repaired += 1;
        }
    }
    assert!(refused >= 6 && repaired >= 6, "{refused} were refused, {repaired} repaired");
    assert_eq!(last_commit, 1);
}

#[test]
fn either_superblock_suffices_after_a_checkpoint() {
    // The changes that a close or a checkpoint makes durable are in no journal block.
    let device = open_device("linear:over=ram:size=8M+ram:size=8M").expect("opens");
    format(&device, 65536);
    let pool = open(&device);
    let user = User::new(pool.create_volume("vm", 4 << 30).expect("creates"));
    user.write(0, &pattern(1, 65536)).expect("writes");
    drop(user);
    pool.close().expect("closes");
    let expected = contents(&device).expect("opens");
    for at in [0, 4096] {
        let damaged = copy(&device);
        let io = DeviceIo::new(&damaged).expect("attaches");
        let mut block = [0; 4096];
        io.read(at, &mut block).expect("reads");
        block[100] ^= 1;
        io.write(at, &block).expect("writes");
        drop(io);
        assert_eq!(contents(&damaged).expect("opens"), expected, "without superblock {at}");
        let found = report(&damaged).findings;
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!((found[0].kind, found[0].place.address), (FindingKind::Superblock, Some(at)));
        assert!(check_device(&damaged, &CheckOptions::default().repair(true)).expect("repairs").repaired);
        assert_eq!(report(&damaged).findings, []);
        assert_eq!(contents(&damaged).expect("opens"), expected, "after the repair");
    }
}
