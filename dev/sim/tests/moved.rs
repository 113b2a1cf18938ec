//! A pool that is copied to a disk with larger blocks, like when an old disk is replaced.

use sheave_sim::disk::{DiskOptions, Image, SimDisk};
use sheave_vol::{Checksum, OpenOptions, Pool, PoolError};

use crate::support::{BLOCK, EINVAL, User, format, open};

/// Bytes of the volume, which ends within its third block.
const SIZE: u64 = 2 * BLOCK as u64 + 512;
const WHOLE: u64 = 3 * BLOCK as u64;

fn disk(image: Image, logical_block: u32) -> SimDisk {
    SimDisk::new(image, DiskOptions { logical_block, max_delay: 0, ..DiskOptions::default() })
}

/// A device that cannot reach the end of a volume reports that, together with the remedy. After the remedy no data is
/// missing (V9).
#[test]
fn a_volume_that_ends_within_a_larger_block_says_so_and_has_all_its_data() {
    let small = disk(Image::new(16 << 20), 512);
    format(&small.device(), 65536, Checksum::None);
    let pool = open(&small.device());
    let mut user = User::new(pool.create_volume("v", SIZE).expect("a volume"));
    assert_eq!(user.write(0, 7, 3), SIZE as i32);
    user.sync();
    pool.snapshot("v", "s").expect("a snapshot");
    drop(user);
    pool.close().expect("closes");

    let large = disk(small.image(), BLOCK as u32);
    let pool = open(&large.device());
    let refused = |name: &str| match pool.open_volume(name) {
        Err(PoolError::Invalid { what, fix }) => {
            assert!(what.contains("8704") && fix.contains("12288"), "{what}. {fix}")
        }
        other => panic!("{other:?}"),
    };
    refused("v");
    refused("s");
    pool.clone_volume("s", "c").expect("a clone");
    for name in ["v", "c"] {
        pool.resize(name, WHOLE).expect("becomes larger");
        let mut user = User::new(pool.open_volume(name).expect("opens"));
        let (res, bytes) = user.read(0, WHOLE as usize);
        assert_eq!(res, WHOLE as i32);
        let (data, zeroes) = bytes.split_at(SIZE as usize);
        assert!(data.iter().all(|byte| *byte == 7) && zeroes.iter().all(|byte| *byte == 0), "{name}");
    }
    drop(pool);
    // A pool that is opened for reading cannot get the remedy, and serves everything except the end of the volume.
    let pool = Pool::open(&large.device(), &OpenOptions::default().read_only(true)).expect("opens");
    let mut user = User::new(pool.open_volume("s").expect("opens"));
    assert_eq!((user.tag(0), user.tag(4096), user.read(8192, BLOCK).0), (Ok(7), Ok(7), EINVAL));
}
