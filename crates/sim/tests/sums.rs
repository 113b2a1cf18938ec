//! Pools with checksums, through real rings: rot is told, whatever the pool went through before; nothing good is.

use std::collections::VecDeque;
use std::sync::Arc;

use sheave_base::buf::Buf;
use sheave_blk::Device;
use sheave_uring::{Fd, Ring, prep};
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::{Checksum, CreateOptions, ExtentKind, OpenOptions, Pool, Volume};

const BLOCK: usize = 4096;
const EILSEQ: i32 = -84;
const EINVAL: i32 = -22;

fn format(device: &Device, unit_bytes: u64, checksum: Checksum) {
    let options = CreateOptions { unit_bytes, checksum, overwrite: true, ..CreateOptions::default() };
    Pool::create(device, &options).expect("the pool is made");
}

fn open(device: &Device) -> Pool {
    Pool::open(device, &OpenOptions::default()).expect("the pool opens")
}

/// A volume in a ring of its own.
struct User {
    ring: Ring,
    fd: Fd,
    volume: Volume,
}

impl User {
    fn new(volume: Volume) -> User {
        let mut ring = Ring::builder().entries(64).build().expect("a ring");
        let fd = ring.attach_file(Arc::new(volume.clone())).expect("attached");
        User { ring, fd, volume }
    }

    fn run(&mut self, entry: prep::Entry) -> (i32, Option<Buf>) {
        self.ring.push(entry).map_err(|full| full.error).expect("there is room");
        self.ring.submit_and_wait(1).expect("it ends");
        let done = self.ring.completions().next().expect("one");
        (done.res, done.into_buf())
    }

    fn write(&mut self, pos: u64, tag: u8, blocks: usize) -> i32 {
        let mut buf = Buf::zeroed(blocks * BLOCK, BLOCK).expect("memory");
        buf.fill(tag);
        self.run(prep::write(self.fd, buf).offset(pos)).0
    }

    fn read(&mut self, pos: u64, len: usize) -> (i32, Vec<u8>) {
        let (res, buf) = self.run(prep::read(self.fd, Buf::zeroed(len, BLOCK).expect("memory")).offset(pos));
        (res, buf.map_or_else(Vec::new, |buf| buf.to_vec()))
    }

    /// What a block holds, in all its bytes; or the error.
    fn tag(&mut self, pos: u64) -> Result<u8, i32> {
        let (res, data) = self.read(pos, BLOCK);
        if res < 0 {
            return Err(res);
        }
        assert!(data.iter().all(|byte| *byte == data[0]), "a block of one write");
        Ok(data[0])
    }

    fn sync(&mut self) {
        assert_eq!(self.run(prep::fsync(self.fd)).0, 0);
    }

    /// Where a block of the volume lies.
    fn addr(&self, pos: u64) -> u64 {
        let extents = self.volume.extents(pos, BLOCK as u64).expect("extents");
        assert_eq!(extents[0].kind, ExtentKind::Data);
        extents[0].addr + (pos - extents[0].pos)
    }
}

/// Flips a bit where nobody sees it.
fn rot(device: &Device, addr: u64) {
    let io = DeviceIo::new(device).expect("the device opens");
    let mut block = vec![0; BLOCK];
    io.read(addr, &mut block).expect("it reads");
    block[1234] ^= 4;
    io.write(addr, &block).expect("it writes");
}

fn summed(unit_bytes: u64) -> (Device, Pool, User) {
    let device = Device::open("ram:size=64M").expect("memory");
    format(&device, unit_bytes, Checksum::Crc32c);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 8 << 20).expect("a volume"));
    (device, pool, user)
}

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
    let device = Device::open("ram:size=64M").expect("memory");
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
        // Overwritten after the commit that has them.
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
        // After a checkpoint that found nothing open, rot is told after a crash too.
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
    // The unit is copied for the first block; the bad one stays bad, in the copy as well.
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

/// Writes and reads of few blocks at once, from several rings: who races reads something of these writes, and when all
/// is quiet every block matches. While it goes on, checkpoints and snapshots come by.
#[test]
fn writers_of_the_same_blocks_leave_nothing_that_does_not_match() {
    let device = Device::open("ram:size=64M,latency=5us").or_else(|_| Device::open("ram:size=64M")).expect("memory");
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
    let mut seed = number + 1;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut ways: VecDeque<u64> = VecDeque::new();
    for round in 0..3000_u64 {
        for _ in 0..16 {
            let (pos, blocks) = (next() % 28 * BLOCK as u64, (next() % 4 + 1) as usize);
            let mut buf = Buf::zeroed(blocks * BLOCK, BLOCK).expect("memory");
            let entry = if next() % 3 == 0 {
                prep::read(user.fd, buf)
            } else {
                buf.fill(round as u8);
                prep::write(user.fd, buf)
            };
            user.ring.push(entry.offset(pos)).map_err(|full| full.error).expect("there is room");
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
                user.ring.wait(1, None);
            }
        }
    }
}
