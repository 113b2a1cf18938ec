//! Condition of a cancel: a user data, a file, an opcode, or anything; for the first match, or all.

use crate::sqe::{
    ASYNC_CANCEL_ALL, ASYNC_CANCEL_ANY, ASYNC_CANCEL_FD, ASYNC_CANCEL_FD_FIXED, ASYNC_CANCEL_OP, ASYNC_CANCEL_USERDATA,
};

const KNOWN: u32 = ASYNC_CANCEL_ALL
    | ASYNC_CANCEL_FD
    | ASYNC_CANCEL_ANY
    | ASYNC_CANCEL_FD_FIXED
    | ASYNC_CANCEL_USERDATA
    | ASYNC_CANCEL_OP;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// `ASYNC_CANCEL_*` bits.
    pub(crate) flags: u32,
    pub(crate) user_data: u64,
    pub(crate) fd: i32,
    pub(crate) opcode: u8,
}

impl Target {
    /// True if all flags are known and none excludes another.
    pub(crate) fn is_valid(self) -> bool {
        let narrow_any = self.flags & ASYNC_CANCEL_ANY != 0 && self.flags & (ASYNC_CANCEL_FD | ASYNC_CANCEL_OP) != 0;
        self.flags & !KNOWN == 0 && !narrow_any
    }

    /// True if all matches are meant; the result is then their number.
    pub(crate) fn is_many(self) -> bool {
        self.flags & (ASYNC_CANCEL_ALL | ASYNC_CANCEL_ANY) != 0
    }
}
