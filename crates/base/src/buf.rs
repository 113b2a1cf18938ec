//! Owned, aligned, zeroed memory for direct I/O.
//!
//! Owns one range of memory from creation to drop: small ones come from the allocator, large ones are their own
//! mapping, so that they start on a page and go back to the system when dropped. Does not own registration with a
//! kernel ring, nor who may touch the bytes while I/O is under way: whoever issues the I/O keeps the `Buf`.
//!
//! * I1: `ptr` is aligned to `align` and valid for reads and writes of `len` bytes, all initialized, until drop.
//! * I2: no one else holds the memory; references come only through `&Buf` and `&mut Buf`.
//! * I3: `origin` says how the memory was had, and so how it is given back, once.
//!
//! Called by rings (registered buffers), drivers, and programs that read and write.
#![allow(unsafe_code)] // Aligned memory is had from the allocator and from `mmap` as raw pointers.

use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Buffers of at least this many bytes are mappings of their own.
pub const MMAP_THRESHOLD_BYTES: usize = 128 * 1024;

/// The largest alignment: a huge page of 1 GiB.
pub const MAX_ALIGN: usize = 1 << 30;

/// Why there is no buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BufError {
    /// The alignment is not a power of two up to [`MAX_ALIGN`].
    #[error("alignment {align} is not a power of two up to {MAX_ALIGN}: use the device's block size, such as 4096")]
    Align {
        /// What was asked for, in bytes.
        align: usize,
    },
    /// Length and alignment together exceed the address space.
    #[error("{len} bytes aligned to {align} do not fit into the address space: ask for less")]
    TooBig {
        /// What was asked for, in bytes.
        len: usize,
        /// What was asked for, in bytes.
        align: usize,
    },
    /// The system has no memory left for it.
    #[error("no memory for a buffer of {len} bytes: use fewer or smaller buffers, or raise the memory limit")]
    NoMem {
        /// What was asked for, in bytes.
        len: usize,
    },
}

/// Owned memory of a fixed length and alignment. Dereferences to its bytes.
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
    align: usize,
    origin: Origin,
}

/// How the memory was had (I3).
#[derive(Clone, Copy)]
enum Origin {
    /// No bytes, no memory.
    Empty,
    /// From the allocator, with the layout of `len` and `align`.
    Alloc,
    /// A mapping: `base` and `len` are what `munmap` takes.
    Mmap { base: NonNull<u8>, len: usize },
}

// SAFETY: the memory belongs to this value alone (I2) and to no thread in particular.
unsafe impl Send for Buf {}
// SAFETY: `&Buf` gives out shared references only (I2).
unsafe impl Sync for Buf {}

impl Buf {
    /// `len` zero bytes at an address that is a multiple of `align` (a power of two).
    ///
    /// # Errors
    /// [`BufError`], when the alignment is none, or when there is no such memory.
    pub fn zeroed(len: usize, align: usize) -> Result<Self, BufError> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(BufError::Align { align });
        }
        let layout = Layout::from_size_align(len, align).map_err(|_| BufError::TooBig { len, align })?;
        let (ptr, origin) = if len == 0 {
            (NonNull::without_provenance(align_as_address(align)), Origin::Empty)
        } else if len < MMAP_THRESHOLD_BYTES {
            (alloc_zeroed(layout).ok_or(BufError::NoMem { len })?, Origin::Alloc)
        } else {
            map_zeroed(layout)?
        };
        debug_assert_eq!(ptr.addr().get() % align, 0);
        Ok(Self { ptr, len, align, origin })
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when it holds no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The alignment it was made with, in bytes. The address may happen to be aligned better.
    #[inline]
    #[must_use]
    pub fn align(&self) -> usize {
        self.align
    }

    /// The first byte, for I/O that reads from this memory. Valid until drop; moving the `Buf` does not move it.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// The first byte, for I/O that writes to this memory. Valid until drop; moving the `Buf` does not move it.
    #[inline]
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

fn align_as_address(align: usize) -> std::num::NonZeroUsize {
    std::num::NonZeroUsize::new(align).expect("invariant: a power of two is not 0")
}

fn alloc_zeroed(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: `zeroed` calls this for lengths above 0 only.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

/// A mapping of its own; one that is longer by the alignment when a page is not aligned enough.
fn map_zeroed(layout: Layout) -> Result<(NonNull<u8>, Origin), BufError> {
    let (len, align) = (layout.size(), layout.align());
    let slack = if align > rustix::param::page_size() { align } else { 0 };
    let map_len = len.checked_add(slack).ok_or(BufError::TooBig { len, align })?;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory in use.
    let base =
        unsafe { mmap_anonymous(ptr::null_mut(), map_len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
            .map_err(|_| BufError::NoMem { len })?;
    let base = NonNull::new(base.cast::<u8>()).ok_or(BufError::NoMem { len })?;
    let offset = base.addr().get().next_multiple_of(align) - base.addr().get();
    // SAFETY: `offset` is 0 without slack and below `align` with it, so `offset + len` is within the mapping.
    let ptr = unsafe { base.add(offset) };
    Ok((ptr, Origin::Mmap { base, len: map_len }))
}

impl Drop for Buf {
    fn drop(&mut self) {
        match self.origin {
            Origin::Empty => {}
            Origin::Alloc => {
                // SAFETY: `zeroed` checked this very layout.
                let layout = unsafe { Layout::from_size_align_unchecked(self.len, self.align) };
                // SAFETY: had from the allocator with this layout (I3); no reference outlives the value (I2).
                unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout) };
            }
            Origin::Mmap { base, len } => {
                // SAFETY: our own mapping (I3), and no reference outlives the value (I2).
                let unmapped = unsafe { munmap(base.as_ptr().cast(), len) };
                debug_assert!(unmapped.is_ok(), "munmap of our own mapping failed: {unmapped:?}");
            }
        }
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
    /// Shape and place; the bytes may be anybody's data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ptr, len, align) = (self.ptr, self.len, self.align);
        f.debug_struct("Buf").field("ptr", &ptr).field("len", &len).field("align", &align).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
