//! Blocks that are found bad, and written before they are marked.

use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::Intent;

use super::*;
use crate::format::BLOCK_SHIFT;
use crate::{Checksum, CreateOptions, OpenOptions, Pool};

/// A write comes after the look that found the block bad and before the mark: the reader looks again, and gets no
/// error.
#[test]
fn a_block_that_was_written_since_it_was_found_bad_is_not_marked() {
    let device = open_device("ram:size=16M").unwrap();
    let options = CreateOptions { checksum: Checksum::Crc32c, ..CreateOptions::default() };
    Pool::create(&device, &options).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    let inner = &pool.inner;
    let sums = inner.sums.as_ref().unwrap();
    let volume = pool.create_volume("v", 1 << 20).unwrap();
    let place = volume.map_blocking(0, 4096, Intent::Write, &MayBlock::on_worker()).unwrap();
    let block = place.addr >> BLOCK_SHIFT;
    let found = || Mismatch { block, word: sums.stripes.quiet(block).unwrap() };
    let marks = || {
        let pending = &inner.lock().pending;
        (sums.is_marked(block), pending.iter().filter(|record| matches!(record, Record::Mark { .. })).count())
    };
    let before = found();
    sums.stripes.begin(block);
    assert_eq!((inner.mark(before), marks()), (Ok(false), (false, 0)), "a write is under way");
    sums.stripes.end(block);
    assert_eq!((inner.mark(before), marks()), (Ok(false), (false, 0)), "it was written");
    assert_eq!((inner.mark(found()), marks()), (Ok(true), (true, 1)));
    assert_eq!((inner.mark(found()), marks()), (Ok(true), (true, 1)), "once");
    // A marked block stays marked until the write under way takes the mark off.
    sums.stripes.begin(block);
    assert_eq!((inner.mark(before), marks()), (Ok(false), (true, 1)));
    sums.stripes.end(block);
}
