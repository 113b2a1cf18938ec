//! Pools whose I/O fails where a test says so, or in which a checkpoint comes just when the scrub reads.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;

use super::*;
use crate::device::block_io::DeviceIo;
use crate::finding::FindingKind;
use crate::{BlockIo, CreateOptions, OpenOptions, Pool, Volume};

type Hook = Box<dyn FnMut() + Send>;

/// Behaviour of the device's reads.
#[derive(Default)]
struct Knobs {
    /// Blocks that cannot be read.
    bad: HashSet<u64>,
    /// Number of reads that fail from here on, whatever they read.
    weak: usize,
    /// Called before each sweep.
    hook: Option<Hook>,
}

struct Handled {
    io: DeviceIo,
    knobs: Arc<Mutex<Knobs>>,
}

impl BlockIo for Handled {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        let mut knobs = self.knobs.lock().unwrap();
        if knobs.weak > 0 {
            knobs.weak -= 1;
            return Err(Status::Timeout);
        }
        if (at..at + buf.len() as u64).step_by(4096).any(|at| knobs.bad.contains(&at)) {
            return Err(Status::Medium);
        }
        drop(knobs);
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.io.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }

    fn read_many(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Status> {
        let hook = self.knobs.lock().unwrap().hook.take();
        if let Some(mut hook) = hook {
            hook();
            self.knobs.lock().unwrap().hook = Some(hook);
        }
        pieces.iter_mut().try_for_each(|(at, buf)| self.read(*at, buf))
    }
}

/// Creates a pool with a volume, closed and opened again so that all of it is in a checkpoint.
fn pool() -> (Pool, Volume, Arc<Mutex<Knobs>>) {
    let device = open_device("ram:size=32M").unwrap();
    Pool::create(&device, &CreateOptions { unit_bytes: 4096, ..CreateOptions::default() }).unwrap();
    let knobs = Arc::new(Mutex::new(Knobs::default()));
    let handled = || Box::new(Handled { io: DeviceIo::new(&device).unwrap(), knobs: knobs.clone() });
    let pool = Pool::open_through(&device, handled(), &OpenOptions::default()).unwrap();
    let volume = pool.create_volume("v", 8 << 20).unwrap();
    (0..600).for_each(|at| write(&volume, at * 4096));
    drop(volume);
    pool.close().unwrap();
    let pool = Pool::open_through(&device, handled(), &OpenOptions::default()).unwrap();
    let volume = pool.open_volume("v").unwrap();
    (pool, volume, knobs)
}

/// Writes a block.
fn write(volume: &Volume, pos: u64) {
    let may_block = MayBlock::on_worker();
    let mapping = volume.map_blocking(pos, 4096, Intent::Write, &may_block).unwrap();
    volume.pool().io.write(mapping.addr, &[pos as u8; 4096]).unwrap();
    volume.end_write(WriteDone::new(pos, 4096, Status::Ok, &[mapping]), &may_block).unwrap();
}

fn scrubbed(pool: &Pool) -> ScrubReport {
    pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn only_persistent_read_errors_are_reported() {
    let (pool, volume, knobs) = pool();
    let addr = volume.map(5 * 4096, 4096, Intent::Read).unwrap().addr;
    let (leaf, root) = {
        let state = volume.pool().lock();
        let spot = volume.pool().map.find(&state.table.named("v").unwrap().core.top, 0);
        (state.tree.leaves.node(spot.leaf).page.address, state.table.named("v").unwrap().root.address)
    };
    knobs.lock().unwrap().bad = HashSet::from([addr, addr + 4096, leaf, 4096]);
    let report = scrubbed(&pool);
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.kind, finding.place.address)).collect();
    let wanted = [
        (FindingKind::Superblock, Some(4096)),
        (FindingKind::Unreadable, Some(leaf)),
        (FindingKind::Unreadable, Some(addr)),
    ];
    assert_eq!(found, wanted, "{:?}", report.findings);
    assert_eq!((report.bad_bytes, report.findings[2].place.range), (8192, Some((5 * 4096, 8192))));
    assert!(report.findings.iter().all(|finding| finding.means.contains("medium error")), "{:?}", report.findings);
    assert_eq!(report.findings[1].place.range, Some((0, 1 << 20)), "what the leaf maps");
    // A damaged page above hides none of the rest: the data is found through the map in memory.
    knobs.lock().unwrap().bad = HashSet::from([root]);
    let report = scrubbed(&pool);
    assert_eq!((report.found, report.data_bytes), (1, 600 * 4096), "{:?}", report.findings);
    *knobs.lock().unwrap() = Knobs { weak: 2, ..Knobs::default() };
    assert!(scrubbed(&pool).is_clean(), "a read that goes through at last is a good one");
}

/// S1: pages that checkpoints have replaced and reused while the scrub held references to them.
#[test]
fn checkpoints_in_the_middle_are_no_damage() {
    let (pool, volume, knobs) = pool();
    let mut round = 0;
    let before = pool.info().generation;
    let inner = volume.pool().clone();
    knobs.lock().unwrap().hook = Some(Box::new(move || {
        round += 1;
        // Every leaf changes in each round, and a checkpoint overwrites what the one before had.
        for leaf in 0..3 {
            write(&volume, ((leaf << 8) + round % 88) * 4096);
        }
        inner.checkpoint().unwrap();
        inner.checkpoint().unwrap();
    }));
    let report = scrubbed(&pool);
    knobs.lock().unwrap().hook = None;
    assert!(report.is_clean() && report.completed, "{:?}", report.findings);
    assert!(pool.info().generation > before + 8, "they went by");
    assert_eq!(report.data_bytes, 600 * 4096);
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let (pool, volume, knobs) = pool();
    let all = (0..600).step_by(2).map(|at| volume.map(at * 4096, 4096, Intent::Read).unwrap().addr);
    knobs.lock().unwrap().bad = all.collect();
    let options = ScrubOptions { max_findings: 7, ..ScrubOptions::default() };
    let report = pool.scrub(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.findings.len(), report.found, report.bad_bytes), (7, 300, 300 * 4096));
}

/// V32: each copy is flipped, foreign to its place, or of an older checkpoint. Then on a device that keeps nothing
/// there, and in a pool that is open read-only.
#[test]
fn a_scrub_writes_a_bad_copy_of_the_superblock_anew() {
    let (pool, volume, knobs) = pool();
    let places = pool.inner.lock().sb.copies;
    assert!(places.iter().all(|at| *at != 0), "{places:?}");
    let read = |at: u64| {
        let mut block = [0; 4096];
        pool.inner.io.read(at, &mut block).unwrap();
        block
    };
    let old = places.map(read);
    write(&volume, 0);
    pool.inner.checkpoint().unwrap();
    let newest = places.map(read);
    assert!(newest != old && scrubbed(&pool).mended_copies == 0);
    for which in 0..2 {
        let mut flipped = newest[which];
        flipped[77] ^= 4;
        for bad in [flipped, old[which], newest[1 - which], [0; 4096]] {
            pool.inner.io.write(places[which], &bad).unwrap();
            let report = scrubbed(&pool);
            assert_eq!((report.mended_copies, report.found), (1, 0), "{:?}", report.findings);
            assert!(places.map(read) == newest && pool.info().bad_copies == 0);
        }
    }
    // A disk that cannot read the copy, whatever is written: reported and counted, and no longer when it can be read.
    knobs.lock().unwrap().bad = HashSet::from([places[0]]);
    for _ in 0..2 {
        let report = scrubbed(&pool);
        let found: Vec<_> = report.findings.iter().map(|found| (found.kind, found.place.address)).collect();
        assert_eq!(found, [(FindingKind::Superblock, Some(places[0]))], "{:?}", report.findings);
        assert_eq!((report.mended_copies, pool.info().bad_copies), (0, 1));
    }
    knobs.lock().unwrap().bad.clear();
    assert_eq!((scrubbed(&pool).is_clean(), pool.info().bad_copies), (true, 0));
    // A checkpoint writes the copies too.
    knobs.lock().unwrap().bad = HashSet::from([places[0]]);
    scrubbed(&pool);
    pool.inner.checkpoint().unwrap();
    assert_eq!(pool.info().bad_copies, 0);
    knobs.lock().unwrap().bad.clear();
    let device = pool.inner.device.clone();
    drop(volume);
    pool.close().unwrap();
    let io = DeviceIo::new(&device).unwrap();
    io.write(places[1], &[9; 4096]).unwrap();
    let pool = Pool::open(&device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let report = scrubbed(&pool);
    assert_eq!((report.mended_copies, report.found), (0, 1), "nothing is written: {:?}", report.findings);
}
