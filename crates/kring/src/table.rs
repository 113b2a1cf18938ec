//! The ring's tables of registered files and buffers, which spare the kernel lookups of files and pinning of pages per
//! I/O.
//!
//! Owns the occupancy of the slots, and the creation of both tables, empty. `register` adds and removes files and
//! buffers.
#![allow(unsafe_code)] // making a table of empty slots on kernels before 5.19

use io_uring::IoUring;

use super::setup::{BUFFER_SLOTS, FILE_SLOTS, KringFeatures};

/// Occupied slots of the file table: bit n is slot n.
pub(super) struct FileTable {
    pub(super) taken: u64,
}

const _: () = assert!(FILE_SLOTS == u64::BITS, "FileTable::taken has one bit a slot");

/// Occupied slots of the buffer table. A byte per slot and not a bit, because each I/O checks its own.
pub(super) struct BufferTable {
    pub(super) present: [bool; BUFFER_SLOTS as usize],
}

impl BufferTable {
    #[inline(always)]
    pub(super) fn has(&self, slot: u16) -> bool {
        self.present.get(usize::from(slot)).is_some_and(|present| *present)
    }
}

impl Default for BufferTable {
    fn default() -> Self {
        Self { present: [false; BUFFER_SLOTS as usize] }
    }
}

impl FileTable {
    /// Registers an empty table, unless `features.file_slots` is 0; sets it to 0 if the kernel refuses.
    pub(super) fn new(ring: &IoUring, features: &mut KringFeatures, notices: &mut Vec<String>) -> Self {
        if features.file_slots > 0 {
            let submitter = ring.submitter();
            let empty = [-1; FILE_SLOTS as usize];
            // The sparse form came with 5.19; a list of holes does the same on older kernels.
            if let Err(error) =
                submitter.register_files_sparse(FILE_SLOTS).or_else(|_| submitter.register_files(&empty))
            {
                features.file_slots = 0;
                notices.push(format!("the kernel gives no table of registered files ({error}): a few ns more an I/O"));
            }
        }
        Self { taken: 0 }
    }
}

/// Registers an empty buffer table, unless `features.buffer_slots` is 0; sets it to 0 if the kernel refuses.
pub(super) fn register_buffer_table(ring: &IoUring, features: &mut KringFeatures, notices: &mut Vec<String>) {
    if features.buffer_slots == 0 {
        return;
    }
    let submitter = ring.submitter();
    let holes = || {
        let hole = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let holes = vec![hole; BUFFER_SLOTS as usize];
        // SAFETY: no entry names memory. (Kernels before 5.19 have no other way to make a sparse table.)
        unsafe { submitter.register_buffers(&holes) }
    };
    if let Err(error) = submitter.register_buffers_sparse(BUFFER_SLOTS).or_else(|_| holes()) {
        features.buffer_slots = 0;
        let hint = if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EPERM)) {
            "; raise the limit on locked memory with `ulimit -l`"
        } else {
            ""
        };
        notices.push(format!(
            "the kernel gives no table of registered buffers ({error}): it pins the pages of each I/O anew{hint}"
        ));
    }
}
