//! What a pool is in memory, and how it changes: no I/O, no waiting.
//!
//! | module | holds |
//! |---|---|
//! | [`alloc`] | units of the pool: free, with owners, taken by metadata |
//! | [`extent_map`] | the maps of volumes |
//! | [`limbo`] | what was let go and cannot be used again yet |
//! | [`sums`] | checksums of data |
//! | [`table`] | the volumes |
//! | [`apply`] | what a record does |
//! | [`account`] | the pages that metadata may need |

pub(crate) mod account;
pub(crate) mod alloc;
pub(crate) mod apply;
pub(crate) mod extent_map;
pub(crate) mod limbo;
pub(crate) mod sums;
pub(crate) mod table;
