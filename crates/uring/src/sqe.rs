//! The submission queue entry: the kernel's `struct io_uring_sqe`, 64 bytes, same fields, same numbers.
//!
//! Owns the layout and the constants of the UAPI. Their meaning in Sheave is in [`opdef`](crate::opdef) and the modules
//! of [`crate::op`]; differences from the kernel are listed in `docs/reference/compat.md`.

/// An SQE. Unions of the UAPI carry the name of their first use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sqe {
    /// Opcode, [`opcode`].
    pub opcode: u8,
    /// `IOSQE_*` bits.
    pub flags: u8,
    /// I/O priority.
    pub ioprio: u16,
    /// Entry of the ring's file table, or index of the registered table with `IOSQE_FIXED_FILE`.
    pub fd: i32,
    /// Byte offset; `addr2`.
    pub off: u64,
    /// Address of the memory, of the vectors, of a timespec; user data of a request to cancel.
    pub addr: u64,
    /// Bytes, or number of vectors.
    pub len: u32,
    /// Flags of the opcode: `rw_flags`, `fsync_flags`, `timeout_flags`, ...
    pub op_flags: u32,
    /// Copied to the CQE.
    pub user_data: u64,
    /// Index of a registered buffer.
    pub buf_index: u16,
    /// Credentials; must be 0.
    pub personality: u16,
    /// `splice_fd_in`, `file_index`.
    pub splice_fd_in: i32,
    /// Address of a third argument.
    pub addr3: u64,
    /// `__pad2`, `attr_type_mask`.
    pub pad2: u64,
}

const _: () = assert!(size_of::<Sqe>() == 64);

impl Sqe {
    /// Returns the fields that reads and writes of one run have in common: opcode, flags, ioprio and file in one word;
    /// buffer, personality and splice fields in the other.
    #[inline(always)]
    pub(crate) fn kind(&self) -> (u64, u64) {
        let file = u64::from(self.fd as u32) << 32;
        let first = file | u64::from(self.ioprio) << 16 | u64::from(self.flags) << 8 | u64::from(self.opcode);
        let splice = u64::from(self.splice_fd_in as u32) << 32;
        (first, splice | u64::from(self.personality) << 16 | u64::from(self.buf_index))
    }

    /// Returns length and flags of the opcode in one word. Reads or writes of one run have them in common.
    #[inline(always)]
    pub(crate) fn len_and_op_flags(&self) -> u64 {
        u64::from(self.op_flags) << 32 | u64::from(self.len)
    }
}

/// Opcodes, with the kernel's numbers.
pub mod opcode {
    /// Do nothing.
    pub const NOP: u8 = 0;
    /// Read into several pieces of memory.
    pub const READV: u8 = 1;
    /// Write several pieces of memory.
    pub const WRITEV: u8 = 2;
    /// Make completed writes durable.
    pub const FSYNC: u8 = 3;
    /// Read into a registered buffer.
    pub const READ_FIXED: u8 = 4;
    /// Write from a registered buffer.
    pub const WRITE_FIXED: u8 = 5;
    /// End at a time, or after a number of completions.
    pub const TIMEOUT: u8 = 11;
    /// Remove a timeout, or change its time.
    pub const TIMEOUT_REMOVE: u8 = 12;
    /// Cancel other requests.
    pub const ASYNC_CANCEL: u8 = 14;
    /// Limit the time of the operation before it.
    pub const LINK_TIMEOUT: u8 = 15;
    /// Punch a hole, or zero a range.
    pub const FALLOCATE: u8 = 17;
    /// Read.
    pub const READ: u8 = 22;
    /// Write.
    pub const WRITE: u8 = 23;
    /// Post a completion in another ring.
    pub const MSG_RING: u8 = 40;

    /// Returns true if the operation uses the file that its `fd` names.
    pub const fn is_on_file(opcode: u8) -> bool {
        is_rw(opcode) || matches!(opcode, FSYNC | FALLOCATE | MSG_RING)
    }

    /// Returns true if the operation reads or writes data.
    pub(crate) const fn is_rw(opcode: u8) -> bool {
        matches!(opcode, READ | WRITE | READV | WRITEV | READ_FIXED | WRITE_FIXED)
    }
}

/// The `fd` is an index of the registered table.
pub const IOSQE_FIXED_FILE: u8 = 1 << 0;
/// Start after everything before has completed; everything after waits for it.
pub const IOSQE_IO_DRAIN: u8 = 1 << 1;
/// The next SQE starts after this one has succeeded.
pub const IOSQE_IO_LINK: u8 = 1 << 2;
/// The next SQE starts after this one has ended, with or without success.
pub const IOSQE_IO_HARDLINK: u8 = 1 << 3;
/// Run on a worker, without an inline attempt.
pub const IOSQE_ASYNC: u8 = 1 << 4;
/// Take a buffer from a group (not offered).
pub const IOSQE_BUFFER_SELECT: u8 = 1 << 5;
/// No CQE if the request succeeds.
pub const IOSQE_CQE_SKIP_SUCCESS: u8 = 1 << 6;

/// Both kinds of link.
pub const IOSQE_LINKS: u8 = IOSQE_IO_LINK | IOSQE_IO_HARDLINK;

/// `rw_flags`: poll for completion.
pub const RWF_HIPRI: u32 = 0x01;
/// `rw_flags`: durable data.
pub const RWF_DSYNC: u32 = 0x02;
/// `rw_flags`: durable data and metadata.
pub const RWF_SYNC: u32 = 0x04;
/// `rw_flags`: do not block.
pub const RWF_NOWAIT: u32 = 0x08;
/// `rw_flags`: append to the file.
pub const RWF_APPEND: u32 = 0x10;
/// `rw_flags` that are accepted. Any other gives `EOPNOTSUPP`.
pub const RWF_OK: u32 = 0x13f & !RWF_ATOMIC;
/// `rw_flags`: untorn write (not offered).
pub const RWF_ATOMIC: u32 = 0x40;

/// `fsync_flags`: sync the data and the metadata needed to read it, no more.
pub const FSYNC_DATASYNC: u32 = 1;

/// `IORING_NOP_INJECT_RESULT`: the NOP's result is its `len`.
pub const NOP_INJECT_RESULT: u32 = 1;

/// `timeout_flags`: the time is a moment, not a span.
pub const TIMEOUT_ABS: u32 = 1 << 0;
/// `timeout_flags` of TIMEOUT_REMOVE: change the time of a timeout.
pub const TIMEOUT_UPDATE: u32 = 1 << 1;
/// `timeout_flags`: include time during which the machine is suspended.
pub const TIMEOUT_BOOTTIME: u32 = 1 << 2;
/// `timeout_flags`: the moment is on the wall clock.
pub const TIMEOUT_REALTIME: u32 = 1 << 3;
/// `timeout_flags` of TIMEOUT_REMOVE, with UPDATE: search the LINK_TIMEOUTs.
pub const LINK_TIMEOUT_UPDATE: u32 = 1 << 4;
/// `timeout_flags`: firing counts as success.
pub const TIMEOUT_ETIME_SUCCESS: u32 = 1 << 5;

/// `cancel_flags`: cancel all matches, not only the first.
pub const ASYNC_CANCEL_ALL: u32 = 1 << 0;
/// `cancel_flags`: match requests on this file.
pub const ASYNC_CANCEL_FD: u32 = 1 << 1;
/// `cancel_flags`: match every request.
pub const ASYNC_CANCEL_ANY: u32 = 1 << 2;
/// `cancel_flags`, with FD: the file is an index of the registered table.
pub const ASYNC_CANCEL_FD_FIXED: u32 = 1 << 3;
/// `cancel_flags`: match this user data. The default unless FD, OP or ANY is given.
pub const ASYNC_CANCEL_USERDATA: u32 = 1 << 4;
/// `cancel_flags`: match the opcode in `len`.
pub const ASYNC_CANCEL_OP: u32 = 1 << 5;

/// `msg_ring_flags`: no CQE in the target (for messages that are not offered).
pub const MSG_RING_CQE_SKIP: u32 = 1 << 0;
/// `msg_ring_flags`: `splice_fd_in` becomes the CQE's flags.
pub const MSG_RING_FLAGS_PASS: u32 = 1 << 1;

/// Flag in the SQ ring: completions wait in the overflow list.
pub const SQ_CQ_OVERFLOW: u32 = 1 << 1;

/// CQE flag: more completions of the same request follow.
pub const CQE_F_MORE: u32 = 1 << 1;

/// Errno values of CQE results, positive.
pub mod errno {
    /// `ENOENT`: no such file or directory.
    pub const ENOENT: i32 = 2;
    /// `EINTR`: interrupted system call.
    pub const EINTR: i32 = 4;
    /// `EIO`: input/output error.
    pub const EIO: i32 = 5;
    /// `E2BIG`: argument list too long.
    pub const E2BIG: i32 = 7;
    /// `EBADF`: bad file descriptor.
    pub const EBADF: i32 = 9;
    /// `EAGAIN`: resource temporarily unavailable.
    pub const EAGAIN: i32 = 11;
    /// `ENOMEM`: cannot allocate memory.
    pub const ENOMEM: i32 = 12;
    /// `EFAULT`: bad address.
    pub const EFAULT: i32 = 14;
    /// `EBUSY`: device or resource busy.
    pub const EBUSY: i32 = 16;
    /// `EINVAL`: invalid argument.
    pub const EINVAL: i32 = 22;
    /// `EFBIG`: file too large.
    pub const EFBIG: i32 = 27;
    /// `ENOSPC`: no space left on device.
    pub const ENOSPC: i32 = 28;
    /// `ETIME`: timer expired.
    pub const ETIME: i32 = 62;
    /// `EOVERFLOW`: value too large for data type.
    pub const EOVERFLOW: i32 = 75;
    /// `EBADFD`: file descriptor in bad state.
    pub const EBADFD: i32 = 77;
    /// `EOPNOTSUPP`: operation not supported.
    pub const EOPNOTSUPP: i32 = 95;
    /// `ENOBUFS`: no buffer space available.
    pub const ENOBUFS: i32 = 105;
    /// `EALREADY`: operation already in progress.
    pub const EALREADY: i32 = 114;
    /// `ECANCELED`: operation canceled.
    pub const ECANCELED: i32 = 125;
}
