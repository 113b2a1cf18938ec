//! Sheave floor 6: pools of space on any device, and the thin volumes in them.
//!
//! Not a part of what the crate `sheave` promises: the public items here may change with any version.
//!
//! Each module has a storey, and names only modules below it; `cargo xtask tidy` checks that (`tidy/storeys.rs`).
//!
//! | storey | module | holds |
//! |---|---|---|
//! | 8 | [`pool`] | a pool: create, open, report, close. Only calls modules below |
//! | 7 | `ops` | operations on a whole pool: create, copy, resize, delete volumes; grow the pool; [`scrub`] it |
//! | 6 | [`volume`] | a thin volume, an `iomap::File`: lookups, first writes, copies of shared units, holes |
//! | 5 | `engine` | an open pool and its locks; commits, checkpoints, recovery, the effect of a failed flush |
//! | 4 | `state` | a pool in memory, without I/O: maps, space, volumes, checksums, the account of metadata |
//! | 4 | [`check`](mod@check) | verifies a pool offline, and repairs it, with a walk of its own |
//! | 3 | `device` | reading and writing of blocks: [`block_io`], sweeps of many blocks |
//! | 3 | [`options`], [`info`], `finding` | options for callers; the contents of reports, checks and scrubs |
//! | 3 | [`members`] | identifies the files and devices that are members of a pool, by their first blocks |
//! | 2 | [`rbd_diff`] | the format in which changes of a volume travel |
//! | 2 | [`format`](mod@format) | the on-disk format: offsets, sizes, limits; contents of blocks, such as [`page`] |
//! | 1 | [`error`], [`made_at`] | errors; the wall clock, and a substitute for it |
//!
//! Use: a [`Pool`] is created on a `Device` and opened by one owner. It opens [`Volume`]s, which a ring attaches like
//! any file. Units: bytes, unless a name says blocks (4 KiB) or units (the pool's allocation unit).

pub mod check;
mod device;
mod engine;
pub mod error;
mod finding;
pub mod format;
pub mod info;
pub mod made_at;
pub mod members;
mod ops;
pub mod options;
pub mod pool;
pub mod rbd_diff;
mod state;
pub mod volume;

pub use check::{
    CheckOptions, CheckProgress, CheckReport, Finding, FindingKind, Place, Totals, check, check_device,
    check_device_with, check_with, double_metadata, double_metadata_of,
};
pub use device::block_io;
pub use device::block_io::BlockIo;
pub use error::PoolError;
pub use format::damage::{Damage, MapDamage};
pub use format::page::table::{Interim, Purpose};
pub use format::{block, damage, journal, page, record, superblock};
pub use info::{
    Differences, DiscardState, Extent, ExtentKind, MemberInfo, PoolInfo, SpaceNotice, SpaceState, Upgrade, VolumeInfo,
};
pub use members::MemberTag;
pub use ops::scrub;
pub use ops::scrub::{RealClock, ScrubClock, ScrubOptions, ScrubPhase, ScrubProgress, ScrubReport};
pub use ops::trim::TrimProgress;
#[doc(hidden)]
pub use options::with_recent_memory;
pub use pool::{
    AddOptions, Checksum, CopyOptions, CreateOptions, Found, LowWater, OpenOptions, Pool, Watch, WhenFull, join,
};
pub use sheave_base::grace::Holder;
pub use volume::Volume;

#[cfg(all(test, shuttle))]
mod model;
