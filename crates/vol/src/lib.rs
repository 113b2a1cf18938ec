//! Sheave floor 4: pools of space on any device, and the thin volumes in them.
//!
//! | module | holds |
//! |---|---|
//! | [`pool`] | a pool: create, open, what is in it, close |
//! | [`volume`] | a thin volume; an `iomap::File` |
//! | [`info`] | what reports tell |
//! | [`check`](mod@check) | verifies a pool offline, and repairs it |
//! | [`scrub`] | reads a pool through while it is in use |
//! | [`block_io`] | blocking I/O of the pool's own |
//! | [`made_at`] | the wall clock, and how to do without it |
//! | [`error`] | why something was refused |
//! | [`format`](mod@format) | the on-disk format: every offset, size and limit |
//! | [`block`], [`damage`] | a metadata block with its header; why one is not accepted |
//! | [`superblock`], [`record`], [`journal`], [`page`] | what metadata blocks hold |
//!
//! Shapes: a [`Pool`] is made on a `Device` and opened by one owner. [`Volume`]s come from it; a ring attaches one as
//! it attaches any file. Units: bytes, unless a name says blocks (4 KiB) or units (the pool's allocation unit).

pub mod check;
mod device;
mod engine;
pub mod error;
mod finding;
pub mod format;
pub mod info;
pub mod made_at;
mod ops;
pub mod options;
pub mod pool;
mod state;
pub mod volume;

pub use check::{
    CheckOptions, CheckProgress, CheckReport, Finding, FindingKind, Place, Totals, check, check_device,
    check_device_with, check_with,
};
pub use device::block_io;
pub use device::block_io::BlockIo;

pub use error::PoolError;
pub use format::damage::{Damage, MapDamage};
pub use format::{block, damage, journal, page, record, superblock};
pub use info::{Extent, ExtentKind, MemberInfo, PoolInfo, SpaceNotice, SpaceState, Upgrade, VolumeInfo};
pub use ops::scrub;
pub use ops::scrub::{RealClock, ScrubClock, ScrubOptions, ScrubPhase, ScrubProgress, ScrubReport};
pub use pool::{AddOptions, Checksum, CreateOptions, Found, LowWater, OpenOptions, Pool, Watch, WhenFull, join};
pub use sheave_base::grace::Holder;
pub use volume::Volume;

#[cfg(all(test, shuttle))]
mod model;
