//! The raw interface of io_uring: SQEs and CQEs in the ring memory, in the kernel's layout.
//!
//! Owns the calls of a [`Ring`] that only the feature `raw` has. They work on the ring's state (R3 of
//! [`ring`](crate::ring)). Called by embedders.
#![allow(unsafe_code)] // SQEs name memory by its address.

use std::cell::Ref;

use super::Ring;
use crate::cqe::Cqe;
use crate::queues::Offsets;
use crate::sqe::Sqe;

impl Ring {
    /// Queues a copy of an SQE. Returns false if the SQ is full.
    ///
    /// # Safety
    /// Every address in the SQE must be of memory that stays valid, and is not used otherwise, until the request's
    /// completion was posted; vectors and timespecs until the SQE was submitted. Must not be called from within a call
    /// of this ring, for example by a file or a driver on this thread.
    #[inline]
    pub unsafe fn push_sqe(&mut self, sqe: &Sqe) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.queue_sqe(sqe) }
    }

    /// Returns the next free SQE, to be filled in place. It holds the values of its last use. `None` if the SQ is full.
    ///
    /// # Safety
    /// The requirements of [`Ring::push_sqe`], for the contents of the SQE when it is submitted.
    #[inline]
    pub unsafe fn get_sqe(&mut self) -> Option<&mut Sqe> {
        // SAFETY: R3. The memory of SQEs is the ring's for its whole life, and only its submissions read it.
        unsafe { &mut *self.shared.0.as_ptr() }.core.queues.sq_next().map(|(_, sqe)| sqe)
    }

    /// Passes the readable CQEs to `each`, in the ring memory, and consumes them. Returns their number. An empty CQ is
    /// filled from the devices first. For users of raw SQEs: memory that a typed operation owned is dropped with its
    /// CQE.
    #[inline(always)]
    pub fn for_each_cqe(&mut self, each: impl FnMut(&Cqe)) -> u32 {
        self.take_cqes(each)
    }

    /// Returns address and length of a registered buffer, for SQEs filled by hand.
    pub fn buffer_range(&self, index: u16) -> Option<(u64, u64)> {
        self.look().core.bufs.range(index)
    }

    /// Returns the ring memory and the offsets of everything in it, in the kernel's layout. SQEs and CQEs of typed
    /// operations that own memory hold a key of the ring in place of their user data.
    pub fn memory(&self) -> (Ref<'_, [u8]>, Offsets) {
        let inner = self.look();
        let offsets = inner.core.queues.memory().1;
        (Ref::map(inner, |inner| &inner.core.queues.memory().0[..]), offsets)
    }
}
