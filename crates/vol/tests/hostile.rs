//! Pools that somebody made up: opening one takes bounded memory and bounded work, or is refused (contract V18, V19).
//!
//! Owns the images. Work is counted by what opening would have to do, not by the clock; a test that hangs is killed.
#![cfg(not(shuttle))]

mod support;

use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::format::{BLOCK, MAX_VOLUMES, SUPERBLOCKS};
use sheave_vol::journal::{Commit, Ring};
use sheave_vol::record::Record;
use sheave_vol::superblock::{Superblock, choose};
use sheave_vol::{CheckOptions, CreateOptions, OpenOptions, Pool, PoolError, check_device};
use support::open;

/// A pool whose journal of 64 MiB holds these records, as many as there is room for.
fn with_journal(records: impl Iterator<Item = Record>) -> Device {
    let device = open_device("ram:size=1G").expect("opens");
    let options = CreateOptions { journal_bytes: Some(64 << 20), ..CreateOptions::default() };
    Pool::create(&device, &options).expect("formats");
    let io = DeviceIo::new(&device).expect("attaches");
    let slots = SUPERBLOCKS.map(|at| {
        let mut block = [0; BLOCK];
        io.read(at, &mut block).expect("reads");
        Superblock::decode(&block, at, u64::MAX)
    });
    let mut sb = choose(slots).expect("a pool").0;
    (sb.clean, sb.generation) = (false, sb.generation + 1);
    let mut block = [0; BLOCK];
    let at = sb.encode(&mut block);
    io.write(at, &block).expect("writes");
    let mut commit = Commit::with_capacity(1);
    for record in records {
        commit.push(&sb.geometry(), &record);
        if commit.blocks() + 1 >= u64::from(sb.journal_blocks) {
            break;
        }
    }
    let ring = Ring::of(&sb);
    commit.seal(&ring, sb.replay_seq);
    commit.pieces(&ring, sb.replay_seq).for_each(|(at, bytes)| io.write(at, bytes).expect("writes"));
    device
}

fn volume(volume: u32) -> Record {
    let (size, max_size, name) = (1 << 30, 1 << 50, volume.to_string());
    Record::Create { volume, grows: false, size, max_size, created: 0, name }
}

fn set(unit: u64) -> Record {
    Record::Set { volume: 1, unit, phys: 2000, written: [1, 0, 0, 0] }
}

fn refused(device: &Device) -> String {
    let report = check_device(device, &CheckOptions::default()).expect("checks");
    assert!(!report.is_clean(), "what does not open is not clean");
    let error = Pool::open(device, &OpenOptions::default()).expect_err("it is refused");
    assert!(matches!(error, PoolError::Damaged { .. }), "{error}");
    error.to_string()
}

#[test]
fn runs_over_and_over_are_refused() {
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

/// A volume of 1 PiB that has one unit at its end: cutting it, copying it, deleting it looks at what it has, and not at
/// a quarter of a million slots that are empty.
#[test]
fn empty_space_is_not_walked_through() {
    let far = (1u64 << 34) - 1;
    let resize = |size| Record::Resize { volume: 1, size };
    let cut = (0..).flat_map(|_| [set(far), resize(1 << 50), resize(4096)]);
    drop(open(&with_journal([volume(1)].into_iter().chain(cut))));
    let discard = Record::Run { volume: 1, unit: 0, count: far + 1, phys: 0 };
    let discard = (0..).flat_map(|_| [set(far), discard.clone()]);
    drop(open(&with_journal([volume(1)].into_iter().chain(discard))));
    let copy = |volume| Record::Copy {
        volume,
        source: 1,
        snapshot: true,
        grows: false,
        size: 1 << 50,
        max_size: 1 << 50,
        created: 0,
        name: volume.to_string(),
    };
    let copies = (2..).flat_map(|volume| [copy(volume), Record::Delete { volume }]);
    drop(open(&with_journal([volume(1), set(far)].into_iter().chain(copies))));
}

#[test]
fn a_uuid_of_zeroes_is_refused_when_the_pool_is_made() {
    let device = open_device("ram:size=16M").expect("opens");
    let options = CreateOptions { uuid: Some([0; 16]), ..CreateOptions::default() };
    assert!(matches!(Pool::create(&device, &options), Err(PoolError::Invalid { .. })));
}
