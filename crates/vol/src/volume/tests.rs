//! Work in flight that meets a resize to a smaller size, or a copy that is being made.

mod stores;
mod waits;

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, Mapping, MappingKind};

use crate::format::record::Record;
use crate::{CreateOptions, OpenOptions, Pool, Volume};

const UNIT: u64 = 65_536;

/// A discard of a part of a block looks the block up, then waits until the volume has been cut before it. It must not
/// give the block space: that space would be lost, since no discard reaches beyond the end of a volume.
#[test]
fn a_discard_beyond_a_cut_allocates_nothing() {
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

fn pool() -> (Device, Pool) {
    let device = sheave_drivers::open_device("ram:size=64M").unwrap();
    Pool::create(&device, &CreateOptions { unit_bytes: UNIT, ..CreateOptions::default() }).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    (device, pool)
}

/// Begins a write of a block: its data is in flight.
fn begin(volume: &Volume, pos: u64) -> Mapping {
    let mapping = volume.map_blocking(pos, 4096, Intent::Write, &MayBlock::on_worker()).unwrap();
    assert_eq!(mapping.kind, MappingKind::Unwritten);
    mapping
}

fn end(volume: &Volume, mapping: Mapping) {
    volume.end_write(WriteDone::new(mapping.offset, 4096, Status::Ok, &[mapping]), &MayBlock::on_worker()).unwrap();
}

/// S1 of snapshots: a write that began before the copy's point in time is fixed ends in the volume and in the copy.
#[test]
fn the_end_of_a_write_that_began_before_a_copy_is_in_both() {
    let (device, pool) = pool();
    let volume = pool.create_volume("v", 8 * UNIT).unwrap();
    let mapping = begin(&volume, 3 * UNIT);
    // Goes as far as `copy` does before it waits for writes.
    let (inner, source) = (volume.pool(), volume.core.id);
    let copy = inner.lock().table.next_id;
    let mut state = inner.settle(inner.lock(), source, Some(copy));
    let (size, max_size, name) = (8 * UNIT, volume.core.max_size(), "c".to_string());
    let record = Record::Copy { volume: copy, source, snapshot: true, grows: false, size, max_size, created: 0, name };
    state.apply(&record).unwrap();
    state.table.get_mut(copy).unwrap().unborn = true;
    drop(state);
    end(&volume, mapping);
    let mut state = inner.lock();
    let [of_volume, of_copy] = [source, copy].map(|id| state.find(id, 3).unwrap());
    assert_eq!(of_volume, of_copy, "they share the leaf still: nothing shared is copied meanwhile");
    assert!(state.tree.written(of_copy.0).1, "and the write is in it");
    state.table.get_mut(copy).unwrap().unborn = false;
    inner.settled(&mut state, source);
    drop(state);
    inner.checkpoint().unwrap();
    drop((volume, pool));
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    for name in ["v", "c"] {
        let found = pool.open_volume(name).unwrap().map(3 * UNIT, 4096, Intent::Read).unwrap();
        assert_eq!((found.kind, found.addr), (MappingKind::Mapped, mapping.addr), "{name}");
    }
}

/// V24: a volume that grows is being cut. The end of a write beyond the new end neither raises the size again nor sets
/// bits there.
#[test]
fn the_end_of_a_write_beyond_a_cut_is_cut_off() {
    let (_, pool) = pool();
    let volume = pool.create_growing_volume("g", 0, 8 * UNIT).unwrap();
    let (kept, lost) = (begin(&volume, 0), begin(&volume, 3 * UNIT));
    // Goes as far as `resize_map` does under its first hold of the lock.
    let (inner, id) = (volume.pool(), volume.core.id);
    let mut state = inner.settle(inner.lock(), id, Some(id));
    volume.core.set_size(UNIT);
    state.table.set_cutting(id, true);
    drop(state);
    end(&volume, lost);
    end(&volume, kept);
    let mut state = inner.lock();
    assert_eq!(volume.size_bytes(), UNIT, "the size is what it was cut to");
    let written = [0, 3].map(|unit| state.tree.written(state.find(id, unit).unwrap().0).1);
    assert_eq!(written, [true, false], "what lies before the cut is written");
    inner.settled(&mut state, id);
    drop(state);
    // After the cut, writes make the volume larger as usual.
    end(&volume, begin(&volume, 5 * UNIT));
    assert_eq!(volume.size_bytes(), 5 * UNIT + 4096);
}
