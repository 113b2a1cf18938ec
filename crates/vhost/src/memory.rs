//! Mappings of guest memory, and bounds-checked access to them.
//!
//! Owns the mappings of regions and of in-flight regions, and every access of this crate to shared memory. Does not own
//! the meaning of any byte there. Does not own the signal handler for missing pages ([`sigbus`]).
//!
//! Other programs write to this memory at any time. So there are no references to its bytes: single numbers are read
//! and written with atomic accesses, and data is copied in or out as a whole.
//!
//! Invariants:
//! - M1: a [`Mapping`] stays mapped, readable and writable from its creation to its drop. A page whose file was cut off
//!   is replaced by a page of zeroes when it is touched.
//! - M2: the memory of a [`Place`] lies in one mapping, which the place borrows; that of a [`Window`] lies in the
//!   mapping that the window holds.
//! - M3: the regions of a [`GuestMemory`] are sorted by guest address, do not overlap by guest address nor by user
//!   address, and none reaches the end of the address space.
//! - M4: a [`Span`] is a pair of numbers. It becomes an access only through [`GuestMemory::place`], which checks it
//!   against the mappings.
#![allow(unsafe_code)] // Memory that is shared with other programs is reached through raw pointers.

#[cfg(test)]
mod cut_off;

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use serde::{Deserialize, Serialize};
use sheave_base::sigbus;
use sheave_base::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::{Broken, trusted};
pub(crate) use sheave_base::sigbus::any_broken;

/// Maximum number of regions. It is the answer to GET_MAX_MEM_SLOTS.
pub const MAX_REGIONS: usize = 64;

/// Number of regions up to which looking at one after the other is faster than a binary search. Guests have 2 to 4.
const FEW_REGIONS: usize = 8;

/// Type of file systems with huge pages, in the result of fstatfs.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// A region as the front-end announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionSpec {
    /// Physical address of the guest where the region begins.
    pub guest: u64,
    pub size: u64,
    /// Virtual address of the front-end where the region begins.
    pub user: u64,
    /// Offset of the region in its file.
    pub offset: u64,
}

impl RegionSpec {
    fn check(&self) -> Result<(), Broken> {
        if self.size == 0 {
            return Err(Broken::RegionEmpty { guest: self.guest });
        }
        let ends = [self.guest, self.user, self.offset].map(|start| start.checked_add(self.size));
        if ends.contains(&None) || usize::try_from(self.size).is_err() || self.offset + self.size > i64::MAX as u64 {
            return Err(Broken::RegionWraps { guest: self.guest });
        }
        Ok(())
    }
}

/// A part of a file that is mapped for reading and writing, shared with other programs.
pub struct Mapping {
    /// First mapped byte; a page boundary.
    start: NonNull<u8>,
    /// Mapped length; a multiple of the page size.
    mapped: usize,
    /// Distance from `start` to the first byte that was asked for.
    skip: usize,
    len: usize,
    guard: sigbus::Guard,
}

// SAFETY: the fields never change; accesses to the mapped memory are atomic or copy bytes, and other programs make
// accesses at the same time anyway (M1).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes at `offset` of a file. The file must have these bytes.
    pub(crate) fn new(file: impl AsFd, offset: u64, len: u64) -> Result<Mapping, Broken> {
        let file = file.as_fd();
        trusted::memory(file)?;
        let end = offset.checked_add(len).ok_or(Broken::FileTooShort { size: 0, needed: u64::MAX })?;
        let size = fstat(file).map_err(Broken::Map)?.st_size;
        let size = u64::try_from(size).unwrap_or(0);
        if size < end || len == 0 {
            return Err(Broken::FileTooShort { size, needed: end });
        }
        // Mappings of huge pages begin and end at boundaries of huge pages.
        let page = page_size(file)?;
        let from = offset & !(page - 1);
        let until = end.checked_next_multiple_of(page).ok_or(Broken::FileTooShort { size, needed: u64::MAX })?;
        let mapped = usize::try_from(until - from).map_err(|_| Broken::FileTooShort { size, needed: until })?;
        let slot = sigbus::reserve().map_err(|error| match error {
            Errno::MFILE => Broken::TooManyMappings { limit: sigbus::SLOTS },
            other => Broken::Map(other),
        })?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: the kernel chooses an unused range of addresses, so no other memory is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), mapped, prot, flags, file, from) }.map_err(Broken::Map)?;
        // Core dumps without the memory of guests. An old kernel or an unusual file may refuse; nothing depends on it.
        // SAFETY: the range was just mapped, and the advice does not change its contents.
        let _ = unsafe { madvise(start, mapped, Advice::LinuxDontDump) };
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping never begins at address 0");
        let guard = slot.watch(start.as_ptr() as usize, mapped, page as usize);
        Ok(Mapping { start, mapped, skip: (offset - from) as usize, len: len as usize, guard })
    }

    /// True if a page was missing when it was accessed, because the file had been cut off.
    pub(crate) fn is_broken(&self) -> bool {
        self.guard.is_broken()
    }

    fn base(&self) -> *mut u8 {
        // SAFETY: `skip` is less than `mapped` (`Mapping::new`).
        unsafe { self.start.as_ptr().add(self.skip) }
    }

    /// Returns access to a part of the mapping, if it has this part.
    #[inline]
    fn place(&self, offset: usize, len: usize) -> Option<Place<'_>> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: offset + len is at most the length of the mapping, as was just checked.
        let base = unsafe { self.base().add(offset) };
        Some(Place { base, len, mapping: PhantomData })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The handler must not replace pages of this range after another mapping may have taken it.
        self.guard.forget();
        // SAFETY: the range was mapped by `Mapping::new`, and nothing borrows this mapping any more (M2).
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Returns the size of the pages of a file: that of huge pages on their file systems.
fn page_size(file: impl AsFd) -> Result<u64, Broken> {
    let ordinary = rustix::param::page_size() as u64;
    let fs = fstatfs(file).map_err(Broken::Map)?;
    #[allow(clippy::unnecessary_cast)] // The types differ between architectures.
    let (kind, size) = (fs.f_type as u64, fs.f_bsize as u64);
    Ok(if kind == HUGETLBFS_MAGIC && size.is_power_of_two() && size > ordinary { size } else { ordinary })
}

/// A mapped region of guest memory.
pub struct Region {
    spec: RegionSpec,
    file: Arc<OwnedFd>,
    /// Device and inode of the file.
    identity: (u64, u64),
    mapping: Mapping,
}

impl Region {
    /// Maps a region.
    pub fn new(spec: RegionSpec, file: Arc<OwnedFd>) -> Result<Region, Broken> {
        spec.check()?;
        let identity = identity(&file)?;
        let mapping = Mapping::new(&file, spec.offset, spec.size)?;
        Ok(Region { spec, file, identity, mapping })
    }

    pub fn spec(&self) -> RegionSpec {
        self.spec
    }

    /// Returns the file that is mapped.
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Returns address and length of the region in this process, for the registration of buffers.
    pub fn iovec(&self) -> (*mut u8, usize) {
        (self.mapping.base(), self.mapping.len)
    }

    /// True if a page of the region was missing when it was accessed, because its file had been cut off.
    pub fn is_broken(&self) -> bool {
        self.mapping.is_broken()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("spec", &self.spec).finish_non_exhaustive()
    }
}

fn identity(file: impl AsFd) -> Result<(u64, u64), Broken> {
    trusted::memory(&file)?;
    let stat = fstat(file).map_err(Broken::Map)?;
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // The types differ between architectures.
    Ok((stat.st_dev as u64, stat.st_ino as u64))
}

/// A range of guest memory in this process: an address and a length, both plain numbers.
///
/// A caller that gives the address to the kernel keeps the [`GuestMemory`] until the kernel is done with it. Accesses
/// of this process go through [`GuestMemory::place`], which checks that the range is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    addr: usize,
    len: usize,
}

impl Span {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns address and length, for the kernel.
    #[inline]
    pub fn iovec(&self) -> (*mut u8, usize) {
        (std::ptr::with_exposed_provenance_mut(self.addr), self.len)
    }

    /// Splits the span after `at` bytes; at its end if it is shorter.
    #[inline]
    #[must_use]
    pub fn split(self, at: usize) -> (Span, Span) {
        let at = at.min(self.len);
        (Span { addr: self.addr, len: at }, Span { addr: self.addr + at, len: self.len - at })
    }
}

/// The numbers of a region that lookups need, close together.
#[derive(Clone, Copy, Debug)]
struct Extent {
    guest: u64,
    user: u64,
    size: u64,
    host: usize,
}

impl Extent {
    /// Returns true if the region has a guest address.
    #[inline(always)]
    fn has(&self, guest: u64) -> bool {
        guest.wrapping_sub(self.guest) < self.size
    }

    /// Returns access to a span, if it lies in the region.
    #[inline(always)]
    fn place(&self, span: Span) -> Option<Place<'_>> {
        let (offset, size) = (span.addr.wrapping_sub(self.host), self.size as usize);
        // The region of an extent is mapped as long as the extent exists: the memory owns both (M2).
        (offset < size && span.len <= size - offset).then(|| Place {
            base: span.iovec().0,
            len: span.len,
            mapping: PhantomData,
        })
    }
}

/// The memory of a guest: an immutable list of regions.
#[derive(Default)]
pub struct GuestMemory {
    /// Sorted by guest address.
    regions: Vec<Arc<Region>>,
    /// One for each region, in the same order.
    extents: Vec<Extent>,
}

impl GuestMemory {
    fn from_regions(mut regions: Vec<Arc<Region>>) -> Result<GuestMemory, Broken> {
        if regions.len() > MAX_REGIONS {
            return Err(Broken::TooManyRegions { count: regions.len() });
        }
        for by in [|spec: &RegionSpec| spec.user, |spec: &RegionSpec| spec.guest] {
            regions.sort_by_key(|region| by(&region.spec));
            for pair in regions.windows(2) {
                let (before, after) = (&pair[0].spec, &pair[1].spec);
                if by(after) - by(before) < before.size {
                    return Err(Broken::RegionOverlaps { first: before.guest, second: after.guest });
                }
            }
        }
        let extents = regions.iter().map(|region| {
            let RegionSpec { guest, user, size, .. } = region.spec;
            Extent { guest, user, size, host: region.mapping.base().expose_provenance() }
        });
        Ok(GuestMemory { extents: extents.collect(), regions })
    }

    /// Returns a memory of these regions and no others. A region that this memory has already keeps its mapping, so
    /// that spans in it stay valid.
    pub fn replaced(&self, new: Vec<(RegionSpec, Arc<OwnedFd>)>) -> Result<GuestMemory, Broken> {
        if new.len() > MAX_REGIONS {
            return Err(Broken::TooManyRegions { count: new.len() });
        }
        let mut regions = Vec::with_capacity(new.len());
        for (spec, file) in new {
            let identity = identity(&file)?;
            let same = self.regions.iter().find(|region| region.spec == spec && region.identity == identity);
            match same {
                Some(region) => regions.push(region.clone()),
                None => regions.push(Arc::new(Region::new(spec, file)?)),
            }
        }
        GuestMemory::from_regions(regions)
    }

    /// Returns a memory with one more region.
    pub fn added(&self, spec: RegionSpec, file: Arc<OwnedFd>) -> Result<GuestMemory, Broken> {
        if self.regions.len() == MAX_REGIONS {
            return Err(Broken::TooManyRegions { count: MAX_REGIONS + 1 });
        }
        let mut regions = self.regions.clone();
        regions.push(Arc::new(Region::new(spec, file)?));
        GuestMemory::from_regions(regions)
    }

    /// Returns a memory without one region, which is named by its addresses and size.
    pub fn removed(&self, spec: RegionSpec) -> Result<GuestMemory, Broken> {
        let is = |region: &Arc<Region>| {
            (region.spec.guest, region.spec.user, region.spec.size) == (spec.guest, spec.user, spec.size)
        };
        if !self.regions.iter().any(is) {
            return Err(Broken::NoSuchRegion { guest: spec.guest });
        }
        GuestMemory::from_regions(self.regions.iter().filter(|region| !is(region)).cloned().collect())
    }

    /// Returns the regions, sorted by guest address.
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// True if a region is broken ([`Region::is_broken`]).
    pub fn is_broken(&self) -> bool {
        self.regions.iter().any(|region| region.is_broken())
    }

    /// True if the file of a region is shorter than the region. The kernel then refuses I/O with such memory, and no
    /// access of this process has found that out.
    #[cold]
    pub fn is_cut_off(&self) -> bool {
        self.regions.iter().any(|region| {
            let size = fstat(&region.file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
            size < region.spec.offset + region.spec.size
        })
    }

    /// Returns the numbers of the region with a guest address. `hint` is the index of the region that was found last
    /// among many.
    #[inline(always)]
    fn region_at(&self, guest: u64, hint: &mut usize) -> Option<&Extent> {
        if self.extents.len() <= FEW_REGIONS {
            return self.extents.iter().find(|extent| extent.has(guest));
        }
        self.search(guest, hint)
    }

    #[inline(never)]
    fn search(&self, guest: u64, hint: &mut usize) -> Option<&Extent> {
        if let Some(extent) = self.extents.get(*hint).filter(|extent| extent.has(guest)) {
            return Some(extent);
        }
        *hint = self.extents.partition_point(|extent| extent.guest <= guest).checked_sub(1)?;
        Some(&self.extents[*hint]).filter(|extent| extent.has(guest))
    }

    /// Returns the memory at a guest address as far as it lies in one region, at most `len` bytes of it. `hint` is the
    /// caller's for all calls, and begins as 0.
    #[inline(always)]
    pub fn find(&self, guest: u64, len: u32, hint: &mut usize) -> Result<Span, Broken> {
        let Some(extent) = self.region_at(guest, hint) else { return Err(Broken::NotMapped { guest, len }) };
        let offset = guest - extent.guest;
        // The difference fits: the offset is less than the size, and the size fits in a usize.
        let len = (extent.size - offset).min(u64::from(len)) as usize;
        Ok(Span { addr: extent.host + offset as usize, len })
    }

    /// Returns access to a table of `len` bytes at a guest address, which must lie in one region. `hint` is as in
    /// [`GuestMemory::find`].
    #[inline(always)]
    pub(crate) fn table(&self, guest: u64, len: u32, hint: &mut usize) -> Result<Place<'_>, Broken> {
        let place = self.region_at(guest, hint).and_then(|extent| {
            extent.place(Span { addr: extent.host + (guest - extent.guest) as usize, len: len as usize })
        });
        place.ok_or(Broken::NotMapped { guest, len })
    }

    /// Returns the memory at a user address of the front-end, which must lie in one region, for a ring.
    pub(crate) fn window(&self, user: u64, len: usize, align: usize) -> Result<Window, Broken> {
        let lies = |extent: &&Extent| user >= extent.user && user - extent.user < extent.size;
        let at = self.extents.iter().position(|extent| lies(&extent)).ok_or(Broken::RingNotMapped { user })?;
        let offset = (user - self.extents[at].user) as usize;
        let window = Window::new(Backing::Region(self.regions[at].clone()), offset, len);
        let window = window.ok_or(Broken::RingNotMapped { user })?;
        if !(window.base as usize).is_multiple_of(align) {
            return Err(Broken::RingUnaligned { user });
        }
        Ok(window)
    }

    /// Returns access to a span, if it lies in a region of this memory.
    #[inline]
    pub fn place(&self, span: Span) -> Result<Place<'_>, Broken> {
        self.extents.iter().find_map(|extent| extent.place(span)).ok_or(Broken::SpanGone)
    }

    /// Copies from the beginning of `spans` into `to`. Returns the number of bytes copied.
    pub fn copy_from(&self, spans: &[Span], to: &mut [u8]) -> Result<usize, Broken> {
        let mut done = 0;
        for span in spans {
            let part = span.split(to.len() - done).0;
            self.place(part)?.read(0, &mut to[done..done + part.len]);
            done += part.len;
            if done == to.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Copies `from` to the beginning of `spans`. Returns the number of bytes copied.
    pub fn copy_to(&self, spans: &[Span], from: &[u8]) -> Result<usize, Broken> {
        let mut done = 0;
        for span in spans {
            let part = span.split(from.len() - done).0;
            self.place(part)?.write(0, &from[done..done + part.len]);
            done += part.len;
            if done == from.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Zeroes spans.
    pub fn zero(&self, spans: &[Span]) -> Result<(), Broken> {
        for span in spans {
            self.place(*span)?.zero();
        }
        Ok(())
    }
}

impl fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.regions.iter().map(|region| region.spec)).finish()
    }
}

/// Access to a range of mapped memory.
///
/// Offsets are the caller's own, computed from checked numbers; one beyond the range is an error of this crate and
/// panics.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    base: *mut u8,
    len: usize,
    mapping: PhantomData<&'a Mapping>,
}

impl Place<'_> {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of `size` bytes at an offset.
    #[inline(always)]
    fn at(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(offset.checked_add(size).is_some_and(|end| end <= self.len), "an access beyond a place");
        // SAFETY: the offset lies in the place, as was just checked, and the place in one mapping (M2).
        unsafe { self.base.add(offset) }
    }

    /// Returns the address of an aligned number of `size` bytes at an offset.
    #[inline(always)]
    fn aligned(&self, offset: usize, size: usize) -> *mut u8 {
        let at = self.at(offset, size);
        assert!((at as usize).is_multiple_of(size), "an access that is not aligned");
        at
    }

    #[inline(always)]
    pub fn load_u16(&self, offset: usize, order: Ordering) -> u16 {
        let at = self.aligned(offset, 2);
        // SAFETY: `at` is aligned and mapped (M1, M2), and all accesses of this process to it are atomic or copies.
        unsafe { AtomicU16::from_ptr(at.cast()) }.load(order)
    }

    #[inline(always)]
    pub fn store_u16(&self, offset: usize, value: u16, order: Ordering) {
        let at = self.aligned(offset, 2);
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU16::from_ptr(at.cast()) }.store(value, order);
    }

    #[inline(always)]
    pub fn load_u64(&self, offset: usize) -> u64 {
        let at = self.aligned(offset, 8);
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        let at = self.aligned(offset, 8);
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU64::from_ptr(at.cast()) }.store(value, order);
    }

    #[inline(always)]
    pub fn store_u32(&self, offset: usize, value: u32) {
        let at = self.aligned(offset, 4);
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU32::from_ptr(at.cast()) }.store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn load_u8(&self, offset: usize) -> u8 {
        // SAFETY: as in `load_u16`; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn store_u8(&self, offset: usize, value: u8, order: Ordering) {
        // SAFETY: as in `load_u16`; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }.store(value, order);
    }

    /// Copies 16 bytes, as two numbers in native order. Fast if they are aligned to 8.
    #[inline(always)]
    pub fn load_block(&self, offset: usize) -> [u64; 2] {
        let at = self.at(offset, 16);
        if (at as usize).is_multiple_of(8) {
            // SAFETY: as in `load_u16`.
            let (first, second) = unsafe { (AtomicU64::from_ptr(at.cast()), AtomicU64::from_ptr(at.add(8).cast())) };
            // Without `map`, which calls functions for each of the two.
            return [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)];
        }
        let mut bytes = [[0; 8]; 2];
        // SAFETY: 16 bytes at `at` are mapped (M1, M2); the destination is on the stack.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr().cast(), 16) };
        [u64::from_ne_bytes(bytes[0]), u64::from_ne_bytes(bytes[1])]
    }

    /// Copies bytes out of the place. If another program writes them at the same time, the copy is a mixture.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        // SAFETY: the source is mapped (M1, M2). The destination is a slice of this program, which cannot overlap with
        // a mapping that no reference points into.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes into the place.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: as in `read`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    pub fn zero(&self) {
        // SAFETY: the place is mapped (M1, M2).
        unsafe { self.base.write_bytes(0, self.len) };
    }

    /// Starts to fetch the cache line at an offset. Does nothing if the offset is beyond the place.
    #[inline(always)]
    pub fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            // SAFETY: a hint about an address in the place, which has no visible effect.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(self.base.add(offset).cast())
            };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }
}

/// The mapping that a window holds.
enum Backing {
    Region(Arc<Region>),
    Mapping(Arc<Mapping>),
}

impl Backing {
    fn mapping(&self) -> &Mapping {
        match self {
            Backing::Region(region) => &region.mapping,
            Backing::Mapping(mapping) => mapping,
        }
    }
}

/// A range of a mapping, together with the mapping: a ring, or a part of an in-flight region.
pub(crate) struct Window {
    base: *mut u8,
    len: usize,
    backing: Backing,
}

// SAFETY: the pointer is into the mapping that the window holds, which is Send and Sync itself (M2).
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    fn new(backing: Backing, offset: usize, len: usize) -> Option<Window> {
        let base = backing.mapping().place(offset, len)?.base;
        Some(Window { base, len, backing })
    }

    pub(crate) fn of_mapping(mapping: Arc<Mapping>, offset: usize, len: usize) -> Option<Window> {
        Window::new(Backing::Mapping(mapping), offset, len)
    }

    #[inline(always)]
    pub(crate) fn place(&self) -> Place<'_> {
        Place { base: self.base, len: self.len, mapping: PhantomData }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.backing.mapping().is_broken()
    }
}

#[cfg(test)]
mod tests;
