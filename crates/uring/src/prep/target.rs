//! What a cancel looks for: by its user data, its file, its opcode, or any; the first, or all.

use crate::sqe::{
    ASYNC_CANCEL_ALL, ASYNC_CANCEL_ANY, ASYNC_CANCEL_FD, ASYNC_CANCEL_FD_FIXED, ASYNC_CANCEL_OP, ASYNC_CANCEL_USERDATA,
};

const KNOWN: u32 = ASYNC_CANCEL_ALL
    | ASYNC_CANCEL_FD
    | ASYNC_CANCEL_ANY
    | ASYNC_CANCEL_FD_FIXED
    | ASYNC_CANCEL_USERDATA
    | ASYNC_CANCEL_OP;

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// `ASYNC_CANCEL_*` bits.
    pub(crate) flags: u32,
    pub(crate) user_data: u64,
    pub(crate) fd: i32,
    pub(crate) opcode: u8,
}

impl Target {
    /// Whether the flags are known and go together.
    pub(crate) fn is_valid(self) -> bool {
        let narrow_any = self.flags & ASYNC_CANCEL_ANY != 0 && self.flags & (ASYNC_CANCEL_FD | ASYNC_CANCEL_OP) != 0;
        self.flags & !KNOWN == 0 && !narrow_any
    }

    /// Whether all that match are meant, and the result is their number.
    pub(crate) fn is_many(self) -> bool {
        self.flags & (ASYNC_CANCEL_ALL | ASYNC_CANCEL_ANY) != 0
    }
}
