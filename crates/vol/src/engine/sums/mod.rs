//! Checksums of data where they take I/O: opening regions, reading back, marking what is bad.
//!
//! | module | holds |
//! |---|---|
//! | [`intend`] | opens a region for writes |
//! | [`idle`] | closes a region that nobody writes to |
//! | [`verify`] | the end of an I/O that takes reading |
//! | [`marks`] | marks of bad blocks, durable before anybody is told |
//!
//! The checksums themselves are in [`state::sums`](crate::state::sums).

pub(crate) mod idle;
pub(crate) mod intend;
pub(crate) mod marks;
pub(crate) mod verify;
