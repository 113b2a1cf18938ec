//! Volumes compared with a plain map, one request at a time. After some operations every sector of every volume is
//! compared, and the pool's space figures are audited. There are no crashes, but pools are closed and opened.

use sheave_base::rng::Rng;
use sheave_sim::disk::{Image, SimDisk};
use sheave_sim::model::Model;
use sheave_sim::setup::Setup;
use sheave_sim::threads::Threads;
use sheave_sim::world::{Counters, World};
use sheave_vol::Pool;

/// Runs one seed, and compares everything after every `every` operations.
fn compare(seed: u64, ops: usize, every: usize, engines: usize) -> u64 {
    let mut setup = Setup::draw(seed, ops);
    setup.engines = engines;
    if engines == 1 {
        setup.mix.turn = 0;
        setup.max_volume_bytes = setup.max_volume_bytes.min(256 << 10);
    }
    let disk = SimDisk::new(Image::new(setup.size_bytes), setup.disk.clone());
    Pool::create(&disk.device(), &setup.create_options()).expect("the pool can be made");
    let pool = Pool::open(&disk.device(), &setup.open_options()).expect("and opened");
    let mut world =
        World::new(&setup, (pool, disk), &Threads::new(), Model::new(), Counters::default(), Rng::new(seed));
    for number in 0..ops {
        let mut done = world.one(number);
        if number % every == every - 1 {
            done = done.and_then(|()| world.drain()).and_then(|()| world.verify());
        }
        if let Err(why) = done {
            let trace = &world.history().trace;
            let from = trace.len().saturating_sub(40);
            trace[from..].iter().for_each(|(at, text)| eprintln!("{at:6} {text}"));
            panic!("seed {seed}, operation {number}: {why}");
        }
    }
    world.close().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    world.refused()
}

#[test]
fn one_at_a_time_a() {
    for seed in sheave_testkit::seeds(4) {
        compare(10 + seed, 1000, 1, 1);
    }
}

#[test]
fn one_at_a_time_b() {
    for seed in sheave_testkit::seeds(4) {
        compare(20 + seed, 1000, 1, 1);
    }
}

#[test]
fn many_at_a_time() {
    for seed in sheave_testkit::seeds(6) {
        compare(30 + seed, 3000, 50, 3);
    }
}

#[test]
fn small_pools_fill_up() {
    let mut refused = 0;
    for seed in (0..).filter(|&seed| Setup::draw(seed, 0).size_bytes < 75 * Setup::draw(seed, 0).unit_bytes).take(4) {
        refused += compare(seed, 2000, 10, 2);
    }
    assert!(refused > 0, "a pool was full at least once");
}
