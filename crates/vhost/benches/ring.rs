//! Measures the queue's own cost of a request: taking its chain, parsing the block request, writing its status, and
//! adding its used element, in batches of 32 with three descriptors each.
//!
//! Owns a driver that refills the ring between the batches, which is not measured. Prints nanoseconds for each request,
//! the median of the rounds. `valgrind --tool=cachegrind` on it counts instructions; with the argument `idle`, the
//! driver's part runs alone, and the difference of both counts is the queue's.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sheave_base::sync::atomic::Ordering;
use sheave_vhost::block::{self, Code, Config, Parsed};
use sheave_vhost::memory::RegionSpec;
use sheave_vhost::wire::{desc, feature};
use sheave_vhost::{Chain, GuestMemory, Queue, Setup};

const SIZE: u16 = 128;
const DEPTH: u16 = 32;
const ROUNDS: usize = 20_000;
const USER: u64 = 1 << 32;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const DATA: u64 = 0x10000;

fn main() {
    let idle = std::env::args().any(|arg| arg == "idle");
    let file = memfd_create("bench", MemfdFlags::CLOEXEC).expect("memfd");
    ftruncate(&file, 4 << 20).expect("ftruncate");
    let file = Arc::new(file);
    let regions = (0..3).map(|index| {
        let at = index << 20;
        (RegionSpec { guest: at, size: 1 << 20, user: USER + 2 * at, offset: at }, file.clone())
    });
    let memory = Arc::new(GuestMemory::default().replaced(regions.collect()).expect("regions"));
    let write = |guest: u64, bytes: &[u8]| {
        let span = memory.find(guest, bytes.len() as u32, &mut 0).expect("mapped");
        memory.place(span).expect("mapped").write(0, bytes);
    };
    // Each request has a header, 4 KiB to read, and a status.
    for slot in 0..u64::from(DEPTH) {
        let parts = [
            (DATA + slot * 32, 16, desc::NEXT),
            ((1 << 20) + slot * 4096, 4096, desc::NEXT | desc::WRITE),
            (DATA + slot * 32 + 16, 1, desc::WRITE),
        ];
        for (part, (addr, len, flags)) in (0..).zip(parts) {
            let mut entry = [0; 16];
            entry[..8].copy_from_slice(&u64::to_le_bytes(addr));
            entry[8..12].copy_from_slice(&u32::to_le_bytes(len));
            entry[12..14].copy_from_slice(&flags.to_le_bytes());
            entry[14..].copy_from_slice(&((slot * 3 + part + 1) as u16).to_le_bytes());
            write(16 * (slot * 3 + part), &entry);
        }
    }
    let limits = None;
    let config = Config {
        size: 1 << 30,
        block_bytes: 512,
        physical_bytes: 4096,
        optimal_bytes: 0,
        read_only: false,
        writeback: true,
        discard: limits,
        write_zeroes: limits,
    };
    let setup = Setup { size: SIZE, descriptors: USER, available: USER + AVAIL, used: USER + USED, ..Setup::default() };
    let features = feature::RING_EVENT_IDX | feature::RING_INDIRECT_DESC;
    let mut queue = Queue::new(&setup, memory.clone(), features, None).expect("rings");
    let avail = memory.place(memory.find(AVAIL, 4 + 2 * u32::from(SIZE), &mut 0).expect("mapped")).expect("mapped");
    let (mut chain, mut index) = (Chain::default(), 0u16);
    let mut pending = Vec::with_capacity(usize::from(DEPTH));
    let mut nanoseconds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        for slot in 0..DEPTH {
            avail.store_u16(4 + 2 * usize::from(index % SIZE), slot * 3, Ordering::Relaxed);
            index = index.wrapping_add(1);
        }
        avail.store_u16(2, index, Ordering::Release); // The queue's acquire load.
        if idle {
            continue;
        }
        let start = Instant::now();
        while queue.take(&mut chain).expect("a sound ring") {
            match block::parse(&mut chain, &memory, &config).expect("a sound request") {
                Parsed::Request(request) => {
                    black_box(request.data(&chain));
                    pending.push((request.head, request.status));
                }
                Parsed::Refused { code, .. } => panic!("{code:?}"),
            }
        }
        for (head, status) in pending.drain(..) {
            let written = status.write(&memory, Code::Ok).expect("mapped");
            queue.used(head, written).expect("in flight");
        }
        black_box(queue.publish().expect("published"));
        nanoseconds.push(start.elapsed().as_nanos() as f64 / f64::from(DEPTH));
    }
    nanoseconds.sort_by(f64::total_cmp);
    match nanoseconds.get(ROUNDS / 2) {
        Some(median) => println!("take, parse, status, used: {median:.1} ns a request at depth {DEPTH}"),
        None => println!("driver alone: {} requests", ROUNDS * usize::from(DEPTH)),
    }
}
