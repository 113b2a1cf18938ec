//! Maps under a model checker: lookups race with changes that remove the units which the lookups have found.
//!
//! Owns the bounds of the exploration. Devices are modelled as one word for each unit: its owner, or the last value
//! written to it.
//!
//! * I1: a model is deterministic except for the schedule.
//! * I2: a loop that waits for another thread yields, so that the checker schedules that thread.
//!
//! Only in builds with `--cfg shuttle`; `SHEAVE_MODEL_RUNS` sets the number of schedules.

mod sums;
mod written;

use std::time::Duration;

use sheave_base::grace::{Grace, Seat};
use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::sync::{Arc, Mutex, thread};
use sheave_blk::flush_alarm::FlushAlarm;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{MappingKind, PlainRanges};

use crate::format::page::table::VolumeEntry;
use crate::state::alloc::Units;
use crate::state::extent_map::tree::Tree;
use crate::state::extent_map::{Entry, ExtentMap, Geometry, Top};
use crate::state::limbo::Limbo;
use crate::state::table::Vol;

/// Number of schedules of one model, for each of the two kinds: random, and random with priorities (PCT).
const RUNS: usize = 3_000;
/// Number of priority changes in one PCT schedule.
const PCT_DEPTH: usize = 3;
/// Limit on the turns of a loop that waits for other threads; more than any schedule needs.
const TURNS: u32 = 100_000;

fn explore(body: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("SHEAVE_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    // Not the `Arc` of `sync`, which may exist only within one execution: this one exists for all of them.
    let body = std::sync::Arc::new(body);
    let again = std::sync::Arc::clone(&body);
    shuttle::check_random(move || body(), runs);
    shuttle::check_pct(move || again(), runs, PCT_DEPTH);
}

/// Two volumes on a pool of very few units.
struct World {
    map: Arc<ExtentMap>,
    tops: [Top; 2],
    tree: Mutex<(Tree, Limbo)>,
    /// Content of each unit of the pool: one more than the number of the volume that owns it, or the last value written
    /// to it.
    units: Vec<AtomicU64>,
}

impl World {
    fn new(units: u64) -> Arc<World> {
        let map = Arc::new(ExtentMap::new(Geometry::new(12)));
        let mut free = Units::new(units);
        assert!(free.fix(0));
        let tree = Tree::new(Arc::clone(&map), free);
        let tops = [Top::new(), Top::new()];
        tops.iter().for_each(|top| top.open(1));
        let units = (0..units).map(|_| AtomicU64::new(0)).collect();
        Arc::new(World { map, tops, tree: Mutex::new((tree, Limbo::default())), units })
    }

    /// Creates the seat of a ring that has `volume` open.
    fn seat(&self, volume: usize) -> Seat {
        Grace::seat(self.tops[volume].grace())
    }

    /// Gives a unit of a volume space. Returns false if no unit of the pool is free yet.
    fn write(&self, volume: usize, unit: u64) -> bool {
        let mut guard = self.tree.lock().expect("no panic");
        let (tree, limbo) = &mut *guard;
        while limbo.advance(tree, 2) {}
        let Some(phys) = tree.units.alloc() else { return false };
        self.units[phys as usize].store(volume as u64 + 1, Ordering::Relaxed); // Relaxed: published with the entry.
        let place = tree.own(&self.tops[volume], unit).expect("there is memory");
        tree.set_bits(place, 0, 1, true);
        tree.install(place, Entry::at(phys).with(Entry::FULL));
        true
    }

    /// Discards a unit and commits that.
    fn discard(&self, volume: usize, unit: u64) {
        let mut guard = self.tree.lock().expect("no panic");
        let (tree, limbo) = &mut *guard;
        let place = tree.own(&self.tops[volume], unit).expect("there is memory");
        tree.unmap(&self.tops[volume], place);
        tree.prune(&self.tops[volume], unit);
        let freed = std::mem::take(&mut tree.freed);
        limbo.committed(freed);
    }

    /// Deletes all units of a volume and commits that.
    fn drop_all(&self, volume: usize) {
        let mut guard = self.tree.lock().expect("no panic");
        let (tree, limbo) = &mut *guard;
        tree.drop_slot(&self.tops[volume], 0);
        limbo.committed(std::mem::take(&mut tree.freed));
    }

    /// Looks up a unit twice in one batch. Returns the address of the second lookup if both succeeded.
    fn plain(&self, volume: usize, unit: u64, write: bool) -> Option<u64> {
        let mut at = [unit << 12; 2];
        let intent = if write { Intent::Write } else { Intent::Read };
        let ranges = PlainRanges::new(&at, 4096, intent);
        (self.map.lookup_many(&self.tops[volume], &mut at, &ranges) == 2).then_some(at[1])
    }

    /// Reads a unit as a ring does. Returns the unit's content at the end of the I/O.
    fn read(&self, seat: &Seat, volume: usize, unit: u64) -> Option<u64> {
        seat.enter();
        let place = self.plain(volume, unit, false).or_else(|| {
            let mapping = self.map.lookup_read(&self.tops[volume], unit << 12, 4096).ok();
            mapping.filter(|mapping| mapping.kind == MappingKind::Mapped).map(|mapping| mapping.addr)
        });
        let phase = seat.count();
        seat.leave();
        thread::yield_now();
        // Relaxed: the grace orders it.
        let seen = place.map(|addr| self.units[(addr >> 12) as usize].load(Ordering::Relaxed));
        seat.uncount(phase);
        seen
    }
}

#[test]
fn model_a_lookup_never_sees_a_foreign_unit() {
    explore(|| {
        let world = World::new(2);
        assert!(world.write(0, 0));
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let seat = world.seat(0);
                for _ in 0..3 {
                    let seen = world.read(&seat, 0, 0);
                    assert!(matches!(seen, None | Some(1)), "a unit of another volume: {seen:?}");
                }
            })
        };
        world.discard(0, 0);
        // Volume 1 gets the only unit, and the nodes that volume 0 had.
        for turn in 0.. {
            if world.write(1, 0) {
                break;
            }
            assert!(turn < TURNS, "what was discarded never comes back");
            thread::yield_now();
        }
        reader.join().expect("no panic");
    });
}

#[test]
fn model_nothing_is_written_to_what_a_snapshot_has() {
    explore(|| {
        let world = World::new(2);
        assert!(world.write(0, 0));
        let writer = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let seat = world.seat(0);
                for number in 10..13 {
                    seat.enter();
                    let one = || world.map.lookup_write(&world.tops[0], 0, 4096).map(|mapping| mapping.addr);
                    let place = world.plain(0, 0, true).or_else(one);
                    let phase = seat.count();
                    seat.leave();
                    thread::yield_now();
                    if let Some(addr) = place {
                        // Relaxed: the grace orders it.
                        world.units[(addr >> 12) as usize].store(number, Ordering::Relaxed);
                    }
                    seat.uncount(phase);
                }
            })
        };
        {
            let mut guard = world.tree.lock().expect("no panic");
            guard.0.share(&world.tops[0], &world.tops[1], 1).expect("there is memory");
        }
        let grace = world.tops[0].grace();
        assert!(grace.wait(grace.start(), Duration::MAX));
        let seat = world.seat(1);
        let frozen = world.read(&seat, 1, 0);
        writer.join().expect("no panic");
        assert_eq!(world.read(&seat, 1, 0), frozen, "the snapshot has changed");
    });
}

#[test]
fn model_moved_units_are_written_where_they_are() {
    explore(|| {
        let world = World::new(4);
        assert!(world.write(0, 0));
        {
            let mut guard = world.tree.lock().expect("no panic");
            guard.0.share(&world.tops[0], &world.tops[1], 1).expect("there is memory");
        }
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let (seat, other) = (world.seat(0), world.seat(1));
                let seen: Vec<_> = (0..3).map(|_| world.read(&seat, 0, 0)).collect();
                assert!(seen.is_sorted() && seen.iter().all(|seen| matches!(seen, Some(1 | 2))), "{seen:?}");
                assert_eq!(world.read(&other, 1, 0), Some(1), "the copy has what it had");
            })
        };
        {
            let mut guard = world.tree.lock().expect("no panic");
            let tree = &mut guard.0;
            let place = tree.own(&world.tops[0], 0).expect("there is memory");
            let phys = tree.units.alloc().expect("there are more");
            world.units[phys as usize].store(2, Ordering::Relaxed); // Relaxed: published with the entry.
            tree.replace(&world.tops[0], place, Entry::at(phys).with(Entry::FULL));
        }
        reader.join().expect("no panic");
    });
}

#[test]
fn model_a_discarded_shared_unit_is_not_overwritten_under_a_reader() {
    explore(|| {
        let world = World::new(3);
        assert!(world.write(0, 0));
        {
            let mut guard = world.tree.lock().expect("no panic");
            let (tree, limbo) = &mut *guard;
            tree.share(&world.tops[0], &world.tops[1], 1).expect("there is memory");
            // From here on each volume has nodes of its own, and the unit has two owners.
            tree.own(&world.tops[1], 0).expect("there is memory");
            limbo.committed(std::mem::take(&mut tree.freed));
            while limbo.advance(tree, 2) {}
        }
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let seat = world.seat(1);
                for _ in 0..3 {
                    let seen = world.read(&seat, 1, 0);
                    assert!(matches!(seen, None | Some(1)), "what was written to the other volume: {seen:?}");
                }
            })
        };
        world.discard(1, 0);
        // The remaining volume writes in place as soon as it is the only owner of the unit.
        for turn in 0.. {
            let mut guard = world.tree.lock().expect("no panic");
            let (tree, limbo) = &mut *guard;
            while limbo.advance(tree, 2) {}
            let place = tree.own(&world.tops[0], 0).expect("there is memory");
            let phys = tree.entry(place).phys();
            if tree.units.owners(phys) == 1 {
                world.units[phys as usize].store(7, Ordering::Relaxed); // Relaxed: the grace orders it.
                break;
            }
            assert!(turn < TURNS, "the unit never has one owner");
            let freed = std::mem::take(&mut tree.freed);
            limbo.committed(freed);
            drop(guard);
            thread::yield_now();
        }
        reader.join().expect("no panic");
    });
}

#[test]
fn model_units_freed_by_both_owners_wait_for_both_graces() {
    explore(|| {
        let world = World::new(2);
        assert!(world.write(0, 0));
        {
            let mut guard = world.tree.lock().expect("no panic");
            guard.0.share(&world.tops[0], &world.tops[1], 1).expect("there is memory");
        }
        let readers: Vec<_> = (0..2)
            .map(|volume| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let seat = world.seat(volume);
                    for _ in 0..2 {
                        let seen = world.read(&seat, volume, 0);
                        assert!(matches!(seen, None | Some(1)), "what was written to another volume: {seen:?}");
                    }
                })
            })
            .collect();
        // The volumes share their nodes. Each deferred free waits for its own volume's readers, and the later one frees
        // the unit.
        world.drop_all(0);
        world.drop_all(1);
        let mut free = false;
        for turn in 0.. {
            let mut guard = world.tree.lock().expect("no panic");
            let (tree, limbo) = &mut *guard;
            while limbo.advance(tree, 2) {}
            if let Some(phys) = tree.units.alloc() {
                // Relaxed: the graces order it.
                world.units[phys as usize].store(9, Ordering::Relaxed);
                free = true;
            }
            drop(guard);
            if free {
                break;
            }
            assert!(turn < TURNS, "the unit never comes back");
            thread::yield_now();
        }
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
    });
}

/// L1 and L3 of `loss`: a write that was not refused is listed by whoever rings the alarm, unless a commit that began
/// after the write's end made it durable. This also holds while commits begin epochs.
#[test]
fn model_a_write_is_refused_listed_or_durable() {
    explore(|| {
        let core = Arc::clone(&Vol::from_entry(&entry()).core);
        let (alarm, grace) = (Arc::new(FlushAlarm::default()), Arc::new(Grace::new()));
        // Number of the last write that has ended, and of the last one that a commit made durable.
        let (ended, durable) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let writer = {
            let (core, alarm, grace, ended) = (core.clone(), alarm.clone(), grace.clone(), ended.clone());
            thread::spawn(move || {
                let seat = Grace::seat(&grace);
                for write in 1..=2 {
                    seat.enter();
                    let refused = !core.is_noted(&alarm) && core.note_write(&alarm).is_err();
                    let phase = seat.count();
                    seat.leave();
                    if !refused {
                        ended.store(write, Ordering::SeqCst);
                    }
                    seat.uncount(phase);
                }
            })
        };
        let (mut safe, mut waits) = (1, None);
        for _ in 0..2 {
            let begun = ended.load(Ordering::SeqCst);
            let (ticket, old) = *waits.get_or_insert_with(|| {
                let old = alarm.next_epoch();
                (grace.start(), old)
            });
            if grace.is_over(ticket) {
                waits = None;
                // This commit contains all writes that ended before its grace was over.
                durable.store(ended.load(Ordering::SeqCst).max(begun), Ordering::SeqCst);
                safe = old + 1;
            }
            thread::yield_now();
        }
        alarm.ring(Status::IoErr);
        let listed = core.written_in.load(Ordering::SeqCst) >= safe;
        writer.join().expect("the writer does not panic");
        let at_risk = ended.load(Ordering::SeqCst) > durable.load(Ordering::SeqCst);
        assert!(listed || !at_risk, "a write that nobody is told of");
    });
}

fn entry() -> VolumeEntry {
    VolumeEntry {
        id: 1,
        snapshot: false,
        grows: false,
        size: 4096,
        max_size: 4096,
        created: 0,
        origin: 0,
        family: 1,
        root: crate::format::page::PageRef::NONE,
        root_level: 0,
        identity: None,
        interim: None,
        name: "v".into(),
    }
}
