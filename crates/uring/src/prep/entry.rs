//! An operation as a ring takes it, whatever its kind.
//!
//! Owns [`Entry`], the modifiers that every kind of operation has, and the macro that gives them to the type of a kind.
//! Does not own what a kind has of its own: a modifier of one kind writes a field of the SQE that means something else,
//! an address for instance, in another.
//!
//! Invariants:
//! - I1: every address in the SQE of an entry is of memory that the entry owns, or is filled in by the ring (`late`).

use std::time::Duration;

use sheave_base::buf::Buf;

use super::when::When;
use crate::rsrc::{Fd, FileRef};
use crate::sqe::{
    IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_DRAIN, IOSQE_IO_HARDLINK, IOSQE_IO_LINK, Sqe,
};

/// Address and length, as in `iovec`.
type IoVec = [usize; 2];

/// Memory that belongs to an operation.
#[derive(Debug)]
pub(crate) enum Owned {
    One(Buf),
    /// Buffers, and the vectors that describe them.
    Many(Vec<Buf>, #[allow(dead_code)] Box<[IoVec]>),
}

/// What only the ring can put into the SQE.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Late {
    Nothing,
    /// A range of a registered buffer (start and length): its address.
    Fixed(usize, usize),
    /// A time: where the ring has put it, in `addr`.
    Time(When),
    /// The same in `off`.
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
    pub(crate) owned: Option<Owned>,
    pub(crate) late: Late,
}

impl Sealed for Entry {}
impl Op for Entry {}

impl Entry {
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
    pub(super) fn without_file(opcode: u8) -> Entry {
        Entry::new(opcode, Fd::NONE.into())
    }

    fn flag(mut self, flag: u8) -> Entry {
        self.sqe.flags |= flag;
        self
    }

    /// Comes back in the completion.
    pub fn user_data(mut self, user_data: u64) -> Entry {
        self.sqe.user_data = user_data;
        self
    }

    /// The next operation starts when this one has succeeded; if it fails, the rest of the chain is cancelled.
    pub fn link(self) -> Entry {
        self.flag(IOSQE_IO_LINK)
    }

    /// The next operation starts when this one has ended, however.
    pub fn hardlink(self) -> Entry {
        self.flag(IOSQE_IO_HARDLINK)
    }

    /// Starts when everything before has ended, and what follows waits for it.
    pub fn drain(self) -> Entry {
        self.flag(IOSQE_IO_DRAIN)
    }

    /// Never try inline.
    pub fn run_async(self) -> Entry {
        self.flag(IOSQE_ASYNC)
    }

    /// No completion on success. A buffer the operation owns is then freed when it ends.
    pub fn skip_success(self) -> Entry {
        self.flag(IOSQE_CQE_SKIP_SUCCESS)
    }

    pub(super) fn with_buf(mut self, mut buf: Buf) -> Entry {
        self.sqe.addr = buf.as_mut_ptr() as u64;
        self.sqe.len = buf.len().min(u32::MAX as usize) as u32;
        self.owned = Some(Owned::One(buf));
        self
    }

    pub(super) fn with_bufs(mut self, mut bufs: Vec<Buf>) -> Entry {
        let vecs: Box<[IoVec]> = bufs.iter_mut().map(|buf| [buf.as_mut_ptr() as usize, buf.len()]).collect();
        self.sqe.addr = vecs.as_ptr() as u64;
        self.sqe.len = vecs.len() as u32;
        self.owned = Some(Owned::Many(bufs, vecs));
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
            fn from(op: $name) -> $crate::prep::Entry {
                op.0
            }
        }

        impl $crate::prep::entry::Sealed for $name {}
        impl $crate::prep::Op for $name {}

        impl $name {
            /// Comes back in the completion.
            pub fn user_data(self, user_data: u64) -> $name {
                $name(self.0.user_data(user_data))
            }

            /// The next operation starts when this one has succeeded; if it fails, the rest of the chain is cancelled.
            pub fn link(self) -> $name {
                $name(self.0.link())
            }

            /// The next operation starts when this one has ended, however.
            pub fn hardlink(self) -> $name {
                $name(self.0.hardlink())
            }

            /// Starts when everything before has ended, and what follows waits for it.
            pub fn drain(self) -> $name {
                $name(self.0.drain())
            }

            /// Never try inline.
            pub fn run_async(self) -> $name {
                $name(self.0.run_async())
            }

            /// No completion on success. A buffer the operation owns is then freed when it ends.
            pub fn skip_success(self) -> $name {
                $name(self.0.skip_success())
            }
        }
    };
}

pub(super) use op_type;
