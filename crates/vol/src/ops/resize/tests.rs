//! A commit of somebody else in the middle of a cut, and a crash right after it.

use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;

use super::*;
use crate::device::block_io::{BlockIo, DeviceIo};
use crate::{CheckOptions, CreateOptions, OpenOptions, Pool, check_device};

const BYTES: usize = 8 << 20;
const UNIT: u64 = 8192;

fn device() -> Device {
    open_device(&format!("ram:size={BYTES}")).expect("opens")
}

#[test]
fn a_commit_before_anything_is_cut_off_leaves_nothing_beyond_the_end() {
    let first = device();
    Pool::create(&first, &CreateOptions { unit_bytes: UNIT, ..CreateOptions::default() }).expect("makes");
    let pool = Pool::open(&first, &OpenOptions::default()).expect("opens");
    let (volume, may_block) = (pool.create_volume("v", 60 * UNIT).expect("creates"), MayBlock::on_worker());
    for pos in (0..50).map(|unit| unit * UNIT) {
        let mapping = volume.map_blocking(pos, UNIT, Intent::Write, &may_block).expect("maps");
        volume.end_write(WriteDone::new(pos, UNIT, Status::Ok, &[mapping]), &may_block).expect("ends");
    }
    // As far as `resize_map` goes under its first hold of the lock.
    let (inner, size) = (volume.pool(), 10 * UNIT + UNIT / 2);
    let core = core_of(&inner.lock(), "v").expect("is there");
    let mut state = inner.settle(inner.lock(), core.id, Some(core.id));
    core.set_size(size);
    state.table.set_cutting(core.id, true);
    inner.record(&mut state, Record::Resize { volume: core.id, size });
    drop(state);
    inner.commit().expect("commits");
    // The power goes.
    let (after, mut bytes) = (device(), vec![0; BYTES]);
    DeviceIo::new(&first).expect("attaches").read(0, &mut bytes).expect("reads");
    DeviceIo::new(&after).expect("attaches").write(0, &bytes).expect("writes");
    let report = check_device(&after, &CheckOptions::default()).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
    let pool = Pool::open(&after, &OpenOptions::default()).expect("opens");
    assert_eq!((pool.volume_info("v").expect("is there").size_bytes, pool.info().data_bytes), (size, 11 * UNIT));
    inner.settled(&mut inner.lock(), core.id);
}
