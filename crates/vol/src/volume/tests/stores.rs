//! Looks at the map like a ring, without a lock, between any two stores of a change: a change consists of many stores,
//! and rings see the state after each of them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sheave_base::status::Status;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{File, Mapping, MappingKind};

use crate::state::extent_map::watch::watched;
use crate::{CreateOptions, OpenOptions, Pool, Volume};

const BLOCK: u64 = 4096;
/// The smaller units have their written bits in the entries, the larger ones beside them.
const UNITS: [u64; 2] = [65_536, 1 << 20];

fn pool(unit_bytes: u64) -> Pool {
    let device = sheave_drivers::open_device("ram:size=64M").unwrap();
    Pool::create(&device, &CreateOptions { unit_bytes, ..CreateOptions::default() }).unwrap();
    Pool::open(&device, &OpenOptions::default()).unwrap()
}

fn map(volume: &Volume, pos: u64, len: u64) -> Mapping {
    volume.map_blocking(pos, len, Intent::Write, &MayBlock::on_worker()).unwrap()
}

fn end(volume: &Volume, mapping: Mapping) {
    let done = WriteDone::new(mapping.offset, mapping.len, Status::Ok, std::slice::from_ref(&mapping));
    volume.end_write(done, &MayBlock::on_worker()).unwrap();
}

fn write(volume: &Volume, pos: u64, len: u64) {
    end(volume, map(volume, pos, len));
}

/// Returns the mapping that a ring which writes a block finds without the lock.
fn found(volume: &Volume, pos: u64) -> Option<Mapping> {
    volume.pool.map.lookup_write(&volume.core.top, pos, BLOCK)
}

/// Runs `job`, and looks up the range after each of its stores. If a lookup lets a ring overwrite a block, it must also
/// announce that metadata has to become durable. Returns the number of times that a block could have been overwritten.
fn overwritten_while(volume: &Volume, range: std::ops::Range<u64>, job: impl FnOnce()) -> u32 {
    let looks = Rc::new(Cell::new(0));
    let watcher = {
        let (volume, looks) = (volume.clone(), Rc::clone(&looks));
        move || {
            for pos in range.clone().step_by(BLOCK as usize) {
                let mapping = found(&volume, pos).filter(|mapping| mapping.kind == MappingKind::Mapped);
                let Some(mapping) = mapping else { continue };
                looks.set(looks.get() + 1);
                assert!(mapping.flags.any(MapFlags::DIRTY), "FUA alone would be enough at {pos}");
                assert!(volume.needs_sync(), "a flush of the device alone would be enough at {pos}");
            }
        }
    };
    watched(watcher, job);
    looks.get()
}

/// V1, H1: a discard of the only written block of a unit, while first writes to other blocks of it may be in flight.
#[test]
fn a_write_beside_a_discard_is_not_lost() {
    for unit in UNITS {
        let pool = pool(unit);
        let volume = pool.create_volume("v", 8 * unit).unwrap();
        write(&volume, 3 * BLOCK, BLOCK);
        let begun = Rc::new(RefCell::new(Vec::new()));
        let watcher = {
            let (volume, begun) = (volume.clone(), Rc::clone(&begun));
            move || begun.borrow_mut().extend(found(&volume, 5 * BLOCK))
        };
        watched(watcher, || volume.punch(3 * BLOCK, BLOCK, &MayBlock::on_worker()).unwrap());
        for mapping in begun.take() {
            end(&volume, mapping);
            let read = volume.map(5 * BLOCK, BLOCK, Intent::Read).unwrap();
            assert_eq!(read.kind, MappingKind::Mapped, "units of {unit}: a write that ended well reads as zeroes");
        }
    }
}

/// V2, V3: a block that was just written for the first time is overwritten by another writer.
#[test]
fn an_overwrite_after_a_first_write_sees_the_dirty_flag() {
    for unit in UNITS {
        let pool = pool(unit);
        let volume = pool.create_volume("v", 8 * unit).unwrap();
        write(&volume, 0, BLOCK);
        pool.sync().unwrap();
        assert!(!volume.needs_sync());
        let mapping = map(&volume, 5 * BLOCK, BLOCK);
        let looks = overwritten_while(&volume, 5 * BLOCK..6 * BLOCK, || end(&volume, mapping));
        assert!(looks > 0, "nobody looked");
        // The last block makes the unit full.
        write(&volume, BLOCK, 4 * BLOCK);
        write(&volume, 6 * BLOCK, unit - 7 * BLOCK);
        pool.sync().unwrap();
        let mapping = map(&volume, unit - BLOCK, BLOCK);
        let looks = overwritten_while(&volume, unit - BLOCK..unit, || end(&volume, mapping));
        assert!(looks > 0, "nobody looked");
    }
}

/// V2, V3: blocks of a unit and of its neighbours that were just copied to places of their own.
#[test]
fn an_overwrite_after_a_relocation_sees_the_dirty_flag() {
    for unit in UNITS {
        let pool = pool(unit);
        let volume = pool.create_volume("v", 8 * unit).unwrap();
        (0..4).for_each(|at| write(&volume, at * unit, unit));
        pool.snapshot("v", "s").unwrap();
        pool.sync().unwrap();
        assert!(!volume.needs_sync());
        let looks = overwritten_while(&volume, 0..4 * unit, || _ = map(&volume, unit, BLOCK));
        assert!(looks > 0, "nobody looked");
    }
}

/// W2, H1: a block is zeroed because a part of it is written, while first writes to the unit may be in flight.
#[test]
fn zeroing_a_block_loses_no_write_beside_it() {
    for unit in UNITS {
        let pool = pool(unit);
        let volume = pool.create_volume("v", 8 * unit).unwrap();
        write(&volume, 0, BLOCK);
        pool.sync().unwrap();
        assert!(!volume.needs_sync());
        let handed = Rc::new(Cell::new(false));
        let watcher = {
            let (volume, handed) = (volume.clone(), Rc::clone(&handed));
            move || {
                let entry = volume.pool.map.find(&volume.core.top, 0).entry;
                assert!(!handed.get() || entry.any(crate::state::extent_map::Entry::HANDED), "nobody knows of it");
                handed.set(handed.get() || found(&volume, 9 * BLOCK).is_some());
                if let Some(zeroed) = found(&volume, 5 * BLOCK) {
                    assert_eq!(zeroed.kind, MappingKind::Mapped, "units of {unit}");
                    assert!(zeroed.flags.any(MapFlags::DIRTY) && volume.needs_sync(), "units of {unit}");
                }
            }
        };
        watched(watcher, || _ = map(&volume, 5 * BLOCK, 512));
    }
}
