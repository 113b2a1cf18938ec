//! How metadata is read and written: blocking I/O of the pool's own.
//!
//! | module | holds |
//! |---|---|
//! | [`block_io`] | the trait, and the one on a device |
//! | `copies`, `loose` | superblocks where both are lost: copies, and roots among the pages |
//! | [`reader`] | pages that are wanted, in the order in which they lie |
//! | [`sweep`] | many blocks at once, each with a status of its own |
//! | [`walk`] | a page in its place in a tree, and the pages below it |

pub mod block_io;
pub(crate) mod copies;
pub(crate) mod loose;
pub(crate) mod reader;
pub(crate) mod sweep;
pub(crate) mod walk;
