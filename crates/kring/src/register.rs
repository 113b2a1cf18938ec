//! Registering files and buffers with a kernel ring, and unregistering them.
//!
//! Owns the order of the two steps: first the kernel, then the slot in the ring's `table`. Slots of files are chosen
//! here; slots of buffers by their owner, so that its own table maps to this one slot by slot. Does not own the memory
//! of a buffer.
#![allow(unsafe_code)] // registering memory with the kernel

use std::os::fd::RawFd;

use super::KernelRing;
use super::error::{KringError, errno_text};
use sheave_base::status::Errno;

impl KernelRing {
    /// Registers a file and returns its slot, for [`Target::Fixed`](super::Target::Fixed); the kernel keeps it open
    /// until [`unregister_file`](Self::unregister_file). `None` if no slot is free or the kernel refuses: use the
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

    /// Frees a slot; operations in flight on its file end normally. A slot that is not taken is ignored.
    pub fn unregister_file(&mut self, slot: u32) {
        let bit = 1u64.checked_shl(slot).unwrap_or(0);
        if self.files.taken & bit == 0 {
            return;
        }
        // If the kernel refuses, the slot stays taken: a slot with a file in it must not be reused.
        if self.ring.submitter().register_files_update(slot, &[-1]).is_ok() {
            self.files.taken &= !bit;
        }
    }

    /// Registers `len` bytes at `ptr` as buffer `slot`, replacing the buffer that was there.
    ///
    /// # Errors
    ///
    /// The kernel's error; I/O to that memory then works without a registered buffer. If the cause is the limit on
    /// locked memory, [`notices`](Self::notices) gets one message about it.
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

    /// Returns true if the kernel has a buffer in this slot.
    #[inline]
    pub fn has_buffer(&self, slot: u16) -> bool {
        self.buffers.has(slot)
    }

    /// Empties the buffer slot `slot`; operations in flight with it end normally.
    pub fn unregister_buffer(&mut self, slot: u32) {
        // An error can only mean that the slot is empty.
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
