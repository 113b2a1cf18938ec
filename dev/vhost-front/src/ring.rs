//! The memory of a split ring: descriptor table, avail ring and used ring, each field readable and writable.
//!
//! Owns the layout of section 2.7 of the virtio specification, version 1.2, and nothing of its meaning: that is
//! [`crate::DriverQueue`]'s. Hostile tests write any value here.
//!
//! - R1: indexes are taken modulo the size of the ring, so that any index can be written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::front_end::VringAddr;
use crate::memory::{GuestMemory, Region, alloc_in};

/// The descriptor continues at `next`.
pub const NEXT: u16 = 1;
/// The back-end writes the memory of the descriptor.
pub const WRITE: u16 = 2;
/// The memory of the descriptor is a table of descriptors.
pub const INDIRECT: u16 = 4;

/// Flag of the avail ring: the driver wants no call.
pub const NO_INTERRUPT: u16 = 1;
/// Flag of the used ring: the back-end wants no kick.
pub const NO_NOTIFY: u16 = 1;

/// Number of bytes of a descriptor.
pub const DESCRIPTOR_LEN: u64 = 16;
/// Alignment of the three parts of a ring: more than the specification demands, so that they share no cache line.
const PART_ALIGN: u64 = 64;

/// A descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// Guest address.
    pub address: u64,
    /// Number of bytes.
    pub len: u32,
    /// [`NEXT`], [`WRITE`] and [`INDIRECT`].
    pub flags: u16,
    /// Number of the next descriptor.
    pub next: u16,
}

impl Descriptor {
    /// Returns the bytes of the descriptor in a table.
    pub fn encode(&self) -> [u8; DESCRIPTOR_LEN as usize] {
        let mut bytes = [0; DESCRIPTOR_LEN as usize];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// The memory of a split ring.
#[derive(Debug)]
pub struct Ring {
    region: Arc<Region>,
    size: u16,
    desc: usize,
    avail: usize,
    used: usize,
}

impl Ring {
    /// Takes memory for a ring of `size` descriptors, all zero.
    pub fn alloc(memory: &GuestMemory, size: u16) -> Result<Self> {
        let len = [Ring::desc_len(size), Ring::avail_len(size), Ring::used_len(size)]
            .map(|len| len.next_multiple_of(PART_ALIGN));
        let all = len.iter().sum();
        let found = memory.regions().into_iter().find_map(|region| Some((alloc_in(&region, all, PART_ALIGN)?, region)));
        let (address, region) = found.ok_or(Error::NoRoom(all))?;
        let desc = (address - region.guest_address()) as usize;
        let avail = desc + len[0] as usize;
        Ok(Ring { region, size, desc, avail, used: avail + len[1] as usize })
    }

    /// Uses the memory of a ring that exists, at these user addresses of a region. A back-end does this.
    pub fn at(region: Arc<Region>, size: u16, desc: usize, avail: usize, used: usize) -> Self {
        Ring { region, size, desc, avail, used }
    }

    fn desc_len(size: u16) -> u64 {
        u64::from(size) * DESCRIPTOR_LEN
    }

    fn avail_len(size: u16) -> u64 {
        6 + 2 * u64::from(size)
    }

    fn used_len(size: u16) -> u64 {
        6 + 8 * u64::from(size)
    }

    /// Returns the number of descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the addresses for the back-end.
    pub fn addr(&self) -> VringAddr {
        let base = self.region.user_address();
        let [desc, avail, used] = [self.desc, self.avail, self.used].map(|offset| base + offset as u64);
        VringAddr { flags: 0, desc, used, avail, log: 0 }
    }

    /// Returns the guest address of the descriptor table.
    pub fn desc_guest_address(&self) -> u64 {
        self.region.guest_address() + self.desc as u64
    }

    /// Sets all bytes of the ring to zero, as a guest does that starts again.
    pub fn clear(&self) {
        let map = self.region.mapping();
        map.fill(self.desc, Ring::desc_len(self.size) as usize, 0);
        map.fill(self.avail, Ring::avail_len(self.size) as usize, 0);
        map.fill(self.used, Ring::used_len(self.size) as usize, 0);
    }

    #[inline]
    fn index(&self, at: u16) -> usize {
        usize::from(at % self.size)
    }

    /// Returns a descriptor of the table.
    #[inline]
    pub fn descriptor(&self, at: u16) -> Descriptor {
        read_descriptor(&self.region, self.desc + self.index(at) * DESCRIPTOR_LEN as usize)
    }

    /// Writes a descriptor of the table.
    #[inline]
    pub fn set_descriptor(&self, at: u16, descriptor: Descriptor) {
        write_descriptor(&self.region, self.desc + self.index(at) * DESCRIPTOR_LEN as usize, descriptor);
    }

    /// Returns the flags of the avail ring.
    #[inline]
    pub fn avail_flags(&self) -> u16 {
        self.region.mapping().u16_at(self.avail).load(Ordering::Relaxed)
    }

    /// Writes the flags of the avail ring.
    #[inline]
    pub fn set_avail_flags(&self, flags: u16) {
        self.region.mapping().u16_at(self.avail).store(flags, Ordering::Relaxed);
    }

    /// Returns the index of the avail ring. Heads up to it can be read afterwards.
    #[inline]
    pub fn avail_index(&self) -> u16 {
        // Acquire pairs with the Release in `set_avail_index`.
        self.region.mapping().u16_at(self.avail + 2).load(Ordering::Acquire)
    }

    /// Writes the index of the avail ring, after everything that was written before.
    #[inline]
    pub fn set_avail_index(&self, index: u16) {
        // Release pairs with the back-end's Acquire load of the index.
        self.region.mapping().u16_at(self.avail + 2).store(index, Ordering::Release);
    }

    /// Returns the head at an index of the avail ring.
    #[inline]
    pub fn avail_entry(&self, at: u16) -> u16 {
        self.region.mapping().u16_at(self.avail + 4 + 2 * self.index(at)).load(Ordering::Relaxed)
    }

    /// Writes the head at an index of the avail ring.
    #[inline]
    pub fn set_avail_entry(&self, at: u16, head: u16) {
        self.region.mapping().u16_at(self.avail + 4 + 2 * self.index(at)).store(head, Ordering::Relaxed);
    }

    fn used_event_at(&self) -> usize {
        self.avail + 4 + 2 * usize::from(self.size)
    }

    /// Returns the used index at which the driver wants a call (EVENT_IDX).
    #[inline]
    pub fn used_event(&self) -> u16 {
        self.region.mapping().u16_at(self.used_event_at()).load(Ordering::Relaxed)
    }

    /// Writes the used index at which the driver wants a call (EVENT_IDX).
    #[inline]
    pub fn set_used_event(&self, index: u16) {
        self.region.mapping().u16_at(self.used_event_at()).store(index, Ordering::Relaxed);
    }

    /// Returns the flags of the used ring.
    #[inline]
    pub fn used_flags(&self) -> u16 {
        self.region.mapping().u16_at(self.used).load(Ordering::Relaxed)
    }

    /// Writes the flags of the used ring.
    #[inline]
    pub fn set_used_flags(&self, flags: u16) {
        self.region.mapping().u16_at(self.used).store(flags, Ordering::Relaxed);
    }

    /// Returns the index of the used ring. Entries up to it can be read afterwards.
    #[inline]
    pub fn used_index(&self) -> u16 {
        // Acquire pairs with the back-end's Release store of the index.
        self.region.mapping().u16_at(self.used + 2).load(Ordering::Acquire)
    }

    /// Writes the index of the used ring, after everything that was written before.
    #[inline]
    pub fn set_used_index(&self, index: u16) {
        // Release pairs with the Acquire in `used_index`.
        self.region.mapping().u16_at(self.used + 2).store(index, Ordering::Release);
    }

    /// Returns an entry of the used ring: the head, and the number of bytes that the back-end wrote.
    #[inline]
    pub fn used_entry(&self, at: u16) -> (u32, u32) {
        let (map, at) = (self.region.mapping(), self.used + 4 + 8 * self.index(at));
        (map.u32_at(at).load(Ordering::Relaxed), map.u32_at(at + 4).load(Ordering::Relaxed))
    }

    /// Writes an entry of the used ring.
    #[inline]
    pub fn set_used_entry(&self, at: u16, head: u32, len: u32) {
        let (map, at) = (self.region.mapping(), self.used + 4 + 8 * self.index(at));
        map.u32_at(at).store(head, Ordering::Relaxed);
        map.u32_at(at + 4).store(len, Ordering::Relaxed);
    }

    fn avail_event_at(&self) -> usize {
        self.used + 4 + 8 * usize::from(self.size)
    }

    /// Returns the avail index at which the back-end wants a kick (EVENT_IDX).
    #[inline]
    pub fn avail_event(&self) -> u16 {
        self.region.mapping().u16_at(self.avail_event_at()).load(Ordering::Relaxed)
    }

    /// Writes the avail index at which the back-end wants a kick (EVENT_IDX).
    #[inline]
    pub fn set_avail_event(&self, index: u16) {
        self.region.mapping().u16_at(self.avail_event_at()).store(index, Ordering::Relaxed);
    }
}

/// Reads a descriptor at an offset of a region that is a multiple of 8.
#[inline]
pub fn read_descriptor(region: &Region, at: usize) -> Descriptor {
    let map = region.mapping();
    let word = map.u64_at(at + 8).load(Ordering::Relaxed);
    Descriptor {
        address: map.u64_at(at).load(Ordering::Relaxed),
        len: word as u32,
        flags: (word >> 32) as u16,
        next: (word >> 48) as u16,
    }
}

/// Writes a descriptor at an offset of a region that is a multiple of 8.
#[inline]
pub fn write_descriptor(region: &Region, at: usize, descriptor: Descriptor) {
    let Descriptor { address, len, flags, next } = descriptor;
    let map = region.mapping();
    map.u64_at(at).store(address, Ordering::Relaxed);
    map.u64_at(at + 8).store(u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48, Ordering::Relaxed);
}

/// Returns true if a side that has moved its index from `old` to `new` must notify the other side, which wants a
/// notification when the index passes `event` (section 2.7.10 of the specification).
#[inline]
pub fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RegionSpec;

    #[test]
    fn fields_lie_at_the_offsets_of_the_specification() {
        let memory = GuestMemory::new(&[RegionSpec::new(0x1_0000, 65536)]).expect("made");
        let ring = Ring::alloc(&memory, 4).expect("room");
        let descriptor = Descriptor { address: 0x0807_0605_0403_0201, len: 0x0C0B_0A09, flags: 0x0E0D, next: 0x100F };
        ring.set_descriptor(5, descriptor);
        let bytes = memory.read(ring.desc_guest_address() + 16, 16);
        assert_eq!(bytes, (1..=16).collect::<Vec<u8>>(), "index 5 is index 1 of 4 (R1)");
        assert_eq!((bytes, ring.descriptor(1)), (descriptor.encode().to_vec(), descriptor));

        ring.set_avail_flags(1);
        ring.set_avail_index(2);
        ring.set_avail_entry(3, 7);
        ring.set_used_event(9);
        let avail = ring.addr().avail - ring.addr().desc + ring.desc_guest_address();
        assert_eq!(memory.read(avail, 14), [1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 9, 0]);

        ring.set_used_flags(1);
        ring.set_used_index(2);
        ring.set_used_entry(1, 3, 4);
        ring.set_avail_event(5);
        let used = ring.addr().used - ring.addr().desc + ring.desc_guest_address();
        assert_eq!(memory.read(used, 20), [1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(memory.read(used + 36, 2), [5, 0]);
        ring.clear();
        assert_eq!(memory.read(ring.desc_guest_address(), 256), [0; 256]);
    }

    #[test]
    fn a_notification_is_due_when_the_index_passes_the_event() {
        assert!(passes(0, 0, 1) && passes(5, 3, 6) && passes(u16::MAX, u16::MAX, 0));
        assert!(!passes(5, 3, 5) && !passes(2, 3, 6) && !passes(7, 7, 7));
    }
}
