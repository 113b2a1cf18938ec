//! Cost of lookups: does one thing many times, so that two runs under a profiler give the cost of one.
//!
//! ```sh
//! cargo bench -p sheave-vol --bench maps -- read 1000000
//! ```
//!
//! Modes: `read` and `write` (lookups of written data), `first` (first writes without their data), `memory` (memory of
//! the maps of a volume of 1 TiB that is written completely, for some sizes of units; measured with 32 GiB, times 32).

use std::time::Instant;

use sheave_base::grace::Grace;
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, MappingKind};
use sheave_vol::{CreateOptions, OpenOptions, Pool};

const BLOCK: u64 = 4096;

/// Makes a first write without its data.
fn first_write(volume: &dyn File, pos: u64, len: u64, may_block: &MayBlock) {
    let mut mapping = volume.map(pos, len, Intent::Write);
    while mapping == Err(Status::Again) {
        volume.map_blocking(pos, len, Intent::Write, may_block).expect("there is space");
        mapping = volume.map(pos, len, Intent::Write);
    }
    let mapping = mapping.expect("there is space");
    if mapping.kind == MappingKind::Unwritten {
        volume.end_write(WriteDone::new(pos, mapping.len, Status::Ok, &[mapping]), may_block).expect("ends");
    }
}

fn main() {
    // Cargo adds an argument of its own.
    let args: Vec<String> = std::env::args().filter(|arg| arg != "--bench").collect();
    let mode = args.get(1).map_or("read", String::as_str);
    if mode == "memory" {
        return [4 << 10, 64 << 10, 256 << 10, 1 << 20].into_iter().for_each(memory);
    }
    let count: u64 = args.get(2).map_or(1_000_000, |count| count.parse().expect("COUNT is a number"));
    let spec = args.get(3).map_or("ram:size=1G", String::as_str);
    let device = open_device(spec).expect("opens");
    Pool::create(&device, &CreateOptions::default().overwrite(true)).expect("formats");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opens");
    let volume = pool.create_volume("v", 1 << 40).expect("creates");
    let file: &dyn File = &volume;
    let _seat = Grace::seat(file.grace().expect("has one"));
    let may_block = MayBlock::on_worker();
    let start = Instant::now();
    match mode {
        "first" => (0..count).for_each(|at| first_write(file, at % 200_000 * BLOCK, BLOCK, &may_block)),
        "read" | "write" => {
            let intent = if mode == "read" { Intent::Read } else { Intent::Write };
            lookups(file, count, intent);
        }
        _ => panic!("no mode '{mode}'"),
    }
    let took = start.elapsed();
    println!("{mode}: {count} in {took:?}, {:.1} ns each", took.as_nanos() as f64 / count as f64);
}

/// Prints the memory of the maps of a volume that is written from end to end.
fn memory(unit_bytes: u64) {
    const TIMES: u64 = 32;
    let device = open_device("null:size=40G,keep=4M").expect("opens");
    let options = CreateOptions::default().unit_bytes(unit_bytes).journal_bytes(Some(1 << 20));
    Pool::create(&device, &options).expect("formats");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opens");
    let volume = pool.create_volume("v", 1 << 40).expect("creates");
    let _seat = Grace::seat(File::grace(&volume).expect("has one"));
    let may_block = MayBlock::on_worker();
    let before = pool.info().memory_bytes;
    (0..(1 << 40) / TIMES / unit_bytes).for_each(|at| first_write(&volume, at * unit_bytes, unit_bytes, &may_block));
    let took = (pool.info().memory_bytes - before) * TIMES;
    println!("units of {:5} KiB: {:6} MiB for 1 TiB written", unit_bytes >> 10, took >> 20);
}

/// Makes lookups at random in 512 MiB that are written.
fn lookups(file: &dyn File, count: u64, intent: Intent) {
    let may_block = MayBlock::on_worker();
    let unit = 65536;
    for at in 0..(512 << 20) / unit {
        first_write(file, at * unit, unit, &may_block);
    }
    let _ = file.sync(&may_block);
    let start = Instant::now();
    let (mut rng, mut sum) = (Rng::new(1), 0);
    for _ in 0..count {
        let pos = rng.below((512 << 20) / BLOCK) * BLOCK;
        sum += file.map(pos, BLOCK, intent).expect("is mapped").addr & 1;
    }
    println!("{:.2} ns a lookup {sum}", start.elapsed().as_nanos() as f64 / count as f64);
}
