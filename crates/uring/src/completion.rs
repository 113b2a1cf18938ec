//! What a ring's owner gets: completions, each a CQE with the memory that came back, and how a wait for them ended.

use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::status::Errno;

use crate::prep::Owned;

/// A completion as [`Ring::completions`](crate::Ring::completions) gives it: the CQE, and the buffer that the
/// operation owned.
#[derive(Debug)]
pub struct Completion {
    /// From the operation.
    pub user_data: u64,
    /// Result: bytes or 0, or `-errno`.
    pub res: i32,
    /// `IORING_CQE_F_*` bits.
    pub flags: u32,
    pub(crate) owned: Option<Owned>,
}

impl Completion {
    /// The result as Rust has it.
    #[inline]
    pub fn result(&self) -> Result<u32, Errno> {
        if self.res >= 0 { Ok(self.res as u32) } else { Err(Errno(-self.res)) }
    }

    /// The buffer that the operation owned; the device touches it no more.
    #[inline]
    pub fn into_buf(self) -> Option<Buf> {
        match self.owned {
            Some(Owned::One(buf)) => Some(buf),
            _ => None,
        }
    }

    /// The buffers of a vectored operation.
    pub fn into_bufs(self) -> Vec<Buf> {
        match self.owned {
            Some(Owned::One(buf)) => vec![buf],
            Some(Owned::Many(bufs, _)) => bufs,
            _ => Vec::new(),
        }
    }
}

/// Why [`Ring::wait`](crate::Ring::wait) came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "not every wait ends with completions"]
pub enum Waited {
    /// As many completions as were wanted can be read, or more: so many.
    Ready(u32),
    /// Another thread called [`RingHandle::wake`](crate::RingHandle::wake).
    Woken,
    /// The time is over.
    TimedOut,
    /// Nothing is in flight, and nobody else has a handle of the ring: it would wait for ever.
    Idle,
}

/// What [`Ring::prepare_wait`](crate::Ring::prepare_wait) says of a wait from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the ring wants to be called again in time"]
#[non_exhaustive]
pub struct WaitOn {
    /// The ring wants to be called again after this time, readable or not; `None` when it has no such time.
    pub timeout: Option<Duration>,
}

impl Waited {
    /// Whether as many completions as were wanted can be read.
    pub fn is_ready(self) -> bool {
        matches!(self, Waited::Ready(_))
    }
}
