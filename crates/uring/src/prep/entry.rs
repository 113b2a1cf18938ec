//! Operations of any kind, in the form a ring takes.
//!
//! Owns [`Entry`], the modifiers that all kinds of operations have, and the macro that adds them to the type of one
//! kind. Does not own the modifiers of a single kind: the field of the SQE that such a modifier writes means something
//! else, for instance an address, in another kind.
//!
//! Invariants:
//! - I1: every address in the SQE of an entry is of memory that the entry owns, or is filled in by the ring (`late`).

use std::ops::Range;
use std::time::Duration;

use sheave_base::buf::Buf;

use super::when::When;
use crate::io_buf::{IoBuf, Memory, Vectors};
use crate::rsrc::{Fd, FileRef};
use crate::sqe::{
    IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_DRAIN, IOSQE_IO_HARDLINK, IOSQE_IO_LINK, Sqe,
};

/// Address for a part that is not within its memory. No program has memory there, so the operation ends with `EFAULT`.
const NOWHERE: u64 = u64::MAX;

/// Field of the SQE that only the ring can fill in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Late {
    Nothing,
    /// Puts the address of a range (start and length) of a registered buffer into `addr`.
    Fixed(usize, usize),
    /// Puts the address of the stored time into `addr`.
    Time(When),
    /// Puts the address of the stored new time of an update into `off`.
    NewTime(Duration),
}

/// An operation that [`Ring::push`](crate::Ring::push) takes: one of those in [`prep`](crate::prep), or an [`Entry`],
/// which holds an operation of any kind. Sealed.
pub trait Op: Into<Entry> + sealed::Sealed {}

mod sealed {
    /// Cannot be implemented outside of this module: the ring trusts the addresses of an operation.
    pub trait Sealed {}
}

pub(super) use sealed::Sealed;

/// An operation of any kind, with the modifiers that all kinds have.
#[derive(Debug)]
#[must_use = "push it to a ring"]
pub struct Entry {
    pub(crate) sqe: Sqe,
    /// The ring that `fd` belongs to; 0 for no file, or an index of the registered table.
    pub(crate) ring: u64,
    pub(crate) owned: Option<Memory>,
    pub(crate) late: Late,
}

impl Sealed for Entry {}
impl Op for Entry {}

impl Entry {
    #[inline(always)]
    pub(super) fn new(opcode: u8, on: FileRef) -> Entry {
        let flags = if on.is_fixed { IOSQE_FIXED_FILE } else { 0 };
        Entry {
            sqe: Sqe { opcode, flags, fd: on.fd, ..Sqe::default() },
            ring: on.ring,
            owned: None,
            late: Late::Nothing,
        }
    }

    #[inline]
    pub(super) fn without_file(opcode: u8) -> Entry {
        Entry::new(opcode, Fd::NONE.into())
    }

    /// Returns the memory of an operation that is not pushed after all, as the type `B` that it was given as. `None` if
    /// it owns none. Memory of another type is dropped.
    ///
    /// ```
    /// # use sheave_uring::{Fd, Ring, prep};
    /// let mut ring = Ring::builder().entries(1).build()?;
    /// ring.push(prep::nop())?;
    /// let full = ring.push(prep::write(Fd::NONE, b"page".to_vec())).expect_err("it has one entry");
    /// let page: Vec<u8> = full.entry.into_memory().expect("what it was given");
    /// assert_eq!(page, b"page");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_memory<B: IoBuf>(self) -> Option<B> {
        Memory::into_value(self.owned)
    }

    /// Returns the buffer that the operation owns, as [`Entry::into_memory`] does.
    pub fn into_buf(self) -> Option<Buf> {
        self.into_memory()
    }

    /// Returns the buffers of a vectored operation, or the single buffer of another.
    pub fn into_bufs(self) -> Vec<Buf> {
        Memory::into_bufs(self.owned)
    }

    #[inline(always)]
    fn flag(mut self, flag: u8) -> Entry {
        self.sqe.flags |= flag;
        self
    }

    /// Sets the value that comes back in the completion.
    #[inline(always)]
    pub fn user_data(mut self, user_data: u64) -> Entry {
        self.sqe.user_data = user_data;
        self
    }

    /// Links the next operation: it starts when this one has succeeded. If this one fails, the rest of the chain is
    /// cancelled.
    #[inline(always)]
    pub fn link(self) -> Entry {
        self.flag(IOSQE_IO_LINK)
    }

    /// Links the next operation: it starts when this one has ended, with or without success.
    #[inline(always)]
    pub fn hardlink(self) -> Entry {
        self.flag(IOSQE_IO_HARDLINK)
    }

    /// Starts the operation when everything before it has ended; everything after it starts when it has ended.
    #[inline(always)]
    pub fn drain(self) -> Entry {
        self.flag(IOSQE_IO_DRAIN)
    }

    /// Runs the operation on a worker, without trying it inline.
    #[inline(always)]
    pub fn run_async(self) -> Entry {
        self.flag(IOSQE_ASYNC)
    }

    /// Gives no completion on success. Memory that the operation owns is then freed when it ends.
    #[inline(always)]
    pub fn skip_success(self) -> Entry {
        self.flag(IOSQE_CQE_SKIP_SUCCESS)
    }

    #[inline(always)]
    pub(super) fn with_memory(mut self, memory: impl IoBuf) -> Entry {
        let memory = Memory::new(memory);
        let (addr, len) = memory.range();
        self.sqe.addr = addr;
        self.sqe.len = len.min(u32::MAX as usize) as u32;
        self.owned = Some(memory);
        self
    }

    /// Selects a part of the memory. A part outside of it gets an address that fails.
    #[inline]
    pub(super) fn with_range(mut self, range: Range<usize>) -> Entry {
        match (&self.owned, &mut self.late) {
            (Some(memory), _) => {
                let (base, len) = memory.range();
                let is_within = range.start <= range.end && range.end <= len;
                self.sqe.addr = if is_within { base + range.start as u64 } else { NOWHERE };
                self.sqe.len = range.len().min(u32::MAX as usize) as u32;
            }
            (None, Late::Fixed(start, len)) => {
                let is_within = range.start <= range.end && range.end <= *len;
                (*start, *len) =
                    if is_within { (*start + range.start, range.len()) } else { (usize::MAX, range.len()) };
            }
            (None, _) => {}
        }
        self
    }

    pub(super) fn with_vectors(mut self, vectors: Vectors) -> Entry {
        (self.sqe.addr, self.sqe.len) = vectors.range();
        self.owned = Some(Memory::new(vectors));
        self
    }
}

/// Defines the type of one kind of operation, with the modifiers that all kinds have.
macro_rules! op_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[must_use = "push it to a ring"]
        pub struct $name(pub(super) $crate::prep::Entry);

        impl From<$name> for $crate::prep::Entry {
            #[inline(always)]
            fn from(op: $name) -> $crate::prep::Entry {
                op.0
            }
        }

        impl $crate::prep::entry::Sealed for $name {}
        impl $crate::prep::Op for $name {}

        impl $name {
            /// Sets the value that comes back in the completion.
            #[inline(always)]
            pub fn user_data(self, user_data: u64) -> $name {
                $name(self.0.user_data(user_data))
            }

            /// Links the next operation: it starts when this one has succeeded. If this one fails, the rest of the
            /// chain is cancelled.
            #[inline(always)]
    pub fn link(self) -> $name {
                $name(self.0.link())
            }

            /// Links the next operation: it starts when this one has ended, with or without success.
            #[inline(always)]
    pub fn hardlink(self) -> $name {
                $name(self.0.hardlink())
            }

            /// Starts the operation when everything before it has ended; everything after it starts when it has ended.
            #[inline(always)]
    pub fn drain(self) -> $name {
                $name(self.0.drain())
            }

            /// Runs the operation on a worker, without trying it inline.
            #[inline(always)]
    pub fn run_async(self) -> $name {
                $name(self.0.run_async())
            }

            /// Gives no completion on success. Memory that the operation owns is then freed when it ends.
            #[inline(always)]
    pub fn skip_success(self) -> $name {
                $name(self.0.skip_success())
            }
        }
    };
}

pub(super) use op_type;
