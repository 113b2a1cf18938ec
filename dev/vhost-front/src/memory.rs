//! Guest memory: regions in memory files, mapped here and by the back-end.
//!
//! Owns the mapping of a file ([`Mapping`]), a region with its addresses ([`Region`]) and the table of regions
//! ([`GuestMemory`]). Both this process and the back-end read and write the bytes at any time, so no reference to plain
//! data is ever made: all accesses are atomic or volatile.
//!
//! - I1: a mapping has `len` bytes from `base`, from its creation until it is dropped.
//! - I2: each access is checked against `len` and against the alignment of its type. An access outside panics, because
//!   the offset comes from the test and not from a peer.
#![allow(unsafe_code)] // Mapping files, and accesses to memory that another process writes.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{Error, Result};

/// A file that is mapped for reading and writing, shared with other processes.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is accessed by atomic and volatile operations only, and stays mapped until the drop (I1).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file from `offset`, which is a multiple of the page size.
    pub fn new(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address, so no memory of this process is replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, offset) }
            .map_err(|error| Error::system(format!("cannot map {len} bytes at offset {offset}"), error))?;
        let base = NonNull::new(base.cast()).ok_or(Error::NoRoom(len as u64))?;
        Ok(Mapping { base, len })
    }

    /// Returns the address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the mapping has no bytes, which [`Mapping::new`] never makes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a pointer to `size` bytes at `offset` (I2).
    #[inline]
    fn at(&self, offset: usize, size: usize, align: usize) -> *mut u8 {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.len);
        assert!(inside, "{size} bytes at {offset} lie outside of a mapping of {} bytes", self.len);
        assert!(offset.is_multiple_of(align), "offset {offset} is not aligned to {align}");
        // SAFETY: `offset` is at most `len`, so the pointer stays within the mapping or at its end (I1).
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns the byte at `offset`.
    #[inline]
    pub fn u8_at(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: the byte is mapped as long as `self` is borrowed (I1, I2), and is accessed atomically only.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1, 1)) }
    }

    /// Returns the 16-bit number at `offset`.
    #[inline]
    pub fn u16_at(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: the bytes are mapped and aligned (I1, I2), and are accessed atomically only.
        unsafe { AtomicU16::from_ptr(self.at(offset, 2, 2).cast()) }
    }

    /// Returns the 32-bit number at `offset`.
    #[inline]
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast()) }
    }

    /// Returns the 64-bit number at `offset`.
    #[inline]
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast()) }
    }

    /// Copies bytes out of the mapping.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len(), 1);
        for (at, byte) in into.iter_mut().enumerate() {
            // SAFETY: `at` is below the checked length (I2). The access is volatile, because the back-end may write.
            *byte = unsafe { from.add(at).read_volatile() };
        }
    }

    /// Copies bytes into the mapping.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len(), 1);
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: `at` is below the checked length (I2). The access is volatile, because the back-end may read.
            unsafe { to.add(at).write_volatile(*byte) };
        }
    }

    /// Fills a range with one byte.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        let to = self.at(offset, len, 1);
        for at in 0..len {
            // SAFETY: as in `write`.
            unsafe { to.add(at).write_volatile(byte) };
        }
    }

    /// Copies `len` bytes from this mapping to another one, at the speed of `memcpy`. A back-end that serves memory
    /// needs nothing else.
    pub fn copy_to(&self, from: usize, other: &Mapping, to: usize, len: usize) {
        let (from, to) = (self.at(from, len, 1), other.at(to, len, 1));
        // SAFETY: both ranges are mapped (I2). `copy` permits that they overlap. Another process may write the bytes
        // meanwhile; the copy then has any of the values, and nothing is derived from them here.
        unsafe { std::ptr::copy(from, to, len) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes at {:#x})", self.len, self.address())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and every reference into it borrows `self` (I1). An error is
        // impossible for such a range, and could not be returned.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The place of a region, before it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    /// Address of the first byte for descriptors.
    pub guest_address: u64,
    /// Number of bytes, a multiple of 4096.
    pub len: u64,
    /// Offset of the first byte in the memory file, a multiple of 4096.
    pub file_offset: u64,
}

impl RegionSpec {
    /// Returns a region at the beginning of its file.
    pub const fn new(guest_address: u64, len: u64) -> Self {
        RegionSpec { guest_address, len, file_offset: 0 }
    }

    /// Returns the description of a region in messages, with any user address.
    pub fn payload(&self, user_address: u64) -> Vec<u8> {
        [self.guest_address, self.len, user_address, self.file_offset].map(u64::to_ne_bytes).concat()
    }
}

/// A region of guest memory: a memory file and its mapping in this process.
#[derive(Debug)]
pub struct Region {
    file: OwnedFd,
    spec: RegionSpec,
    mapping: Mapping,
    /// Offset of the first byte that [`GuestMemory::alloc`] has not given away.
    unused: Mutex<u64>,
}

impl Region {
    /// Creates the memory file and maps it.
    pub fn create(spec: RegionSpec) -> Result<Self> {
        let file = memfd_create("guest-memory", MemfdFlags::CLOEXEC)
            .map_err(|error| Error::system("cannot create a memory file", error))?;
        let file = File::from(file);
        file.set_len(spec.file_offset + spec.len)
            .map_err(|error| Error::system(format!("cannot make a memory file of {} bytes", spec.len), error))?;
        Region::from_file(file.into(), spec)
    }

    /// Maps a region of a memory file that exists. A back-end does this with a region that it has received.
    pub fn from_file(file: OwnedFd, spec: RegionSpec) -> Result<Self> {
        let mapping = Mapping::new(file.as_fd(), spec.file_offset, spec.len as usize)?;
        Ok(Region { file, spec, mapping, unused: Mutex::new(0) })
    }

    /// Returns the place of the region.
    pub fn spec(&self) -> RegionSpec {
        self.spec
    }

    /// Returns the address of the first byte for descriptors.
    pub fn guest_address(&self) -> u64 {
        self.spec.guest_address
    }

    /// Returns the address of the first byte in this process, which messages call the user address.
    pub fn user_address(&self) -> u64 {
        self.mapping.address()
    }

    /// Returns the memory file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the mapping of the region's bytes.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Cuts the memory file under the mappings: any process that touches the bytes behind `len` gets SIGBUS, the test
    /// itself included.
    pub fn shrink_file(&self, len: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.file, self.spec.file_offset + len)
            .map_err(|error| Error::system("cannot shrink the memory file", error))
    }

    /// Returns the offset of a range of guest addresses, or `None` if it is not wholly inside.
    pub fn offset_of(&self, address: u64, len: u64) -> Option<usize> {
        let offset = address.checked_sub(self.spec.guest_address)?;
        let end = offset.checked_add(len)?;
        (end <= self.spec.len).then_some(offset as usize)
    }
}

/// The regions of a guest. Copies share the table, so that queues see a region that is added later.
#[derive(Debug, Clone, Default)]
pub struct GuestMemory {
    regions: Arc<Mutex<Vec<Arc<Region>>>>,
}

impl GuestMemory {
    /// Creates a memory with these regions.
    pub fn new(specs: &[RegionSpec]) -> Result<Self> {
        let memory = GuestMemory::default();
        for spec in specs {
            memory.add(*spec)?;
        }
        Ok(memory)
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Region>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a region and adds it to the table. No message is sent.
    pub fn add(&self, spec: RegionSpec) -> Result<Arc<Region>> {
        let region = Arc::new(Region::create(spec)?);
        self.table().push(region.clone());
        Ok(region)
    }

    /// Removes a region from the table. The mapping exists until the last owner of the region is gone. No message is
    /// sent.
    pub fn remove(&self, region: &Arc<Region>) {
        self.table().retain(|have| !Arc::ptr_eq(have, region));
    }

    /// Returns the regions.
    pub fn regions(&self) -> Vec<Arc<Region>> {
        self.table().clone()
    }

    /// Returns the region with all bytes of a range, and the offset in the region.
    pub fn find(&self, address: u64, len: u64) -> Option<(Arc<Region>, usize)> {
        self.table().iter().find_map(|region| Some((region.clone(), region.offset_of(address, len)?)))
    }

    fn found(&self, address: u64, len: usize) -> (Arc<Region>, usize) {
        let found = self.find(address, len as u64);
        found.unwrap_or_else(|| panic!("no region of guest memory has {len} bytes at {address:#x}"))
    }

    /// Takes unused bytes of the first region that has as many, and returns their guest address. The bytes are zero.
    /// They are never given back: a test makes a memory of its own.
    pub fn alloc(&self, len: u64, align: u64) -> Result<u64> {
        let regions = self.regions();
        regions.iter().find_map(|region| alloc_in(region, len, align)).ok_or(Error::NoRoom(len))
    }

    /// Copies bytes out of guest memory.
    ///
    /// # Panics
    ///
    /// Panics if no region has the whole range.
    pub fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let (region, offset) = self.found(address, len);
        let mut bytes = vec![0; len];
        region.mapping.read(offset, &mut bytes);
        bytes
    }

    /// Copies bytes into guest memory.
    ///
    /// # Panics
    ///
    /// Panics if no region has the whole range.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        let (region, offset) = self.found(address, bytes.len());
        region.mapping.write(offset, bytes);
    }

    /// Fills a range with one byte.
    ///
    /// # Panics
    ///
    /// Panics if no region has the whole range.
    pub fn fill(&self, address: u64, len: usize, byte: u8) {
        let (region, offset) = self.found(address, len);
        region.mapping.fill(offset, len, byte);
    }
}

/// Takes unused bytes of one region.
pub(crate) fn alloc_in(region: &Region, len: u64, align: u64) -> Option<u64> {
    let mut unused = region.unused.lock().unwrap_or_else(PoisonError::into_inner);
    let address = (region.spec.guest_address + *unused).checked_next_multiple_of(align)?;
    let end = (address - region.spec.guest_address).checked_add(len)?;
    if end > region.spec.len {
        return None;
    }
    *unused = end;
    Some(address)
}

/// Orders all accesses before the call before all accesses after it. Both sides of a ring need this between the store
/// of an index and the load of the other side's wish for a notification.
#[inline]
pub(crate) fn full_fence() {
    // SeqCst pairs with the same fence of the other side, between its store of the wish and its load of the index.
    std::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_a_region_share_their_bytes() {
        let region = Region::create(RegionSpec { guest_address: 0x1000, len: 8192, file_offset: 4096 }).expect("made");
        let other = region.file().try_clone_to_owned().expect("a copy");
        let other = Region::from_file(other, region.spec()).expect("mapped");
        region.mapping().write(5, b"abc");
        let mut bytes = [0; 3];
        other.mapping().read(5, &mut bytes);
        assert_eq!(&bytes, b"abc");
        other.mapping().u16_at(8190).store(0x1234, Ordering::Relaxed);
        assert_eq!(region.mapping().u8_at(8191).load(Ordering::Relaxed), 0x12);
    }

    #[test]
    #[should_panic(expected = "outside of a mapping")]
    fn an_access_behind_the_end_panics() {
        let region = Region::create(RegionSpec::new(0, 4096)).expect("made");
        region.mapping().read(4090, &mut [0; 7]);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn a_number_at_an_odd_address_panics() {
        let region = Region::create(RegionSpec::new(0, 4096)).expect("made");
        region.mapping().u32_at(6);
    }

    #[test]
    fn bytes_come_from_the_first_region_with_room() {
        let memory =
            GuestMemory::new(&[RegionSpec::new(0x10_0800, 4096), RegionSpec::new(0x20_0000, 8192)]).expect("m");
        assert_eq!(memory.alloc(100, 4096).expect("room"), 0x10_1000);
        assert_eq!(memory.alloc(4096, 1).expect("room"), 0x20_0000);
        assert_eq!(memory.alloc(8, 8).expect("room"), 0x10_1068);
        assert!(matches!(memory.alloc(8192, 1), Err(Error::NoRoom(8192))));
    }

    #[test]
    fn a_range_that_crosses_two_regions_is_not_found() {
        let memory = GuestMemory::new(&[RegionSpec::new(0, 4096), RegionSpec::new(4096, 4096)]).expect("made");
        assert!(memory.find(4000, 96).is_some() && memory.find(4000, 97).is_none());
        assert!(memory.find(u64::MAX, 2).is_none());
        let region = memory.regions()[1].clone();
        memory.remove(&region);
        assert!(memory.find(4096, 1).is_none());
    }
}
