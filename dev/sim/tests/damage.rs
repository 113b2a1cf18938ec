//! Damage: any single metadata block of a populated pool, changed in any way, is detected and named, or is not needed,
//! and its contents are never used. The same for misdirected writes.

use std::collections::BTreeMap;

use sheave_base::rng::Rng;
use sheave_sim::corrupt::{Harm, MetaBlock, Verdict, harm, judge, meta_blocks};
use sheave_sim::disk::{Image, PAGE, SECTOR, SimDisk, Step};
use sheave_sim::model::Model;
use sheave_sim::setup::Setup;
use sheave_sim::threads::Threads;
use sheave_sim::world::{Counters, World};
use sheave_vol::format::kind;
use sheave_vol::{FindingKind, Pool};

/// Number of the first sector after the superblocks.
const SUPERBLOCKS_END: u64 = 16;

/// Returns a pool after a run from `seed`. If `close` is true, the run ends by closing the pool.
fn populated(seed: u64, close: bool) -> (Setup, SimDisk, Model) {
    populated_and_reopened(seed, close, 0)
}

/// Same as `populated`, and the operations include closing and opening, at weight `reopen`. Each of these writes two
/// checkpoints.
fn populated_and_reopened(seed: u64, close: bool, reopen: u64) -> (Setup, SimDisk, Model) {
    let mut setup = Setup::draw(seed, 0);
    setup.mix.reopen = reopen;
    populated_in(setup, seed, close)
}

/// Same as `populated`, with the given `setup`.
fn populated_in(mut setup: Setup, seed: u64, close: bool) -> (Setup, SimDisk, Model) {
    // The seeds were chosen for the metadata that their runs leave; trims would not change that metadata.
    setup.mix.trim = 0;
    let disk = SimDisk::new(Image::new(setup.size_bytes), setup.disk.clone());
    Pool::create(&disk.device(), &setup.create_options()).expect("the pool can be made");
    let pool = Pool::open(&disk.device(), &setup.open_options()).expect("and opened");
    let rng = Rng::new(seed);
    let mut world = World::new(&setup, (pool, disk.clone()), &Threads::new(), Model::new(), Counters::default(), rng);
    world.run(120).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    if close {
        world.close().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    let model = world.model().clone();
    drop(world);
    (setup, disk, model)
}

/// Damages blocks one by one, in every kind of damage. Returns the number of pools that do not open, and of those that
/// open in part.
fn harm_all(seed: u64, image: &Image, setup: &Setup, model: &Model, victims: &[MetaBlock]) -> (u64, u64) {
    let all = meta_blocks(image);
    let mut rng = Rng::new(seed).fork(5);
    let (mut refused, mut partly) = (0, 0);
    for block in victims {
        for how in Harm::ALL {
            let mut damaged = image.clone();
            harm(&mut damaged, block, how, &all, &mut rng);
            match judge(setup, &damaged, model, Some((block, image))) {
                Err(why) => panic!("seed {seed}: {how:?} of the {block}: {why}"),
                Ok(Verdict::Unharmed(_)) => {}
                Ok(Verdict::Partly(..)) => partly += 1,
                Ok(Verdict::Refused(error, report)) => {
                    let text = error.to_string();
                    assert!(text.len() > 20, "seed {seed}: {how:?} of the {block}: says only '{text}'");
                    assert!(report.findings.iter().all(|finding| !finding.means.is_empty()));
                    refused += 1;
                }
            }
        }
    }
    (refused, partly)
}

/// Returns the metadata blocks whose damage can be told from a crash. Leaves out the blocks of the journal's last
/// commit, which may have been torn while it was written, and the journal's blocks from before the last checkpoint.
fn distinct(image: &Image) -> Vec<MetaBlock> {
    let (journal, others): (Vec<_>, Vec<_>) = meta_blocks(image).into_iter().partition(|one| one.kind == kind::JOURNAL);
    let newest = journal.iter().map(|one| one.generation).max();
    let live: Vec<MetaBlock> = journal.into_iter().filter(|one| Some(one.generation) == newest).collect();
    let last = live.iter().map(|one| one.first).max().unwrap_or(0);
    others.into_iter().chain(live.into_iter().filter(|one| one.first < last)).collect()
}

#[test]
fn any_metadata_block_of_a_closed_pool() {
    let mut noticed = (0, 0);
    for seed in sheave_testkit::seeds(8) {
        let (setup, disk, model) = populated(seed, true);
        let image = disk.image();
        let (refused, partly) = harm_all(seed, &image, &setup, &model, &distinct(&image));
        noticed = (noticed.0 + refused, noticed.1 + partly);
    }
    assert!(noticed.0 >= 20 && noticed.1 >= 20, "refused, and opened in part: {noticed:?}");
}

#[test]
fn any_metadata_block_of_a_pool_that_was_not_closed() {
    let mut noticed = (0, 0);
    // Several of the runs with seeds from 26 on have a checkpoint, and so map pages that can be damaged.
    for seed in sheave_testkit::seeds(8).map(|seed| 26 + seed) {
        let (setup, disk, model) = populated(seed, false);
        let image = disk.image();
        let (refused, partly) = harm_all(seed, &image, &setup, &model, &distinct(&image));
        noticed = (noticed.0 + refused, noticed.1 + partly);
    }
    assert!(noticed.0 >= 20 && noticed.1 >= 20, "refused, and opened in part: {noticed:?}");
}

/// With two copies of metadata, damage to one copy of a page loses nothing, and `check` names the page.
#[test]
fn any_page_of_a_pool_with_two_copies() {
    let (mut spare, mut named) = (0, 0);
    for seed in sheave_testkit::seeds(8) {
        let setup = Setup::draw(seed, 0).with_two_copies();
        let (setup, disk, model) = populated_in(setup, seed, seed % 2 == 0);
        let image = disk.image();
        let all = meta_blocks(&image);
        let mut rng = Rng::new(seed).fork(7);
        let is_page = |block: &&MetaBlock| [kind::LEAF, kind::INDEX, kind::TABLE, kind::SUMS].contains(&block.kind);
        for block in all.iter().filter(is_page) {
            for how in Harm::ALL {
                let mut damaged = image.clone();
                harm(&mut damaged, block, how, &all, &mut rng);
                match judge(&setup, &damaged, &model, Some((block, &image))) {
                    Ok(Verdict::Unharmed(report)) => {
                        let kinds = report.findings.iter().map(|finding| finding.kind);
                        assert!(kinds.clone().all(|kind| kind == FindingKind::PageCopy), "{:?}", report.findings);
                        named += kinds.count();
                        spare += 1;
                    }
                    other => panic!("seed {seed}: {how:?} of the {block}: {other:?}"),
                }
            }
        }
    }
    assert!(spare >= 100 && named >= 50, "{spare} were harmed, {named} of them in use");
}

/// Renames and copies are in the journal alone when a checkpoint's page is damaged. `check` names the volumes that need
/// the page, by their current names.
#[test]
fn any_metadata_block_of_a_pool_that_was_opened_several_times_and_not_closed() {
    let mut partly = 0;
    for seed in [3].into_iter().chain(sheave_testkit::seeds(4)) {
        let (setup, disk, model) = populated_and_reopened(seed, false, 3);
        let image = disk.image();
        partly += harm_all(seed, &image, &setup, &model, &distinct(&image)).1;
    }
    assert!(partly >= 5, "{partly} opened in part");
}

/// Returns each metadata block whose address held another block of the same kind before, with the last such block that
/// was written there.
fn earlier_versions(log: &[Step], image: &Image) -> Vec<(MetaBlock, Vec<u8>)> {
    let mut versions: BTreeMap<u64, Vec<&[u8]>> = BTreeMap::new();
    for step in log {
        let Step::Write { sector, data, .. } = step else { continue };
        for (at, block) in (sector * SECTOR as u64..).step_by(PAGE).zip(data.chunks_exact(PAGE)) {
            versions.entry(at).or_default().push(block);
        }
    }
    let earlier = |block: MetaBlock| {
        let mut now = vec![0; PAGE];
        image.read(block.address / SECTOR as u64, &mut now);
        // Magic, format and kind: the first eight bytes.
        let same_kind = |old: &&&[u8]| old[..8] == now[..8] && **old != now;
        let old = versions.get(&block.address)?.iter().rev().find(same_kind)?;
        Some((block, old.to_vec()))
    };
    distinct(image).into_iter().filter_map(earlier).collect()
}

/// A metadata write that was acknowledged and never done leaves an older block, which is whole.
#[test]
fn a_metadata_block_that_is_what_it_was_before() {
    let (mut looked_at, mut told) = (0, 0);
    for seed in sheave_testkit::seeds(8) {
        let (setup, disk, model) = populated_and_reopened(seed, true, 15);
        let image = disk.image();
        for (block, old) in earlier_versions(&disk.log(), &image) {
            let mut stale = image.clone();
            stale.write(block.address / SECTOR as u64, &old);
            looked_at += 1;
            match judge(&setup, &stale, &model, Some((&block, &image))) {
                Err(why) => panic!("seed {seed}: the {block} as it was before: {why}"),
                Ok(Verdict::Unharmed(_)) => {}
                Ok(Verdict::Partly(..) | Verdict::Refused(..)) => told += 1,
            }
        }
    }
    assert!(looked_at >= 10 && told >= 5, "{told} of {looked_at} told");
}

#[test]
fn writes_that_land_on_metadata() {
    let mut misdirected = 0;
    for seed in sheave_testkit::seeds(8) {
        let (setup, disk, model) = populated(seed, false);
        let mut rng = Rng::new(seed).fork(6);
        let mut targets = distinct(&disk.image());
        // While the other superblock is not durable, a damaged superblock looks like one that was being written.
        let has_twin = !disk.loose().iter().any(|write| write.sector < SUPERBLOCKS_END);
        targets.retain(|target| target.kind != kind::SUPERBLOCK || has_twin);
        for _ in 0..40 {
            let (image, cut) = disk.misdirect(&mut rng, |rng| rng.pick(&targets).address / SECTOR as u64);
            misdirected += u64::from(cut.misdirected.is_some());
            if let Err(why) = judge(&setup, &image, &model, None) {
                panic!("seed {seed}: {cut}: {why}");
            }
        }
    }
    assert!(misdirected > 20, "{misdirected} writes landed elsewhere");
}
