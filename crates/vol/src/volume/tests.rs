//! What a size that is cut leaves of work that was under way.

use sheave_base::status::Status;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;

use crate::{CreateOptions, OpenOptions, Pool};

const UNIT: u64 = 65_536;

/// A discard of a part of a block looks at the block, then waits until the volume has been cut before it. The space
/// that it gave the block then was nobody's: behind the end of a volume no discard finds it.
#[test]
fn a_discard_behind_a_cut_gives_nothing_space() {
    let device = sheave_drivers::open_device("ram:size=64M").unwrap();
    Pool::create(&device, &CreateOptions { unit_bytes: UNIT, ..CreateOptions::default() }).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    let volume = pool.create_volume("v", 4 * UNIT).unwrap();
    pool.resize("v", UNIT / 2).unwrap();
    let before = pool.info().data_bytes;
    let may_block = MayBlock::on_worker();
    for pos in [UNIT, 3 * UNIT + 512] {
        let made = volume.make_writable_within(pos, 512, pos + 512, &may_block);
        assert_eq!(made.map(drop), Err(Status::NoSpc), "at {pos}");
    }
    assert_eq!(pool.info().data_bytes, before, "units behind the end");
    // Within the last unit there is something to zero: the rest of the block that the end lies in.
    volume.make_writable_within(UNIT / 2 + 512, 512, UNIT / 2 + 1024, &may_block).unwrap();
    assert_eq!((volume.size_bytes(), pool.info().data_bytes), (UNIT / 2, before + UNIT));
}
