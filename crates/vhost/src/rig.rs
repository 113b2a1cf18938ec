//! A guest for tests: memory in a file, and the driver's end of a split virtqueue.
//!
//! Owns the layout of the rings in that memory. The driver is a plain model: it writes what a test asks for, also what
//! a driver must not write.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sheave_base::sync::atomic::Ordering;

use crate::memory::{GuestMemory, Place, RegionSpec};
use crate::wire::desc;
use crate::{Setup, Span};

/// Guest address and user address of the first region.
pub const GUEST: u64 = 0x10_0000;
pub const USER: u64 = 0x7f00_0000_0000;
/// Length of each region.
pub const REGION: u64 = 1 << 20;
/// Guest addresses of indirect tables and of data.
pub const TABLES: u64 = GUEST + 0x2_0000;
pub const DATA: u64 = GUEST + 0x4_0000;

const DESCRIPTORS: u64 = 0;
const AVAIL: u64 = 0x8000;
const USED: u64 = 0x1_0000;

pub fn memfd(len: u64) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC).expect("memfd");
    ftruncate(&file, len).expect("ftruncate");
    file
}

/// The specification of region `index`; regions are adjacent in the guest, and apart in the front-end.
pub fn spec(index: u64) -> RegionSpec {
    RegionSpec { guest: GUEST + index * REGION, size: REGION, user: USER + index * 2 * REGION, offset: 0 }
}

pub fn memory(regions: u64) -> Arc<GuestMemory> {
    let memory = GuestMemory::default();
    let regions = (0..regions).map(|index| (spec(index), Arc::new(memfd(REGION)))).collect();
    Arc::new(memory.replaced(regions).expect("regions"))
}

/// The driver's end of a queue.
pub struct Driver {
    pub memory: Arc<GuestMemory>,
    pub setup: Setup,
    pub avail_idx: u16,
}

impl Driver {
    pub fn new(size: u16, regions: u64) -> Driver {
        let setup = Setup {
            size,
            descriptors: USER + DESCRIPTORS,
            available: USER + AVAIL,
            used: USER + USED,
            ..Setup::default()
        };
        Driver { memory: memory(regions), setup, avail_idx: 0 }
    }

    pub fn span(&self, guest: u64, len: u32) -> Span {
        self.memory.find(guest, len, &mut 0).expect("an address in the memory")
    }

    pub fn at(&self, guest: u64, len: u32) -> Place<'_> {
        self.memory.place(self.span(guest, len)).expect("a span of the memory")
    }

    /// Writes the entry `index` of a table.
    pub fn entry(&self, table: u64, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let at = self.at(table + 16 * u64::from(index), 16);
        at.write(0, &addr.to_le_bytes());
        at.write(8, &len.to_le_bytes());
        at.write(12, &flags.to_le_bytes());
        at.write(14, &next.to_le_bytes());
    }

    /// Writes a descriptor of the queue.
    pub fn descriptor(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        self.entry(GUEST + DESCRIPTORS, index, addr, len, flags, next);
    }

    /// Writes a chain of descriptors with the numbers from `first` on: address, length, and if the device writes.
    pub fn chain(&self, first: u16, parts: &[(u64, u32, bool)]) {
        for (offset, (addr, len, write)) in (0..).zip(parts) {
            let more = usize::from(offset) + 1 < parts.len();
            let flags = if *write { desc::WRITE } else { 0 } | if more { desc::NEXT } else { 0 };
            self.descriptor(first + offset, *addr, *len, flags, first + offset + 1);
        }
    }

    /// Adds a head to the avail ring, and counts it.
    pub fn offer(&mut self, head: u16) {
        let slot = u64::from(self.avail_idx % self.setup.size);
        self.at(GUEST + AVAIL + 4 + 2 * slot, 2).store_u16(0, head.to_le(), Ordering::Relaxed);
        self.set_avail_idx(self.avail_idx.wrapping_add(1));
    }

    pub fn set_avail_idx(&mut self, index: u16) {
        self.avail_idx = index;
        self.at(GUEST + AVAIL + 2, 2).store_u16(0, index.to_le(), Ordering::Release); // The queue's acquire load.
    }

    pub fn set_avail_flags(&self, flags: u16) {
        self.at(GUEST + AVAIL, 2).store_u16(0, flags.to_le(), Ordering::Relaxed);
    }

    /// Asks for an interrupt after the used element `index`.
    pub fn set_used_event(&self, index: u16) {
        let at = GUEST + AVAIL + 4 + 2 * u64::from(self.setup.size);
        self.at(at, 2).store_u16(0, index.to_le(), Ordering::Relaxed);
    }

    pub fn avail_event(&self) -> u16 {
        let at = GUEST + USED + 4 + 8 * u64::from(self.setup.size);
        u16::from_le(self.at(at, 2).load_u16(0, Ordering::Relaxed))
    }

    pub fn used_flags(&self) -> u16 {
        u16::from_le(self.at(GUEST + USED, 2).load_u16(0, Ordering::Relaxed))
    }

    pub fn used_idx(&self) -> u16 {
        u16::from_le(self.at(GUEST + USED + 2, 2).load_u16(0, Ordering::Acquire)) // The queue's release store.
    }

    pub fn set_used_idx(&self, index: u16) {
        self.at(GUEST + USED + 2, 2).store_u16(0, index.to_le(), Ordering::Relaxed);
    }

    /// Returns the used element `index`: head and length.
    pub fn used(&self, index: u16) -> (u32, u32) {
        let at = self.at(GUEST + USED + 4 + 8 * u64::from(index % self.setup.size), 8);
        let mut bytes = [[0; 4]; 2];
        at.read(0, &mut bytes[0]);
        at.read(4, &mut bytes[1]);
        let [head, len] = bytes.map(u32::from_le_bytes);
        (head, len)
    }
}
