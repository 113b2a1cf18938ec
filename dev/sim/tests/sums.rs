//! Checksums through real rings: rotten data is reported, whatever happened to the pool before, and good data never is.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use sheave_base::buf::Buf;
use sheave_base::rng::Rng;
use sheave_drivers::open_device;
use sheave_uring::prep;
use sheave_vol::{Checksum, ScrubOptions, Volume};

use crate::support::{BLOCK, EILSEQ, EINVAL, User, format, open, rot, summed};

/// V16.
#[test]
fn a_flipped_bit_is_an_error_until_it_is_written_over() {
    for unit in [4096, 65536, 1 << 20] {
        let (device, pool, mut user) = summed(unit);
        assert_eq!(user.write(1 << 20, 7, 8), 8 * BLOCK as i32);
        let pos = (1 << 20) + 3 * BLOCK as u64;
        assert_eq!(user.tag(pos), Ok(7));
        rot(&device, user.addr(pos));
        assert_eq!(user.tag(pos), Err(EILSEQ));
        assert_eq!(user.read(1 << 20, 8 * BLOCK).0, EILSEQ, "as a part of more");
        assert_eq!(pool.info().checksum_errors, 2);
        assert_eq!(user.tag(pos + BLOCK as u64), Ok(7), "its neighbours are good");
        assert_eq!(user.write(pos, 9, 1), BLOCK as i32);
        assert_eq!(user.tag(pos), Ok(9));
        assert_eq!(user.tag(0), Ok(0), "what was never written is zero, and has no checksum");
    }
}

#[test]
fn without_checksums_nobody_notices() {
    let device = open_device("ram:size=64M").expect("memory");
    format(&device, 65536, Checksum::None);
    let pool = open(&device);
    let mut user = User::new(pool.create_volume("v", 8 << 20).expect("a volume"));
    user.write(0, 7, 1);
    rot(&device, user.addr(0));
    assert_eq!(user.read(0, BLOCK).0, BLOCK as i32);
    assert_eq!(user.read(512, 512).0, 512, "and blocks are the device's");
}

/// V16, after a crash.
#[test]
fn checksums_outlive_closing_and_crashes() {
    for close in [true, false] {
        let (device, pool, mut user) = summed(65536);
        for at in 0..64 {
            assert_eq!(user.write(at * 65536, at as u8 + 1, 16), 65536);
        }
        user.sync();
        // The data is overwritten after the commit that has its checksums.
        assert_eq!(user.write(0, 200, 4), 4 * BLOCK as i32);
        user.sync();
        let addr = user.addr(5 * 65536);
        drop(user);
        if close {
            pool.close().expect("it closes");
            rot(&device, addr);
        } else {
            drop(pool);
        }
        let pool = open(&device);
        assert_eq!(pool.info().recovered, !close);
        let mut user = User::new(pool.open_volume("v").expect("it is there"));
        for at in 0..64 {
            let wanted = if at == 0 { 200 } else { at as u8 + 1 };
            let rotten = close && at == 5;
            assert_eq!(user.tag(at * 65536), if rotten { Err(EILSEQ) } else { Ok(wanted) }, "unit {at}");
        }
        // Once a checkpoint has found no region open, rot is reported after a crash too.
        drop(user);
        pool.close().expect("it closes");
        let pool = open(&device);
        drop(pool);
        rot(&device, addr + BLOCK as u64);
        let pool = open(&device);
        let mut user = User::new(pool.open_volume("v").expect("it is there"));
        assert_eq!(user.tag(5 * 65536 + BLOCK as u64), Err(EILSEQ));
        let report = {
            drop(user);
            drop(pool);
            sheave_vol::check_device(&device, &Default::default()).expect("checks")
        };
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

/// A write overwrites two regions, one of which is not open (V16, V3).
#[test]
fn a_write_across_two_regions_opens_both() {
    let device = open_device("ram:size=128M").expect("memory");
    format(&device, 65536, Checksum::Crc32c);
    let pool = open(&device);
    let mut user = User::new(pool.create_volume("v", 64 << 20).expect("a volume"));
    for at in 0..64 {
        assert_eq!(user.write(at << 20, 1, 256), 1 << 20);
    }
    // 62 units of 64 KiB are a region, and 8 regions are opened together.
    let end = 62 * 8 * 65536;
    let last = (0..1024).map(|at| at * 65536).find(|pos| user.addr(*pos) % end == end - 65536).expect("one");
    assert_eq!(user.addr(last) + 65536, user.addr(last + 65536), "they follow each other");
    drop(user);
    pool.close().expect("it closes");
    let pool = open(&device);
    let mut user = User::new(pool.open_volume("v").expect("it is there"));
    assert_eq!(user.write(last, 2, 32), 32 * BLOCK as i32);
    user.sync();
    drop((user, pool));
    let mut user = User::new(open(&device).open_volume("v").expect("it is there"));
    assert_eq!((user.tag(last), user.tag(last + 65536)), (Ok(2), Ok(2)));
}

#[test]
fn snapshots_share_checksums_and_copies_take_them_along() {
    let (device, pool, mut user) = summed(65536);
    user.write(0, 1, 16);
    pool.snapshot("v", "s").expect("a snapshot");
    pool.clone_volume("s", "c").expect("a clone");
    let mut snapshot = User::new(pool.open_volume("s").expect("it is there"));
    let mut clone = User::new(pool.open_volume("c").expect("it is there"));
    let bad = 9 * BLOCK as u64;
    rot(&device, user.addr(bad));
    for one in [&mut user, &mut snapshot, &mut clone] {
        assert_eq!(one.tag(bad), Err(EILSEQ));
    }
    // The write copies the unit. A bad block stays bad, in the copy as well.
    assert_eq!(user.write(0, 2, 1), BLOCK as i32);
    assert_ne!(user.addr(0), snapshot.addr(0));
    assert_eq!((user.tag(0), snapshot.tag(0), clone.tag(0)), (Ok(2), Ok(1), Ok(1)));
    assert_eq!((user.tag(bad), user.tag(bad + BLOCK as u64)), (Err(EILSEQ), Ok(1)));
    assert_eq!(user.write(bad, 3, 1), BLOCK as i32);
    assert_eq!((user.tag(bad), snapshot.tag(bad)), (Ok(3), Err(EILSEQ)));
    drop((snapshot, clone));
    pool.rollback("v", "s").expect("back");
    assert_eq!((user.tag(0), user.tag(bad)), (Ok(1), Err(EILSEQ)));
}

/// A write copies a group of units that lies in two regions. The region of the wanted unit is open. The other has
/// closed, and its checksums on the device match the data from before the copy (V16).
#[test]
fn a_group_that_is_copied_across_two_regions_opens_both() {
    for (unit, region_units, together) in [(65536, 62, 4), (131_072, 31, 2)] {
        for close in [true, false] {
            let device = open_device("ram:size=128M").expect("memory");
            format(&device, unit, Checksum::Crc32c);
            let pool = open(&device);
            let mut user = User::new(pool.create_volume("v", 32 << 20).expect("a volume"));
            let blocks = unit as usize / BLOCK;
            // Writes until the next free window of a group lies across the end of a region.
            let (mut at, mut window) = (0, 0);
            while window % together != 0 || window / region_units == (window + together - 1) / region_units {
                assert_eq!(user.write(at * unit, at as u8 + 1, blocks), unit as i32);
                window = user.addr(at * unit) / unit + 1;
                at += 1;
            }
            // The region that ends there stays in use, so the next region closes alone although both were opened
            // together.
            let last = (at - 1) * unit;
            for _ in 0..6 {
                assert_eq!(user.write(last, at as u8, 1), BLOCK as i32);
                pool.close_idle().expect("it looks");
            }
            // One more checkpoint, which no longer writes the closed region.
            pool.set_low_water(pool.info().low_water).expect("it is set");
            pool.snapshot("v", "s").expect("a snapshot");
            assert_eq!(user.write(0, 1, 1), BLOCK as i32);
            let lie = [0, together - 1].map(|of_group| user.addr(of_group * unit) / unit);
            assert_eq!(lie, [window, window + together - 1], "the group lies across the end of the region");
            user.sync();
            drop(user);
            if close {
                pool.close().expect("it closes");
            } else {
                drop(pool);
            }
            let pool = open(&device);
            assert_eq!(pool.info().recovered, !close);
            let mut user = User::new(pool.open_volume("v").expect("it is there"));
            for copied in 0..together {
                assert_eq!(user.tag(copied * unit), Ok(copied as u8 + 1), "unit {copied} of {unit} bytes, {close}");
            }
            drop(user);
            let scrubbed = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).expect("scrubs");
            assert!(scrubbed.completed && scrubbed.is_clean(), "{scrubbed:?}");
        }
    }
}

#[test]
fn what_was_discarded_is_zero_and_written_anew() {
    let (device, pool, mut user) = summed(65536);
    user.write(0, 1, 32);
    rot(&device, user.addr(BLOCK as u64));
    let punched = user.run(prep::punch_hole(user.fd, 0, 65536 + 2 * BLOCK as u64)).0;
    assert_eq!(punched, 0);
    assert_eq!((user.tag(BLOCK as u64), user.tag(65536 + 2 * BLOCK as u64)), (Ok(0), Ok(1)));
    pool.sync().expect("it syncs");
    user.write(0, 5, 18);
    assert!((0..32).all(|at| user.tag(at * BLOCK as u64) == Ok(if at < 18 { 5 } else { 1 })));
    assert_eq!(pool.info().checksum_errors, 0);
}

#[test]
fn volumes_of_such_pools_have_blocks_of_4_kib() {
    let (_, pool, mut user) = summed(65536);
    assert_eq!(user.read(512, 512).0, EINVAL);
    assert_eq!(user.read(0, 512).0, EINVAL);
    assert_eq!(user.run(prep::write(user.fd, Buf::zeroed(512, BLOCK).expect("memory"))).0, EINVAL);
    assert!(pool.create_volume("odd", (1 << 20) + 512).is_err());
    assert!(pool.resize("v", (8 << 20) - 512).is_err());
}

/// Several rings write and read the same few blocks at once: each read returns data of these writes, and in the end
/// every block matches its checksum. Checkpoints and snapshots run meanwhile.
#[test]
fn writers_of_the_same_blocks_leave_nothing_that_does_not_match() {
    let device = open_device("ram:size=64M,latency=5us").or_else(|_| open_device("ram:size=64M")).expect("memory");
    format(&device, 65536, Checksum::Crc32c);
    let pool = open(&device);
    pool.create_volume("v", 1 << 20).expect("a volume");
    std::thread::scope(|scope| {
        for number in 0..3_u64 {
            let volume = pool.open_volume("v").expect("it is there");
            scope.spawn(move || race(volume, number));
        }
        for round in 0..6 {
            std::thread::sleep(std::time::Duration::from_millis(30));
            pool.sync().expect("it syncs");
            let name = format!("s{round}");
            pool.snapshot("v", &name).expect("a snapshot");
            let mut snapshot = User::new(pool.open_volume(&name).expect("it is there"));
            (0..32).for_each(|at| assert!(snapshot.read(at * BLOCK as u64, BLOCK).0 > 0));
        }
    });
    let mut user = User::new(pool.open_volume("v").expect("it is there"));
    (0..32).for_each(|at| assert_eq!(user.read(at * BLOCK as u64, BLOCK).0, BLOCK as i32, "block {at}"));
    assert_eq!(pool.info().checksum_errors, 0);
}

fn race(volume: Volume, number: u64) {
    let mut user = User::new(volume);
    let mut rng = Rng::new(number);
    let mut ways: VecDeque<u64> = VecDeque::new();
    for round in 0..3000_u64 {
        for _ in 0..16 {
            let (pos, blocks) = (rng.below(28) * BLOCK as u64, (rng.below(4) + 1) as usize);
            let mut buf = Buf::zeroed(blocks * BLOCK, BLOCK).expect("memory");
            let entry: prep::Entry = if rng.below(3) == 0 {
                prep::read(user.fd, buf).offset(pos).into()
            } else {
                buf.fill(round as u8);
                prep::write(user.fd, buf).offset(pos).into()
            };
            user.ring.push(entry).map_err(|full| full.error).expect("there is room");
            ways.push_back(pos);
        }
        user.ring.submit_and_wait(16).expect("they end");
        let mut seen = 0;
        while seen < 16 {
            for done in user.ring.completions() {
                assert!(done.res > 0, "{done:?} round {round}");
                seen += 1;
            }
            if seen < 16 {
                let _ = user.ring.wait(1, None);
            }
        }
    }
}
