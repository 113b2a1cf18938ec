//! Closing of regions: never during a write, and soon after the last one.

use std::time::{Duration, Instant};

use sheave_base::grace::{Grace, Phase, Seat};
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, IoMemory, Mapping, SummedDone};

use super::*;
use crate::{Checksum, CreateOptions, OpenOptions, Pool, Volume};

const BYTES: usize = BLOCK;

struct Writer {
    volume: Volume,
    seat: Seat,
}

impl Writer {
    fn new() -> (Device, Pool, Writer) {
        // Disables the thread that closes regions, so that a write always finds the pool's lock free and does not block
        // for that.
        Writer::with(&OpenOptions { longest_idle: Duration::MAX, ..OpenOptions::default() })
    }

    fn with(open: &OpenOptions) -> (Device, Pool, Writer) {
        let device = open_device("ram:size=64M").expect("opens");
        let options = CreateOptions { checksum: Checksum::Crc32c, ..CreateOptions::default() };
        Pool::create(&device, &options).expect("formats");
        let pool = Pool::open(&device, open).expect("opens");
        let volume = pool.create_volume("v", 1 << 20).expect("creates");
        let seat = Grace::seat(volume.grace().expect("volumes have one"));
        (device, pool, Writer { volume, seat })
    }

    /// Begins a write, up to the point where its data would be sent. Also returns the number of times that the write
    /// had to block.
    fn begin(&self) -> (Mapping, Phase, u32) {
        let mut blocked = 0;
        loop {
            self.seat.enter();
            let mapping = self.volume.map(0, BYTES as u64, Intent::Write);
            if let Ok(mapping) = mapping {
                self.volume.begin_write(&mapping);
                let phase = self.seat.count();
                self.seat.leave();
                return (mapping, phase, blocked);
            }
            self.seat.leave();
            let token = MayBlock::on_worker();
            self.volume.map_blocking(0, BYTES as u64, Intent::Write, &token).expect("it can be written");
            blocked += 1;
        }
    }

    fn end(&self, (mapping, phase, _): (Mapping, Phase, u32), tag: u8) {
        let mut data = vec![tag; BYTES];
        self.volume.pool().io.write(mapping.addr, &data).expect("it writes");
        let pieces = &[mapping][..];
        let (pos, len, status) = (0, BYTES as u64, Status::Ok);
        IoMemory::over(&mut data, |memory| {
            let done = SummedDone::of_write(WriteDone::new(pos, len, status, pieces), memory);
            self.volume.end_summed(&done).expect("nobody else writes");
        });
        let done = WriteDone::new(pos, len, status, pieces);
        self.volume.end_write(done, &MayBlock::on_worker()).expect("it ends");
        self.seat.uncount(phase);
    }

    fn checkpoints(&self, count: u32) {
        (0..count).for_each(|_| self.volume.pool().checkpoint().expect("it is written"));
    }

    fn open_regions(&self) -> usize {
        self.volume.pool().lock().sums.as_ref().map_or(0, |regions| regions.intended)
    }

    fn generation(&self) -> u64 {
        self.volume.pool().lock().sb.generation
    }

    /// Returns two flags: true if the region of the block is intended, and true if its page on the device has
    /// `SUMS_OPEN`.
    fn region(&self, mapping: &Mapping) -> (bool, bool) {
        let state = self.volume.pool().lock();
        let regions = state.sums.as_ref().expect("the pool has checksums");
        let region = regions.map.get(&regions.sums.region_at(mapping.addr)).expect("it has data");
        (region.intended, region.open_page)
    }
}

#[test]
fn a_region_stays_open_while_a_write_is_under_way_and_closes_after_it() {
    let (_device, _pool, writer) = Writer::new();
    let first = writer.begin();
    assert!(first.2 > 0, "it was closed, and opening it takes a commit");
    let mapping = first.0;
    writer.end(first, 1);
    let long = writer.begin();
    assert_eq!(long.2, 0, "it is open");
    writer.checkpoints(6);
    assert_eq!(writer.region(&mapping), (true, true), "whatever comes by");
    writer.end(long, 2);
    writer.checkpoints(4);
    assert_eq!(writer.region(&mapping), (false, false));
    assert!(!writer.volume.pool().sums.as_ref().expect("has").is_open(mapping.addr));
    let again = writer.begin();
    assert!(again.2 > 0, "opening it takes a commit");
    writer.end(again, 3);
}

/// Checks that a checkpoint scans only active regions (G3).
#[test]
fn checkpoints_scan_active_regions_only() {
    let (_device, pool, writer) = Writer::new();
    let active = || {
        let state = writer.volume.pool().lock();
        let regions = state.sums.as_ref().expect("the pool has checksums");
        (regions.active.len(), regions.map.len())
    };
    let first = writer.begin();
    writer.end(first, 1);
    let (open, all) = active();
    assert!(open == all && open > 0, "{open} of {all}");
    writer.checkpoints(6);
    assert_eq!(active(), (0, all), "nothing is left to do for them");
    assert_eq!(writer.volume.pool().lock().sums.as_ref().map(Regions::pages_due), Some(0));
    // A copy of a unit changes checksums without opening a region.
    pool.snapshot("v", "s").expect("a snapshot");
    let second = writer.begin();
    assert!(active().0 > 0);
    writer.end(second, 2);
    writer.checkpoints(6);
    assert_eq!(active().0, 0);
    assert!(
        pool.scrub(&crate::ScrubOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()))
            .is_ok_and(|report| report.is_clean() && report.verified_data())
    );
}

#[test]
fn a_region_that_closes_opens_for_the_next_write_without_a_commit() {
    let (_device, _pool, writer) = Writer::new();
    let first = writer.begin();
    let mapping = first.0;
    writer.end(first, 1);
    let long = writer.begin();
    // Checkpoints find the region idle, so it begins to close.
    writer.checkpoints(3);
    let sums = writer.volume.pool().sums.as_ref().expect("has");
    assert!(!sums.is_open(mapping.addr));
    let seq = writer.volume.pool().lock().next_seq;
    let second = writer.begin();
    assert_eq!((second.2, writer.volume.pool().lock().next_seq), (1, seq), "nothing was written to the journal");
    writer.checkpoints(3);
    assert_eq!(writer.region(&mapping), (true, true));
    let pieces = [long.0];
    pieces.iter().for_each(|piece| writer.volume.abort_write(piece));
    writer.seat.uncount(long.1);
    // The first write was in flight when the second began, so the second reads back the data on the device.
    let mut data = vec![7; BYTES];
    writer.volume.pool().io.write(second.0.addr, &data).expect("it writes");
    IoMemory::over(&mut data, |memory| {
        let (pieces, len) = (&[second.0][..], BYTES as u64);
        let done = SummedDone::of_write(WriteDone::new(0, len, Status::Ok, pieces), memory);
        assert_eq!(writer.volume.end_summed(&done), Err(Status::Again));
        writer.volume.end_summed_blocking(&done, &MayBlock::on_worker()).expect("it reads");
    });
    writer.seat.uncount(second.1);
    assert_eq!(sums.get(second.0.addr >> 12), Some(super::super::crc(&[7; BYTES])));
}

#[test]
fn a_write_that_failed_leaves_the_checksum_of_what_is_there() {
    let (_device, _pool, writer) = Writer::new();
    let (mapping, phase, _) = writer.begin();
    let mut data = vec![5; BYTES];
    // The device has stored all data but reports a failure.
    writer.volume.pool().io.write(mapping.addr, &data).expect("it writes");
    data.fill(6);
    IoMemory::over(&mut data, |memory| {
        let (pieces, len, status) = (&[mapping][..], BYTES as u64, Status::IoErr);
        let done = SummedDone::of_write(WriteDone::new(0, len, status, pieces), memory);
        assert_eq!(writer.volume.end_summed(&done), Err(Status::Again));
        assert_eq!(writer.volume.end_summed_blocking(&done, &MayBlock::on_worker()), Err(Status::IoErr));
    });
    writer.seat.uncount(phase);
    let sums = writer.volume.pool().sums.as_ref().expect("has");
    assert_eq!(sums.get(mapping.addr >> 12), Some(super::super::crc(&[5; BYTES])));
    let next = writer.begin();
    assert_eq!(next.2, 0);
    writer.end(next, 7);
}

/// `look` itself writes nothing. A checkpoint follows only when it can close a region.
#[test]
fn look_closes_only_idle_regions() {
    let (_device, pool, writer) = Writer::new();
    assert!(!pool.close_idle().expect("looks"), "nothing was written");
    let look = || (pool.close_idle().expect("looks"), writer.generation());
    let write_and_look = |tag| {
        writer.end(writer.begin(), tag);
        look()
    };
    // The regions that were opened together with it and have no writes close.
    (0..3).for_each(|tag| assert!(write_and_look(tag).0));
    let begun = writer.generation();
    (3..10).for_each(|tag| assert_eq!(write_and_look(tag), (true, begun), "it is written to between all looks"));
    // The last `look` cleared the dirty flag of the last write. The next one finds the region idle, the one after it
    // closes it.
    assert_eq!([look(), look()], [(true, begun), (false, begun + 2)]);
    assert_eq!(look(), (false, begun + 2), "and there is nothing left to do");
    // A write in flight keeps the region open for any number of looks.
    let long = writer.begin();
    assert!(long.2 > 0, "it was closed");
    let (mapping, begun) = (long.0, writer.generation());
    (0..10).for_each(|_| assert_eq!(look(), (true, begun)));
    writer.end(long, 3);
    assert!((0..4).any(|_| !look().0), "it closes when that has ended");
    assert_eq!(writer.region(&mapping), (false, false));
}

/// V16: the regions of an idle writer close soon, without any call.
#[test]
fn the_pool_closes_what_has_been_idle_for_long_by_itself() {
    let options = OpenOptions { longest_idle: Duration::from_millis(60), ..OpenOptions::default() };
    let (_device, pool, writer) = Writer::with(&options);
    for tag in 1..4 {
        let first = writer.begin();
        assert!(first.2 > 0, "opening it takes a commit, each time");
        let mapping = first.0;
        writer.end(first, tag);
        let ended = Instant::now();
        while writer.open_regions() > 0 {
            assert!(ended.elapsed() < Duration::from_secs(20), "{} are open", writer.open_regions());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!writer.volume.pool().sums.as_ref().expect("has").is_open(mapping.addr));
    }
    drop((pool, writer));
}

/// After the pool is dropped, its device is free, even if a look was in progress (B1 of the pool's threads).
#[test]
fn the_thread_that_closes_regions_ends_with_the_pool() {
    let device = open_device("ram:size=64M").expect("opens");
    let create = CreateOptions { checksum: Checksum::Crc32c, ..CreateOptions::default() };
    Pool::create(&device, &create).expect("formats");
    let options = OpenOptions { longest_idle: Duration::from_nanos(1), ..OpenOptions::default() };
    for round in 0..50 {
        let pool = Pool::open(&device, &options).expect("nobody has it");
        let name = format!("v{round}");
        let volume = pool.create_volume(&name, 1 << 20).expect("creates");
        volume.map_blocking(0, BYTES as u64, Intent::Write, &MayBlock::on_worker()).expect("it can be written");
        std::thread::sleep(Duration::from_micros(round * 40));
        drop((volume, pool));
    }
}

/// A journal may open at most twice as many regions as an open pool: each takes memory and is read at the next opening.
#[test]
fn more_regions_than_a_pool_opens_are_not_replayed() {
    let (_, pool, _) = Writer::new();
    let mut state = pool.inner.lock();
    let regions = state.sums.as_mut().expect("has checksums");
    assert_eq!(regions.replay_intent(0..2048), Ok(()));
    assert_eq!(regions.replay_intent(1000..4090), Ok(()), "a region that is open counts once");
    assert_eq!(regions.replay_intent(4090..8192), Err(Status::Invalid));
}

/// A writer returns late from the commit of its intent: the regions have closed since, and another intent of them waits
/// for its commit. Writes may begin only when that second intent is durable.
#[test]
fn an_older_durable_intent_does_not_cover_a_newer_one() {
    let (_device, pool, writer) = Writer::new();
    writer.end(writer.begin(), 1);
    let inner = writer.volume.pool();
    let all = 8..16;
    let mut state = inner.lock();
    let regions = state.sums.as_mut().expect("it keeps checksums");
    let late = regions.intend(all.clone()).expect("there is memory");
    let other = regions.intend(all.clone()).expect("there is memory");
    regions.intent_is_durable(all.clone(), other);
    assert!(regions.open(8, all.clone()));
    drop(state);
    for _ in 0..3 {
        inner.checkpoint().expect("it commits");
    }
    let mut state = inner.lock();
    let regions = state.sums.as_mut().expect("it keeps checksums");
    assert!(!regions.open(8, all.clone()), "it has closed");
    let next = regions.intend(all.clone()).expect("there is memory");
    regions.intent_is_durable(all.clone(), late);
    assert!(!regions.open(8, all.clone()) && !regions.sums.is_open(8 << 22), "its record waits");
    regions.intent_is_durable(all.clone(), next);
    assert!(regions.open(8, all));
    drop(state);
    drop(pool);
}

/// A sink that counts the pages.
struct Counting(u64);

impl index::Sink for Counting {
    fn allocate(&mut self) -> Option<Spot> {
        Some(Spot { address: (self.0 + 100) << 12, second: 0 })
    }

    fn page(&mut self, _: u64, _: &crate::format::block::Block) {
        self.0 += 1;
    }
}

/// A crafted pool may have index pages with nothing below them. They are counted and written as all others.
#[test]
fn a_checkpoint_has_an_address_for_each_page_whatever_index_pages_there_are() {
    let geometry = Geometry::new(1 << 16, 1 << 30, 16);
    let place = PagePlace { pool: [1; 16], generation: 2, address: 0, second: 0, index: 0, owner: 0 };
    let page = |at: u64| PageRef { address: at << 12, checksum: 1, second: 0 };
    for empty in [None, Some(1), Some(255), Some(256), Some(5000), Some(65_000)] {
        let mut regions = Regions::new(Arc::new(Sums::new(&geometry)), true);
        [Some(0), empty].into_iter().flatten().for_each(|at| regions.loaded_index(1, at, page(at + 30)));
        regions.make(0).expect("there is memory");
        regions.loaded(0, page(20), true);
        regions.mark_changed(0);
        let (due, mut sink) = (regions.pages_due(), Counting(0));
        regions.draft(&geometry, &place, &mut sink, &mut |_| ());
        assert!(sink.0 <= due, "{empty:?}: {} pages, and {due} are due", sink.0);
    }
}

/// Units come in any order and repeatedly: exactly these are found, and memory is proportional to the distinct ones.
#[test]
fn units_of_a_journal_are_kept_once() {
    let mut rng = sheave_base::rng::Rng::new(7);
    for different in [1, 3, 500, 4000] {
        let (mut replayed, mut wanted) = (Replayed::default(), BTreeSet::new());
        for _ in 0..20_000 {
            let unit = rng.below(different) * 5;
            replayed.push(unit);
            wanted.insert(unit);
            assert!(replayed.units.capacity() <= 64 + 2 * different as usize + 64, "{different}");
        }
        replayed.sort();
        assert!((0..different * 5).all(|unit| replayed.contains(unit) == wanted.contains(&unit)));
    }
}

/// Scattered writes respect the bound of open regions, so recovery reads no more than that.
#[test]
fn no_more_regions_are_open_than_the_pool_was_opened_with() {
    let device = open_device("ram:size=1G").expect("opens");
    let options = CreateOptions { checksum: Checksum::Crc32c, ..CreateOptions::default() };
    Pool::create(&device, &options).expect("formats");
    for (bytes, most) in [(300 << 20, 77), (1, MIN_INTENDED), (u64::MAX, MAX_INTENDED)] {
        let pool = Pool::open(&device, &OpenOptions { open_bytes: bytes, ..OpenOptions::default() }).expect("opens");
        let name = format!("v{most}");
        let volume = pool.create_volume(&name, 1 << 30).expect("creates");
        let token = MayBlock::on_worker();
        // The units of a volume are contiguous, in 130 regions.
        for unit in 0..8000 {
            volume.map_blocking(unit << 16, BYTES as u64, Intent::Write, &token).expect("it can be written");
            let intended = volume.pool().lock().sums.as_ref().map_or(0, |regions| regions.intended);
            assert!(intended <= most, "{intended} regions are open, of {most}");
        }
        let used = volume.pool().lock().sums.as_ref().map_or(0, |regions| regions.map.len());
        assert!(used > 120, "{used} regions have data");
        drop(volume);
        pool.delete(&name).expect("deletes");
        pool.close().expect("closes");
    }
}
