//! The numbers of the kernel's io_uring interface that the test uses, and the raw 64-byte SQE.
//!
//! Defined here independently of the library on purpose: a wrong constant in the library would otherwise go unnoticed.

/// Opcodes.
pub mod op {
    pub const NOP: u8 = 0;
    pub const READV: u8 = 1;
    pub const WRITEV: u8 = 2;
    pub const FSYNC: u8 = 3;
    pub const READ_FIXED: u8 = 4;
    pub const WRITE_FIXED: u8 = 5;
    pub const TIMEOUT: u8 = 11;
    pub const TIMEOUT_REMOVE: u8 = 12;
    pub const ASYNC_CANCEL: u8 = 14;
    pub const LINK_TIMEOUT: u8 = 15;
    pub const FALLOCATE: u8 = 17;
    pub const READ: u8 = 22;
    pub const WRITE: u8 = 23;
    pub const MSG_RING: u8 = 40;

    /// Returns the name of an opcode, for reports.
    pub fn name(opcode: u8) -> &'static str {
        match opcode {
            NOP => "NOP",
            READV => "READV",
            WRITEV => "WRITEV",
            FSYNC => "FSYNC",
            READ_FIXED => "READ_FIXED",
            WRITE_FIXED => "WRITE_FIXED",
            TIMEOUT => "TIMEOUT",
            TIMEOUT_REMOVE => "TIMEOUT_REMOVE",
            ASYNC_CANCEL => "ASYNC_CANCEL",
            LINK_TIMEOUT => "LINK_TIMEOUT",
            FALLOCATE => "FALLOCATE",
            READ => "READ",
            WRITE => "WRITE",
            MSG_RING => "MSG_RING",
            _ => "UNKNOWN",
        }
    }
}

/// `sqe.flags`.
pub mod flag {
    pub const FIXED_FILE: u8 = 1;
    pub const DRAIN: u8 = 2;
    pub const LINK: u8 = 4;
    pub const HARDLINK: u8 = 8;
    pub const ASYNC: u8 = 16;
    pub const BUFFER_SELECT: u8 = 32;
    pub const SKIP: u8 = 64;
    pub const UNKNOWN: u8 = 128;
    pub const ANY_LINK: u8 = LINK | HARDLINK;

    const NAMES: [&str; 8] = ["FIXED_FILE", "DRAIN", "LINK", "HARDLINK", "ASYNC", "BUFFER_SELECT", "SKIP", "0x80"];

    /// Returns the names of the bits that are set, for reports.
    pub fn names(flags: u8) -> String {
        let set: Vec<&str> = (0..8).filter(|bit| flags & (1 << bit) != 0).map(|bit| NAMES[bit]).collect();
        set.join("|")
    }
}

/// `timeout_flags`.
pub mod timeout {
    pub const ABS: u32 = 1;
    pub const UPDATE: u32 = 2;
    pub const BOOTTIME: u32 = 4;
    pub const REALTIME: u32 = 8;
    pub const LINK_UPDATE: u32 = 16;
    pub const ETIME_SUCCESS: u32 = 32;
}

/// `cancel_flags`.
pub mod cancel {
    pub const ALL: u32 = 1;
    pub const FD: u32 = 2;
    pub const ANY: u32 = 4;
    pub const FD_FIXED: u32 = 8;
    pub const USERDATA: u32 = 16;
    pub const OP: u32 = 32;
}

/// `fallocate` modes.
pub mod falloc {
    pub const KEEP_SIZE: u32 = 1;
    pub const PUNCH_HOLE: u32 = 2;
    pub const ZERO_RANGE: u32 = 16;
}

/// The fields of one SQE with every pointer and descriptor filled in.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawSqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: i32,
    pub off: u64,
    pub addr: u64,
    pub len: u32,
    pub op_flags: u32,
    pub user_data: u64,
    pub buf_index: u16,
    pub personality: u16,
    pub splice: u32,
    pub addr3: u64,
    pub pad: u64,
}

impl RawSqe {
    /// Returns the 64 bytes in the kernel's layout.
    pub fn bytes(&self) -> [u8; 64] {
        let mut out = [0u8; 64];
        out[0] = self.opcode;
        out[1] = self.flags;
        out[2..4].copy_from_slice(&self.ioprio.to_le_bytes());
        out[4..8].copy_from_slice(&self.fd.to_le_bytes());
        out[8..16].copy_from_slice(&self.off.to_le_bytes());
        out[16..24].copy_from_slice(&self.addr.to_le_bytes());
        out[24..28].copy_from_slice(&self.len.to_le_bytes());
        out[28..32].copy_from_slice(&self.op_flags.to_le_bytes());
        out[32..40].copy_from_slice(&self.user_data.to_le_bytes());
        out[40..42].copy_from_slice(&self.buf_index.to_le_bytes());
        out[42..44].copy_from_slice(&self.personality.to_le_bytes());
        out[44..48].copy_from_slice(&self.splice.to_le_bytes());
        out[48..56].copy_from_slice(&self.addr3.to_le_bytes());
        out[56..64].copy_from_slice(&self.pad.to_le_bytes());
        out
    }
}

/// Returns the name of a `-errno`, for reports.
pub fn result_name(res: i32) -> String {
    let name = match -res {
        2 => "ENOENT",
        5 => "EIO",
        9 => "EBADF",
        11 => "EAGAIN",
        12 => "ENOMEM",
        14 => "EFAULT",
        16 => "EBUSY",
        22 => "EINVAL",
        27 => "EFBIG",
        28 => "ENOSPC",
        62 => "ETIME",
        77 => "EBADFD",
        95 => "EOPNOTSUPP",
        105 => "ENOBUFS",
        114 => "EALREADY",
        125 => "ECANCELED",
        _ => return format!("{res}"),
    };
    format!("-{name}")
}
