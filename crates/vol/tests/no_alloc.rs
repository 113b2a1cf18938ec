//! Lookups of mapped ranges, unwritten space and holes allocate no memory. The counting allocator of this program
//! proves it.
#![cfg(not(shuttle))]

mod support;

use sheave_drivers::open_device;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, MappingKind};
use sheave_testkit::allocations::{Counting, allocations};
use support::{User, format, open, pattern};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn lookups_allocate_nothing() {
    let device = open_device("ram:size=32M").expect("opens");
    format(&device, 65536);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    user.write(0, &pattern(1, 1 << 20)).expect("writes");
    user.write(100 << 20, &pattern(2, 4096)).expect("writes");
    user.sync().expect("syncs");
    let file: &dyn File = &user.volume;
    let lookups = || {
        for at in (0..1u64 << 20).step_by(4096) {
            for intent in [Intent::Read, Intent::Write] {
                let mapping = file.map(at, 4096, intent).expect("is mapped");
                assert_eq!((mapping.kind, mapping.len), (MappingKind::Mapped, 4096));
            }
        }
        let part = file.map(100 << 20, 4096, Intent::Write).expect("is mapped");
        assert_eq!(part.kind, MappingKind::Mapped);
        let hole = file.map(500 << 20, 4096, Intent::Read).expect("a hole");
        assert_eq!(hole.kind, MappingKind::Hole);
        let unwritten = file.map((100 << 20) + 8192, 4096, Intent::Read).expect("space");
        assert_eq!(unwritten.kind, MappingKind::Unwritten);
        assert!(!file.needs_sync() && file.size_bytes() == 1 << 30);
    };
    assert_eq!(allocations(lookups), 0, "also the first time");
    pool.snapshot("v", "s").expect("snapshots");
    let snapshot = pool.open_volume("s").expect("is there");
    let reads = || {
        for at in (0..1u64 << 20).step_by(4096) {
            assert_eq!(snapshot.map(at, 4096, Intent::Read).map(|mapping| mapping.len), Ok(4096));
        }
    };
    assert_eq!(allocations(reads), 0, "of what is shared too");
}
