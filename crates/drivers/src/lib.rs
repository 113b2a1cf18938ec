//! Sheave floor 4: the drivers, behind the interface of [`sheave_blk::driver`], and the registry of device specs.
//!
//! Not covered by the stability promise of the crate `sheave`: public items here may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`null`] | a device that does nothing, at once or after a latency |
//! | [`ram`] | memory of this process |
//! | [`host`] | files and block devices of the host, through the ring's kernel io_uring (`file:`) |
//! | [`fault`] | a layer over any device that makes it fail, according to a seed |
//! | `linear` | the specs of partitions and concatenations, which the block layer makes itself |
//! | [`safe`] | drivers without unsafe code, and the adapter that makes them drivers |
//! | [`spec`] | the grammar of specs |
//! | [`registry`] | the functions that open each kind of device |
//! | [`reach`] | files, sockets and servers that a device opens by the names in its spec |
//!
//! [`open_device`] opens a device; a program with its own drivers adds them to a [`Registry`]. The block layer below
//! depends on none of this: a driver of another crate has the same abilities as these. `docs/drivers/README.md` shows
//! how to write one.

pub mod fault;
pub mod host;
mod linear;
pub mod null;
#[doc(hidden)]
pub mod partition_table;
pub mod ram;
pub mod reach;
pub mod registry;
pub mod safe;
pub mod spec;
mod whole_read;

pub use reach::Reach;
pub use registry::{Registry, open_device};

// The unit tests use the test driver and the test ring of the block layer.
#[cfg(test)]
#[path = "../../blk/tests/support/mod.rs"]
mod support;
