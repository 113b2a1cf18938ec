//! Tests through a ring that the file behaves as a file system's.

use std::sync::Arc;

use sheave::{Buf, Fd, Ring, op, open_device};
use sheave_uring::LateCompletions;

use super::*;

const SIZE: u64 = 1 << 20;

struct Bench {
    file: Arc<Extents>,
    ring: Ring,
    fd: Fd,
}

impl Bench {
    fn new(began: Began) -> Bench {
        let device = open_device(&format!("ram:size={SIZE}")).expect("a small device");
        let file = Arc::new(Extents::new(&device, began));
        let mut ring = Ring::builder().entries(8).build().expect("a ring");
        let fd = ring.attach_file(file.clone()).expect("attached");
        Bench { file, ring, fd }
    }

    fn write(&mut self, pos: u64, byte: u8) -> i32 {
        let mut buf = Buf::zeroed(BLOCK as usize, 4096).expect("memory");
        buf.fill(byte);
        self.ring.push(op::write(self.fd, buf).offset(pos)).expect("room");
        self.ring.submit_and_wait(1).expect("submitted");
        self.ring.completions().next().expect("one").res
    }

    fn read(&mut self, pos: u64) -> (i32, Vec<u8>) {
        self.ring
            .push(op::read(self.fd, Buf::zeroed(BLOCK as usize, 4096).expect("memory")).offset(pos))
            .expect("room");
        self.ring.submit_and_wait(1).expect("submitted");
        let done = self.ring.completions().next().expect("one");
        (done.res, done.into_buf().expect("its buffer").to_vec())
    }
}

#[test]
fn a_first_write_takes_a_worker_and_the_second_does_not() {
    for began in [Began::Unwritten, Began::Shared] {
        let mut bench = Bench::new(began);
        assert_eq!(bench.write(8 * BLOCK, 7), 4096);
        assert_eq!(bench.ring.late_completions(), LateCompletions { in_task: 0, in_worker: 1 }, "{began:?}");
        assert_eq!(bench.write(8 * BLOCK, 9), 4096);
        assert_eq!(bench.ring.late_completions().in_worker, 1, "{began:?}: an overwrite now");
        assert_eq!(bench.file.written(), 1);
        assert_eq!(bench.read(8 * BLOCK), (4096, vec![9; 4096]));
        bench.file.reset();
        assert_eq!(bench.file.written(), 0);
    }
}

#[test]
fn what_was_not_written_reads_as_zeroes() {
    let mut bench = Bench::new(Began::Written);
    assert_eq!(bench.write(0, 7), 4096);
    let mut bench = Bench { file: Arc::new(Extents::new(bench.file.device(), Began::Unwritten)), ..bench };
    bench.fd = bench.ring.attach_file(bench.file.clone()).expect("attached");
    assert_eq!(bench.read(0), (4096, vec![0; 4096]), "the 7s of the file before are not shown");
}

#[test]
fn the_end_moves_with_the_writes() {
    let mut bench = Bench::new(Began::Empty);
    assert_eq!(bench.read(0).0, 0, "at the end");
    for n in 1..=3 {
        assert_eq!(bench.write((n - 1) * BLOCK, n as u8), 4096);
        assert_eq!(bench.file.size_bytes(), n * BLOCK);
        assert_eq!(bench.ring.late_completions().in_worker, n);
    }
    assert_eq!(bench.write(0, 9), 4096);
    assert_eq!(bench.ring.late_completions().in_worker, 3, "within the end nothing is left to do");
    assert_eq!(bench.read(2 * BLOCK), (4096, vec![3; 4096]));
}

#[test]
fn a_quick_look_says_what_map_says_and_stops_at_what_is_not_plain() {
    let mut bench = Bench::new(Began::Unwritten);
    for block in [5, 2, 9] {
        assert_eq!(bench.write(block * BLOCK, 1), 4096);
    }
    let plain = |mut at: [u64; 4], len: u64| {
        let ranges = PlainRanges::new(&at, len, Intent::Write);
        (bench.file.map_plain(&mut at, &ranges), at)
    };
    let place = |pos: u64| bench.file.map(pos, 512, Intent::Write).expect("mapped").addr;
    let asked = [5 * BLOCK, 2 * BLOCK + 512, 9 * BLOCK, 3 * BLOCK];
    assert_eq!(plain(asked, 512), (3, [place(asked[0]), place(asked[1]), place(asked[2]), asked[3]]), "3 has no data");
    assert_eq!(plain(asked, 4096).0, 1, "the second crosses the end of its block");
}

#[test]
fn every_block_has_a_place_of_its_own_and_no_neighbour() {
    let bench = Bench::new(Began::Written);
    let blocks = bench.file.bytes() / BLOCK;
    let mut places: Vec<u64> = (0..blocks).map(|block| bench.file.place(block)).collect();
    let near = places.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == BLOCK).count();
    places.sort_unstable();
    assert!(places.iter().enumerate().all(|(n, &place)| place == n as u64 * BLOCK));
    assert_eq!(near, 0, "what is next to each other in the file would be merged");
}
