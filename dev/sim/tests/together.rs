//! Snapshots of several volumes at one moment, while threads write to all of them (V34). Each writer writes a version
//! to one volume before it writes it to the next, so the snapshot of a later volume must not have a newer version than
//! that of an earlier one.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_base::sync::Arc;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_sim::audit::audit;
use sheave_sim::tag::{Value, fill_all, identify};
use sheave_uring::{Ring, prep};
use sheave_vol::{CheckOptions, CreateOptions, OpenOptions, Pool, check_device};

const BLOCK: u64 = 4096;
const VOLUMES: [&str; 3] = ["data", "index", "log"];
const WRITERS: usize = 2;
const RUN: Duration = Duration::from_millis(2500);
const SEED: u64 = 91;

/// For each writer, the version it has issued to the first volume, and the version that has ended on the last.
#[derive(Default)]
struct Board {
    issued: [AtomicU32; WRITERS],
    ended: [AtomicU32; WRITERS],
    stop: AtomicBool,
}

impl Board {
    fn read(versions: &[AtomicU32; WRITERS]) -> [Value; WRITERS] {
        std::array::from_fn(|writer| versions[writer].load(Ordering::SeqCst))
    }
}

/// Stops the writers, also when the test fails.
struct Stop<'a>(&'a Board);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// Writes version after version to the block of this writer, volume after volume.
fn write(files: &[Arc<dyn File>], board: &Board, writer: usize) {
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fds: Vec<_> = files.iter().map(|file| ring.attach_file(Arc::clone(file)).expect("attached")).collect();
    let at = writer as u64 * BLOCK;
    for version in 1.. {
        if board.stop.load(Ordering::SeqCst) {
            return;
        }
        board.issued[writer].store(version, Ordering::SeqCst);
        for (volume, fd) in fds.iter().enumerate() {
            let mut buf = Buf::zeroed(BLOCK as usize, 4096).expect("memory");
            fill_all(SEED, version, volume as u32 + 1, at / 512, &mut buf);
            ring.push(prep::write(*fd, buf).offset(at)).expect("room");
            ring.submit_and_wait(1).expect("submitted");
            let done = ring.completions().next().expect("one");
            assert_eq!(done.res, BLOCK as i32, "version {version}");
        }
        board.ended[writer].store(version, Ordering::SeqCst);
    }
}

/// Returns the version of each writer that a snapshot holds.
fn versions(pool: &Pool, name: &str) -> [Value; WRITERS] {
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach_file(Arc::new(pool.open_volume(name).expect("it is there"))).expect("attached");
    std::array::from_fn(|writer| {
        let at = writer as u64 * BLOCK;
        ring.push(prep::read(fd, Buf::zeroed(BLOCK as usize, 4096).expect("memory")).offset(at)).expect("room");
        ring.submit_and_wait(1).expect("read");
        let bytes = ring.completions().next().expect("one").into_buf().expect("its buffer");
        let value = |sector: u64| {
            let seen = identify(SEED, &bytes[sector as usize * 512..][..512]);
            seen.value_at(at / 512 + sector).unwrap_or_else(|| panic!("'{name}', sector {sector}: {seen}"))
        };
        let first = value(0);
        assert!((1..8).all(|sector| value(sector) == first), "'{name}', the block of writer {writer} is torn");
        first
    })
}

#[test]
fn snapshots_of_one_moment_are_of_one_moment() {
    let device = open_device("ram:size=64M").expect("memory");
    Pool::create(&device, &CreateOptions::default().unit_bytes(8 << 10)).expect("made");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
    let open = |name: &&str| -> Arc<dyn File> { Arc::new(pool.create_volume(name, 64 << 10).expect("created")) };
    let files: Vec<_> = VOLUMES.iter().map(open).collect();
    let board = Board::default();
    let (mut made, mut between) = (0, 0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (files, board) = (&files, &board);
            scope.spawn(move || write(files, board, writer));
        }
        let _stop = Stop(&board);
        let until = Instant::now() + RUN;
        while Instant::now() < until {
            let names = VOLUMES.map(|volume| format!("{volume}@{made}"));
            // The order of the names in the call must not matter, so it is rotated and often differs from the order of
            // the writes.
            let mut pairs: Vec<_> = VOLUMES.into_iter().zip(names.iter().map(String::as_str)).collect();
            pairs.rotate_left(made % VOLUMES.len());
            let before = Board::read(&board.ended);
            pool.snapshot_together(&pairs).unwrap_or_else(|error| panic!("{error}"));
            let after = Board::read(&board.issued);
            let found = names.each_ref().map(|name| versions(&pool, name));
            for writer in 0..WRITERS {
                let of = found.map(|volume| volume[writer]);
                let whole = of[0] >= of[1] && of[1] >= of[2] && of[2] + 1 >= of[0];
                assert!(whole, "snapshot {made}, writer {writer}: {of:?} of {VOLUMES:?}");
                assert!(before[writer] <= of[2] && of[0] <= after[writer], "{before:?} {of:?} {after:?}");
                between += usize::from(of[0] != of[2]);
            }
            names.iter().for_each(|name| pool.delete(name).unwrap_or_else(|error| panic!("{name}: {error}")));
            made += 1;
        }
    });
    assert!(made > 3 && between > 0, "{made} snapshots were made, {between} of them between two writes");
    drop(files);
    audit(&pool).unwrap_or_else(|why| panic!("{why}"));
    pool.close().expect("closed");
    let report = check_device(&device, &CheckOptions::default()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
}
