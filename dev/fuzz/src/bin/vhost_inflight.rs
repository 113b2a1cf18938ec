//! Fuzzes in-flight regions that a front-end gives back: their shapes and their entries.
#![no_main]

use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;
use sheave_vhost::inflight::{Area, Shape};
use sheave_vhost::memory::RegionSpec;
use sheave_vhost::{Chain, GuestMemory, Queue, Setup};

const SIZE: u16 = 8;
const USER: u64 = 1 << 32;

/// Returns the memory of a guest that offers one readable descriptor under each head, and has seen some used elements.
fn memory(used: u16) -> Option<Arc<GuestMemory>> {
    let file = memfd_create("fuzz", MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&file, 4096).ok()?;
    for head in 0..SIZE {
        // Address 2048, length 16.
        pwrite(&file, &[0, 8, 0, 0, 0, 0, 0, 0, 16], 16 * u64::from(head)).ok()?;
        pwrite(&file, &head.to_le_bytes(), 132 + 2 * u64::from(head)).ok()?;
    }
    pwrite(&file, &used.wrapping_add(SIZE).to_le_bytes(), 130).ok()?;
    pwrite(&file, &used.to_le_bytes(), 162).ok()?;
    let spec = RegionSpec { guest: 0, size: 4096, user: USER, offset: 0 };
    GuestMemory::default().added(spec, Arc::new(file)).ok().map(Arc::new)
}

fn shape(data: &[u8]) -> Option<(Shape, &[u8])> {
    let (numbers, rest) = data.split_first_chunk::<8>()?;
    let number = |at: usize| u16::from_le_bytes([numbers[at], numbers[at + 1]]);
    let shape =
        Shape { len: u64::from(number(0)), offset: u64::from(number(2)), queues: number(4), queue_size: number(6) };
    Some((shape, rest))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(([used @ .., own], data)) = data.split_first_chunk::<3>() else { return };
    // Half of the inputs have the usual shape, so that their bytes are entries.
    let (shape, data) = if own & 1 != 0 {
        (Shape { len: 192, offset: 0, queues: 1, queue_size: SIZE }, data)
    } else {
        let Some(shape) = shape(data) else { return };
        shape
    };
    let Ok(file) = memfd_create("fuzz", MemfdFlags::CLOEXEC) else { return };
    if ftruncate(&file, 8192).is_err() || pwrite(&file, &data[..data.len().min(8192)], shape.offset).is_err() {
        return;
    }
    let Some(memory) = memory(u16::from_le_bytes(*used)) else { return };
    let Ok(area) = Area::map(Arc::new(file), shape) else { return };
    let setup = Setup { size: SIZE, descriptors: USER, available: USER + 128, used: USER + 160, ..Setup::default() };
    for number in 0..shape.queues.min(3) {
        let Ok(mut queue) = Queue::new(&setup, memory.clone(), 0, area.slots(number)) else { continue };
        let mut chain = Chain::default();
        let mut heads = Vec::new();
        let end = loop {
            match queue.take(&mut chain) {
                Ok(true) => {
                    assert!(!heads.contains(&chain.head), "a head comes twice");
                    heads.push(chain.head);
                }
                end => break end,
            }
        };
        assert!(heads.len() <= usize::from(SIZE));
        for head in heads {
            queue.used(head, 0).expect("it was just taken");
        }
        queue.publish().expect("publishing reads nothing that can be wrong");
        // All that was offered is answered now, so a restart finds no marks.
        if end.is_ok()
            && let Ok(mut again) = Queue::new(&setup, memory.clone(), 0, area.slots(number))
        {
            assert_eq!(again.last_avail(), queue.last_avail());
            assert_eq!(again.available(), Ok(0));
        }
    }
});
