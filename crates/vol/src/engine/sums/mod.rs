//! Checksums of data where they need I/O: opening regions, reading back, marking bad blocks.
//!
//! | module | holds |
//! |---|---|
//! | [`intend`] | opens a region for writes |
//! | [`idle`] | closes a region that gets no writes |
//! | [`verify`] | the end of an I/O that must read from the device |
//! | [`marks`] | marks of bad blocks, durable before a reader gets the error |
//!
//! The checksums themselves are in [`state::sums`](crate::state::sums).

pub(crate) mod idle;
pub(crate) mod intend;
pub(crate) mod marks;
pub(crate) mod verify;
