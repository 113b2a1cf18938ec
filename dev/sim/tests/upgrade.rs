//! The upgrade of a pool that an older program made, cut at every write. A crash leaves the old pool or the new one,
//! with all contents; in the new one, blocks that were reported bad are still bad. If both superblocks are wiped after
//! the crash, either the new pool is rebuilt from a copy, or there is no copy yet. A rebuild never yields another pool.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sheave_base::rng::Rng;
use sheave_sim::check::{ImageIo, check_image};
use sheave_sim::disk::{DiskOptions, Image, Media, SECTOR, SimDisk};
use sheave_vol::{BlockIo, CheckOptions, ExtentKind, Finding, FindingKind, OpenOptions, Pool, ScrubOptions, check};

/// Number of crashes drawn at each step.
const CRASHES: u64 = 4;

fn disk(image: Image) -> SimDisk {
    SimDisk::new(image, DiskOptions { max_delay: 0, ..DiskOptions::default() })
}

fn open(disk: &SimDisk) -> Pool {
    Pool::open(&disk.device(), &OpenOptions::default()).expect("opens")
}

/// Returns the data of each volume, by volume name and offset.
fn contents(pool: &Pool, image: &Image) -> BTreeMap<(String, u64), Vec<u8>> {
    let mut all = BTreeMap::new();
    for info in pool.volumes() {
        let volume = pool.open_volume(&info.name).expect("opens");
        let extents = volume.extents(0, info.size_bytes).expect("are told");
        for extent in extents.iter().filter(|extent| extent.kind == ExtentKind::Data) {
            let mut bytes = vec![0; extent.len as usize];
            image.read(extent.addr / SECTOR as u64, &mut bytes);
            all.insert((info.name.clone(), extent.pos), bytes);
        }
    }
    all
}

/// Wipes both superblocks and rebuilds the pool from a copy of them. Returns `None` if there is no copy.
fn rebuilt(mut image: Image) -> Option<Image> {
    image.write(0, &[0; 8192]);
    let size = image.size_bytes();
    let io = ImageIo::new(image);
    if !check(&io, &CheckOptions::default().repair(true)).expect("the check itself works").repaired {
        return None;
    }
    let mut bytes = vec![0; size as usize];
    io.read(0, &mut bytes).expect("an image reads");
    let mut image = Image::new(size);
    image.write(0, &bytes);
    Some(image)
}

/// Returns the blocks that a scrub reports bad.
fn bad_blocks(pool: &Pool) -> usize {
    let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).expect("scrubs");
    assert!(report.findings.iter().all(|found| found.place.range.is_some()), "{:#?}", report.findings);
    report.findings.len()
}

/// Returns the image with one bit of volume `v` changed.
fn rotten(mut image: Image) -> Image {
    let before = disk(image.clone());
    let pool = open(&before);
    let volume = pool.open_volume("v").expect("is there");
    let sector = volume.extents(0, 1 << 20).expect("are told")[0].addr / SECTOR as u64;
    let mut bytes = image.sector(sector);
    bytes[17] ^= 1;
    image.write(sector, &bytes);
    image
}

#[test]
fn an_upgrade_that_is_cut_off_leaves_the_old_pool_or_the_new_one() {
    let images: [&[u8]; 2] = [
        include_bytes!("../../../crates/vol/tests/pools/summed.runs"),
        include_bytes!("../../../crates/vol/tests/pools/summed-crashed.runs"),
    ];
    let (mut old, mut new, mut from_copies) = (0, 0, 0);
    for (number, runs) in images.into_iter().enumerate() {
        let bytes = sheave_testkit::expand_runs(runs);
        let mut image = Image::new(bytes.len() as u64);
        image.write(0, &bytes);
        let before = if number == 0 { rotten(image) } else { image };
        // Opens the pool and reads the bad block, so that it is reported before the upgrade begins.
        let making = disk(before.clone());
        let pool = open(&making);
        let (wanted, told) = (contents(&pool, &making.image()), bad_blocks(&pool));
        assert_eq!(told > 0, number == 0, "{told} told");
        let begun = making.time();
        assert_eq!(pool.upgrade().expect("upgrades").len(), 4);
        let log = making.log();
        assert!(log.len() > begun + 4, "an upgrade writes");
        let (mut media, mut rng) = (Media::new(before, None), Rng::new(7));
        for at in 0..=log.len() {
            for _ in 0..CRASHES {
                let (image, cut) = media.crash(&mut rng);
                let what = format!("pool {number}, step {at} of {}: {cut}", log.len());
                let report = check_image(&image).expect("the check itself works");
                // The superblock that was being written may be torn; the other one replaces it.
                let torn = |found: &Finding| found.kind == FindingKind::Superblock;
                assert!(report.findings.iter().all(torn), "{what}: {:?}", report.findings);
                // Once the upgrade has ended, and nothing was written since, the copies suffice to rebuild the pool.
                match rebuilt(image.clone()) {
                    Some(image) => {
                        let rebuilt = disk(image);
                        assert!(contents(&open(&rebuilt), &rebuilt.image()) == wanted, "{what}: from a copy");
                        from_copies += 1;
                    }
                    None => assert!(at < log.len(), "{what}: there is no copy"),
                }
                let after = disk(image);
                let pool = open(&after);
                assert!(contents(&pool, &after.image()) == wanted, "{what}");
                let upgraded = pool.upgrades().is_empty();
                assert!(!upgraded || at > begun, "{what}: converted by opening");
                (old, new) = (old + u32::from(!upgraded), new + u32::from(upgraded));
                assert!(!upgraded || bad_blocks(&pool) == told, "{what}");
                // Whether the upgrade was cut or not, it can be made again.
                pool.upgrade().expect("upgrades");
                drop(pool);
                assert!(open(&after).upgrades().is_empty(), "{what}");
            }
            log.get(at).iter().for_each(|step| media.step(step));
        }
    }
    assert!(from_copies >= 2 * CRASHES, "{from_copies}");
    assert!(old >= 20 && new >= 4, "cut before and after: {old}, {new}");
}
