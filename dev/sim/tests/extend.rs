//! A volume that grows, on a ring like programs use it (V23). Results beyond its end are those of a file of the kernel.

use sheave_base::buf::Buf;
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_uring::{Fd, Ring, prep};
use sheave_vol::{Checksum, CreateOptions, OpenOptions, Pool, Volume};

const BLOCK: usize = 4096;
const MAX: u64 = 1 << 20;
const EFBIG: i32 = -27;
const EINVAL: i32 = -22;

fn pool(checksum: Checksum) -> (Device, Pool) {
    let device = open_device("ram:size=16M").expect("opens");
    Pool::create(&device, &CreateOptions::default().checksum(checksum)).expect("formats");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opens");
    (device, pool)
}

struct Bench {
    volume: Arc<Volume>,
    ring: Ring,
    fd: Fd,
}

impl Bench {
    fn new(volume: Volume) -> Bench {
        let volume = Arc::new(volume);
        let mut ring = Ring::builder().entries(64).build().expect("a ring");
        let file: Arc<dyn File> = volume.clone();
        let fd = ring.attach_file(file).expect("attaches");
        Bench { volume, ring, fd }
    }

    fn size(&self) -> u64 {
        self.volume.size_bytes()
    }

    /// Runs one request. Returns its result and its memory.
    fn one(&mut self, entry: impl prep::Op) -> (i32, Vec<u8>) {
        self.ring.push(entry).expect("there is room");
        self.ring.submit_and_wait(1).expect("submits");
        let done = self.ring.completions().next().expect("one has ended");
        (done.res, done.into_buf().map(|memory| memory.to_vec()).unwrap_or_default())
    }

    fn write(&mut self, pos: u64, byte: u8, blocks: usize) -> i32 {
        self.one(prep::write(self.fd, memory(byte, blocks * BLOCK)).offset(pos)).0
    }

    fn read(&mut self, pos: u64, blocks: usize) -> (i32, Vec<u8>) {
        let (res, mut bytes) = self.one(prep::read(self.fd, memory(0xee, blocks * BLOCK)).offset(pos));
        bytes.truncate(res.max(0) as usize);
        (res, bytes)
    }
}

fn memory(byte: u8, len: usize) -> Buf {
    let mut memory = Buf::zeroed(len, BLOCK).expect("memory");
    memory.fill(byte);
    memory
}

#[test]
fn a_ring_reads_to_the_end_and_writes_beyond_it() {
    for checksum in [Checksum::None, Checksum::Crc32c] {
        let (device, pool) = pool(checksum);
        let mut bench = Bench::new(pool.create_growing_volume("v", 0, MAX).expect("creates"));
        let at = |block: u64| block * BLOCK as u64;
        assert_eq!(bench.read(0, 1).0, 0, "nothing is there");
        assert_eq!((bench.write(0, 1, 2), bench.size()), (2 * BLOCK as i32, at(2)));
        assert_eq!((bench.write(at(1), 2, 2), bench.size()), (2 * BLOCK as i32, at(3)));
        assert_eq!((bench.write(at(40), 3, 1), bench.size()), (BLOCK as i32, at(41)));
        let (res, read) = bench.read(at(2), 64);
        assert_eq!(res, 39 * BLOCK as i32, "up to the end");
        assert!(read[..BLOCK].iter().all(|byte| *byte == 2) && read[38 * BLOCK..].iter().all(|byte| *byte == 3));
        assert!(read[BLOCK..38 * BLOCK].iter().all(|byte| *byte == 0), "the gap");
        assert_eq!((bench.read(at(41), 1).0, bench.read(at(1000), 1).0), (0, 0));
        // Writes at the end and beyond it.
        assert_eq!(bench.write(MAX - at(1), 4, 3), BLOCK as i32, "cut short");
        assert_eq!(bench.size(), MAX);
        assert_eq!((bench.write(MAX, 5, 1), bench.write(MAX + at(9), 5, 1)), (EFBIG, EFBIG));
        assert_eq!(bench.one(prep::write(bench.fd, memory(1, 512)).offset(MAX - 512)).0, EINVAL, "by blocks of 4 KiB");
        assert_eq!(bench.one(prep::fsync(bench.fd)).0, 0);
        // The volume is made smaller, and a DSYNC write extends it from there.
        pool.resize("v", at(1)).expect("resizes");
        assert_eq!(bench.one(prep::write(bench.fd, memory(6, BLOCK)).offset(at(5)).dsync()).0, BLOCK as i32);
        assert_eq!(bench.size(), at(6));
        let (fd, ring) = (bench.fd, &mut bench.ring);
        ring.detach(fd).expect("detaches");
        drop((bench, pool));
        let pool = Pool::open(&device, &OpenOptions::default()).expect("opens");
        let mut bench = Bench::new(pool.open_volume("v").expect("is there"));
        assert_eq!(bench.size(), at(6), "V23: acknowledged, so it is durable, size and all");
        let (_, read) = bench.read(0, 8);
        let bytes: Vec<u8> = read.iter().step_by(BLOCK).copied().collect();
        assert_eq!(bytes, [1, 0, 0, 0, 0, 6]);
    }
}

#[test]
fn appends_under_way_together_end_each_with_its_own() {
    let (_device, pool) = pool(Checksum::None);
    let mut bench = Bench::new(pool.create_growing_volume("v", 0, MAX).expect("creates"));
    for round in 0..4 {
        for number in 0..32u64 {
            // Backwards within the round, so that most writes end inside the volume.
            let block = round * 32 + (31 - number);
            let entry = prep::write(bench.fd, memory(block as u8 + 1, BLOCK)).offset(block * BLOCK as u64);
            bench.ring.push(entry.user_data(block)).expect("there is room");
        }
        bench.ring.submit_and_wait(32).expect("submits");
        let done: Vec<i32> = bench.ring.completions().map(|one| one.res).collect();
        assert!(done.len() == 32 && done.iter().all(|res| *res == BLOCK as i32), "{done:?}");
        assert_eq!(bench.size(), (round + 1) * 32 * BLOCK as u64);
    }
    let (_, read) = bench.read(0, 128);
    let bytes: Vec<u8> = read.iter().step_by(BLOCK).copied().collect();
    assert_eq!(bytes, (1..=128).collect::<Vec<u8>>());
}

/// Writes at the file's position follow each other, so a log can be appended to without tracking offsets.
#[test]
fn writes_at_the_position_of_the_file_make_it_larger_one_after_the_other() {
    let (_device, pool) = pool(Checksum::None);
    let mut bench = Bench::new(pool.create_growing_volume("log", 0, MAX).expect("creates"));
    for number in 1..=10u8 {
        assert_eq!(bench.write(u64::MAX, number, 3), 3 * BLOCK as i32);
    }
    assert_eq!(bench.size(), 30 * BLOCK as u64);
    let (_, read) = bench.read(0, 30);
    assert!(read.chunks(3 * BLOCK).zip(1..).all(|(piece, number)| piece.iter().all(|byte| *byte == number)));
}
