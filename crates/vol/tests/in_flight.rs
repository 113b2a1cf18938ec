//! I/O that is in flight while its volume, or a related volume, frees the space (contract V1, V17).
//!
//! Owns a slow device: a test maps an I/O as a ring does, changes volumes, and only then transfers the data.
#![cfg(not(shuttle))]

use std::thread;
use std::time::Duration;

use crate::support::{User, format, open, pattern};
use sheave_base::grace::{Grace, Phase, Seat};
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::mapping::Intent;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::{OpenOptions, Pool, PoolError, Volume};

const UNIT: u64 = 65536;

/// A read that was looked up and counted, and has not been sent to the device.
struct SlowRead {
    addr: u64,
    seat: Seat,
    phase: Phase,
    io: DeviceIo,
}

impl SlowRead {
    fn begin(volume: &Volume, pos: u64) -> SlowRead {
        let seat = Grace::seat(volume.grace().expect("volumes have one"));
        seat.enter();
        let addr = volume.map(pos, 4096, Intent::Read).expect("the range is written").addr;
        let phase = seat.count();
        seat.leave();
        SlowRead { addr, seat, phase, io: DeviceIo::new(volume.device()).expect("attaches") }
    }

    /// Returns the current content of the device at the read's address.
    fn look(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        self.io.read(self.addr, &mut bytes).expect("reads");
        bytes
    }

    fn end(self) -> Vec<u8> {
        let bytes = self.look();
        self.seat.uncount(self.phase);
        bytes
    }
}

/// Parts that two relatives share when a test begins.
#[derive(Clone, Copy, Debug)]
enum Shared {
    /// The nodes of their maps, and all units.
    Nodes,
    /// Only units; each volume has its own nodes.
    Units,
}

/// Makes a volume `a` with a unit of pattern 1 at `pos`, and its clone `b`.
fn cloned(pos: u64, shared: Shared) -> (Pool, User, User) {
    let device = open_device("ram:size=64M").expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    let a = User::new(pool.create_volume("a", 8 << 20).expect("creates"));
    a.write(pos, &pattern(1, UNIT as usize)).expect("writes");
    a.sync().expect("syncs");
    pool.clone_volume("a", "b").expect("clones");
    let b = User::new(pool.open_volume("b").expect("opens"));
    if let Shared::Units = shared {
        for user in [&a, &b] {
            user.write(pos + UNIT, &pattern(9, 4096)).expect("writes");
            user.sync().expect("syncs");
        }
        pool.info(); // `info` frees all deferred units that are ready.
    }
    (pool, a, b)
}

/// Begins a slow read of `b` in a unit that it shares with `a`. Meanwhile `let_go` makes `b` free the unit, and `a` is
/// written.
fn read_while(pos: u64, let_go: impl Fn(&Pool, &User)) {
    for shared in [Shared::Nodes, Shared::Units] {
        read_while_shared(pos, shared, &let_go);
    }
}

fn read_while_shared(pos: u64, shared: Shared, let_go: &dyn Fn(&Pool, &User)) {
    let (pool, a, b) = cloned(pos, shared);
    let read = SlowRead::begin(&b.volume, pos);
    let_go(&pool, &b);
    b.sync().expect("syncs");
    pool.info(); // `info` frees all deferred units that are ready.
    a.write(pos, &pattern(3, 4096)).expect("writes");
    a.sync().expect("syncs");
    assert!(
        read.look() == pattern(1, UNIT as usize)[..4096],
        "V1: a read of b shows what was written to a later, {shared:?}"
    );
    read.end();
    assert!(a.read(pos, 4096).expect("reads") == pattern(3, 4096), "a has what was written to it");
    drop((a, b));
    pool.close().expect("closes");
}

#[test]
fn a_read_of_a_clone_that_is_written_meanwhile_shows_nothing_of_its_source() {
    read_while(0, |_, b| b.write(0, &pattern(2, 4096)).expect("writes"));
}

#[test]
fn a_read_of_a_clone_that_is_discarded_meanwhile_shows_nothing_of_its_source() {
    read_while(0, |_, b| b.punch(0, UNIT).expect("punches"));
}

#[test]
fn a_read_of_a_clone_that_is_cut_meanwhile_shows_nothing_of_its_source() {
    read_while(1 << 20, |pool, _| pool.resize("b", UNIT).expect("cuts"));
}

#[test]
fn a_unit_has_one_owner_again_when_the_read_has_ended() {
    let (pool, a, b) = cloned(0, Shared::Nodes);
    let read = SlowRead::begin(&b.volume, 0);
    b.punch(0, UNIT).expect("punches");
    b.sync().expect("syncs");
    read.end();
    let before = pool.info().data_bytes;
    let shared = SlowRead::begin(&a.volume, 0);
    a.write(0, &pattern(3, 4096)).expect("writes");
    assert_eq!(shared.end(), pattern(3, 4096), "the write went to the unit that the clone had too");
    assert_eq!(pool.info().data_bytes, before, "and nothing was copied");
}

/// Chains of clones, each of which frees its units in turn while one slow read of the last goes on.
#[test]
fn reads_of_one_clone_stay_what_they_were_whatever_its_relatives_do() {
    let (pool, a, b) = cloned(0, Shared::Units);
    let mut others = vec![a];
    for round in 0..6u64 {
        let name = format!("c{round}");
        pool.clone_volume("b", &name).expect("clones");
        others.push(User::new(pool.open_volume(&name).expect("opens")));
        let read = SlowRead::begin(&b.volume, 0);
        let now = read.look();
        b.write(0, &pattern(100 + round, 4096)).expect("writes");
        b.sync().expect("syncs");
        for (number, other) in (0..).zip(&others) {
            other.write(0, &pattern(200 + 10 * round + number, 4096)).expect("writes");
            other.sync().expect("syncs");
            assert!(read.look() == now, "round {round}: what was written to relative {number}");
        }
        read.end();
        assert!(b.read(0, 4096).expect("reads") == pattern(100 + round, 4096));
    }
}

/// A snapshot fails because a write does not end. Later writes go to the same unit as that write, and neither loses
/// data.
#[test]
fn a_snapshot_that_gives_up_moves_nothing_under_writes_that_are_in_flight() {
    let device = open_device("ram:size=64M").expect("opens");
    format(&device, UNIT);
    let options = OpenOptions::default().longest_wait(Duration::from_millis(20));
    let pool = Pool::open(&device, &options).expect("opens");
    let user = User::new(pool.create_volume("a", 8 << 20).expect("creates"));
    user.write(0, &pattern(1, 4096)).expect("writes");
    for round in 0..3u64 {
        let slow = user.start(8192, &pattern(10 + round, 4096)).expect("begins");
        let copied = if round == 1 { pool.clone_volume("a", "s") } else { pool.snapshot("a", "s") };
        assert!(matches!(copied, Err(PoolError::Busy { .. })), "{copied:?}");
        user.write(0, &pattern(20 + round, 4096)).expect("writes");
        user.write(16384, &pattern(30 + round, 4096)).expect("writes");
        user.end(slow).expect("ends");
        for (pos, tag) in [(0, 20), (8192, 10), (16384, 30)] {
            assert!(user.read(pos, 4096).expect("reads") == pattern(tag + round, 4096), "round {round}, at {pos}");
        }
        assert_eq!(pool.info().data_bytes, UNIT, "and no unit was copied");
    }
    pool.snapshot("a", "s").expect("a snapshot when the write has ended");
    drop(user);
    pool.close().expect("closes");
}

/// V26: a rollback returns after all I/O that got its place before it has ended: reads and writes of mapped units, and
/// first writes, whose units the volume does not have afterwards (V8).
#[test]
fn a_rollback_returns_when_what_was_in_flight_has_ended() {
    for grows in [false, true] {
        let device = open_device("ram:size=64M").expect("opens");
        format(&device, UNIT);
        let pool = open(&device);
        let made =
            if grows { pool.create_growing_volume("a", UNIT, 8 << 20) } else { pool.create_volume("a", 8 << 20) };
        let user = User::new(made.expect("creates"));
        user.write(0, &pattern(1, UNIT as usize)).expect("writes");
        pool.snapshot("a", "s").expect("takes a snapshot");
        let size = user.volume.size_bytes();
        user.write(0, &pattern(2, UNIT as usize)).expect("writes");
        for round in 0..3 {
            let read = SlowRead::begin(&user.volume, 0);
            let at = if round == 0 { 4096 } else { 2 * UNIT };
            let write = user.start(at, &pattern(3, 4096)).expect("begins");
            thread::scope(|scope| {
                let rolled_back = scope.spawn(|| pool.rollback("a", "s"));
                thread::sleep(Duration::from_millis(50));
                assert!(!rolled_back.is_finished(), "it waits for a read and a write");
                read.end();
                thread::sleep(Duration::from_millis(50));
                assert!(!rolled_back.is_finished(), "it waits for a write, round {round}");
                user.end(write).expect("ends");
                rolled_back.join().expect("no panic").expect("rolls back");
            });
            assert_eq!(user.volume.size_bytes(), size);
            assert!(
                user.read(0, UNIT as usize).expect("reads") == pattern(1, UNIT as usize),
                "V8: what the snapshot is"
            );
            if !grows {
                assert!(user.read(2 * UNIT, 4096).expect("reads").iter().all(|byte| *byte == 0), "V8: a hole");
            }
            user.write(0, &pattern(4 + round, 4096)).expect("writes");
        }
        drop(user);
        pool.close().expect("closes");
    }
}

/// V9: a write to the part that is cut off is in flight while a volume is cut within a block.
#[test]
fn what_is_cut_off_within_a_block_stays_away_whatever_is_in_flight() {
    let device = open_device("ram:size=64M").expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    let user = User::new(pool.create_volume("a", 1 << 20).expect("creates"));
    user.write(0, &pattern(1, UNIT as usize)).expect("writes");
    let slow = SlowRead::begin(&user.volume, 0);
    thread::scope(|scope| {
        let cut = scope.spawn(|| pool.resize("a", 1024));
        while user.volume.size_bytes() != 1024 {
            thread::yield_now();
        }
        assert!(!cut.is_finished(), "it waits for what is in flight");
        assert!(user.write(1024, &[9; 512]).is_err(), "and nothing more begins");
        pool.sync().expect("syncs");
        // The write in flight writes behind the new end.
        slow.io.write(slow.addr + 1024, &pattern(9, 3072)).expect("writes");
        slow.end();
        cut.join().expect("no panic").expect("cuts");
    });
    pool.resize("a", 1 << 20).expect("grows");
    assert!(user.read(0, 1024).expect("reads") == pattern(1, 1024));
    assert!(user.read(1024, 3072).expect("reads").iter().all(|byte| *byte == 0), "V9: what was cut off is back");
}

/// A discard ends at the end of the volume, within a block, and waits for a write. Meanwhile the volume grows and is
/// written behind that end.
#[test]
fn a_discard_up_to_an_end_that_moves_keeps_what_is_written_behind_it() {
    // The last block is one of several in its unit; in the second case the whole unit is discarded.
    for end in [2 * UNIT + 8192 + 512, 3 * UNIT - 512] {
        let device = open_device("ram:size=64M").expect("opens");
        format(&device, UNIT);
        let pool = open(&device);
        let user = User::new(pool.create_volume("a", end).expect("creates"));
        user.write(4096, &pattern(1, (end - 4096) as usize)).expect("writes");
        let slow = user.start(0, &pattern(2, 4096)).expect("begins");
        thread::scope(|scope| {
            let punched = scope.spawn(|| User::new(pool.open_volume("a").expect("opens")).punch(4096, end - 4096));
            while user.volume.holders().is_empty() {
                thread::yield_now();
            }
            pool.resize("a", 4 * UNIT).expect("grows");
            user.write(end, &pattern(3, 512)).expect("writes behind the end of what is discarded");
            user.end(slow).expect("ends");
            punched.join().expect("no panic").expect("discards");
        });
        assert!(user.read(0, 4096).expect("reads") == pattern(2, 4096));
        assert!(user.read(4096, (end - 4096) as usize).expect("reads").iter().all(|byte| *byte == 0), "{end}");
        assert!(user.read(end, 512).expect("reads") == pattern(3, 512), "a write was lost, {end}");
        drop(user);
        pool.close().expect("closes");
    }
}

#[test]
fn a_volume_that_cannot_be_cut_keeps_its_size() {
    let device = open_device("ram:size=64M").expect("opens");
    format(&device, UNIT);
    let options = OpenOptions::default().longest_wait(Duration::from_millis(20));
    let pool = Pool::open(&device, &options).expect("opens");
    let user = User::new(pool.create_volume("a", 1 << 20).expect("creates"));
    user.write(0, &pattern(1, UNIT as usize)).expect("writes");
    let slow = SlowRead::begin(&user.volume, 0);
    assert!(matches!(pool.resize("a", 1024), Err(PoolError::Busy { .. })));
    assert_eq!((user.volume.size_bytes(), pool.volume_info("a").expect("is there").size_bytes), (1 << 20, 1 << 20));
    slow.end();
    assert!(user.read(0, UNIT as usize).expect("reads") == pattern(1, UNIT as usize), "nothing was zeroed");
}

/// After a stop of the process (SIGSTOP, the freezer of a container, a paused VM) the clock is far ahead and all I/O is
/// where it was. A wait for that I/O must not count the time of the stop.
#[test]
fn time_in_which_the_process_was_stopped_is_no_wait() {
    let device = open_device("ram:size=64M").expect("opens");
    format(&device, UNIT);
    let options = OpenOptions::default().longest_wait(Duration::from_secs(3));
    let pool = Pool::open(&device, &options).expect("opens");
    let user = User::new(pool.create_volume("a", 8 << 20).expect("creates"));
    user.write(0, &pattern(1, 8192)).expect("writes");
    let slow = user.start(16384, &pattern(2, 4096)).expect("begins");
    thread::scope(|scope| {
        let punched = scope.spawn(|| User::new(pool.open_volume("a").expect("opens")).punch(0, 4096));
        thread::sleep(Duration::from_millis(100));
        assert!(!punched.is_finished(), "it waits for the write");
        let stop = format!("kill -STOP {0}; sleep 4; kill -CONT {0}", std::process::id());
        let mut shell = std::process::Command::new("sh").args(["-c", &stop]).spawn().expect("a shell");
        // The write takes another half second of this thread, whatever the clock shows.
        (0..50).for_each(|_| thread::sleep(Duration::from_millis(10)));
        assert!(shell.wait().expect("it ends").success());
        user.end(slow).expect("ends");
        punched.join().expect("no panic").expect("the hole is made when the write has ended");
    });
    assert!(user.read(0, 4096).expect("reads").iter().all(|byte| *byte == 0), "a hole");
    assert!(user.read(16384, 4096).expect("reads") == pattern(2, 4096));
    drop(user);
    pool.close().expect("closes");
}
