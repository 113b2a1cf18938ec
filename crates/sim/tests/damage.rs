//! Damage: any single metadata block of a populated pool, changed in any way, is noticed and named, or is not needed.
//! What it says is never served. Writes that land elsewhere likewise.

use std::collections::BTreeMap;

use sheave_sim::corrupt::{Harm, MetaBlock, Verdict, harm, judge, meta_blocks};
use sheave_sim::disk::{Image, PAGE, SECTOR, SimDisk};
use sheave_sim::model::Model;
use sheave_sim::rng::Rng;
use sheave_sim::setup::Setup;
use sheave_sim::world::{Counters, World};
use sheave_vol::Pool;
use sheave_vol::format::kind;

/// A pool with something in it, closed or not.
fn populated(seed: u64, close: bool) -> (Setup, SimDisk, Model) {
    let mut setup = Setup::draw(seed, 0);
    setup.mix.reopen = 0;
    let disk = SimDisk::new(Image::new(setup.size_bytes), setup.disk.clone());
    Pool::create(&disk.device(), &setup.create_options()).expect("the pool can be made");
    let pool = Pool::open(&disk.device(), &setup.open_options()).expect("and opened");
    let rng = Rng::new(seed);
    let mut world = World::new(&setup, disk.clone(), pool, Model::new(), Counters::default(), rng);
    world.run(120).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    if close {
        world.close().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    let model = world.model().clone();
    drop(world);
    (setup, disk, model)
}

/// Harms blocks one by one, in every way; counts what came of it.
fn harm_all(seed: u64, image: &Image, setup: &Setup, model: &Model, victims: &[MetaBlock]) -> (u64, u64) {
    let all = meta_blocks(image);
    let mut rng = Rng::new(seed).fork(5);
    let (mut refused, mut unharmed) = (0, 0);
    for block in victims {
        for how in Harm::ALL {
            let mut damaged = image.clone();
            harm(&mut damaged, block, how, &all, &mut rng);
            match judge(setup, &damaged, model) {
                Err(why) => panic!("seed {seed}: {how:?} of the {block}: {why}"),
                Ok(Verdict::Unharmed(_)) => unharmed += 1,
                Ok(Verdict::Refused(error, report)) => {
                    let text = error.to_string();
                    assert!(text.len() > 20, "seed {seed}: {how:?} of the {block}: says only '{text}'");
                    assert!(report.findings.iter().all(|finding| !finding.means.is_empty()));
                    refused += 1;
                }
            }
        }
    }
    (refused, unharmed)
}

#[test]
fn any_metadata_block_of_a_closed_pool() {
    for seed in sheave_testkit::seeds(6) {
        let (setup, disk, model) = populated(seed, true);
        let image = disk.image();
        let victims: Vec<MetaBlock> = meta_blocks(&image).into_iter().filter(|one| one.kind != kind::JOURNAL).collect();
        let (refused, _) = harm_all(seed, &image, &setup, &model, &victims);
        assert!(refused >= 10, "seed {seed}: only {refused} of {} noticed", victims.len() * Harm::ALL.len());
    }
}

/// The last commit of a journal is the one that a crash may have torn: all others are acknowledged.
#[test]
fn any_journal_block_before_the_last_commit() {
    for seed in sheave_testkit::seeds(6) {
        let (setup, disk, model) = populated(seed, false);
        let image = disk.image();
        let journal: Vec<MetaBlock> = meta_blocks(&image).into_iter().filter(|one| one.kind == kind::JOURNAL).collect();
        let newest = journal.iter().map(|one| one.generation).max();
        let mut live: BTreeMap<u64, MetaBlock> = BTreeMap::new();
        live.extend(journal.iter().filter(|one| Some(one.generation) == newest).map(|one| (one.index, *one)));
        let Some(last) = live.values().next_back().map(|one| one.first) else { continue };
        let victims: Vec<MetaBlock> = live.into_values().filter(|one| one.index < last).collect();
        harm_all(seed, &image, &setup, &model, &victims);
    }
}

#[test]
fn writes_that_land_on_metadata() {
    let mut misdirected = 0;
    for seed in sheave_testkit::seeds(6) {
        let (setup, disk, model) = populated(seed, false);
        let mut rng = Rng::new(seed).fork(6);
        let targets = meta_blocks(&disk.image());
        for _ in 0..40 {
            let (image, cut) = disk.misdirect(&mut rng, |rng| rng.pick(&targets).address / SECTOR as u64);
            misdirected += u64::from(cut.misdirected.is_some());
            if let Err(why) = judge(&setup, &image, &model) {
                panic!("seed {seed}: {cut}: {why}");
            }
        }
    }
    assert!(misdirected > 20, "{misdirected} writes landed elsewhere");
    assert_eq!(PAGE % SECTOR, 0);
}
