//! Fuzzes what a guest writes into its memory: rings, descriptors, indirect tables and block requests.
#![no_main]

use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;
use sheave_vhost::block::{self, Code, Config, Kind, Limits, Parsed};
use sheave_vhost::memory::RegionSpec;
use sheave_vhost::wire::feature;
use sheave_vhost::{Broken, Chain, GuestMemory, Queue, Setup};

/// Length of the memory. It is short, and the guest addresses are small, so that most numbers are addresses.
const MEMORY: u64 = 16384;
const SIZE: u16 = 8;

fn memory(data: &[u8]) -> Option<Arc<GuestMemory>> {
    let file = memfd_create("fuzz", MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&file, MEMORY).ok()?;
    pwrite(&file, &data[..data.len().min(MEMORY as usize)], 0).ok()?;
    let file = Arc::new(file);
    // Two regions that are adjacent for the guest: the first three quarters of the file, and the rest.
    let first = RegionSpec { guest: 0, size: 12288, user: 1 << 32, offset: 0 };
    let second = RegionSpec { guest: 12288, size: 4096, user: 1 << 33, offset: 12288 };
    GuestMemory::default().replaced(vec![(first, file.clone()), (second, file)]).ok().map(Arc::new)
}

fn run(memory: &Arc<GuestMemory>, features: u64, config: &Config) -> Result<(), Broken> {
    let user = 1 << 32;
    let setup = Setup { size: SIZE, descriptors: user, available: user + 128, used: user + 160, ..Setup::default() };
    let mut queue = Queue::new(&setup, memory.clone(), features, None)?;
    let mut chain = Chain::default();
    for round in 0..4 {
        queue.suppress_kicks();
        let mut done = Vec::new();
        for _ in 0..=SIZE {
            if !queue.take(&mut chain)? {
                break;
            }
            let (head, status, code) = match block::parse(&mut chain, memory, config)? {
                Parsed::Refused { head, status, code } => (head, status, code),
                Parsed::Request(request) => {
                    assert!(request.offset.checked_add(request.len).is_some_and(|end| end <= config.size));
                    let data = request.data(&chain);
                    let len: u64 = data.iter().map(|span| span.len() as u64).sum();
                    match request.kind {
                        Kind::In => memory.zero(data)?,
                        Kind::GetId => block::write_id(memory, data, b"fuzz")?,
                        Kind::Out => assert_eq!(memory.copy_from(data, &mut [0; 64])? as u64, len.min(64)),
                        Kind::Flush | Kind::Discard | Kind::WriteZeroes { .. } => assert!(data.is_empty()),
                    }
                    if matches!(request.kind, Kind::In | Kind::Out) {
                        assert_eq!(len, request.len);
                    }
                    (request.head, request.status, Code::Ok)
                }
            };
            done.push((head, status.write(memory, code)?));
        }
        assert!(done.len() <= usize::from(SIZE));
        assert_eq!(done.len(), usize::from(queue.in_flight()));
        if round % 2 == 1 {
            done.reverse();
        }
        for (head, written) in done {
            queue.used(head, written)?;
        }
        queue.publish()?;
        assert_eq!(queue.in_flight(), 0);
        queue.want_kicks()?;
    }
    Ok(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((flags, data)) = data.split_first() else { return };
    let Some(memory) = memory(data) else { return };
    let bits = [feature::RING_EVENT_IDX, feature::RING_INDIRECT_DESC, feature::IN_ORDER];
    let features = (0..).zip(bits).filter(|(at, _)| flags >> at & 1 != 0).map(|(_, bit)| bit).sum();
    let limits = (flags & 8 != 0).then_some(Limits { max_sectors: 64, alignment: 1, may_unmap: flags & 16 != 0 });
    let config = Config {
        size: 1 << 20,
        block_bytes: if flags & 32 != 0 { 4096 } else { 512 },
        physical_bytes: 4096,
        optimal_bytes: 0,
        read_only: flags & 64 != 0,
        writeback: true,
        discard: limits,
        write_zeroes: limits,
    };
    // Every violation ends the queue with an error, and nothing else.
    let _ = run(&memory, features, &config);
});
