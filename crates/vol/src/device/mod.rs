//! Blocking I/O of the pool's own: reads and writes of metadata, and of data that is copied.
//!
//! | module | holds |
//! |---|---|
//! | [`block_io`] | the trait for blocking I/O, and its implementation for a device |
//! | `copies`, `loose` | searches for a superblock when both are lost: its copies, and roots among the pages |
//! | [`reader`] | reads of many pages, in the order of their addresses |
//! | [`sweep`] | reads of many blocks at once, each with its own status |
//! | [`walk`] | a page in its place in a tree, and the step to the pages below it |

pub mod block_io;
pub(crate) mod copies;
pub(crate) mod loose;
pub(crate) mod reader;
pub(crate) mod recent;
pub(crate) mod sweep;
pub(crate) mod walk;
