//! Owned, aligned, zeroed memory for direct I/O.
//!
//! Owns one range of memory from creation to drop. Small ranges come from the allocator; large ones are separate
//! mappings, so that they start on a page and return to the system when dropped. Does not own the registration with a
//! kernel ring, nor access to the bytes while I/O is under way: the code that issues the I/O keeps the `Buf`.
//!
//! * I1: `ptr` is aligned to `align` and valid for reads and writes of `len` bytes, all initialized, until drop.
//! * I2: nothing else holds the memory; references come only through `&Buf` and `&mut Buf`.
//! * I3: the length determines how the memory was obtained and is given back, once: length 0 has no memory, short
//!   buffers are the allocator's, and from [`MMAP_THRESHOLD_BYTES`] on a buffer is a mapping from `ptr` to the end of
//!   the last page. So a buffer needs only three words, which operations carry about.
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

/// Reason for which there is no buffer.
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
mod tests;
