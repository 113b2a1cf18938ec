//! `sheave volume`: thin volumes and snapshots, and copying into and out of them.
//!
//! | module | holds |
//! |---|---|
//! | [`manage`] | create, resize, rename, snapshot, clone, rollback, delete |
//! | [`show`] | list and info |
//! | [`map`] | where the parts of a volume lie |
//! | [`import`], [`export`] | copies from and to raw images, over [`lanes`] |
//! | [`diff`] | what differs between volumes |
//! | [`export_diff`], [`import_diff`] | what changed between snapshots, as a stream; [`patch`] puts it into a volume |
//! | [`rescue`] | an export that goes on past what cannot be read |
//! | [`lanes`] | buffers and I/O in flight on a ring with the volume |
//! | [`source`] | an image to read: where it has holes, and how to wait for a pipe |
//! | [`sink`] | an image to write |

mod diff;
pub mod export;
mod export_diff;
pub mod import;
mod import_diff;
mod lanes;
pub mod manage;
mod map;
mod patch;
mod rescue;
mod show;
pub mod sink;
pub mod source;

use crate::args::volume::{VolumeArgs, VolumeCommand as C};
use crate::failure::Failure;
use crate::pool::patience;

/// Runs one of them.
pub fn run(args: &VolumeArgs) -> Result<(), Failure> {
    patience::set(args.wait);
    match &args.command {
        C::Create(args) => manage::create(args),
        C::List(args) => show::list(args),
        C::Info(args) => show::info(args),
        C::Resize(args) => manage::resize(args),
        C::Rename(args) => manage::rename(args),
        C::Snapshot(args) => manage::snapshot(args),
        C::Clone(args) => manage::clone(args),
        C::Rollback(args) => manage::rollback(args),
        C::Delete(args) => manage::delete(args),
        C::Map(args) => map::run(args),
        C::Import(args) => import::run(args),
        C::Export(args) => export::run(args),
        C::Diff(args) => diff::run(args),
        C::ExportDiff(args) => export_diff::run(args),
        C::ImportDiff(args) => import_diff::run(args),
    }
}
