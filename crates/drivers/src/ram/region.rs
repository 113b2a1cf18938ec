//! The memory of a ram device: one sparse anonymous mapping that all rings read and write at once.
//!
//! Owns the mapping, every access to it, and the release of its pages. Does not own requests or their order.
//!
//! Like a disk, the region has no locks: a read beside a write of the same bytes may see some of the old and some of
//! the new ones, and two writes may leave some bytes of each. In Rust's terms that is a data race, as with memory that
//! a device or another process writes to. So the bytes are only accessed by raw copies, never by reference, and no code
//! relies on their value: the compiler gets no guarantee about them that a race could break.
//!
//! Invariants:
//! - I1: from `base`, `sectors` sectors lie in a mapping of this region's own from creation to drop, readable and
//!   writable. No other code has its address, so it overlaps no caller's memory.
//! - I2: no reference to its bytes exists, only raw pointers for the length of a copy.
//! - I3: every access lies within `sectors`: requests get pointers from [`Region::at`] alone, and [`Region::read`]
//!   checks its range itself.
//! - I4: bytes that were never written, or were cleared, are zero.
#![allow(unsafe_code)] // A mapping that threads read and write at once is reached by raw pointers alone.

use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use sheave_base::status::Status;

use sheave_blk::bio::{Bio, Op, SECTOR_SHIFT, Segment};
use sheave_blk::request::{Request, Rq, RqTable, Segments};

/// Bytes in a huge page on machines that have them.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Bytes in a sector; every length is a multiple.
const SECTOR: usize = 1 << SECTOR_SHIFT;

/// Bytes that the processor fetches at once.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// Number of sectors of a request that are prefetched; after these the processor's own prefetcher continues.
const PREFETCH_SECTORS: usize = 2;

/// The bytes of the device.
#[derive(Debug)]
pub(crate) struct Region {
    /// The first byte of the device, on a huge page if there is room for one.
    base: NonNull<u8>,
    /// Number of whole sectors (I3).
    sectors: u64,
    page: usize,
    /// Range to unmap.
    map: (NonNull<u8>, usize),
}

// SAFETY: the mapping belongs to the process, not to a thread, and `Region` is the only one to unmap it (I1).
unsafe impl Send for Region {}
// SAFETY: shared access copies bytes in or out (I2); a race between two copies tears bytes and nothing else.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` zero bytes that take memory only when they are written; in huge pages if requested and available.
    pub(crate) fn new(len: usize, huge: bool) -> Result<Region, Errno> {
        let page = rustix::param::page_size();
        let slack = if huge && len >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let map_len = len.checked_next_multiple_of(page).and_then(|len| len.checked_add(slack)).ok_or(Errno::NOMEM)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), map_len, prot, flags) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let to_huge = if slack > 0 { start.addr().get().wrapping_neg() % HUGE_PAGE } else { 0 };
        // SAFETY: less than `slack`, so inside the mapping.
        let base = unsafe { start.add(to_huge) };
        let region = Region { base, sectors: (len / SECTOR) as u64, page, map: (start, map_len) };
        if huge {
            // SAFETY: the region's own bytes (I1); the advice does not change what they hold.
            let advised = unsafe { madvise(base.as_ptr().cast(), len.next_multiple_of(page), Advice::LinuxHugepage) };
            // A kernel without huge pages returns EINVAL; the driver's notice tells the user.
            debug_assert!(matches!(advised, Ok(()) | Err(Errno::INVAL)), "{advised:?}");
        }
        Ok(region)
    }

    /// Allocates all of the memory now, so that no write waits for the kernel to find a page.
    pub(crate) fn touch(&self) {
        let len = (self.sectors as usize) * SECTOR;
        for at in (0..len).step_by(self.page) {
            // SAFETY: inside the region (I3), and no other code has the memory yet; the byte stays 0 (I4).
            unsafe { self.base.as_ptr().add(at).write_volatile(0) };
        }
    }

    /// Prefetches the first lines of the request's bytes, and with them its page translation, before its turn to be
    /// copied.
    #[inline(always)]
    pub(crate) fn prefetch(&self, request: &Request) {
        // An address outside the region does no harm: a prefetch never faults, and the address is not used otherwise.
        let start = self.base.as_ptr().wrapping_add((request.sector << SECTOR_SHIFT) as usize);
        const { assert!(PREFETCH_SECTORS == 2) }
        // For every operation: for the few without data it is merely useless.
        prefetch_sector(start);
        if request.bytes as usize > SECTOR {
            prefetch_sector(start.wrapping_add(SECTOR));
        }
    }

    /// Copies bytes from `pos` on into `into`. Returns false if they are not all inside the region.
    #[inline]
    pub(crate) fn read(&self, pos: u64, into: &mut [u8]) -> bool {
        let size = self.sectors << SECTOR_SHIFT;
        let inside = pos <= size && into.len() as u64 <= size - pos;
        if inside {
            // SAFETY: inside the region (I3), whose address no other code has (I1): so `into` is elsewhere.
            unsafe { ptr::copy_nonoverlapping(self.base.as_ptr().add(pos as usize), into.as_mut_ptr(), into.len()) };
        }
        inside
    }

    /// Executes the request. Its token proves that the driver holds it, and so that its memory is valid.
    #[inline(always)]
    pub(crate) fn carry_out(&self, rqs: &RqTable<'_>, rq: &Rq) -> Status {
        let request = rqs.get(rq);
        let Some(start) = self.at(request) else { return Status::IoErr };
        // Compared one after the other, without a jump table: nearly all requests are of the first two kinds.
        if request.op == Op::Read {
            self.copy::<false>(start, request, rqs, rq);
        } else if request.op == Op::Write {
            self.copy::<true>(start, request, rqs, rq);
        } else if request.op != Op::Flush {
            self.clear(start, request.bytes as usize);
        }
        Status::Ok
    }

    /// Returns the first byte of a request that lies completely inside the region (I3).
    #[inline(always)]
    fn at(&self, request: &Request) -> Option<*mut u8> {
        let behind = self.sectors.checked_sub(request.sector)?;
        let inside = u64::from(request.bytes) <= behind << SECTOR_SHIFT;
        // SAFETY: inside the region, whose length fits into the address space (I1).
        inside.then(|| unsafe { self.base.as_ptr().add((request.sector << SECTOR_SHIFT) as usize) })
    }

    /// Copies between the region and the memory of a read or write.
    #[inline(always)]
    fn copy<const WRITE: bool>(&self, start: *mut u8, request: &Request, rqs: &RqTable<'_>, rq: &Rq) {
        let bytes = request.bytes as usize;
        if let Some(vec) = request.plain_segment() {
            // SAFETY: see `copy_pieces`; the memory of a plain record is as valid as that of a bio.
            return unsafe { copy_piece::<WRITE>(start, vec, bytes) };
        }
        self.copy_bios::<WRITE>(start, bytes, rqs, rq);
    }

    /// Copies between the region and the memory of a request that has bios.
    #[inline(never)]
    fn copy_bios<const WRITE: bool>(&self, start: *mut u8, bytes: usize, rqs: &RqTable<'_>, rq: &Rq) {
        if let Some(&[vec]) = rqs.single_bio(rq.tag()).map(Bio::segments) {
            // SAFETY: see `copy_pieces`.
            return unsafe { copy_piece::<WRITE>(start, vec, bytes) };
        }
        self.copy_pieces::<WRITE>(start, bytes, rqs.segments(rq.tag()));
    }

    /// Copies between the region and memory in several pieces.
    #[inline(never)]
    fn copy_pieces<const WRITE: bool>(&self, start: *mut u8, bytes: usize, pieces: Segments<'_>) {
        let (mut here, mut left) = (start, bytes);
        for vec in pieces {
            let len = vec.len().min(left);
            // SAFETY: `here` has `left` bytes to go inside the region (I3, the caller's `at`), and the piece is memory
            // of a bio whose request the driver holds (bio I1).
            unsafe {
                copy_piece::<WRITE>(here, vec, left);
                here = here.add(len);
            }
            left -= len;
        }
    }

    /// Zeroes bytes: whole pages are released to the system, the rest is written.
    #[cold]
    fn clear(&self, start: *mut u8, len: usize) {
        let head = (start.addr().wrapping_neg() % self.page).min(len);
        let pages = (len - head) / self.page * self.page;
        // SAFETY: head, whole pages and tail are pieces of the caller's range, which is inside the region (I3). Pages
        // of a private anonymous mapping (I1) that were given back read as zeroes.
        unsafe {
            write_zeroes(start, head);
            let middle = start.add(head);
            // The release fails for locked memory (mlockall).
            if pages > 0 && madvise(middle.cast(), pages, Advice::LinuxDontNeed).is_err() {
                write_zeroes(middle, pages);
            }
            write_zeroes(middle.add(pages), len - head - pages);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping as it was made (I1); no request is under way, because its queue keeps the region alive.
        let unmapped = unsafe { munmap(self.map.0.as_ptr().cast(), self.map.1) };
        debug_assert!(unmapped.is_ok(), "a mapping can be unmapped: {unmapped:?}");
    }
}

/// Writes zeroes, but only over sectors that are not zero: a page that was never written must not be allocated for it.
///
/// # Safety
/// `len` bytes from `start` are inside the region.
unsafe fn write_zeroes(start: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(SECTOR);
        let mut seen = [0u8; SECTOR];
        // SAFETY: `done + piece` is at most `len`; a copy of the bytes is compared, never the bytes themselves (I2).
        unsafe {
            let here = start.add(done);
            ptr::copy_nonoverlapping(here, seen.as_mut_ptr(), piece);
            if seen != [0; SECTOR] {
                ptr::write_bytes(here, 0, piece);
            }
        }
        done += piece;
    }
}

/// Copies a piece of memory, but at most `left` bytes, into the region or out of it.
///
/// # Safety
/// That many bytes are inside the region from `here`, and the piece is valid memory outside the region.
#[inline(always)]
unsafe fn copy_piece<const WRITE: bool>(here: *mut u8, piece: Segment, left: usize) {
    let there = ptr::with_exposed_provenance_mut::<u8>(piece.base());
    let len = piece.len().min(left);
    // SAFETY: as promised by the caller; no other code has the region's address (I1), so they do not overlap.
    unsafe {
        if WRITE {
            ptr::copy_nonoverlapping(there, here, len);
        } else {
            ptr::copy_nonoverlapping(here, there, len);
        }
    }
}

/// Prefetches the lines of a sector into the second-level cache. A processor can have more such fetches under way than
/// fetches to the first-level cache (48 beside 16 on an Intel one), and the wait is for memory. Any address is allowed:
/// none faults.
#[inline(always)]
fn prefetch_sector(start: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..SECTOR / CACHE_LINE {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint, which every x86-64 processor executes or ignores; it has no visible effect.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(line * CACHE_LINE).cast()) };
    }
    // On other architectures there is no stable intrinsic; the processor's own prefetching has to do.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = start;
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn length(region: &Region) -> usize {
        region.sectors as usize * SECTOR
    }

    /// Returns the pages of the region that take memory of their own, by number.
    fn pages_in_use(region: &Region) -> Vec<usize> {
        /// Flag of a page that this process alone has; the shared page of zeroes lacks it.
        const EXCLUSIVE: u64 = 1 << 56;
        let pagemap = File::open("/proc/self/pagemap").expect("/proc is there");
        let first = region.base.addr().get() / region.page;
        let mut entries = vec![0; length(region).div_ceil(region.page) * 8];
        pagemap.read_exact_at(&mut entries, first as u64 * 8).expect("an entry for each page");
        let entries = entries.chunks_exact(8).map(|e| u64::from_ne_bytes(e.try_into().expect("8 bytes")));
        entries.enumerate().filter(|(_, entry)| entry & EXCLUSIVE != 0).map(|(page, _)| page).collect()
    }

    fn fill(region: &Region, start: usize, len: usize, byte: u8) {
        assert!(start + len <= length(region));
        // SAFETY: inside the region.
        unsafe { region.base.as_ptr().add(start).write_bytes(byte, len) };
    }

    fn bytes(region: &Region, start: usize, len: usize) -> Vec<u8> {
        assert!(start + len <= length(region));
        let mut bytes = vec![0xee; len];
        // SAFETY: inside the region, which the vector does not overlap.
        unsafe { region.base.as_ptr().add(start).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    fn clear(region: &Region, start: usize, len: usize) {
        assert!(start + len <= length(region));
        region.clear(region.base.as_ptr().wrapping_add(start), len);
    }

    #[test]
    fn memory_is_used_where_it_was_written_and_given_back_page_by_page() {
        let region = Region::new(64 << 20, false).expect("64 MiB of addresses");
        let page = region.page;
        assert_eq!(pages_in_use(&region), []);
        assert_eq!(bytes(&region, 5 * page, 3 * page), vec![0; 3 * page]);
        assert_eq!(pages_in_use(&region), [], "a look costs no memory");
        for at in [2, 3, 4, 5, 9000] {
            fill(&region, at * page, page, 0xa5);
        }
        assert_eq!(pages_in_use(&region), [2, 3, 4, 5, 9000]);
        // From the middle of page 2 to the middle of page 5.
        clear(&region, 2 * page + 512, 3 * page);
        assert_eq!(pages_in_use(&region), [2, 5, 9000]);
        let left = bytes(&region, 2 * page, 4 * page);
        let kept = |at: usize| at < 512 || at >= 512 + 3 * page;
        assert!(left.iter().enumerate().all(|(at, &byte)| byte == if kept(at) { 0xa5 } else { 0 }));
        clear(&region, 0, 64 << 20);
        assert_eq!(pages_in_use(&region), []);
    }

    #[test]
    fn clearing_what_was_never_written_takes_no_memory() {
        for huge in [false, true] {
            let region = Region::new(8 << 20, huge).expect("8 MiB of addresses");
            clear(&region, 512, 1024);
            clear(&region, region.page - 512, 1024);
            clear(&region, 1536, 3 << 20);
            assert_eq!(pages_in_use(&region), []);
        }
    }

    #[test]
    fn clearing_inside_a_page_leaves_its_neighbours() {
        let region = Region::new(1 << 20, true).expect("1 MiB of addresses");
        fill(&region, 0, 1 << 20, 0xff);
        for (start, len) in [(512, 512), (8192 - 512, 512), (12_288, 512), (20_480 - 1024, 2048), (40_960 + 512, 0)] {
            clear(&region, start, len);
            assert_eq!(bytes(&region, start, len), vec![0; len]);
            assert!(bytes(&region, start - 512, 512).iter().all(|&byte| byte == 0xff));
            assert!(bytes(&region, start + len, 512).iter().all(|&byte| byte == 0xff));
        }
    }

    #[test]
    fn a_region_that_can_hold_a_huge_page_begins_on_one() {
        let region = Region::new(HUGE_PAGE, true).expect("2 MiB of addresses");
        assert_eq!(region.base.addr().get() % HUGE_PAGE, 0);
        let small = Region::new(512, true).expect("a page of addresses");
        assert_eq!((small.map.1, small.base), (small.page, small.map.0));
        assert_eq!(bytes(&small, 0, 512), [0; 512]);
    }

    #[test]
    fn more_than_the_address_space_is_refused() {
        assert_eq!(Region::new(usize::MAX, true).map(|_| ()), Err(Errno::NOMEM));
        assert_eq!(Region::new(1 << 60, true).map(|_| ()), Err(Errno::NOMEM));
    }
}
