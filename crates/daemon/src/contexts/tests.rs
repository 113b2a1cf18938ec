//! The limit on what one answer examines, which is shared by all contexts of a request.

use std::sync::Arc;

use sheave::{Buf, Ring, op, open_device};
use sheave_vol::{CreateOptions, OpenOptions, Pool};

use super::*;

const UNIT: u64 = 4096;

/// Returns the length that one answer covers, in a range that has changed completely and is contiguous.
fn covered(volume: &Volume, context: u64, among: u32) -> u64 {
    let question = Question { context, pos: 0, len: 300 << 20, among };
    let told = answer(volume, UNIT, &question).expect("an answer");
    assert_eq!(told.len(), 1, "{told:?}");
    told[0].len
}

#[test]
fn an_answer_looks_at_a_part_and_several_contexts_share_it() {
    let device = open_device("ram:size=512M").expect("a device");
    Pool::create(&device, &CreateOptions::default().unit_bytes(UNIT)).expect("made");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
    let volume = pool.create_volume("v", 300 << 20).expect("made");
    pool.snapshot("v", "s").expect("frozen");
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach_file(Arc::new(volume.clone())).expect("attached");
    for at in 0..300u64 {
        let data = Buf::zeroed(1 << 20, 4096).expect("memory");
        ring.push(op::write(fd, data).offset(at << 20)).expect("pushed");
        ring.submit_and_wait(1).expect("submitted");
        ring.completions().for_each(|done| assert_eq!(done.result().expect("written"), 1 << 20));
    }
    let since = number(&volume, b"qemu:dirty-bitmap:since-s").expect("it is there");
    for among in [1, 2, 32] {
        let units = UNITS_AT_ONCE / u64::from(among);
        assert_eq!(covered(&volume, BASE_ALLOCATION_NUMBER, among), units * UNIT, "{among}");
        let batches = (BATCHES_AT_ONCE / among).max(1);
        assert_eq!(covered(&volume, since, among), (u64::from(batches) << 12) * UNIT, "{among}");
    }
}
