//! Registering files and buffers with a kernel ring, and giving them back.
//!
//! Owns the order of the two steps: the kernel first, then the slot in the ring's `table`. Files get a slot from here;
//! buffers keep the slot that their owner gives, so that a table above maps one to one. Does not own the memory of a
//! buffer: its owner keeps it.
#![allow(unsafe_code)] // registering memory with the kernel

use std::os::fd::RawFd;

use super::KernelRing;
use super::error::{KringError, errno_text};
use sheave_base::status::Errno;

impl KernelRing {
    /// Registers a file and gives its slot, for [`Target::Fixed`](super::Target::Fixed); the kernel holds it open
    /// until [`unregister_file`](Self::unregister_file). `None` if no slot is free or the kernel refuses: go by the
    /// descriptor then.
    pub fn register_file(&mut self, fd: RawFd) -> Option<u32> {
        let slot = self.files.taken.trailing_ones();
        if slot >= self.features.file_slots || fd < 0 {
            return None;
        }
        self.ring.submitter().register_files_update(slot, &[fd]).ok()?;
        self.files.taken |= 1 << slot;
        Some(slot)
    }

    /// Frees a slot; operations in flight on its file end as they would have. A slot that is not taken is left alone.
    pub fn unregister_file(&mut self, slot: u32) {
        let bit = 1u64.checked_shl(slot).unwrap_or(0);
        if self.files.taken & bit == 0 {
            return;
        }
        // If the kernel does not let go, the slot stays taken: it must not be given out with a file in it.
        if self.ring.submitter().register_files_update(slot, &[-1]).is_ok() {
            self.files.taken &= !bit;
        }
    }

    /// Registers `len` bytes at `ptr` as buffer `slot`, in place of what was there.
    ///
    /// # Errors
    ///
    /// The kernel's reason; I/O to that memory then goes without a registered buffer. When the limit on locked memory
    /// is the reason, [`notices`](Self::notices) says so, once.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped at `ptr` until the slot is unregistered or replaced, or the ring is dropped: the
    /// kernel keeps reaching the pages that were there when it was registered.
    pub unsafe fn register_buffer(&mut self, slot: u32, ptr: *mut u8, len: usize) -> Result<(), KringError> {
        if ptr.is_null() || len == 0 {
            return Err(KringError::Buffer { slot, errno: Errno::EFAULT });
        }
        self.update_buffer(slot, libc::iovec { iov_base: ptr.cast(), iov_len: len })
    }

    /// Whether the kernel has a buffer in this slot.
    #[inline]
    pub fn has_buffer(&self, slot: u16) -> bool {
        self.buffers.has(slot)
    }

    /// Empties buffer `slot`; operations in flight with it end as they would have.
    pub fn unregister_buffer(&mut self, slot: u32) {
        // An error can only mean that there is nothing in the slot.
        let _ = self.update_buffer(slot, libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
    }

    fn update_buffer(&mut self, slot: u32, iov: libc::iovec) -> Result<(), KringError> {
        if slot >= self.features.buffer_slots {
            return Err(KringError::Buffer { slot, errno: Errno::EINVAL });
        }
        // SAFETY: the entry is empty, or `register_buffer`'s caller promised that its memory stays.
        let done = unsafe { self.ring.submitter().register_buffers_update(slot, &[iov], None) };
        let Err(error) = done else {
            self.buffers.present[slot as usize] = iov.iov_len != 0;
            return Ok(());
        };
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        if matches!(errno, libc::ENOMEM | libc::EPERM) {
            self.notice_locked_memory(errno);
        }
        Err(KringError::Buffer { slot, errno: Errno(errno) })
    }

    pub(super) fn notice_locked_memory(&mut self, errno: i32) {
        let notice = format!(
            "not all buffers could be registered ({}): the limit on locked memory is reached, I/O to them costs some \
             CPU more; raise it with `ulimit -l unlimited` or LimitMEMLOCK=infinity",
            errno_text(Errno(errno))
        );
        if !self.notices.contains(&notice) {
            self.notices.push(notice);
        }
    }
}
