//! The one table of operations.
//!
//! Owns the properties of each opcode that submission uses: the common fields it takes, its prep and its issue. A new
//! operation is a row here, a module in [`crate::op`], and its opcode in [`crate::sqe`].
//!
//! Prep checks an SQE and stores in the slot what issue needs; it looks at no file. Issue begins the operation. The
//! order of checks, and their split between prep and issue, is the kernel's: a prep error fails the whole chain, an
//! issue error only the members after it.

use crate::op::{self, Issue};
use crate::req::NO_SLOT;
use crate::ring::inner::Inner;
use crate::sqe::{Sqe, opcode};

/// Checks an SQE. `Err` is the positive errno.
pub type Prep = fn(&mut Inner, u32, &Sqe) -> Result<(), i32>;

/// Begins the operation of a slot.
pub type IssueFn = fn(&mut Inner, u32) -> Issue;

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct OpDef {
    /// Lower-case name for reports.
    pub name: &'static str,
    /// Takes an I/O priority.
    pub ioprio: bool,
    /// May take a buffer from a group. No such groups exist here, so issue returns `ENOBUFS`.
    pub buffer_select: bool,
    /// A result shorter than `len` breaks links.
    pub short_is_failure: bool,
    /// Checks an SQE of this operation.
    pub prep: Prep,
    /// Begins the operation of a slot.
    pub issue: IssueFn,
}

const fn plain(name: &'static str, prep: Prep, issue: IssueFn) -> Option<OpDef> {
    Some(OpDef { name, ioprio: false, buffer_select: false, short_is_failure: false, prep, issue })
}

const fn rw(name: &'static str, buffer_select: bool, prep: Prep, issue: IssueFn) -> Option<OpDef> {
    Some(OpDef { name, ioprio: true, buffer_select, short_is_failure: true, prep, issue })
}

/// Number of opcodes in the table; higher ones are unknown.
pub const NR_OPS: usize = 41;

/// Rows by opcode.
pub static OPS: [Option<OpDef>; NR_OPS] = {
    let mut ops = [None; NR_OPS];
    ops[opcode::NOP as usize] = plain("nop", op::nop::prep, op::nop::issue);
    ops[opcode::READ as usize] = rw("read", true, op::rw::prep, op::rw::issue);
    ops[opcode::WRITE as usize] = rw("write", false, op::rw::prep, op::rw::issue);
    ops[opcode::READV as usize] = rw("readv", true, op::rw::prep_vectored, op::rw::issue_vectored);
    ops[opcode::WRITEV as usize] = rw("writev", false, op::rw::prep_vectored, op::rw::issue_vectored);
    ops[opcode::READ_FIXED as usize] = rw("read-fixed", false, op::rw::prep, op::rw::issue_fixed);
    ops[opcode::WRITE_FIXED as usize] = rw("write-fixed", false, op::rw::prep, op::rw::issue_fixed);
    ops[opcode::FSYNC as usize] = plain("fsync", op::fsync::prep, op::fsync::issue);
    ops[opcode::FALLOCATE as usize] = plain("fallocate", op::fallocate::prep, op::fallocate::issue);
    ops[opcode::TIMEOUT as usize] = plain("timeout", op::timeout::prep, op::timeout::issue);
    ops[opcode::TIMEOUT_REMOVE as usize] = plain("timeout-remove", op::timeout::prep_remove, op::timeout::issue_remove);
    ops[opcode::LINK_TIMEOUT as usize] = plain("link-timeout", op::timeout::prep_link, op::timeout::issue_link);
    ops[opcode::ASYNC_CANCEL as usize] = plain("async-cancel", op::cancel::prep, op::cancel::issue);
    ops[opcode::MSG_RING as usize] = plain("msg-ring", op::msg_ring::prep, op::msg_ring::issue);
    ops
};

/// Returns the row of an opcode.
#[inline]
pub fn get(opcode: u8) -> Option<&'static OpDef> {
    OPS.get(usize::from(opcode))?.as_ref()
}

const _: () = assert!(NO_SLOT == u32::MAX, "links end with all ones");
