//! Blocking I/O of the pool's own: metadata, and data that is copied or zeroed.
//!
//! Owns the trait. Calls block, so none is made under the state lock.

use sheave_base::status::Status;

/// Reads and writes of a pool's bytes. Places and lengths are multiples of 4 KiB and inside [`BlockIo::size_bytes`].
pub trait BlockIo: Send + Sync {
    /// Fills `buf` from `at`.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status>;
    /// Writes `buf` to `at`; durable after the next [`BlockIo::flush`].
    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status>;
    /// Makes all that was written durable.
    fn flush(&self) -> Result<(), Status>;
    /// The bytes are not needed any more.
    fn discard(&self, at: u64, len: u64) -> Result<(), Status>;
    /// Bytes there are.
    fn size_bytes(&self) -> u64;
}
