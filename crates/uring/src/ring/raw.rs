//! The raw interface of io_uring: SQEs and CQEs in the ring memory, in the kernel's layout.
//!
//! Owns the calls of a [`Ring`] that only the feature `raw` has. What they work on is the ring's (R3 of
//! [`ring`](crate::ring)). Called by embedders.
#![allow(unsafe_code)] // SQEs name memory by its address.

use std::cell::Ref;

use super::Ring;
use crate::cqe::Cqe;
use crate::queues::Offsets;
use crate::sqe::Sqe;

impl Ring {
    /// Queues an SQE as it is; false when the SQ is full.
    ///
    /// # Safety
    /// Every address in the SQE must be of memory that stays valid, and is not used otherwise, until the request's
    /// completion was posted; vectors and timespecs until the SQE was submitted. Not from within a call of this ring,
    /// as what a file or a driver does on this thread is.
    #[inline]
    pub unsafe fn push_sqe(&mut self, sqe: &Sqe) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.queue_sqe(sqe) }
    }

    /// The next free SQE, to be filled in place; it still has what it had last. `None` when the SQ is full.
    ///
    /// # Safety
    /// As for [`Ring::push_sqe`], for what the SQE says when it is submitted.
    #[inline]
    pub unsafe fn get_sqe(&mut self) -> Option<&mut Sqe> {
        // SAFETY: R3. The memory of SQEs is the ring's for its whole life, and only its submissions read it.
        unsafe { &mut *self.shared.0.as_ptr() }.core.queues.sq_next().map(|(_, sqe)| sqe)
    }

    /// Shows `each` the CQEs that can be read, in the ring memory, and takes them; an empty CQ is filled from the
    /// devices first. How many there were. For users of raw SQEs: memory that a typed operation owned is dropped with
    /// its CQE.
    #[inline(always)]
    pub fn for_each_cqe(&mut self, each: impl FnMut(&Cqe)) -> u32 {
        self.take_cqes(each)
    }

    /// Address and length of a registered buffer, for SQEs filled by hand.
    pub fn buffer_range(&self, index: u16) -> Option<(u64, u64)> {
        self.look().core.bufs.range(index)
    }

    /// The ring memory and where everything lies in it, in the kernel's layout. SQEs and CQEs of typed operations that
    /// own memory have a number of the ring's own there in place of their user data.
    pub fn memory(&self) -> (Ref<'_, [u8]>, Offsets) {
        let inner = self.look();
        let offsets = inner.core.queues.memory().1;
        (Ref::map(inner, |inner| &inner.core.queues.memory().0[..]), offsets)
    }
}
