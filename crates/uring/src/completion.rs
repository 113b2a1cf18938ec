//! What a ring's owner gets: completions, each a CQE with the memory that came back, and how a wait for them ended.

use std::fmt;
use std::io;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::status::Errno;

use crate::io_buf::{IoBuf, Memory};
use crate::owned::Detail;
use crate::sqe::CQE_F_MORE;

/// A completion as [`Ring::completions`](crate::Ring::completions) gives it: the CQE, and the memory that the
/// operation owned.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// From the operation.
    pub user_data: u64,
    /// Result: bytes or 0, or `-errno`.
    pub res: i32,
    /// What else the ring says of it.
    pub flags: CompletionFlags,
    pub(crate) detail: Detail,
    pub(crate) owned: Option<Memory>,
}

impl Completion {
    /// The result as Rust has it.
    #[inline]
    pub fn result(&self) -> Result<u32, IoError> {
        if self.res >= 0 {
            return Ok(self.res as u32);
        }
        Err(IoError { errno: Errno(self.res.wrapping_neg()), detail: self.detail })
    }

    /// The buffer that the operation owned; the device touches it no more. `None` if it owned none, or memory of
    /// another type, which is dropped: see [`Completion::into_memory`].
    #[inline]
    pub fn into_buf(self) -> Option<Buf> {
        self.into_memory()
    }

    /// The memory that the operation owned, of the type that it was given; the device touches it no more. `None` if it
    /// owned none. Memory of another type is dropped.
    ///
    /// ```
    /// # use sheave_uring::{prep, Ring};
    /// # use std::sync::Arc;
    /// # let mut ring = Ring::builder().build()?;
    /// # let fd = ring.attach(&sheave_drivers::open_device("ram:size=1M")?)?;
    /// let page: Arc<[u8]> = Arc::from([7; 4096]);
    /// ring.push(prep::write(fd, Arc::clone(&page)).offset(0))?;
    /// ring.push(prep::write(fd, page).offset(1 << 16))?;
    /// ring.submit_and_wait(2)?;
    /// while let Some(done) = ring.pop() {
    ///     let page: Arc<[u8]> = done.into_memory().expect("what it was given");
    ///     assert_eq!(page[0], 7);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn into_memory<B: IoBuf>(self) -> Option<B> {
        Memory::into_value(self.owned)
    }

    /// The buffers of a vectored operation, or the one of another.
    pub fn into_bufs(self) -> Vec<Buf> {
        Memory::into_bufs(self.owned)
    }
}

/// Flags of a completion: `IORING_CQE_F_*`, or what a message [passes on](crate::prep::Message::message_flags).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CompletionFlags(u32);

impl CompletionFlags {
    /// None.
    pub const NONE: CompletionFlags = CompletionFlags(0);
    /// More completions of the same operation follow. No operation gives several yet; messages can say so.
    pub const MORE: CompletionFlags = CompletionFlags(CQE_F_MORE);

    /// These bits of the kernel's layout, for what two programs agree on in messages.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u32) -> CompletionFlags {
        CompletionFlags(bits)
    }

    /// As bits of the kernel's layout.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `others` are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, others: CompletionFlags) -> bool {
        self.0 & others.0 == others.0
    }
}

/// Why an I/O failed: the errno of its completion and, where the operation owned its memory and the device wanted it
/// at another place, which.
///
/// ```
/// # use sheave_uring::{prep, Ring};
/// # let mut ring = Ring::builder().build()?;
/// # let fd = ring.attach(&sheave_drivers::open_device("ram:size=1M")?)?;
/// ring.push(prep::read(fd, vec![0; 512]).offset(100))?;
/// ring.submit_and_wait(1)?;
/// let error = ring.pop().expect("waited for it").result().expect_err("100 is no multiple of 512");
/// assert!(error.to_string().contains("multiples of 512"), "{error}");
/// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::InvalidInput);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    errno: Errno,
    detail: Detail,
}

impl IoError {
    /// The errno.
    #[inline]
    pub fn errno(self) -> Errno {
        self.errno
    }

    /// What the device asks of an I/O, where the operation had something else: offset and length are multiples of the
    /// first number, and the memory begins at a multiple of the second, in bytes.
    pub fn wanted_alignment(self) -> Option<(u64, u64)> {
        let Detail { block_shift, memory_shift } = self.detail;
        (self.detail != Detail::default()).then_some((1 << block_shift, 1 << memory_shift))
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.errno().fmt(f)?;
        let Some((block, memory)) = self.wanted_alignment() else { return Ok(()) };
        write!(
            f,
            ": this device wants offset and length in multiples of {block} bytes, and memory that begins at a \
             multiple of {memory}, such as a Buf of that alignment"
        )
    }
}

impl std::error::Error for IoError {
    /// The errno.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.errno)
    }
}

impl PartialEq<Errno> for IoError {
    fn eq(&self, other: &Errno) -> bool {
        self.errno() == *other
    }
}

impl From<IoError> for Errno {
    fn from(error: IoError) -> Errno {
        error.errno()
    }
}

/// With the errno as its code; what else there is to say is lost.
impl From<IoError> for io::Error {
    fn from(error: IoError) -> io::Error {
        error.errno().into()
    }
}

/// Why [`Ring::wait`](crate::Ring::wait) came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "not every wait ends with completions"]
#[non_exhaustive]
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
