//! Results for the owner of a ring: completions, each a CQE with its memory, and the outcome of a wait.

use std::fmt;
use std::io;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::status::Errno;

use crate::io_buf::{IoBuf, Memory};
use crate::owned::Detail;
use crate::sqe::CQE_F_MORE;

/// A completion from [`Ring::completions`](crate::Ring::completions): the CQE, and the memory that the operation owned.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// User data of the operation.
    pub user_data: u64,
    /// Result: bytes or 0, or `-errno`.
    pub res: i32,
    /// Flags of the CQE.
    pub flags: CompletionFlags,
    pub(crate) detail: Detail,
    pub(crate) owned: Option<Memory>,
}

impl Completion {
    /// Returns the result as a Rust `Result`.
    #[inline]
    pub fn result(&self) -> Result<u32, IoError> {
        if self.res >= 0 {
            return Ok(self.res as u32);
        }
        Err(IoError { errno: Errno(self.res.wrapping_neg()), detail: self.detail })
    }

    /// Returns the buffer that the operation owned; the device no longer touches it. `None` if it owned none, or memory
    /// of another type, which is dropped: see [`Completion::into_memory`].
    #[inline]
    pub fn into_buf(self) -> Option<Buf> {
        self.into_memory()
    }

    /// Returns the memory that the operation owned, as the type that it was given as; the device no longer touches it.
    /// `None` if it owned none. Memory of another type is dropped.
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

    /// Returns the buffers of a vectored operation, or the single buffer of another.
    pub fn into_bufs(self) -> Vec<Buf> {
        Memory::into_bufs(self.owned)
    }
}

/// Flags of a completion: `IORING_CQE_F_*`, or those that a message [sets](crate::prep::Message::message_flags).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CompletionFlags(u32);

impl CompletionFlags {
    /// No flags.
    pub const NONE: CompletionFlags = CompletionFlags(0);
    /// More completions of the same operation follow. No operation gives several yet; messages can set it.
    pub const MORE: CompletionFlags = CompletionFlags(CQE_F_MORE);

    /// Makes flags of bits in the kernel's layout, for bits that two programs agree on in messages.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u32) -> CompletionFlags {
        CompletionFlags(bits)
    }

    /// Returns the bits in the kernel's layout.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns true if all of `others` are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, others: CompletionFlags) -> bool {
        self.0 & others.0 == others.0
    }
}

/// Error of an I/O: the errno of its completion and, if the operation owned its memory and its alignment was wrong, the
/// alignment that the device requires.
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
    /// Returns the errno.
    #[inline]
    pub fn errno(self) -> Errno {
        self.errno
    }

    /// Returns the alignment that the device requires, if the operation had another: offset and length are multiples of
    /// the first number, and the memory begins at a multiple of the second, in bytes.
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

/// Keeps the errno as the code; the required alignment is lost.
impl From<IoError> for io::Error {
    fn from(error: IoError) -> io::Error {
        error.errno().into()
    }
}

/// Outcome of [`Ring::wait`](crate::Ring::wait).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "not every wait ends with completions"]
#[non_exhaustive]
pub enum Waited {
    /// At least the wanted number of completions can be read. Holds the number of readable ones.
    Ready(u32),
    /// Another thread called [`RingHandle::wake`](crate::RingHandle::wake).
    Woken,
    /// The timeout is over.
    TimedOut,
    /// Nothing is in flight, and no other thread has a handle of the ring: the wait would never end.
    Idle,
}

/// Time limit of a wait outside of the ring, from [`Ring::prepare_wait`](crate::Ring::prepare_wait).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the ring wants to be called again in time"]
#[non_exhaustive]
pub struct WaitOn {
    /// Time after which to call the ring again, whether its descriptor is readable or not. `None` if there is no such
    /// time.
    pub timeout: Option<Duration>,
}

impl Waited {
    /// Returns true if at least the wanted number of completions can be read.
    pub fn is_ready(self) -> bool {
        matches!(self, Waited::Ready(_))
    }
}
