//! An operation as a ring takes it, whatever its kind.
//!
//! Owns [`Entry`], the modifiers that every kind of operation has, and the macro that gives them to the type of a kind.
//! Does not own what a kind has of its own: a modifier of one kind writes a field of the SQE that means something else,
//! an address for instance, in another.
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

/// The address of a part that is outside of the memory it is to be a part of: no program has memory there, and the
/// operation ends with `EFAULT`.
const NOWHERE: u64 = u64::MAX;

/// What only the ring can put into the SQE.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Late {
    Nothing,
    /// A range of a registered buffer (start and length): its address.
    Fixed(usize, usize),
    /// A time: where the ring has put it, in `addr`.
    Time(When),
    /// The new time of an update: where the ring has put it, in `off`.
    NewTime(Duration),
}

/// What [`Ring::push`](crate::Ring::push) takes: the operations of [`prep`](crate::prep), and [`Entry`], which each of
/// them can become where operations of several kinds meet. No other type can be one.
pub trait Op: Into<Entry> + sealed::Sealed {}

mod sealed {
    /// Outside of this module nobody can say that a type is an operation, for the ring trusts its addresses.
    pub trait Sealed {}
}

pub(super) use sealed::Sealed;

/// An operation of any kind, with the modifiers that all kinds have.
#[derive(Debug)]
#[must_use = "push it to a ring"]
pub struct Entry {
    pub(crate) sqe: Sqe,
    /// The ring that its `fd` is of; 0 if that is none, or an index of the registered table.
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

    /// An operation on no file.
    #[inline]
    pub(super) fn without_file(opcode: u8) -> Entry {
        Entry::new(opcode, Fd::NONE.into())
    }

    /// The memory that the operation owns, of the type that it was given, of an operation that is not pushed after all.
    /// `None` if it owns none. Memory of another type is dropped.
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

    /// The buffer that the operation owns, as by [`Entry::into_memory`].
    pub fn into_buf(self) -> Option<Buf> {
        self.into_memory()
    }

    /// The buffers of a vectored operation, or the one of another.
    pub fn into_bufs(self) -> Vec<Buf> {
        Memory::into_bufs(self.owned)
    }

    #[inline(always)]
    fn flag(mut self, flag: u8) -> Entry {
        self.sqe.flags |= flag;
        self
    }

    /// Comes back in the completion.
    #[inline(always)]
    pub fn user_data(mut self, user_data: u64) -> Entry {
        self.sqe.user_data = user_data;
        self
    }

    /// The next operation starts when this one has succeeded; if it fails, the rest of the chain is cancelled.
    #[inline(always)]
    pub fn link(self) -> Entry {
        self.flag(IOSQE_IO_LINK)
    }

    /// The next operation starts when this one has ended, however.
    #[inline(always)]
    pub fn hardlink(self) -> Entry {
        self.flag(IOSQE_IO_HARDLINK)
    }

    /// Starts when everything before has ended, and what follows waits for it.
    #[inline(always)]
    pub fn drain(self) -> Entry {
        self.flag(IOSQE_IO_DRAIN)
    }

    /// Never try inline.
    #[inline(always)]
    pub fn run_async(self) -> Entry {
        self.flag(IOSQE_ASYNC)
    }

    /// No completion on success. A buffer the operation owns is then freed when it ends.
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

    /// Only a part of the memory; one that is not within it is at no address.
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

/// The type of one kind of operation, with the modifiers that all kinds have.
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
            /// Comes back in the completion.
            #[inline(always)]
            pub fn user_data(self, user_data: u64) -> $name {
                $name(self.0.user_data(user_data))
            }

            /// The next operation starts when this one has succeeded; if it fails, the rest of the chain is cancelled.
            #[inline(always)]
    pub fn link(self) -> $name {
                $name(self.0.link())
            }

            /// The next operation starts when this one has ended, however.
            #[inline(always)]
    pub fn hardlink(self) -> $name {
                $name(self.0.hardlink())
            }

            /// Starts when everything before has ended, and what follows waits for it.
            #[inline(always)]
    pub fn drain(self) -> $name {
                $name(self.0.drain())
            }

            /// Never try inline.
            #[inline(always)]
    pub fn run_async(self) -> $name {
                $name(self.0.run_async())
            }

            /// No completion on success. A buffer the operation owns is then freed when it ends.
            #[inline(always)]
    pub fn skip_success(self) -> $name {
                $name(self.0.skip_success())
            }
        }
    };
}

pub(super) use op_type;
