//! What maps cost: `maps MODE [COUNT] [SPEC]` does one thing COUNT times, so that two runs under a profiler give the cost
//! of one. Modes: read, write (lookups of what is written), first (first writes without their data), open (a pool of 1 TiB
//! with COUNT scattered extents), snapshot.

use std::time::Instant;

use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, MappingKind};
use sheave_vol::{CreateOptions, OpenOptions, Pool, Volume};

const BLOCK: u64 = 4096;

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// A first write without its data.
fn first_write(volume: &dyn File, pos: u64, len: u64, may_block: &MayBlock) {
    let mut mapping = volume.map(pos, len, Intent::Write);
    while mapping == Err(Status::Again) {
        volume.map_blocking(pos, len, Intent::Write, may_block).expect("there is space");
        mapping = volume.map(pos, len, Intent::Write);
    }
    let mapping = mapping.expect("there is space");
    if mapping.kind == MappingKind::Unwritten {
        let done = WriteDone { pos, len: mapping.len, status: Status::Ok, pieces: &[mapping] };
        volume.end_write(done, may_block).expect("ends");
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mode = args.get(1).map_or("read", String::as_str);
    let count: u64 = args.get(2).map_or(1_000_000, |count| count.parse().expect("COUNT is a number"));
    let default = if mode == "open" { "file:/var/tmp/sheave-maps.pool,size=1026G" } else { "ram:size=1G" };
    let spec = args.get(3).map_or(default, String::as_str);
    let device = Device::open(spec).expect("opens");
    Pool::create(&device, &CreateOptions { overwrite: true, ..CreateOptions::default() }).expect("formats");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opens");
    if mode == "open" {
        return open(&device, pool, count);
    }
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
        "snapshot" => snapshots(&pool, &volume, count),
        _ => panic!("no mode '{mode}'"),
    }
    let took = start.elapsed();
    println!("{mode}: {count} in {took:?}, {:.1} ns each", took.as_nanos() as f64 / count as f64);
}

/// Lookups at random in 512 MiB that are written.
fn lookups(file: &dyn File, count: u64, intent: Intent) {
    let may_block = MayBlock::on_worker();
    let unit = 65536;
    for at in 0..(512 << 20) / unit {
        first_write(file, at * unit, unit, &may_block);
    }
    let _ = file.sync(&may_block);
    let start = Instant::now();
    let (mut seed, mut sum) = (1, 0);
    for _ in 0..count {
        let pos = (next(&mut seed) & ((512 << 20) - 1)) & !(BLOCK - 1);
        sum += file.map(pos, BLOCK, intent).expect("is mapped").addr & 1;
    }
    println!("{:.2} ns a lookup {sum}", start.elapsed().as_nanos() as f64 / count as f64);
}

fn snapshots(pool: &Pool, volume: &Volume, count: u64) {
    let may_block = MayBlock::on_worker();
    (0..10_000).for_each(|at| first_write(volume, at * (100 << 20), BLOCK, &may_block));
    pool.sync().expect("syncs");
    for at in 0..count {
        let start = Instant::now();
        pool.snapshot("v", &format!("s{at}")).expect("snapshots");
        println!("snapshot in {:?}", start.elapsed());
    }
}

/// Opens a pool with scattered extents: closed, then dropped.
fn open(device: &Device, pool: Pool, count: u64) {
    let may_block = MayBlock::on_worker();
    let volume = pool.create_volume("v", 1 << 40).expect("creates");
    let start = Instant::now();
    let stride = (1u64 << 40) / count;
    for at in 0..count {
        first_write(&volume, (at * stride) & !(BLOCK - 1), BLOCK, &may_block);
    }
    println!("{count} extents made in {:?}, {:?}", start.elapsed(), pool.info());
    drop(volume);
    pool.close().expect("closes");
    for what in ["closed", "closed", "dropped"] {
        let start = Instant::now();
        let pool = Pool::open(device, &OpenOptions::default()).expect("opens");
        println!("{what}: opened in {:?}, {} extents", start.elapsed(), pool.info().extents);
        let volume = pool.open_volume("v").expect("is there");
        (0..50_000).for_each(|at| first_write(&volume, at * stride + (8 << 10), BLOCK, &may_block));
        pool.sync().expect("syncs");
        drop(volume);
        if what == "closed" {
            let start = Instant::now();
            pool.close().expect("closes");
            println!("closed in {:?}", start.elapsed());
        }
    }
    let start = Instant::now();
    let pool = Pool::open(device, &OpenOptions::default()).expect("opens");
    println!("after a drop: opened in {:?}, recovered: {}", start.elapsed(), pool.info().recovered);
}
