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

pub(crate) mod account;
pub(crate) mod alloc;
pub(crate) mod apply;
pub mod block;
pub mod block_io;
pub mod check;
pub(crate) mod checkpoint;
pub(crate) mod commit;
pub mod damage;
pub mod error;
pub(crate) mod extent_map;
pub mod format;
pub mod info;
pub mod journal;
pub(crate) mod limbo;
pub(crate) mod loss;
pub mod made_at;
pub mod page;
pub mod pool;
pub mod record;
pub(crate) mod recovery;
pub mod scrub;
pub(crate) mod snapshot;
pub(crate) mod stock;
mod sums;
pub mod superblock;
pub(crate) mod sweep;
pub(crate) mod undo;
pub mod volume;

pub use block_io::BlockIo;
pub use check::{
    CheckOptions, CheckProgress, CheckReport, Finding, FindingKind, Place, Totals, check, check_device,
    check_device_with, check_with,
};
pub use damage::Damage;
pub use error::PoolError;
pub use info::{Extent, ExtentKind, MemberInfo, PoolInfo, SpaceNotice, SpaceState, VolumeInfo};
pub use pool::{AddOptions, Checksum, CreateOptions, Found, LowWater, OpenOptions, Pool, Watch, WhenFull, join};
pub use scrub::{RealClock, ScrubClock, ScrubOptions, ScrubPhase, ScrubProgress, ScrubReport};
pub use sheave_base::grace::Holder;
pub use volume::Volume;

#[cfg(all(test, shuttle))]
mod model;
