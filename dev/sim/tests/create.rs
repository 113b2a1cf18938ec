//! The creation of a pool, cut at any write. A crash leaves the pool that was there before, or none, or the new one,
//! never one with wrong contents. Creating the pool again must work (V18).

use sheave_base::rng::Rng;
use sheave_sim::audit::audit;
use sheave_sim::check::check_image;
use sheave_sim::disk::{DiskOptions, Image, Media, SimDisk};
use sheave_sim::model::Model;
use sheave_sim::observe::observe;
use sheave_sim::setup::Setup;
use sheave_sim::threads::Threads;
use sheave_sim::world::{Counters, World};
use sheave_vol::{CreateOptions, Pool};

/// Number of crashes drawn at each step of a run.
const CRASHES: u64 = 3;

fn disk(setup: &Setup, image: Image) -> SimDisk {
    SimDisk::new(image, DiskOptions { lie: None, ..setup.disk.clone() })
}

/// Returns options with another UUID than the pool that is there already.
fn options(setup: &Setup) -> CreateOptions {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&setup.seed.to_le_bytes());
    uuid[15] = 2;
    setup.create_options().uuid(Some(uuid)).overwrite(true)
}

/// Returns the image of a pool that a killed process left, and the model of its contents.
fn used(setup: &Setup) -> (Image, Model) {
    let disk = disk(setup, Image::new(setup.size_bytes));
    Pool::create(&disk.device(), &setup.create_options()).expect("is made");
    let pool = Pool::open(&disk.device(), &setup.open_options()).expect("opens");
    let rng = Rng::new(setup.seed).fork(1);
    let mut world = World::new(setup, (pool, disk.clone()), &Threads::new(), Model::new(), Counters::default(), rng);
    world.run(setup.ops).unwrap_or_else(|why| panic!("seed {}: {why}", setup.seed));
    let model = world.model().clone();
    drop(world.abandon());
    (disk.image(), model)
}

/// Numbers of crashes that left the old pool, no pool, and the new pool.
#[derive(Debug, Default)]
struct Seen {
    old: u32,
    none: u32,
    new: u32,
}

/// Creates a pool on `before`, whose contents are `model`, and cuts the creation at every step.
fn cut_create(setup: &Setup, before: &Image, model: Option<&Model>, seen: &mut Seen) {
    let making = disk(setup, before.clone());
    Pool::create(&making.device(), &options(setup)).expect("is made");
    let log = making.log();
    let mut media = Media::new(before.clone(), None);
    let mut rng = Rng::new(setup.seed).fork(9);
    for at in 0..=log.len() {
        for _ in 0..CRASHES {
            let (image, cut) = media.crash(&mut rng);
            let what = format!("seed {}, step {at} of {}: {cut}", setup.seed, log.len());
            left(setup, image, model, seen).unwrap_or_else(|why| panic!("{what}: {why}"));
        }
        log.get(at).iter().for_each(|step| media.step(step));
    }
}

/// Checks the contents that a crash has left.
fn left(setup: &Setup, image: Image, model: Option<&Model>, seen: &mut Seen) -> Result<(), String> {
    let after = disk(setup, image.clone());
    let new: String = options(setup).uuid.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
    match Pool::open(&after.device(), &setup.open_options()) {
        Err(_) => seen.none += 1,
        Ok(pool) => {
            let found = observe(&pool, &after.image(), setup.seed)?;
            audit(&pool)?;
            if pool.info().uuid == new {
                seen.new += 1;
                if !found.is_empty() {
                    return Err(format!("the new pool has volumes: {:?}", found.keys()));
                }
            } else {
                seen.old += 1;
                let model = model.ok_or("a pool that nobody made")?;
                model
                    .settle(&found)
                    .map_err(|why| format!("the pool that was there opens with other content: {why}"))?;
            }
            drop(pool);
            let report = check_image(&after.image()).map_err(|error| format!("check: {error}"))?;
            if !report.is_clean() {
                return Err(format!("check finds {:?}", report.findings));
            }
        }
    }
    // Creates the pool again, on the contents that the crash left.
    let again = disk(setup, image);
    Pool::create(&again.device(), &options(setup)).map_err(|error| format!("making it again: {error}"))?;
    let pool = Pool::open(&again.device(), &setup.open_options()).map_err(|error| format!("opening it: {error}"))?;
    if !pool.volumes().is_empty() || pool.info().uuid != new || pool.info().recovered {
        return Err(format!("it is not new: {:?}", pool.info()));
    }
    Ok(())
}

#[test]
fn a_pool_that_was_not_made_to_the_end_is_none_or_empty() {
    let mut seen = Seen::default();
    for seed in 1..=12 {
        let setup = Setup::draw(seed, 0);
        cut_create(&setup, &Image::new(setup.size_bytes), None, &mut seen);
    }
    assert!(seen.old == 0 && seen.none > 30 && seen.new > 10, "{seen:?}");
}

#[test]
fn a_pool_that_is_overwritten_is_what_it_was_or_gone() {
    let mut seen = Seen::default();
    for seed in 1..=24 {
        let setup = Setup::draw(seed, 80);
        let (image, model) = used(&setup);
        cut_create(&setup, &image, Some(&model), &mut seen);
    }
    assert!(seen.old > 20 && seen.none > 30 && seen.new > 20, "{seen:?}");
}
