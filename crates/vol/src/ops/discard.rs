//! Background discard: returns the space of freed units to the device below, a few units at a time.
//!
//! Owns the pace and the batches. A unit becomes free when the commit that records this is durable and everything that
//! might use the unit has ended ([`limbo`](crate::state::limbo)). It is listed then ([`alloc`](crate::state::alloc)),
//! and discarded under the rules of [`trim`](super::trim).
//!
//! - G1: a batch has at most [`BATCH`] units, and at most a quarter of the free ones. After a batch the thread rests as
//!   long as the batch took, and at least for [`REST`].
//! - G2: I/O does not wait for a discard, with one exception: a writer that finds no space waits if units are set aside
//!   for a discard, until they are free again.
//! - G3: after a failed discard there are no more in this opening. The only loss is space of the host.
//! - G4: closing continues to discard for at most [`LAST`], and then waits for the discard in flight. Dropping the pool
//!   only waits for the discard in flight. Units that are still listed then, or that were free before the pool was
//!   opened, are left to [`Pool::trim`](crate::Pool::trim).
//!
//! Called by [`Pool`](crate::Pool).

use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_base::sync::Arc;

use super::trim::{Run, discard, give_back, push};
use crate::engine::background::Keeper;
use crate::engine::inner::PoolInner;
use crate::info::DiscardState;
use crate::state::State;
use crate::state::phase::Phase;

/// Largest number of units of a batch.
const BATCH: u64 = 256;
/// Largest number of entries of the list that are examined for a batch; units that are in use again are skipped.
const MOST_LOOKS: u64 = 16 * BATCH;
/// Shortest rest between two batches.
const REST: Duration = Duration::from_millis(10);
/// Time for which closing continues to discard.
const LAST: Duration = Duration::from_millis(500);
/// First and longest interval between checks whether I/O still delays deferred frees (back-off).
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Starts the thread if the pool is set to discard and the device supports discards.
pub(crate) fn start(pool: &Arc<PoolInner>, keeper: &Keeper) {
    pool.keep_stale();
    if !pool.lock().tree.units.keeps_stale() {
        return;
    }
    let pool = Arc::clone(pool);
    let none = Arc::clone(&pool);
    if let Err(status) = keeper.discards.start(move || run(&pool)) {
        none.discards.fail(status);
    }
}

/// Main function of the thread.
fn run(pool: &PoolInner) {
    let signal = &pool.discards.signal;
    let mut look = LOOKS.0;
    loop {
        pool.let_go();
        signal.clear();
        let begun = Instant::now();
        match batch(pool, &mut || !signal.is_stopping()) {
            Ok(0) => {}
            Ok(_) => {
                look = LOOKS.0;
                if !signal.pause(begun.elapsed().max(REST)) {
                    return;
                }
                continue;
            }
            Err(_) => return,
        }
        let waits = !pool.lock().limbo.is_empty();
        if !signal.wait(waits.then_some(look)) {
            return;
        }
        look = if waits { (look * 2).min(LOOKS.1) } else { LOOKS.0 };
    }
}

/// Discards a batch while `goes_on` returns true. Returns the number of bytes discarded. It is 0 if nothing is listed,
/// or if there is too little free space for a batch.
pub(crate) fn batch(pool: &PoolInner, goes_on: &mut dyn FnMut() -> bool) -> Result<u64, Status> {
    if let Some(status) = pool.discards.failed() {
        return Err(status);
    }
    // If another opening has taken the pool, units that are free here may be data of that opening (O2 of `owner`). The
    // next commit reports that.
    if pool.look_if_due().is_err() {
        return Ok(0);
    }
    let runs = take(&mut pool.lock());
    let (mut bytes, mut done, mut result) = (0, 0, Ok(()));
    for run in &runs {
        if result.is_err() || !goes_on() {
            break;
        }
        result = discard(pool, std::slice::from_ref(run));
        bytes += run.1 << pool.map.geometry.unit_shift;
        done += 1;
    }
    give_back(pool, &runs);
    // The batch ended early: the rest is listed again, and closing discards it.
    let rest = runs[done..].iter().flat_map(|(first, count)| *first..first + count);
    pool.lock().tree.units.list_again(rest);
    result.inspect_err(|status| {
        pool.discards.fail(*status);
        pool.lock().tree.units.keep_stale(false);
    })?;
    Ok(bytes)
}

fn take(state: &mut State) -> Vec<Run> {
    let mut runs = Vec::new();
    // A degraded pool writes nothing.
    if matches!(state.phase, Phase::Degraded(_) | Phase::Taken | Phase::DeletesOnly) {
        return runs;
    }
    let units = &mut state.tree.units;
    let (mut looks, mut left) = (MOST_LOOKS, BATCH.min(units.available() / 4));
    while left > 0
        && let Some(unit) = units.next_stale(&mut looks)
    {
        units.set_aside(unit);
        push(&mut runs, unit);
        left -= 1;
    }
    runs
}

/// Ends the thread of a pool that is closed, and discards the units that are still listed (G4).
pub(crate) fn end(pool: &PoolInner, keeper: &Keeper) {
    keeper.discards.stop();
    if !keeper.discards.is_wanted() {
        return;
    }
    pool.let_go();
    let begun = Instant::now();
    let mut goes_on = || begun.elapsed() < LAST;
    while goes_on() && matches!(batch(pool, &mut goes_on), Ok(1..)) {}
}

impl PoolInner {
    /// Returns true if the device takes discards.
    pub(crate) fn takes_back(&self) -> bool {
        self.device.limits().max_discard_sectors > 0
    }

    /// Lists what becomes free from now on, if the pool is set to discard it.
    pub(crate) fn keep_stale(&self) {
        let mut state = self.lock();
        let on = state.sb.discards() && !self.read_only && self.takes_back();
        state.tree.units.keep_stale(on);
    }

    /// Returns the state of the background discard, for reports.
    pub(crate) fn discard_state(&self, state: &State) -> DiscardState {
        match (state.sb.discards(), self.discards.failed()) {
            (false, _) => DiscardState::Off,
            (true, Some(status)) => DiscardState::Failed(status),
            // Support of discards is not probed on a device that was opened for reading.
            (true, None) if !self.read_only && !self.takes_back() => DiscardState::Unsupported,
            (true, None) => DiscardState::On,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    use sheave_base::grace::Grace;
    use sheave_base::status::Status;
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::FallocateMode;

    use super::{BATCH, batch};
    use crate::ops::trim::tests::{Bench, UNIT, bench_with, holds, write};
    use crate::{CreateOptions, DiscardState, OpenOptions, Pool, PoolError};

    fn sent(bench: &Bench) -> u64 {
        bench.discards.lock().unwrap().iter().map(|(_, len)| *len / UNIT).sum()
    }

    /// Waits until `is` returns true; panics after half a minute.
    fn until(what: &str, mut is: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn what_is_deleted_goes_back_by_itself_and_nothing_else() {
        let bench = bench_with(true, true);
        for (name, units, tag) in [("v", 300, 1), ("kept", 50, 2)] {
            drop(bench.pool.create_volume(name, 32 << 20).unwrap());
            write(&bench.pool, name, units, tag);
        }
        let free = bench.pool.info().free_bytes;
        bench.discards.lock().unwrap().clear();
        bench.pool.delete("v").unwrap();
        until("all of it is discarded", || sent(&bench) >= 300);
        assert!(sent(&bench) < 310, "the volume, and pages of its map: {}", sent(&bench));
        until("nothing is left to do", || bench.pool.info().discard_pending_bytes == 0);
        assert!(holds(&bench.pool, "kept", 2));
        let info = bench.pool.info();
        assert!(info.free_bytes >= free + 300 * UNIT && info.pending_bytes == 0, "{info:?}");
        let most = bench.discards.lock().unwrap().iter().map(|(_, len)| *len / UNIT).max().unwrap();
        assert!(most <= BATCH, "{most}");
    }

    #[test]
    fn nothing_is_discarded_before_it_is_durably_free_and_unused() {
        let bench = bench_with(true, false);
        let pool = &bench.pool;
        let volume = pool.create_volume("v", 8 << 20).unwrap();
        write(pool, "v", 20, 1);
        pool.sync().unwrap();
        while pool.discard_freed().unwrap() > 0 {}
        bench.discards.lock().unwrap().clear();
        volume.fallocate(FallocateMode::PunchHole, 0, 8 * UNIT, &MayBlock::on_worker()).unwrap();
        assert_eq!((pool.discard_freed().unwrap(), sent(&bench)), (0, 0), "no commit says that they are free");
        // A reader has looked the map up before.
        let seat = Grace::seat(volume.grace().unwrap());
        seat.enter();
        pool.sync().unwrap();
        assert_eq!((pool.discard_freed().unwrap(), sent(&bench)), (0, 0), "a read may be under way");
        seat.leave();
        assert_eq!((pool.discard_freed().unwrap(), sent(&bench)), (8 * UNIT, 8));
        assert_eq!(pool.discard_freed().unwrap(), 0);
        // Units that are in use again are passed over.
        volume.fallocate(FallocateMode::PunchHole, 8 * UNIT, 8 * UNIT, &MayBlock::on_worker()).unwrap();
        pool.sync().unwrap();
        pool.inner.let_go();
        let listed = pool.info().discard_pending_bytes;
        drop(pool.create_volume("w", 256 << 20).unwrap());
        let rest = pool.info().free_bytes / UNIT;
        write(pool, "w", rest, 3);
        assert_eq!(pool.info().free_bytes, 0);
        assert!(listed >= 8 * UNIT && pool.discard_freed().unwrap() == 0, "{listed}");
        assert!(holds(pool, "w", 3));
    }

    #[test]
    fn a_batch_is_bounded_and_leaves_free_space_to_others() {
        let bench = bench_with(true, false);
        let pool = &bench.pool;
        drop(pool.create_volume("v", 256 << 20).unwrap());
        let all = pool.info().free_bytes / UNIT;
        write(pool, "v", all, 1);
        let volume = pool.open_volume("v").unwrap();
        let punch = |from: u64, count: u64| {
            volume.fallocate(FallocateMode::PunchHole, from * UNIT, count * UNIT, &MayBlock::on_worker()).unwrap();
            pool.sync().unwrap();
        };
        punch(0, 40);
        let free = pool.info().free_bytes;
        assert_eq!(pool.discard_freed().unwrap(), free / UNIT / 4 * UNIT, "a quarter of what is free");
        punch(40, all - 40);
        assert_eq!(pool.discard_freed().unwrap(), BATCH.min(pool.info().free_bytes / UNIT / 4) * UNIT);
        // A writer that finds no space while some is set aside waits until it comes back.
        write(pool, "v", all - 8, 2);
        punch(0, 4);
        let wrote = Arc::new(AtomicU64::new(0));
        let (count, other) = (Arc::clone(&wrote), pool.clone());
        let (told, hear) = mpsc::channel();
        *bench.meanwhile.lock().unwrap() = Some(Box::new(move || {
            let (other, count, told) = (other.clone(), Arc::clone(&count), told.clone());
            std::thread::spawn(move || {
                let volume = other.open_volume("v").unwrap();
                let may_block = MayBlock::on_worker();
                let intent = sheave_iomap::mapping::Intent::Write;
                let free = other.info().free_bytes / UNIT;
                for unit in (0..4).chain(all - 8..).take(free as usize) {
                    volume.map_blocking(unit * UNIT, UNIT, intent, &may_block).unwrap();
                    count.fetch_add(1, Ordering::Relaxed);
                }
                told.send(free).unwrap();
            });
            std::thread::sleep(Duration::from_millis(100));
        }));
        let discarded = pool.discard_freed().unwrap();
        *bench.meanwhile.lock().unwrap() = None; // the job holds the pool, which holds the job
        let free = hear.recv_timeout(Duration::from_secs(10)).expect("nobody is told ENOSPC for what is set aside");
        assert!(
            discarded > 0 && wrote.load(Ordering::Relaxed) == free && free > discarded / UNIT,
            "{free} {discarded}"
        );
    }

    /// G4: if the thread is stopped amid a batch, the close discards the rest of it.
    #[test]
    fn a_cut_off_batch_is_relisted() {
        let bench = bench_with(true, false);
        let pool = &bench.pool;
        drop(pool.create_volume("v", 256 << 20).unwrap());
        write(pool, "v", 64, 1);
        let volume = pool.open_volume("v").unwrap();
        // Runs of one unit each.
        for unit in (0..32).map(|at| 2 * at) {
            volume.fallocate(FallocateMode::PunchHole, unit * UNIT, UNIT, &MayBlock::on_worker()).unwrap();
        }
        pool.sync().unwrap();
        pool.inner.let_go();
        let listed = pool.info().discard_pending_bytes;
        assert!(listed >= 32 * UNIT, "{listed}");
        let mut looks = 0;
        let mut once = || {
            looks += 1;
            looks == 1
        };
        assert_eq!(batch(&pool.inner, &mut once).unwrap(), UNIT);
        assert_eq!(pool.info().discard_pending_bytes, listed - UNIT, "it is not forgotten");
        let mut left = 0;
        while let bytes @ 1.. = batch(&pool.inner, &mut || true).unwrap() {
            left += bytes;
        }
        assert_eq!(left, listed - UNIT);
    }

    #[test]
    fn a_discard_that_fails_is_the_last_and_costs_no_space() {
        for thread in [true, false] {
            let bench = bench_with(true, thread);
            let pool = &bench.pool;
            drop(pool.create_volume("v", 8 << 20).unwrap());
            write(pool, "v", 100, 1);
            let before = pool.info();
            *bench.fails.lock().unwrap() = true;
            pool.delete("v").unwrap();
            if !thread {
                assert!(matches!(pool.discard_freed(), Err(PoolError::Io { status: Status::IoErr, .. })));
            }
            until("the failure is told", || pool.info().discard == DiscardState::Failed(Status::IoErr));
            let info = pool.info();
            assert!(info.free_bytes >= before.free_bytes + 100 * UNIT && info.pending_bytes == 0, "{info:?}");
            *bench.fails.lock().unwrap() = false;
            assert_eq!((sent(&bench), info.discard_pending_bytes), (0, 0));
            pool.sync().unwrap();
            drop(pool.create_volume("w", 8 << 20).unwrap());
            pool.delete("w").unwrap();
            bench.pool.clone().close().unwrap();
            assert_eq!(sent(&bench), 0, "none after one that failed");
        }
    }

    #[test]
    fn a_pool_that_is_degraded_discards_nothing() {
        let bench = bench_with(true, false);
        let pool = &bench.pool;
        drop(pool.create_volume("v", 8 << 20).unwrap());
        write(pool, "v", 100, 1);
        pool.delete("v").unwrap();
        assert!(pool.info().discard_pending_bytes >= 100 * UNIT);
        let _ = pool.inner.degrade(Status::IoErr);
        assert_eq!((batch(&pool.inner, &mut || true), sent(&bench)), (Ok(0), 0), "V25");
        assert!(pool.discard_freed().is_err());
    }

    #[test]
    fn closing_discards_what_is_left_and_does_not_wait_for_ever() {
        for (slow, thread) in [(false, true), (true, true), (false, false)] {
            let bench = bench_with(true, thread);
            let pool = &bench.pool;
            drop(pool.create_volume("v", 48 << 20).unwrap());
            // Every other unit, so that each is a run and a discard of its own.
            write(pool, "v", 600, 1);
            let volume = pool.open_volume("v").unwrap();
            if slow {
                *bench.meanwhile.lock().unwrap() = Some(Box::new(|| std::thread::sleep(Duration::from_millis(100))));
            }
            for unit in (0..600).step_by(2) {
                volume.fallocate(FallocateMode::PunchHole, unit * UNIT, UNIT, &MayBlock::on_worker()).unwrap();
            }
            drop(volume);
            let begun = Instant::now();
            pool.clone().close().unwrap();
            let took = begun.elapsed();
            match (slow, thread) {
                (false, true) => assert!(sent(&bench) >= 300, "{}", sent(&bench)),
                // The discards of all units would take half a minute.
                (true, _) => assert!(took < Duration::from_secs(15), "{took:?}"),
                (false, false) => assert_eq!(sent(&bench), 0, "who wants no thread discards itself"),
            }
        }
    }

    #[test]
    fn a_pool_that_was_dropped_discards_nothing_and_its_device_is_free() {
        for holder in ["pool", "volume"] {
            let Bench { device, pool, discards, meanwhile, .. } = bench_with(true, true);
            drop(pool.create_volume("v", 32 << 20).unwrap());
            let last = pool.create_volume("w", 1 << 20).unwrap();
            write(&pool, "v", 400, 1);
            let (begun, hear) = mpsc::channel();
            *meanwhile.lock().unwrap() = Some(Box::new(move || {
                let _ = begun.send(());
                std::thread::sleep(Duration::from_millis(30));
            }));
            pool.delete("v").unwrap();
            hear.recv_timeout(Duration::from_secs(10)).expect("a discard has begun");
            match holder {
                "pool" => {
                    drop(last);
                    drop(pool);
                }
                _ => {
                    drop(pool);
                    drop(last);
                }
            }
            let count = discards.lock().unwrap().len();
            let again = Pool::open(&device, &OpenOptions::default()).expect("nobody has it");
            std::thread::sleep(Duration::from_millis(60));
            assert_eq!(discards.lock().unwrap().len(), count, "{holder}: the thread has ended");
            drop(again);
        }
    }

    #[test]
    fn the_setting_is_kept_and_a_device_without_discards_is_told_apart() {
        let device = open_device("ram:size=64M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let states = [(false, DiscardState::Off), (true, DiscardState::On), (false, DiscardState::Off)];
        for (on, state) in states {
            let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
            pool.set_discard(on).unwrap();
            assert_eq!(pool.info().discard, state);
            // Dropped and not closed, like in a crash.
            drop(pool);
            let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
            assert_eq!(Pool::open(&device, &read_only).unwrap().info().discard, state);
            let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
            assert_eq!(pool.info().discard, state);
            drop(pool.create_volume("v", 1 << 20).unwrap());
            pool.delete("v").unwrap();
            pool.close().unwrap();
        }
        let none = open_device("null:size=64M,keep=64M").unwrap();
        if none.limits().max_discard_sectors == 0 {
            Pool::create(&none, &CreateOptions { discard: true, ..CreateOptions::default() }).unwrap();
            let pool = Pool::open(&none, &OpenOptions::default()).unwrap();
            assert_eq!(pool.info().discard, DiscardState::Unsupported);
            assert_eq!(pool.discard_freed().unwrap(), 0);
        }
    }
}
