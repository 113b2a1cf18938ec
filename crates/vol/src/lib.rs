//! Sheave floor 4: pools of space on any device, and the thin volumes in them.
//!
//! | module | holds |
//! |---|---|
//! | [`pool`] | a pool: create, open, what is in it, close |
//! | [`volume`] | a thin volume; an `iomap::File` |
//! | [`info`] | what reports tell |
//! | [`error`] | why something was refused |
//!
//! Shapes: a [`Pool`] is made on a `Device` and opened by one owner. [`Volume`]s come from it; a ring attaches one as it
//! attaches any file. Units: bytes, unless a name says blocks (4 KiB) or units (the pool's allocation unit).

pub mod error;
pub mod info;
pub mod pool;
pub mod volume;

pub use error::PoolError;
pub use info::{Extent, ExtentKind, PoolInfo, VolumeInfo};
pub use pool::{Checksum, CreateOptions, OpenOptions, Pool, WhenFull};
pub use volume::Volume;
