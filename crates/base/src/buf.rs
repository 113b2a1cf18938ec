//! Owned, aligned, zeroed memory for direct I/O.
//!
//! Owns one range of memory from creation to drop. Small ranges come from the allocator; large ones are separate
//! mappings, so that they start on a page and return to the system when dropped. Does not own the registration with a
//! kernel ring, nor access to the bytes while I/O is under way: the code that issues the I/O keeps the `Buf`.
//!
//! * I1: `ptr` is aligned to `align` and valid for reads and writes of `len` bytes, all initialized, until drop.
//! * I2: nothing else holds the memory; references come only through `&Buf` and `&mut Buf`.
//! - I3: the length determines how the memory was obtained and how it is freed. Length 0 has no memory. Short buffers
//!   are from the allocator. From [`MMAP_THRESHOLD_BYTES`] on, a buffer is a mapping from `ptr` to the end of the last
//!   page. So a buffer needs only three words, which operations carry with them.
//!
//! Called by rings (registered buffers), drivers, and programs that read and write.
#![allow(unsafe_code)] // The allocator and `mmap` return aligned memory as raw pointers.

use std::alloc::Layout;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Buffers of at least this many bytes are mappings of their own.
pub const MMAP_THRESHOLD_BYTES: usize = 128 * 1024;

/// Largest alignment: a huge page of 1 GiB.
pub const MAX_ALIGN: usize = 1 << 30;

/// Reason why there is no buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufError {
    /// The alignment is not a power of two up to [`MAX_ALIGN`].
    #[error("alignment {align} is not a power of two up to {MAX_ALIGN}: use the device's block size, such as 4096")]
    Align {
        /// Requested alignment in bytes.
        align: usize,
    },
    /// Length and alignment together exceed the address space.
    #[error("{len} bytes aligned to {align} do not fit into the address space: ask for less")]
    TooBig {
        /// Requested length in bytes.
        len: usize,
        /// Requested alignment in bytes.
        align: usize,
    },
    /// The system has not enough memory.
    #[error("no memory for a buffer of {len} bytes: use fewer or smaller buffers, or raise the memory limit")]
    NoMem {
        /// Requested length in bytes.
        len: usize,
    },
}

/// Owned memory of a fixed length and alignment. Dereferences to its bytes.
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
    align: usize,
}

// SAFETY: the memory belongs to this value alone (I2) and to no thread in particular.
unsafe impl Send for Buf {}
// SAFETY: `&Buf` gives out shared references only (I2).
unsafe impl Sync for Buf {}

impl Buf {
    /// Returns `len` zero bytes at an address that is a multiple of `align` (a power of two).
    ///
    /// # Errors
    /// [`BufError`], for an invalid alignment or if the memory is not available.
    pub fn zeroed(len: usize, align: usize) -> Result<Self, BufError> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(BufError::Align { align });
        }
        let layout = Layout::from_size_align(len, align).map_err(|_| BufError::TooBig { len, align })?;
        let ptr = if len == 0 {
            NonNull::without_provenance(align_as_address(align))
        } else if len < MMAP_THRESHOLD_BYTES {
            alloc_zeroed(layout).ok_or(BufError::NoMem { len })?
        } else {
            map_zeroed(layout)?
        };
        debug_assert_eq!(ptr.addr().get() % align, 0);
        Ok(Self { ptr, len, align })
    }

    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true for a length of 0.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the alignment that was requested, in bytes. The address may happen to be aligned better.
    #[inline]
    #[must_use]
    pub fn align(&self) -> usize {
        self.align
    }

    /// Returns the first byte, for I/O that reads from this memory. Valid until drop; moving the `Buf` does not move
    /// it.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Returns the first byte, for I/O that writes to this memory. Valid until drop; moving the `Buf` does not move it.
    #[inline]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Releases the memory without freeing it. Returns address, length and alignment, from which
    /// [`Buf::from_raw_parts`] makes the buffer again; until then the memory is leaked.
    #[inline]
    #[must_use = "nobody frees the memory but the buffer that is made of it again"]
    pub fn into_raw_parts(self) -> (NonNull<u8>, usize, usize) {
        let buf = ManuallyDrop::new(self);
        (buf.ptr, buf.len, buf.align)
    }

    /// Makes the buffer again that [`Buf::into_raw_parts`] took apart.
    ///
    /// # Safety
    /// The arguments come from [`Buf::into_raw_parts`], and no other buffer was made of them.
    #[inline]
    #[must_use]
    pub unsafe fn from_raw_parts(ptr: NonNull<u8>, len: usize, align: usize) -> Self {
        Self { ptr, len, align }
    }
}

fn align_as_address(align: usize) -> std::num::NonZeroUsize {
    std::num::NonZeroUsize::new(align).expect("invariant: a power of two is not 0")
}

fn alloc_zeroed(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: `zeroed` calls this for lengths above 0 only.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

/// Makes a mapping from the first byte to the end of the last page (I3). For an alignment above the page size it is cut
/// from a mapping that is longer by the alignment.
fn map_zeroed(layout: Layout) -> Result<NonNull<u8>, BufError> {
    let (len, align, page) = (layout.size(), layout.align(), rustix::param::page_size());
    let slack = if align > page { align } else { 0 };
    let whole = len.checked_next_multiple_of(page).ok_or(BufError::TooBig { len, align })?;
    let map_len = whole.checked_add(slack).ok_or(BufError::TooBig { len, align })?;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory in use.
    let base =
        unsafe { mmap_anonymous(ptr::null_mut(), map_len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
            .map_err(|_| BufError::NoMem { len })?;
    let base = NonNull::new(base.cast::<u8>()).ok_or(BufError::NoMem { len })?;
    let before = base.addr().get().next_multiple_of(align) - base.addr().get();
    // SAFETY: `before` is 0 without slack and at most the slack with it, so `before + whole` is within the mapping.
    let (ptr, end) = unsafe { (base.add(before), base.add(before + whole)) };
    for (from, bytes) in [(base, before), (end, map_len - before - whole)] {
        if bytes != 0 {
            // SAFETY: pages of our own mapping on which no byte of the buffer is.
            let unmapped = unsafe { munmap(from.as_ptr().cast(), bytes) };
            debug_assert!(unmapped.is_ok(), "munmap of our own mapping failed: {unmapped:?}");
        }
    }
    Ok(ptr)
}

impl Drop for Buf {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        if self.len < MMAP_THRESHOLD_BYTES {
            // SAFETY: `zeroed` checked this very layout.
            let layout = unsafe { Layout::from_size_align_unchecked(self.len, self.align) };
            // SAFETY: had from the allocator with this layout (I3); no reference outlives the value (I2).
            return unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout) };
        }
        // SAFETY: our own mapping (I3), whose last page the kernel rounds up to; no reference outlives the value (I2).
        let unmapped = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping failed: {unmapped:?}");
    }
}

impl Deref for Buf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: valid and initialized (I1), borrowed as long as `self` (I2).
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: valid and initialized (I1), borrowed exclusively as long as `self` (I2).
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buf {
    /// Shows address and size only, because the bytes may be private data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ptr, len, align) = (self.ptr, self.len, self.align);
        f.debug_struct("Buf").field("ptr", &ptr).field("len", &len).field("align", &align).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(len: usize, align: usize) {
        let mut buf = Buf::zeroed(len, align).expect("buffer");
        assert_eq!((buf.len(), buf.align(), buf.is_empty()), (len, align, len == 0));
        assert_eq!(buf.as_ptr().addr() % align, 0);
        assert!(buf.iter().all(|&byte| byte == 0));
        buf.fill(0xa5);
        assert!(buf.iter().all(|&byte| byte == 0xa5));
        assert_eq!(buf.as_mut_ptr().cast_const(), buf.as_ptr());
    }

    #[test]
    fn every_shape_is_aligned_zeroed_and_writable() {
        for len in [0, 1, 512, 4096, MMAP_THRESHOLD_BYTES - 1, MMAP_THRESHOLD_BYTES, 1 << 20] {
            for align in [1, 8, 512, 4096, 65536, 2 << 20] {
                check(len, align);
            }
        }
    }

    #[test]
    fn memory_stays_put_when_the_buffer_moves_to_another_thread() {
        let buf = Buf::zeroed(4096, 4096).expect("buffer");
        let address = buf.as_ptr().addr();
        let moved = std::thread::spawn(move || buf.as_ptr().addr()).join().expect("thread");
        assert_eq!(address, moved);
    }

    #[test]
    fn bad_shapes_are_errors() {
        assert_eq!(Buf::zeroed(1, 0).expect_err("align 0"), BufError::Align { align: 0 });
        assert_eq!(Buf::zeroed(1, 3).expect_err("align 3"), BufError::Align { align: 3 });
        assert_eq!(Buf::zeroed(1, 2 << 30).expect_err("align"), BufError::Align { align: 2 << 30 });
        let len = usize::MAX - 10;
        assert_eq!(Buf::zeroed(len, 4096).expect_err("too big"), BufError::TooBig { len, align: 4096 });
        let len = isize::MAX as usize - 4095;
        assert_eq!(Buf::zeroed(len, 4096).expect_err("no memory"), BufError::NoMem { len });
        assert!(BufError::Align { align: 3 }.to_string().contains("4096"));
    }

    #[test]
    fn debug_shows_the_shape_and_no_bytes() {
        let mut buf = Buf::zeroed(64, 64).expect("buffer");
        buf.fill(b'S');
        let text = format!("{buf:?}");
        // Pairs of bytes, because the address in the text may contain any single number.
        let shows_bytes = ["83, 83", "53, 53", "SS"].iter().any(|bytes| text.contains(bytes));
        assert!(text.contains("len: 64") && !shows_bytes, "{text}");
    }

    /// Returns true if the page at this address is mapped.
    fn is_mapped(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        maps.lines().any(|line| {
            let (from, rest) = line.split_once('-').expect("a range");
            let to = rest.split(' ').next().expect("an end");
            let at = |hex| usize::from_str_radix(hex, 16).expect("hexadecimal");
            (at(from)..at(to)).contains(&address)
        })
    }

    #[test]
    fn a_mapping_goes_as_a_whole() {
        for (len, align) in [(MMAP_THRESHOLD_BYTES + 1, 8), (1 << 20, 2 << 20), ((1 << 20) + 1, 4 << 20)] {
            let goes = || {
                let buf = Buf::zeroed(len, align).expect("buffer");
                let (first, last) = (buf.as_ptr().addr(), buf.as_ptr().addr() + len - 1);
                assert!(is_mapped(first) && is_mapped(last));
                drop(buf);
                !is_mapped(first) && !is_mapped(last)
            };
            // Another test's thread may map memory there meanwhile, but not each time.
            assert!((0..8).any(|_| goes()), "{len} bytes aligned to {align} are still mapped");
        }
    }

    #[test]
    fn a_buffer_is_made_again_of_its_parts() {
        let mut buf = Buf::zeroed(512, 4096).expect("buffer");
        buf[511] = 7;
        let (ptr, len, align) = buf.into_raw_parts();
        assert_eq!((len, align), (512, 4096));
        // SAFETY: the parts of the buffer above.
        let buf = unsafe { Buf::from_raw_parts(ptr, len, align) };
        assert_eq!(buf[511], 7);
    }
}
