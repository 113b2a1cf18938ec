//! The product's code on a simulated machine of many processors. Counts line transfers, invalidations and lock waits
//! per I/O.
//!
//! Compiled only with `--cfg sheave_mesi`, under which atomics and locks report each access to the simulated machine
//! (`sheave_base::sync::mesi`). The arms are those of the lab, and run the product's rings, tags, statistics and worker
//! pool. Owns the scenes, and the program that prints the counts for [`model`](crate::model).
//!
//! * L1. Everything that a scene shares is made before the simulation. Each thread makes its own ring and warms up
//!   before anything is counted.
//! * L2. The same seed gives exactly the same counts.

use std::process::{Command, ExitCode};
use std::sync::Arc;

use sheave::open_device;
use sheave_base::sync::atomic::AtomicBool;
use sheave_base::sync::mesi::machine::{Counts, Topology};
use sheave_base::sync::mesi::sched;
use sheave_load::Rw;
use sheave_load::looper::{Lane, Looper, Until};
use sheave_load::pace::Pace;
use sheave_load::pattern::Pattern;
use sheave_load::sheave_engine::SheaveEngine;
use sheave_uring::io_wq::{Pool, PoolOptions};

use crate::Point;
use crate::counters::{Counters, Way};
use crate::drive::{self, Drive};
use crate::exp::in_flight::{counting, design};
use crate::exp::io_wq::design as io_wq;
use crate::model::counted::{Counted, ONE_TASK, SEED};
use crate::model::layout;
use crate::model::machines::{self, Machine};
use crate::wq::arms::OldPool;
use crate::wq::pool_engine::{Back, BenchSource, Client, PoolEngine, Stealing};
use crate::wq::{self, Flood, Limit, Side, Work};

const SIZE: u64 = 1 << 40;
/// Number of I/Os of a thread before anything is counted, and below it the number of I/Os that are counted.
const WARM_UP: u64 = 24;
const IOS: u64 = 64;

/// Work of a simulated thread.
type Body = Box<dyn FnOnce() + Send>;

/// Returns the limit of `ios` I/Os for a loop.
fn until(ios: u64) -> Until {
    Until { runtime: None, ios, stop: Arc::new(AtomicBool::new(false)) }
}

/// Simulates rings that share a device with the counters of `way` and have one I/O at a time each. Returns the counts
/// and the number of I/Os.
pub fn in_flight(seed: u64, topology: Topology, way: Way, point: &Point) -> (Counts, u64) {
    let lower = open_device(&format!("null:size={SIZE}")).expect("a null device opens");
    let counters = Counters::new(way);
    let device = counting::over(&lower, &counters, true);
    let bodies = (0..point.threads).map(|index| {
        let (device, point) = (device.clone(), point.clone());
        Box::new(move || {
            let opts = drive::opts(&point, device.capabilities().polled);
            let engine = SheaveEngine::new(|ring| ring.attach(&device), 1, &opts).expect("a ring is made");
            let mut drive = Drive::new(engine, &point, SIZE, u64::from(index));
            let warm = drive.run(&until(WARM_UP.max(2 * u64::from(point.depth))));
            sched::measure();
            let ran = drive.run(&until(IOS));
            sched::measured();
            assert!(warm.is_ok() && ran.is_ok_and(|ios| ios == IOS), "a null device fails nothing");
        }) as Body
    });
    let threads = point.threads as usize;
    let outcome = sched::simulate(seed, topology, threads, bodies.collect());
    (outcome.counts, IOS * u64::from(point.threads))
}

/// Simulates submitters that flood a pool of at most `workers` workers with NOPs. Returns the counts and the number of
/// items.
pub fn flood(seed: u64, topology: Topology, arm: wq::Arm, submitters: u32, workers: u32) -> (Counts, u64) {
    let point = io_wq::flood(u64::from(workers));
    let flood = Flood {
        depth: point.depth,
        batch: point.batch,
        workers,
        submitters,
        work: Work::Nop,
        hashed: 0,
        warm_up: Limit::Items(0),
        turn: Limit::Items(0),
        cpus: Vec::new(),
        worker_cpus: Vec::new(),
        stepped: false,
        stop: Arc::default(),
    };
    match arm {
        wq::Arm::Stealing | wq::Arm::Ring => {
            let options = PoolOptions {
                max_workers: [workers; 2],
                // This is the number that the pool would choose on such a machine.
                shards: (4 * submitters as usize).next_power_of_two().min(16),
                // Simulated threads have a core each, so helping would save nothing. It would also depend on the real
                // CPUs.
                help: false,
                ..PoolOptions::default()
            };
            let (pool, depth) = (Arc::new(Pool::new(options)), flood.depth);
            flooded(seed, topology, &flood, pool, move |pool, back| {
                let submitter = pool.submitter(BenchSource { work: Work::Nop, back }, depth);
                Stealing::new(submitter.expect("there is room"), Work::Nop)
            })
        }
        arm => {
            let pool = OldPool::new(&flood, arm == wq::Arm::Sharded, arm != wq::Arm::OneList, false);
            flooded(seed, topology, &flood, Arc::new(pool), |pool, back| pool.client(0, back))
        }
    }
}

/// Runs the submitters of a flood. The last one drops the pool inside the simulation, because its workers belong there.
fn flooded<P: Send + Sync + 'static, C: Client + 'static>(
    seed: u64,
    topology: Topology,
    flood: &Flood,
    pool: Arc<P>,
    client: impl Fn(&P, Back) -> C + Clone + Send + 'static,
) -> (Counts, u64) {
    // Each worker gets the same number of items, whatever the number of submitting threads is.
    let items = 2 * u64::from(flood.depth) * u64::from(flood.workers / flood.submitters);
    let bodies = (0..flood.submitters).map(|_| {
        let (pool, client, depth, batch) = (Arc::clone(&pool), client.clone(), flood.depth, flood.batch);
        Box::new(move || {
            let engine = PoolEngine::new(depth, 0, true, |back| Ok(client(&pool, back))).expect("an engine is made");
            let mut looper = Looper::new(engine, depth, batch, 0, Arc::new(Lane::default()));
            let mut pattern = Pattern::new(Rw::Read, 0, 0, 512, 1, 1);
            let warm = looper.run(&mut pattern, &until(items), &mut Pace::Unlimited);
            sched::measure();
            let ran = looper.run(&mut pattern, &until(items), &mut Pace::Unlimited);
            sched::measured();
            assert!(warm.is_ok() && ran.is_ok(), "items that do nothing do not fail");
        }) as Body
    });
    let bodies: Vec<Body> = bodies.collect();
    drop(pool);
    let threads = (flood.submitters + flood.workers) as usize;
    let outcome = sched::simulate(seed, topology, 2 * threads + 4, bodies);
    (outcome.counts, items * u64::from(flood.submitters))
}

/// One point of a prediction. It is counted in a process of its own.
struct Place {
    experiment: &'static str,
    arm: usize,
    machine: Machine,
    threads: u32,
    /// True if one thread submits, like the task of the kernel's io-wq does. Otherwise half of the threads submit.
    one_task: bool,
}

/// Returns the points of an experiment. Returns none if it has no prediction.
fn places(id: &str) -> Vec<Place> {
    let (experiment, arms, machines): (_, &[usize], &[Machine]) = match id {
        "in-flight" => ("in-flight", &[0, 1, 2, 3], &[machines::POWER, machines::EPYC]),
        "io-wq" => ("io-wq", &[io_wq::BEFORE, io_wq::SHARDED, io_wq::AFTER], &[machines::EPYC_ONE]),
        _ => return Vec::new(),
    };
    let mut places = Vec::new();
    for &arm in arms {
        for &machine in machines {
            let at = |&threads: &u32| Place { experiment, arm, machine, threads, one_task: false };
            places.extend(machine.cores.iter().map(at));
        }
    }
    if experiment == io_wq::ID {
        let machine = machines::EPYC_ONE;
        let at = |&threads: &u32| Place { experiment, arm: io_wq::BEFORE, machine, threads, one_task: true };
        places.extend(machine.cores.iter().map(at));
    }
    places
}

impl Place {
    fn count(&self, seed: u64) -> Counted {
        let Place { experiment, arm, machine, threads, one_task } = *self;
        let topology = Topology { complex: machine.complex, socket: machine.socket };
        let ((counts, ios), name) = match experiment {
            "in-flight" => {
                let point = design::one_by_one(threads);
                (in_flight(seed, topology, design::WAYS[arm], &point), design::ARMS[arm].name)
            }
            _ => {
                let Side::Ours(pool) = io_wq::SIDES[arm] else { return Counted::default() };
                let submitters = if one_task { 1 } else { threads / 2 };
                let name = if one_task { ONE_TASK } else { io_wq::ARMS[arm].name };
                (flood(seed, topology, pool, submitters, threads - submitters), name)
            }
        };
        Counted {
            experiment: experiment.into(),
            arm: name.into(),
            machine: machine.id.into(),
            threads,
            ios,
            transfers: counts.transfers,
            upgrades: counts.upgrades,
            invalidations: counts.invalidations,
            lock_waits: counts.lock_waits,
            hops: counts.hops,
            busiest: counts.busiest.first().copied().unwrap_or_default(),
        }
    }
}

/// The program `sheave-lines EXPERIMENT [SEED [PLACE]]`, or `sheave-lines layout`.
///
/// Each place is counted in a process of its own, with an allocator arena for each thread. Addresses decide which data
/// shares a line, so they must not depend on earlier places (L2).
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["layout"] {
        print!("{}", layout::of_this_build());
        return ExitCode::SUCCESS;
    }
    let number = |at: usize| words.get(at).map(|word| word.parse::<u64>().ok());
    let places = places(words.first().map_or("", String::as_str));
    let (Some(seed), Some(only)) = (number(1).unwrap_or(Some(SEED)), number(2).map_or(Some(None), |at| at.map(Some)))
    else {
        return usage();
    };
    if places.is_empty() || words.len() > 3 {
        return usage();
    }
    if let Some(at) = only {
        let Some(place) = places.get(at as usize) else { return usage() };
        print!("{}", place.count(seed).line());
        return ExitCode::SUCCESS;
    }
    let Ok(own) = std::env::current_exe() else { return ExitCode::FAILURE };
    for at in 0..places.len() {
        let mut command = Command::new(&own);
        command.args([&words[0], &seed.to_string(), &at.to_string()]).env("MALLOC_ARENA_MAX", "1024");
        if !command.status().is_ok_and(|status| status.success()) {
            eprintln!("sheave-lines: place {at} of {} was not counted", words[0]);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: sheave-lines in-flight|io-wq [SEED [PLACE]]");
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use sheave_base::sbitmap::Sbitmap;
    use sheave_base::sync::hint;
    use sheave_base::sync::mesi::machine::Counts;

    use super::*;
    use crate::wq::Arm;

    const NEAR: Topology = Topology { complex: 64, socket: 64 };

    fn per_io(count: u64, ios: u64) -> f64 {
        count as f64 / ios as f64
    }

    fn moved(counts: &Counts) -> u64 {
        counts.transfers + counts.upgrades
    }

    #[test]
    fn a_ring_alone_moves_no_line() {
        for way in design::WAYS {
            for point in [design::one_by_one(1), design::in_batches(1)] {
                let (counts, _) = in_flight(1, NEAR, way, &point);
                assert_eq!((moved(&counts), counts.invalidations, counts.lock_waits), (0, 0, 0), "{way:?} {counts:?}");
                assert!(counts.accesses > 0, "its atomics were seen");
            }
        }
    }

    #[test]
    fn rings_that_share_a_device_move_no_line_of_the_product() {
        for point in [design::one_by_one(8), design::in_batches(8)] {
            let (counts, ios) = in_flight(1, NEAR, Way::Tags, &point);
            assert_eq!(moved(&counts), 0, "of {ios} I/Os: {counts:?}");
        }
    }

    #[test]
    fn a_pair_of_counters_comes_for_the_start_of_an_io_and_for_its_end() {
        let (counts, ios) = in_flight(1, NEAR, Way::Pair, &design::one_by_one(16));
        let lines = per_io(moved(&counts), ios);
        assert!((1.7..=2.0).contains(&lines), "{lines} lines an I/O: {counts:?}");
        assert_eq!(counts.transfers, counts.invalidations, "each addition takes the line from one other");
        // All transfers are transfers of one line.
        assert_eq!(counts.busiest.len(), 1, "{counts:?}");
    }

    /// Simulates threads that take tags of one bitmap. Each thread begins in a word of its own.
    fn tags(depth: u32, threads: u32) -> (Counts, u64) {
        let map = Arc::new(Sbitmap::new(depth));
        let bodies = (0..threads).map(|index| {
            let map = Arc::clone(&map);
            Box::new(move || {
                let mut hint = index;
                let mut ios = |count: u64| {
                    for _ in 0..count {
                        // No tag is free while another thread moves the freed tags back.
                        let (first, mask) = loop {
                            match map.get_batch(&mut hint, 1) {
                                Some(granted) => break granted,
                                None => hint::spin_loop(),
                            }
                        };
                        map.clear_batch(first, mask);
                    }
                };
                ios(WARM_UP);
                sched::measure();
                ios(IOS);
                sched::measured();
            }) as Body
        });
        let outcome = sched::simulate(1, NEAR, threads as usize, bodies.collect());
        (outcome.counts, IOS * u64::from(threads))
    }

    #[test]
    fn tags_of_a_word_for_each_ring_move_nothing_and_of_one_word_a_bounded_number() {
        let (own, _) = tags(8 * 64, 8);
        assert_eq!(moved(&own), 0, "{own:?}");
        let (one, ios) = tags(64, 8);
        let lines = per_io(moved(&one), ios);
        // There are transfers of the word from which tags are taken, with retries, and of the word to which they are
        // freed. Now and then freed tags are moved back.
        assert!((2.0..6.0).contains(&lines), "{lines} lines an I/O: {one:?}");
    }

    #[test]
    fn an_item_of_the_pool_moves_less_than_one_line_and_one_of_a_list_many() {
        let (sheave, items) = flood(1, NEAR, Arm::Stealing, 4, 4);
        let (list, list_items) = flood(1, NEAR, Arm::OneList, 4, 4);
        let (ours, theirs) = (per_io(moved(&sheave), items), per_io(moved(&list), list_items));
        assert!(ours < 1.0, "{ours} lines an item: {sheave:?}");
        assert!(theirs > 5.0, "{theirs} lines an item: {list:?}");
        let waits = (per_io(sheave.lock_waits, items), per_io(list.lock_waits, list_items));
        assert!(waits.0 < 0.05 && waits.1 > 0.5, "{waits:?} lock waits an item");
    }

    /// Each item that finds no free worker makes one, so the lock is contended with one submitter and many workers.
    #[test]
    fn one_task_with_many_workers_waits_for_their_lock() {
        let waits = |workers| {
            let (counts, items) = flood(1, NEAR, Arm::OneList, 1, workers);
            per_io(counts.lock_waits, items)
        };
        let (few, many) = (waits(1), waits(15));
        assert!(many > few && many > 0.5, "{few} with one worker, {many} with 15");
    }

    #[test]
    fn every_place_has_a_machine_with_as_many_cores() {
        for id in ["in-flight", "io-wq"] {
            let places = places(id);
            assert!(
                !places.is_empty() && places.iter().all(|place| place.threads as usize <= 2 * place.machine.socket)
            );
        }
        assert!(places("plug-clock").is_empty());
    }
}
