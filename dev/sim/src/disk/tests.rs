//! The disk behind the block layer.

use sheave_base::buf::Buf;
use sheave_uring::{Fd, Ring, prep};

use super::*;

fn ring_on(disk: &SimDisk) -> (Ring, Fd) {
    let mut ring = Ring::builder().entries(32).polled(true).build().expect("a ring");
    let fd = ring.attach(&disk.device()).expect("the disk can be attached");
    (ring, fd)
}

fn buf(byte: u8, len: usize) -> Buf {
    let mut buf = Buf::zeroed(len, 4096).expect("memory");
    buf.fill(byte);
    buf
}

fn settle(ring: &mut Ring, count: usize) -> Vec<(u64, i32, Option<Buf>)> {
    ring.submit().expect("there is room");
    let mut all = Vec::new();
    while all.len() < count {
        ring.reap();
        all.extend(ring.completions().map(|one| (one.user_data, one.res, one.into_buf())));
    }
    all
}

#[test]
fn a_ring_reads_what_it_wrote() {
    let disk = SimDisk::new(Image::new(1 << 20), DiskOptions::default());
    let (mut ring, fd) = ring_on(&disk);
    ring.push(prep::write(fd, buf(3, 8192)).offset(4096)).expect("room");
    assert_eq!(settle(&mut ring, 1)[0].1, 8192);
    ring.push(prep::read(fd, buf(0, 16384)).offset(0)).expect("room");
    let back = settle(&mut ring, 1).remove(0).2.expect("its buffer");
    assert_eq!((back[4095], back[4096], back[12287], back[12288]), (0, 3, 3, 0));
    let mut rng = Rng::new(1);
    let lost = (0..50).filter(|_| disk.crash(&mut rng).0.sector(8)[0] == 0).count();
    assert!(lost > 5 && lost < 45, "{lost} of 50 crashes lost it");
    ring.push(prep::fsync(fd)).expect("room");
    assert_eq!(settle(&mut ring, 1)[0].1, 0);
    assert!((0..50).all(|_| disk.crash(&mut rng).0.sector(8)[0] == 3));
}

#[test]
fn a_dsync_write_is_durable_with_fua_and_without() {
    for fua in [true, false] {
        let disk = SimDisk::new(Image::new(1 << 20), DiskOptions { fua, ..DiskOptions::default() });
        let (mut ring, fd) = ring_on(&disk);
        ring.push(prep::write(fd, buf(3, 4096)).offset(4096).dsync()).expect("room");
        settle(&mut ring, 1);
        let mut rng = Rng::new(1);
        assert!((0..50).all(|_| disk.crash(&mut rng).0.sector(8)[0] == 3));
        let flushes = disk.log().iter().filter(|step| matches!(step, Step::Flush { .. })).count();
        assert_eq!(flushes, usize::from(!fua));
    }
}

#[test]
fn a_flush_reaches_all_members() {
    let options = DiskOptions { members: 3, ..DiskOptions::default() };
    let disk = SimDisk::new(Image::new(4 << 20), options);
    assert_eq!(disk.device().size_bytes(), 4 << 20);
    let (mut ring, fd) = ring_on(&disk);
    for at in [0, (1 << 20) - 4096, (2 << 20) + 8192, (4 << 20) - 8192] {
        ring.push(prep::write(fd, buf(3, 8192)).offset(at)).expect("room");
    }
    settle(&mut ring, 4);
    ring.push(prep::fsync(fd)).expect("room");
    settle(&mut ring, 1);
    let mut rng = Rng::new(1);
    let sectors = [0, 2047, 2048, 4112, 8191];
    assert!((0..50).all(|_| sectors.iter().all(|&sector| disk.crash(&mut rng).0.sector(sector)[0] == 3)));
}

#[test]
fn completions_come_in_a_seeded_order() {
    let order = |seed| {
        let disk = SimDisk::new(Image::new(1 << 20), DiskOptions { seed, ..DiskOptions::default() });
        let (mut ring, fd) = ring_on(&disk);
        for at in 0..16 {
            ring.push(prep::write(fd, buf(1, 4096)).offset(at * 65536).user_data(at)).expect("room");
        }
        settle(&mut ring, 16).into_iter().map(|(user_data, ..)| user_data).collect::<Vec<_>>()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    assert_ne!(order(1), (0..16).collect::<Vec<_>>());
}

#[test]
fn the_log_replayed_is_the_disk() {
    let disk = SimDisk::new(Image::new(1 << 20), DiskOptions::default());
    let (mut ring, fd) = ring_on(&disk);
    for at in 0..16 {
        ring.push(prep::write(fd, buf(at as u8, 4096)).offset(at % 5 * 4096)).expect("room");
        ring.push(prep::punch_hole(fd, at * 8192, 4096)).expect("room");
    }
    settle(&mut ring, 32);
    let mut media = Media::new(Image::new(1 << 20), None);
    disk.log().iter().for_each(|step| media.step(step));
    assert_eq!(media.current().hash(), disk.image().hash());
}

/// I1: the log has a flush that was set to fail, so its replay drops from the cache what the disk dropped.
#[test]
fn the_log_replayed_has_lost_what_the_disk_has_lost() {
    let disk = SimDisk::new(Image::new(1 << 20), DiskOptions::default());
    let (mut ring, fd) = ring_on(&disk);
    ring.push(prep::write(fd, buf(3, 4096)).offset(4096)).expect("room");
    settle(&mut ring, 1);
    disk.fail_flushes(0, 1);
    for whole in [false, true] {
        ring.push(prep::fsync(fd)).expect("room");
        assert_eq!(settle(&mut ring, 1)[0].1 == 0, whole);
    }
    let mut media = Media::new(Image::new(1 << 20), None);
    disk.log().iter().for_each(|step| media.step(step));
    let left = |(image, _): (Image, Cut)| image.sector(8)[0];
    let mut rng = Rng::new(1);
    assert!((0..50).all(|_| left(disk.crash(&mut rng)) == 0), "the second flush has nothing to cover");
    assert!((0..50).all(|_| left(media.crash(&mut rng)) == 0), "and so it is replayed");
    assert_eq!((disk.image().sector(8)[0], media.current().sector(8)[0]), (3, 3), "readers see it");
}
