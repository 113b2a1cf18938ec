//! Checkpoints that fail at each of their writes and flushes: the next commit repairs that, and a crash before it finds
//! the state that was durable.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::{FallocateMode, WriteDone};
use sheave_iomap::mapping::Intent;

use super::*;
use crate::device::block_io::DeviceIo;
use crate::format::kind;
use crate::state::extent_map::work::MOST_COST;
use crate::{BlockIo, CheckOptions, CreateOptions, OpenOptions, Pool, PoolError, Volume, check_device};

/// Hook that is called once, before the next write of the pool's own.
type BeforeWrite = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A disk that fails once.
struct Once {
    io: DeviceIo,
    /// Number of writes and flushes before the one that fails; below 0 none fails.
    left: Arc<AtomicI64>,
    before_write: BeforeWrite,
}

impl Once {
    fn step(&self) -> Result<(), Status> {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 { Err(Status::IoErr) } else { Ok(()) }
    }
}

impl BlockIo for Once {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        // The write of the list of free units is no step: a checkpoint is complete without it.
        if buf.starts_with(b"SHVE") && buf[4..6] == kind::FREE.to_le_bytes() {
            return self.io.write(at, buf);
        }
        let before = self.before_write.lock().unwrap().take();
        if let Some(before) = before {
            before();
        }
        if let Err(status) = self.step() {
            // A superblock whose write fails is torn.
            let torn = if at < 8192 { self.io.write(at, &[0xee; 4096]) } else { Ok(()) };
            return torn.and(Err(status));
        }
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.step()?;
        self.io.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

fn write(volume: &Volume, block: u64, tag: u8) {
    let (pos, may_block) = (block << 16, MayBlock::on_worker());
    let mapping = volume.map_blocking(pos, 4096, Intent::Write, &may_block).unwrap();
    DeviceIo::new(volume.device()).unwrap().write(mapping.addr, &[tag; 4096]).unwrap();
    volume.end_write(WriteDone::new(pos, 4096, Status::Ok, &[mapping]), &may_block).unwrap();
}

/// Reads the tag of each block.
fn tags(pool: &Pool) -> Vec<u8> {
    let volume = pool.open_volume("v").unwrap();
    let io = DeviceIo::new(volume.device()).unwrap();
    let tag = |block: u64| {
        let mapping = volume.map(block << 16, 4096, Intent::Read).unwrap();
        let mut data = [0; 4096];
        if mapping.kind == sheave_iomap::MappingKind::Mapped {
            io.read(mapping.addr, &mut data).unwrap();
        }
        data[7]
    };
    (0..40).map(tag).collect()
}

/// Returns a pool with a volume that has two durable states: one in the checkpoint and one in the journal.
fn pool() -> (Device, Pool, Volume, Arc<AtomicI64>) {
    let (device, pool, volume, left, _) = pool_with_hook();
    (device, pool, volume, left)
}

/// Removes the copies of the superblocks, so that a checkpoint has exactly the steps that these tests count.
fn without_copies(io: &dyn BlockIo) {
    for at in crate::format::SUPERBLOCKS {
        let mut block = [0; 4096];
        io.read(at, &mut block).unwrap();
        let mut sb = crate::superblock::Superblock::decode(&block, at, u64::MAX).unwrap();
        sb.copies = [0; 2];
        sb.encode(&mut block);
        io.write(at, &block).unwrap();
    }
}

fn pool_with_hook() -> (Device, Pool, Volume, Arc<AtomicI64>, BeforeWrite) {
    let device = open_device("ram:size=16M").unwrap();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    without_copies(&DeviceIo::new(&device).unwrap());
    let left = Arc::new(AtomicI64::new(-1));
    let before_write = BeforeWrite::default();
    let io = DeviceIo::new(&device).unwrap();
    let io = Box::new(Once { io, left: left.clone(), before_write: before_write.clone() });
    let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
    let volume = pool.create_volume("v", 8 << 20).unwrap();
    (0..20).for_each(|block| write(&volume, block, 1));
    volume.pool().checkpoint().unwrap();
    write(&volume, 20, 2);
    pool.sync().unwrap();
    (device, pool, volume, left, before_write)
}

fn opened(device: &Device) -> Vec<u8> {
    let tags = tags(&Pool::open(device, &OpenOptions::default()).unwrap());
    let report = check_device(device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    tags
}

fn expected(written: &[(usize, u8)]) -> Vec<u8> {
    let mut tags = [vec![1; 20], vec![2], vec![0; 19]].concat();
    written.iter().for_each(|&(block, tag)| tags[block] = tag);
    tags
}

/// The flushes among the steps of a checkpoint: pages, root, flush, superblock, flush, superblock, flush.
const FLUSHES: [i64; 3] = [2, 4, 6];

#[test]
fn a_checkpoint_that_failed_is_written_by_the_next_commit() {
    let mut failed = 0;
    for step in 0.. {
        let (device, pool, volume, left) = pool();
        write(&volume, 21, 3);
        left.store(step, Ordering::SeqCst);
        if volume.pool().checkpoint().is_ok() {
            break;
        }
        failed += 1;
        if FLUSHES.contains(&step) {
            continue;
        }
        // Nothing new is durable, and a scrub returns an error while the checkpoint is not whole.
        assert!(pool.scrub(&crate::ScrubOptions::default(), &mut |_| std::ops::ControlFlow::Continue(())).is_err());
        let used = pool.info().metadata_bytes;
        write(&volume, 22, 4);
        write(&volume, 21, 5);
        pool.sync().unwrap();
        for block in 23..30 {
            write(&volume, block, 6);
            volume.pool().checkpoint().unwrap();
        }
        assert!(pool.info().metadata_bytes <= used + (1 << 18), "what it replaced came back");
        let report = pool.scrub(&crate::ScrubOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()));
        assert!(report.unwrap().is_clean());
        drop((volume, pool));
        let later: Vec<(usize, u8)> = (23..30).map(|block| (block, 6)).collect();
        assert_eq!(opened(&device), expected(&[&[(21, 5), (22, 4)], &later[..]].concat()), "step {step}");
    }
    assert_eq!(failed, 7, "pages, root, flush, superblock, flush, superblock, flush");
}

#[test]
fn a_crash_before_it_is_written_again_loses_nothing_that_was_durable() {
    for step in 0..7 {
        let (device, pool, volume, left) = pool();
        write(&volume, 21, 3);
        left.store(step, Ordering::SeqCst);
        assert!(volume.pool().checkpoint().is_err());
        drop((volume, pool));
        let found = opened(&device);
        // The superblock of the checkpoint may have reached the device, so either state is correct.
        let (without, with) = (expected(&[]), expected(&[(21, 3)]));
        assert!(found == with || (found == without && step < 5), "step {step}: {found:?}");
    }
}

/// V13, V25: after a close whose write failed the pool is open, whatever part of its checkpoint is on the device. After
/// a close whose flush failed the pool is degraded. It is never closed in part.
#[test]
fn a_close_that_failed_leaves_an_open_pool_or_a_degraded_one() {
    for step in 0..7 {
        let (device, pool, volume, left) = pool();
        let again = pool.clone();
        drop(volume);
        left.store(step, Ordering::SeqCst);
        let error = pool.close().unwrap_err();
        let volume = again.open_volume("v").unwrap();
        if FLUSHES.contains(&step) {
            assert!(matches!(error, PoolError::Degraded { .. }), "step {step}: {error}");
            assert!(matches!(again.sync(), Err(PoolError::Degraded { .. })));
            let refused = volume.map_blocking(0, 4096, Intent::Write, &MayBlock::on_worker());
            assert_eq!(refused.unwrap_err(), Status::IoErr);
            drop(volume);
            assert!(matches!(again.close(), Err(PoolError::Degraded { .. })));
            // Nothing was written since the durable state.
            assert_eq!(opened(&device), expected(&[]), "step {step}");
            continue;
        }
        // The pool is used and then crashes: the writes after the failed close are there.
        write(&volume, 21, 7);
        again.sync().unwrap();
        write(&volume, 22, 8);
        again.sync().unwrap();
        drop((volume, again));
        assert_eq!(opened(&device), expected(&[(21, 7), (22, 8)]), "step {step}");

        let (device, pool, volume, left) = self::pool();
        let again = pool.clone();
        drop(volume);
        left.store(step, Ordering::SeqCst);
        assert!(pool.close().is_err());
        again.clone().close().unwrap();
        let after = again.open_volume("v").unwrap_err();
        assert!(after.to_string().contains("the pool was closed"), "{after}");
        assert!(again.snapshot("v", "s").is_err());
        again.sync().unwrap();
        drop(again);
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        assert!(!pool.info().recovered, "it is closed");
        assert_eq!(tags(&pool), expected(&[]), "step {step}");
    }
}

/// A crash in the middle of a close is no damage of the copies, whichever writes of the close have reached the device.
#[test]
fn a_close_that_was_interrupted_leaves_no_finding_about_copies() {
    let about_copies = |findings: &[crate::finding::Finding]| {
        findings.iter().filter(|finding| finding.place.what.starts_with("copy of the superblock")).count()
    };
    let mut interrupted = 0;
    for step in 0.. {
        let device = open_device("ram:size=16M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let (io, left) = (DeviceIo::new(&device).unwrap(), Arc::new(AtomicI64::new(-1)));
        let io = Box::new(Once { io, left: left.clone(), before_write: BeforeWrite::default() });
        let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
        pool.create_volume("v", 8 << 20).unwrap();
        left.store(step, Ordering::SeqCst);
        let is_closed = pool.close().is_ok();
        let look = || {
            let checked = check_device(&device, &CheckOptions::default()).unwrap();
            let pool = Pool::open(&device, &OpenOptions::default().read_only(true)).unwrap();
            let scrubbed = pool.scrub(&crate::ScrubOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()));
            (about_copies(&checked.findings), about_copies(&scrubbed.unwrap().findings))
        };
        assert_eq!(look(), (0, 0), "step {step}");
        if is_closed {
            // In a pool whose close is complete, an older copy is damage.
            let io = DeviceIo::new(&device).unwrap();
            let mut block = [0; 4096];
            let slot = crate::format::SUPERBLOCKS.map(|at| {
                io.read(at, &mut block).unwrap();
                crate::superblock::Superblock::decode(&block, at, u64::MAX).unwrap()
            });
            let older = slot.iter().min_by_key(|sb| sb.generation).unwrap();
            let copies = older.encode_copies();
            let (at, block) = copies.first().expect("a pool of this size has copies");
            io.write(*at, &block[..]).unwrap();
            assert_eq!(look(), (1, 1), "a copy of the checkpoint before");
            break;
        }
        interrupted += 1;
    }
    assert_eq!(interrupted, 10, "pages, root, flush, superblock, flush, two copies, flush, superblock, flush (S5)");
}

/// V25: the write of the list of losses is torn, after a checkpoint that failed at any step: the pool opens with what
/// was durable.
#[test]
fn a_torn_list_of_losses_takes_nothing_with_it() {
    for step in [None, Some(0), Some(3), Some(5), Some(6)] {
        let (device, pool, volume, left) = pool();
        if step.is_none() {
            // The second superblock of the newest checkpoint was never flushed, and is lost.
            let state = volume.pool().lock();
            DeviceIo::new(&device).unwrap().write(state.sb.slot(), &[0xdd; 4096]).unwrap();
        }
        write(&volume, 21, 3);
        if let Some(step) = step {
            left.store(step, Ordering::SeqCst);
            assert!(volume.pool().checkpoint().is_err());
        }
        // The next write is the list.
        volume.pool().alarm.ring(Status::IoErr);
        left.store(0, Ordering::SeqCst);
        assert!(pool.sync().is_err());
        // Opens a copy of the device in its present state, because closing the pool would write to the device.
        let tags = copy(&DeviceIo::new(&device).unwrap());
        drop((volume, pool));
        let (without, with) = (expected(&[]), expected(&[(21, 3)]));
        assert!(tags == with || (tags == without && step < Some(5)), "step {step:?}: {tags:?}");
    }
}

/// Reads the tags from a copy of the device.
fn copy(io: &DeviceIo) -> Vec<u8> {
    let device = open_device("ram:size=16M").unwrap();
    let mut bytes = vec![0; io.size_bytes() as usize];
    io.read(0, &mut bytes).unwrap();
    DeviceIo::new(&device).unwrap().write(0, &bytes).unwrap();
    opened(&device)
}

/// V25: the list is written after a checkpoint that failed at any step. It names the volume, and all durable data is
/// there.
#[test]
fn the_list_of_losses_comes_after_any_checkpoint() {
    for step in [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), Some(6)] {
        let (device, pool, volume, left) = pool();
        write(&volume, 21, 3);
        if let Some(step) = step {
            left.store(step, Ordering::SeqCst);
            assert!(volume.pool().checkpoint().is_err());
        }
        volume.pool().alarm.ring(Status::IoErr);
        assert!(matches!(pool.sync(), Err(PoolError::Degraded { cause: Status::IoErr, .. })));
        drop((volume, pool));
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        assert_eq!(pool.info().lost, ["v"], "step {step:?}");
        let (found, without, with) = (tags(&pool), expected(&[]), expected(&[(21, 3)]));
        // A durable superblock stays the newest.
        assert!(found == with || (found == without && step < Some(5)), "step {step:?}: {found:?}");
        pool.acknowledge_loss().unwrap();
        assert_eq!(pool.info().lost, Vec::<String>::new());
        drop(pool);
        assert_eq!(opened(&device), found);
        assert!(Pool::open(&device, &OpenOptions::default()).unwrap().info().lost.is_empty());
    }
}

/// A write to a unit that a snapshot shares copies the unit. During the copy a checkpoint is written, which makes the
/// pages of the map clean; then the write is cancelled.
#[test]
fn a_unit_that_moves_while_a_checkpoint_is_written_is_in_the_next_one() {
    let (device, pool, volume, _, before_write) = pool_with_hook();
    pool.snapshot("v", "s").unwrap();
    let (inner, cancelled) = (volume.pool().clone(), Arc::new(AtomicBool::new(false)));
    let cancel = cancelled.clone();
    *before_write.lock().unwrap() = Some(Box::new(move || {
        inner.checkpoint().unwrap();
        cancel.store(true, Ordering::SeqCst);
    }));
    let is_cancelled = || cancelled.load(Ordering::SeqCst);
    let may_block = MayBlock::until(&is_cancelled);
    assert_eq!(volume.map_blocking(3 << 16, 4096, Intent::Write, &may_block), Err(Status::Canceled));
    volume.pool().checkpoint().unwrap();
    // The unit that only the snapshot has now becomes free and is used again.
    pool.delete("s").unwrap();
    pool.sync().unwrap();
    pool.info();
    for name in ["w", "x"] {
        let other = pool.create_volume(name, 16 << 20).unwrap();
        (0..140).for_each(|block| write(&other, block, 8));
        pool.sync().unwrap();
        drop(other);
        pool.delete(name).unwrap();
    }
    drop((volume, pool));
    assert_eq!(opened(&device), expected(&[]));
}

/// Number of the step that writes to the journal. The steps of a commit are a flush, the blocks of the journal, a
/// flush.
const JOURNAL_WRITE: i64 = 1;

/// The numbers of the failed blocks are not used again, so later blocks could not be replayed: the next commit is a
/// checkpoint, which has everything.
#[test]
fn the_commit_after_a_failed_one_is_a_checkpoint() {
    let (device, pool, volume, left) = pool();
    let generation = volume.pool().lock().sb.generation;
    write(&volume, 21, 3);
    left.store(JOURNAL_WRITE, Ordering::SeqCst);
    assert!(pool.sync().is_err());
    write(&volume, 22, 4);
    pool.sync().unwrap();
    assert_eq!(volume.pool().lock().sb.generation, generation + 2, "a checkpoint with its twin");
    write(&volume, 23, 5);
    pool.sync().unwrap();
    drop((volume, pool));
    assert_eq!(opened(&device), expected(&[(21, 3), (22, 4), (23, 5)]));
}

/// The changes that a failed commit took wait for the next one. That includes freed space, which would stay in use
/// otherwise.
#[test]
fn a_commit_that_failed_forgets_nothing_that_it_took() {
    let (device, pool, volume, left) = pool();
    let before = pool.info().data_bytes;
    volume.fallocate(FallocateMode::PunchHole, 3 << 16, 1 << 16, &MayBlock::on_worker()).unwrap();
    write(&volume, 21, 3);
    left.store(JOURNAL_WRITE, Ordering::SeqCst);
    assert!(pool.sync().is_err());
    assert!(!volume.pool().lock().is_clean(), "it waits again");
    pool.sync().unwrap();
    let info = pool.info();
    assert_eq!((info.data_bytes, info.pending_bytes), (before, 0), "one unit has come, one has gone");
    let state = volume.pool().lock();
    let (_, entry) = state.find(state.table.named("v").unwrap().id, 21).unwrap();
    assert!(!entry.any(Entry::LISTED | Entry::DIRTY), "nothing is left to be recorded: {entry:?}");
    drop(state);
    drop((volume, pool));
    assert_eq!(opened(&device), expected(&[(3, 0), (21, 3)]));
}

/// Copies of maps are work that an opening must repeat. After much of it a checkpoint is due, even if hardly any node
/// is dirty.
#[test]
fn costly_map_copies_make_a_checkpoint_due() {
    let (_, pool, volume, _) = pool();
    let before = volume.pool().lock().sb.generation;
    pool.snapshot("v", "s").unwrap();
    write(&volume, 3, 4);
    let copied = std::mem::replace(&mut volume.pool().lock().tree.cost, MOST_COST + 1);
    assert!(copied > 32 + 256, "a slot was shared, and a leaf copied: {copied}");
    pool.sync().unwrap();
    let state = volume.pool().lock();
    assert_eq!((state.sb.generation, state.tree.cost), (before + 2, 0), "a checkpoint with its twin");
}

/// A crash before the superblock is durable finds the previous checkpoint: its pages must not be reused until then.
#[test]
fn replaced_pages_are_not_reused_before_the_checkpoint_is_durable() {
    let (_, pool, volume, _) = pool();
    write(&volume, 3, 4);
    volume.pool().checkpoint().unwrap();
    write(&volume, 4, 5);
    let mut state = volume.pool().lock();
    let geometry = state.sb.geometry();
    let plan = state.plan(&geometry, false).unwrap();
    assert!(plan.replaced.len() >= 3, "a leaf, an index page, the table: {:?}", plan.replaced);
    let State { tree, .. } = &mut *state;
    let available = tree.pages.available(&tree.units);
    let all = tree.pages.take(available, &mut tree.units).unwrap();
    let early: Vec<&u64> = plan.replaced.iter().filter(|page| all.contains(page)).collect();
    assert!(early.is_empty(), "{early:?} may be had, and the checkpoint before needs them");
    let after_it = state.landed(plan);
    let State { tree, .. } = &mut *state;
    assert!(tree.pages.available(&tree.units) >= 3, "now they may");
    drop((after_it, state));
    drop((volume, pool));
}

/// V31: labels have the generation of a checkpoint before its superblock requires it. So the pool opens whichever write
/// fails, and its label is never older than the superblock requires.
#[test]
fn a_checkpoint_of_two_members_that_is_cut_off_anywhere_opens() {
    let mut ends = 0;
    for cut in 0.. {
        let parts = ["ram:size=8M", "ram:size=8M"].map(|spec| open_device(spec).unwrap());
        let device = sheave_blk::linear::concatenate("two", &parts).unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let left = Arc::new(AtomicI64::new(-1));
        let io = DeviceIo::new(&device).unwrap();
        let io = Box::new(Once { io, left: left.clone(), before_write: BeforeWrite::default() });
        let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
        pool.create_volume("v", 8 << 20).unwrap();
        left.store(cut, Ordering::SeqCst);
        let result = pool.inner.checkpoint();
        left.store(-1, Ordering::SeqCst);
        let mut bytes = vec![0; 16 << 20];
        DeviceIo::new(&device).unwrap().read(0, &mut bytes).unwrap();
        let other = open_device("ram:size=16M").unwrap();
        DeviceIo::new(&other).unwrap().write(0, &bytes).unwrap();
        let reopened = Pool::open(&other, &OpenOptions::default()).unwrap();
        assert!(reopened.open_volume("v").is_ok(), "cut {cut}");
        reopened.close().unwrap();
        assert!(check_device(&other, &CheckOptions::default()).unwrap().is_clean(), "cut {cut}");
        if result.is_ok() {
            ends = cut;
            break;
        }
    }
    assert!(ends >= 6, "pages, root, labels, two superblocks and their flushes: {ends}");
}
