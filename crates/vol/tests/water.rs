//! V21: a pool notifies its watches when space becomes low, full, or sufficient again, once each time.
#![cfg(not(shuttle))]

use std::thread;
use std::time::Duration;

use crate::support::{User, open, pattern};
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::{CreateOptions, LowWater, OpenOptions, Pool, PoolError, SpaceNotice, SpaceState, Watch, WhenFull};

const UNIT: u64 = 65536;

fn device(low_water: LowWater) -> Device {
    let device = open_device("ram:size=32M").expect("opens");
    Pool::create(&device, &CreateOptions::default().low_water(low_water)).expect("formats");
    device
}

/// Writes units from `at` on while `go` returns true. Returns the first unit that was not written.
fn write_while(user: &User, mut at: u64, go: impl Fn(u64) -> bool) -> u64 {
    while go(at) {
        user.write(at * UNIT, &pattern(at, 4096)).expect("there is room");
        at += 1;
    }
    at
}

/// Returns the state that a watch reports, and asserts that it reports only one.
fn told(watch: &mut Watch) -> Option<SpaceState> {
    let notice = watch.changed();
    assert_eq!(watch.changed(), None, "each is told once");
    notice.map(|notice| notice.state)
}

#[test]
fn each_change_of_space_state_is_notified_once() {
    let device = device(LowWater::Percent(25));
    let pool = open(&device);
    let mut watch = pool.watch();
    let (mark, before) = (pool.info().low_water_bytes, pool.info());
    assert_eq!((mark, before.state, before.low_water), (8 << 20, SpaceState::Ok, LowWater::Percent(25)));
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    let free = || pool.info().free_bytes;
    let at = write_while(&user, 0, |_| free() > mark);
    assert_eq!((told(&mut watch), pool.info().state), (None, SpaceState::Ok), "at the mark it is ok");
    let at = write_while(&user, at, |_| free() >= mark);
    assert_eq!((told(&mut watch), pool.info().state), (Some(SpaceState::Low), SpaceState::Low));
    // Free space moves around the mark, but does not rise a quarter above it: the state stays low, without a notice.
    for round in 0..3 {
        user.punch((at - 20) * UNIT, 20 * UNIT).expect("discards");
        user.sync().expect("syncs");
        assert!(free() > mark && free() < mark + mark / 4, "{round}");
        assert_eq!((told(&mut watch), pool.info().state), (None, SpaceState::Low), "{round}");
        write_while(&user, at - 20, |unit| unit < at);
        assert_eq!(told(&mut watch), None, "{round}");
    }
    let end = write_while(&user, at, |_| free() > 0);
    assert_eq!((told(&mut watch), pool.info().state), (Some(SpaceState::Full), SpaceState::Full));
    assert_eq!(user.write(end * UNIT, &pattern(1, 4096)), Err(Status::NoSpc));
    assert_eq!(user.write(end * UNIT, &pattern(1, 4096)), Err(Status::NoSpc), "again, and nothing is told");
    assert_eq!(told(&mut watch), None);
    user.punch((end - 10) * UNIT, 10 * UNIT).expect("discards");
    user.sync().expect("syncs");
    assert_eq!(told(&mut watch), Some(SpaceState::Low));
    user.punch(0, end * UNIT).expect("discards");
    user.sync().expect("syncs");
    assert_eq!((told(&mut watch), pool.info().state), (Some(SpaceState::Ok), SpaceState::Ok));
}

#[test]
fn a_write_to_a_shared_unit_crosses_a_mark_too() {
    let device = device(LowWater::Off);
    let pool = open(&device);
    let mut watch = pool.watch();
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    let half = pool.info().free_bytes / UNIT / 2 + 4;
    write_while(&user, 0, |unit| unit < half);
    pool.snapshot("v", "s").expect("snapshots");
    let full = (0..half).find(|unit| user.write(unit * UNIT, &pattern(9, 4096)).is_err());
    assert!(full.is_some_and(|unit| unit > 100), "{full:?}");
    assert_eq!((told(&mut watch), pool.info().state), (Some(SpaceState::Full), SpaceState::Full), "no mark, no low");
    pool.delete("s").expect("deletes");
    pool.sync().expect("syncs");
    assert_eq!(told(&mut watch), Some(SpaceState::Ok));
}

#[test]
fn the_mark_is_kept_and_can_be_changed() {
    let device = device(LowWater::Bytes(4 << 20));
    let pool = open(&device);
    let mut early = pool.watch();
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    write_while(&user, 0, |_| pool.info().free_bytes >= 4 << 20);
    assert_eq!(told(&mut early), Some(SpaceState::Low));
    assert_eq!(pool.watch().changed().map(|notice| notice.state), Some(SpaceState::Low), "who comes late is told");
    drop(user);
    pool.close().expect("closes");
    assert!(early.is_closed() && early.wait(Duration::from_secs(60)).is_none(), "a closed pool tells nothing more");
    // After each opening the state is known at once, and reported once.
    let pool = open(&device);
    let info = pool.info();
    assert_eq!((info.state, info.low_water), (SpaceState::Low, LowWater::Bytes(4 << 20)));
    let mut watch = pool.watch();
    assert_eq!((told(&mut watch), told(&mut watch)), (Some(SpaceState::Low), None));
    pool.set_low_water(LowWater::Percent(2)).expect("sets");
    assert_eq!((told(&mut watch), pool.info().state), (Some(SpaceState::Ok), SpaceState::Ok));
    assert_eq!(told(&mut pool.watch()), None, "there is nothing to warn of");
    // Dropped without a close: the new mark is durable.
    drop(pool);
    let pool = open(&device);
    assert_eq!((pool.info().low_water, pool.info().state), (LowWater::Percent(2), SpaceState::Ok));
    pool.set_low_water(LowWater::Off).expect("sets");
    pool.close().expect("closes");
    let looking = OpenOptions::default().read_only(true);
    let pool = Pool::open(&device, &looking).expect("opens");
    assert_eq!((pool.info().low_water, pool.info().low_water_bytes), (LowWater::Off, 0));
    assert!(matches!(pool.set_low_water(LowWater::Off), Err(PoolError::Invalid { .. })), "read-only");
}

#[test]
fn marks_that_cannot_be_are_refused() {
    let device = open_device("ram:size=32M").expect("opens");
    for low_water in [LowWater::Percent(0), LowWater::Percent(100), LowWater::Bytes(0)] {
        let options = CreateOptions::default().low_water(low_water);
        let error = Pool::create(&device, &options).expect_err("refused").to_string();
        assert!(error.contains("1% to 99%"), "{error}");
    }
    Pool::create(&device, &CreateOptions::default()).expect("formats");
    let pool = open(&device);
    assert_eq!(pool.info().low_water, LowWater::Percent(10));
    assert!(pool.set_low_water(LowWater::Percent(100)).is_err());
}

#[test]
fn one_who_waits_is_woken() {
    let device = device(LowWater::Percent(50));
    let pool = open(&device);
    let mut watch = pool.watch();
    assert_eq!(watch.wait(Duration::from_millis(30)), None, "nothing happens");
    let (tell, hear) = std::sync::mpsc::channel::<Option<SpaceNotice>>();
    let waiter = thread::spawn(move || {
        loop {
            let notice = watch.wait(Duration::from_secs(60));
            tell.send(notice).expect("somebody listens");
            if notice.is_none() {
                return watch.is_closed();
            }
        }
    });
    let next = || hear.recv_timeout(Duration::from_secs(30)).expect("woken");
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    write_while(&user, 0, |_| pool.info().state == SpaceState::Ok);
    let low = next().expect("a notice");
    assert_eq!((low.number, low.state, low.low_water_bytes), (1, SpaceState::Low, 16 << 20));
    assert!(low.free_bytes < low.low_water_bytes && !low.metadata_low);
    drop(user);
    pool.delete("v").expect("deletes");
    pool.sync().expect("syncs");
    assert_eq!(next().map(|notice| (notice.number, notice.state)), Some((2, SpaceState::Ok)));
    drop(pool);
    assert_eq!(next(), None);
    assert!(waiter.join().expect("ends"), "it sees that the pool has closed, and did not keep it open");
}

#[test]
fn metadata_that_runs_short_is_told() {
    let device = open_device("ram:size=16M").expect("opens");
    let options = CreateOptions::default().unit_bytes(4096).low_water(LowWater::Off);
    Pool::create(&device, &options).expect("formats");
    let open_options = OpenOptions::default().when_full(WhenFull::Error);
    let pool = Pool::open(&device, &open_options).expect("opens");
    let mut watch = pool.watch();
    let user = User::new(pool.create_volume("v", 1 << 40).expect("creates"));
    // Fills all data space, with maps of many leaves: one block in each 1 MiB takes a page for its leaf.
    let mut at = 0u64;
    while user.write(at << 20, &pattern(at, 4096)).is_ok() {
        at += 1;
    }
    user.sync().expect("syncs");
    let mut copies = 0;
    let refused = loop {
        match pool.snapshot("v", &format!("s{copies}")) {
            Ok(()) => copies += 1,
            Err(error) => break error,
        }
        for unit in 0..40u64 {
            // Each write copies the nodes on its path, which it shared with the snapshot. The data finds no room.
            let _ = user.write(((unit + copies * 40) % at) << 20, &pattern(7, 4096));
        }
        pool.sync().expect("a full pool syncs");
        assert!(copies < 10_000, "metadata takes no space: {:?}", pool.info());
    };
    assert!(matches!(refused, PoolError::Full { .. }), "{refused}");
    let info = pool.info();
    assert!(info.metadata_low, "{info:?}");
    let newest = watch.changed().expect("was told");
    assert!(newest.metadata_low && newest.state == SpaceState::Full, "{newest:?}");
}
