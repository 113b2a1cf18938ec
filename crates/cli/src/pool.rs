//! `sheave pool`: creation and maintenance of pools.
//!
//! | module | holds |
//! |---|---|
//! | [`signature`] | detection of content on a device before it is formatted |
//! | [`create`], [`scan`], [`info`], [`check`], [`grow`], [`set`] | the commands |
//! | [`scrub`], [`trim`], [`upgrade`], [`watch`] | further commands |
//!
//! `docs/concepts/volumes.md` explains pools. All rules about their content are in `sheave_vol`.

mod allocate;
mod check;
mod create;
mod grow;
mod info;
mod scan;
pub mod scrub;
mod set;
pub mod signature;
mod trim;
mod upgrade;
mod watch;

use sheave_daemon::failure::Failure;
use sheave_daemon::place::whole::search_also;

use crate::args::pool::{PoolArgs, PoolCommand};
use crate::control::remote;

/// Runs the subcommand.
pub fn run(args: &PoolArgs) -> Result<(), Failure> {
    crate::patience::set(args.wait);
    search_also(&args.search);
    remote::name(args.control.clone())?;
    match &args.command {
        PoolCommand::Create(args) => create::run(args),
        PoolCommand::Scan(args) => scan::run(args),
        PoolCommand::Info(args) => info::run(args),
        PoolCommand::Check(args) => check::run(args),
        PoolCommand::Grow(args) => grow::run(args),
        PoolCommand::Set(args) => set::run(args),
        PoolCommand::Scrub(args) => scrub::run(args),
        PoolCommand::Trim(args) => trim::run(args),
        PoolCommand::Upgrade(args) => upgrade::run(args),
        PoolCommand::Watch(args) => watch::run(args),
    }
}
