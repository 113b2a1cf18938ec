//! Adding a second copy of all metadata to a pool that has one copy, cut at every write. Afterwards the pool has one
//! copy or two, and all its contents.

use std::collections::BTreeMap;

use sheave_base::rng::Rng;
use sheave_sim::check::check_image;
use sheave_sim::disk::{DiskOptions, Image, Media, SECTOR, SimDisk};
use sheave_vol::{ExtentKind, Finding, FindingKind, OpenOptions, Pool, PoolError, double_metadata_of};

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

fn image_of(runs: &[u8]) -> Image {
    let bytes = sheave_testkit::expand_runs(runs);
    let mut image = Image::new(bytes.len() as u64);
    image.write(0, &bytes);
    image
}

#[test]
fn a_doubling_that_is_cut_off_leaves_one_copy_or_two() {
    let images: [&[u8]; 3] = [
        include_bytes!("../../../crates/vol/tests/pools/summed.runs"),
        include_bytes!("../../../crates/vol/tests/pools/summed-crashed.runs"),
        include_bytes!("../../../crates/vol/tests/pools/clean.runs"),
    ];
    let (mut one, mut two) = (0, 0);
    for (number, runs) in images.into_iter().enumerate() {
        let before = image_of(runs);
        let looked = disk(before.clone());
        let wanted = contents(&open(&looked), &looked.image());
        assert!(!wanted.is_empty());
        let making = disk(before.clone());
        assert!(double_metadata_of(&making.device(), &mut |_| ()).expect("doubles"));
        let log = making.log();
        assert!(log.len() > 8, "it writes: {}", log.len());
        let (mut media, mut rng) = (Media::new(before, None), Rng::new(11));
        for at in 0..=log.len() {
            for _ in 0..CRASHES {
                let (image, cut) = media.crash(&mut rng);
                let what = format!("pool {number}, step {at} of {}: {cut}", log.len());
                let report = check_image(&image).expect("the check itself works");
                // A superblock that was being written may be torn; the other one replaces it, because the copies are
                // written last.
                let torn = |found: &Finding| found.kind == FindingKind::Superblock;
                assert!(report.findings.iter().all(torn), "{what}: {:?}", report.findings);
                let after = disk(image);
                let pool = open(&after);
                assert!(contents(&pool, &after.image()) == wanted, "{what}");
                let copies = pool.info().metadata_copies;
                (one, two) = (one + u32::from(copies == 1), two + u32::from(copies == 2));
                assert!(at < log.len() || copies == 2, "{what}");
                pool.close().expect("closes");
                // Whether the doubling was cut or not, it can be done again, and then changes something only if there
                // was one copy.
                let again = double_metadata_of(&after.device(), &mut |_| ()).expect("doubles");
                assert_eq!(again, copies == 1, "{what}");
                let pool = open(&after);
                assert!(pool.info().metadata_copies == 2 && contents(&pool, &after.image()) == wanted, "{what}");
            }
            log.get(at).iter().for_each(|step| media.step(step));
        }
    }
    assert!(one >= 20 && two >= 12, "cut before and after: {one}, {two}");
}

/// Nothing is written to a pool that is damaged, nor to one in which a second copy would leave no space.
#[test]
fn a_pool_that_is_damaged_or_full_is_not_doubled() {
    let mut image = image_of(include_bytes!("../../../crates/vol/tests/pools/clean.runs"));
    image.write(1, &[0x11; SECTOR]);
    let damaged = disk(image);
    let refused = double_metadata_of(&damaged.device(), &mut |_| ());
    assert!(matches!(&refused, Err(PoolError::Invalid { .. })), "{refused:?}");
    let full = disk(image_of(include_bytes!("../../../crates/vol/tests/pools/full.runs")));
    let refused = double_metadata_of(&full.device(), &mut |_| ());
    assert!(matches!(&refused, Err(PoolError::Full { .. })), "{refused:?}");
    assert!(damaged.log().is_empty() && full.log().is_empty(), "nothing was written");
}
