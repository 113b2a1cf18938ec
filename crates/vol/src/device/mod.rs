//! How metadata is read and written: blocking I/O of the pool's own.
//!
//! | module | holds |
//! |---|---|
//! | [`block_io`] | the trait, and the one on a device |
//! | [`sweep`] | many blocks at once, in the order in which they lie |

pub mod block_io;
pub(crate) mod sweep;
