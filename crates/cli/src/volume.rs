//! `sheave volume`: thin volumes and snapshots, and copies into them and out of them.
//!
//! | module | holds |
//! |---|---|
//! | [`manage`] | create, resize, rename, snapshot, clone, rollback, delete |
//! | [`show`] | list and info |
//! | [`map`] | extents of a volume |
//! | [`import`], [`export`] | copies from and to raw images, made by [`sheave_daemon::copy`] |
//! | [`diff`] | differences between volumes |
//! | [`export_diff`], [`import_diff`] | changes between snapshots, as a stream |

mod diff;
pub mod export;
mod export_diff;
pub mod import;
mod import_diff;
pub mod manage;
mod map;
mod show;

use sheave_daemon::failure::Failure;
use sheave_daemon::place::whole::search_also;

use crate::args::volume::{VolumeArgs, VolumeCommand as C};
use crate::control::remote;
use crate::patience;

/// Runs the subcommand.
pub fn run(args: &VolumeArgs) -> Result<(), Failure> {
    patience::set(args.wait);
    search_also(&args.search);
    remote::name(args.control.clone())?;
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
