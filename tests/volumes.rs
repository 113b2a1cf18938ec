//! Volumes through rings: durable data survives when the pool is dropped without being closed. Such a drop is a crash
//! that loses no data of the device. Rows of the contract in docs/concepts/volumes.md; the simulator tests devices that
//! lose data.

use std::sync::Arc;
use std::time::Duration;

use sheave::stats::{Activity, IoKind, Place};
use sheave::volumes::{AddOptions, CreateOptions, OpenOptions, Pool, join};
use sheave::{Buf, Device, Fd, Ring, op, open_device};

const MIB: u64 = 1 << 20;

/// Makes a device with a pool that has one volume, `v`.
fn device() -> Device {
    let device = open_device("ram:size=64M").expect("a device");
    Pool::create(&device, &CreateOptions::default()).expect("a pool");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("it opens");
    pool.create_volume("v", 16 * MIB).expect("a volume");
    pool.close().expect("closed");
    device
}

/// Runs `work` on the volume through a ring, then drops everything without closing.
fn crash_after(device: &Device, work: impl FnOnce(&mut Ring, Fd)) {
    let pool = Pool::open(device, &OpenOptions::default()).expect("it opens");
    let volume = pool.open_volume("v").expect("the volume");
    let mut ring = Ring::builder().entries(32).build().expect("a ring");
    let fd = ring.attach_file(Arc::new(volume)).expect("attached");
    work(&mut ring, fd);
}

fn filled(byte: u8, len: usize) -> Buf {
    let mut buf = Buf::zeroed(len, 4096).expect("memory");
    buf.fill(byte);
    buf
}

fn run(ring: &mut Ring, entry: impl op::Op) -> Option<Buf> {
    ring.push(entry).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let done = ring.completions().next().expect("one completion");
    done.result().expect("it went well");
    done.into_buf()
}

/// Returns the first byte of each of these 4 KiB blocks of the volume, after a crash.
fn found(device: &Device, blocks: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    crash_after(device, |ring, fd| {
        for block in blocks {
            let buf = run(ring, op::read(fd, filled(0xee, 4096)).offset(block * 4096)).expect("its buffer");
            assert!(buf.iter().all(|byte| *byte == buf[0]), "block {block} is in one piece");
            bytes.push(buf[0]);
        }
    });
    bytes
}

/// V14, V22: a ring that has a volume attached uses the space of a new member, by the fast path and by the slow one.
#[test]
fn a_ring_uses_a_member_that_came_while_it_ran() {
    use_a_new_member(device(), open_device("ram:size=64M").expect("a device"));
    // Here the kernel ring registers a second file while the first is in use.
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| format!("file:{},size=64M", dir.path().join(name).display());
    let (first, second) = (open_device(&file("a")).expect("a file"), open_device(&file("b")).expect("a file"));
    Pool::create(&first, &CreateOptions::default()).expect("a pool");
    use_a_new_member(first, second);
}

fn use_a_new_member(first: Device, second: Device) {
    let pool = Pool::open(&first, &OpenOptions::default()).expect("it opens");
    let volume = pool.create_volume("large", 512 * MIB).expect("a volume");
    let mut ring = Ring::builder().entries(32).build().expect("a ring");
    let fd = ring.attach_file(Arc::new(volume)).expect("attached");
    let byte = |at: u64, round: u64| (1 + (at + round) % 250) as u8;
    for round in 0..2 {
        for at in 0..100 {
            if at == 50 && round == 0 {
                let size = pool.add_member(&second, &AddOptions::default()).expect("a member");
                assert_eq!(size, 128 * MIB);
            }
            // The first round allocates space, the second overwrites it in runs.
            run(&mut ring, op::write(fd, filled(byte(at, round), MIB as usize)).offset(at * MIB));
        }
        run(&mut ring, op::fsync(fd));
    }
    for batch in 0..25 {
        (0..4).for_each(|at| {
            let at = batch * 4 + at;
            ring.push(op::read(fd, filled(0, MIB as usize)).offset(at * MIB).user_data(at)).expect("room");
        });
        ring.submit_and_wait(4).expect("submitted");
        for done in ring.completions() {
            let at = done.user_data;
            done.result().expect("it went well");
            assert!(done.into_buf().expect("its buffer").iter().all(|have| *have == byte(at, 1)), "MiB {at}");
        }
    }
    drop((ring, pool));
    let both = join("both", &[first, second]).expect("both");
    let pool = Pool::open(&both, &OpenOptions::default()).expect("it opens");
    let info = pool.info();
    assert!(info.members.len() == 2 && info.data_bytes >= 100 * MIB, "{info:?}");
}

/// V2: a write with DSYNC is durable by itself, map included, into a hole and over data.
#[test]
fn a_write_with_dsync_is_there() {
    let device = device();
    crash_after(&device, |ring, fd| {
        run(ring, op::write(fd, filled(1, 4096)).offset(MIB).dsync());
        run(ring, op::write(fd, filled(2, 8192)).offset(3 * MIB).dsync());
        run(ring, op::write(fd, filled(3, 4096)).offset(3 * MIB).dsync());
    });
    assert_eq!(found(&device, &[256, 257, 768, 769, 770]), [1, 0, 3, 2, 0]);
}

/// V3: one flush covers all that ended before it, in all volumes.
#[test]
fn a_flush_makes_all_that_ended_durable() {
    let device = device();
    crash_after(&device, |ring, fd| {
        (0..100).for_each(|n| drop(run(ring, op::write(fd, filled(n as u8 + 1, 4096)).offset((n * 128) << 10))));
        run(ring, op::fsync(fd));
    });
    assert_eq!(found(&device, &(0..100).map(|n| n * 32).collect::<Vec<_>>()), (1..=100).collect::<Vec<u8>>());
    let pool = Pool::open(&device, &OpenOptions::default()).expect("it opens");
    let volumes = ["a", "b"].map(|name| pool.create_volume(name, MIB).expect("a volume"));
    let mut ring = Ring::builder().entries(32).build().expect("a ring");
    let fds = volumes.map(|volume| ring.attach_file(Arc::new(volume)).expect("attached"));
    fds.iter().for_each(|fd| drop(run(&mut ring, op::write(*fd, filled(9, 4096)))));
    run(&mut ring, op::fsync(fds[1]));
    drop((ring, pool));
    let pool = Pool::open(&device, &OpenOptions::default()).expect("it opens");
    assert!(pool.info().recovered);
    for name in ["a", "b"] {
        assert_eq!(pool.volume_info(name).expect(name).written_bytes, 4096, "{name}");
    }
}

/// V4 and V5: discarding and zeroing leave zeroes, at once and durably, exact to the byte within blocks.
#[test]
fn discarded_and_zeroed_ranges_stay_zero() {
    let device = device();
    crash_after(&device, |ring, fd| {
        run(ring, op::write(fd, filled(7, MIB as usize)));
        run(ring, op::fsync(fd));
        run(ring, op::punch_hole(fd, 4096, 8192));
        run(ring, op::zero_range(fd, 128 << 10, 64 << 10));
        run(ring, op::zero_range(fd, (256 << 10) + 512, 1024));
        let cut = run(ring, op::read(fd, filled(0xee, 4096)).offset(256 << 10)).expect("its buffer");
        let zeroes = cut.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at);
        assert!(zeroes.eq(512..1536), "and the rest of the block is as it was");
        run(ring, op::fsync(fd));
    });
    assert_eq!(found(&device, &[0, 1, 2, 3, 31, 32, 47, 48]), [7, 0, 0, 7, 7, 0, 0, 7]);
    let pool = Pool::open(&device, &OpenOptions::default()).expect("it opens");
    assert_eq!(pool.volume_info("v").expect("it").written_bytes, MIB - 8192 - (64 << 10));
    assert!(pool.volume_info("v").expect("it").allocated_bytes < MIB, "a whole unit was given back");
}

/// The flight recorder reports the place of a slow I/O in its volume, and concurrent activities of the pool.
#[test]
fn slow_io_on_a_volume_is_told_with_its_place_and_what_ran_beside_it() {
    let pool = Pool::open(&device(), &OpenOptions::default()).expect("it opens");
    let volume = Arc::new(pool.open_volume("v").expect("the volume"));
    let mut ring = Ring::builder().entries(32).slow_limit(Duration::ZERO).build().expect("a ring");
    let fd = ring.attach_file(volume.clone()).expect("attached");
    // Backwards, so that the order on the device differs from that in the volume.
    let at = |block: u64| (15 - block) * MIB + block * 4096;
    (0..16).for_each(|block| drop(run(&mut ring, op::write(fd, filled(1, 4096)).offset(at(block)))));
    run(&mut ring, op::fsync(fd));
    let slow = volume.slow_ios();
    let sync = slow.iter().find(|io| io.kind == IoKind::Other).expect("the sync");
    assert!(sync.beside.has(Activity::Commit), "{}", sync.explain("v"));
    let from = ring.flight_recorder().expect("statistics are on").read(0).next;
    (0..16).for_each(|block| drop(run(&mut ring, op::read(fd, filled(0, 4096)).offset(at(block)))));
    let raw = ring.flight_recorder().expect("statistics are on").read(from).ios;
    assert!(raw.iter().all(|io| matches!(io.place, Place::Device(_))), "written blocks are read by the fast path");
    let places: Vec<_> = volume.slow_ios().iter().filter(|io| io.kind == IoKind::Read).map(|io| io.place).collect();
    assert_eq!(places, (0..16).map(|block| Place::File(at(block))).collect::<Vec<_>>());
    // The first write to a unit that a snapshot shares copies it.
    pool.snapshot("v", "s").expect("a snapshot");
    run(&mut ring, op::write(fd, filled(2, 4096)).offset(at(3)));
    let slow = volume.slow_ios();
    let copied = slow.iter().rfind(|io| io.kind == IoKind::Write).expect("the write");
    assert!(copied.beside.has(Activity::Copy), "{}", copied.explain("v"));
    assert_eq!(copied.place, Place::File(at(3)));
}
