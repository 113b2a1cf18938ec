//! `sheave pool upgrade`: adds to a pool of an older program the features that it lacks.
//!
//! The names of the JSON fields are an interface. The pool decides what can be upgraded.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use sheave_blk::claim::Sharing;
use sheave_daemon::api::types as t;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::Access;
use sheave_vol::{Upgrade, double_metadata_of};

use crate::args::pool::UpgradeArgs;
use crate::control::opened::{By, Opened};
use crate::control::remote::{Holder, not_while_served, refuse_name};
use crate::output;
use crate::patience;

/// Result as JSON.
#[derive(Serialize)]
struct UpgradeJson {
    pool: String,
    dry_run: bool,
    /// Features that were added, or that would be added in a dry run.
    upgrades: Vec<PartJson>,
}

/// A feature.
#[derive(Serialize, Deserialize)]
struct PartJson {
    name: String,
    lacks: String,
    gives: String,
}

#[derive(Deserialize)]
struct Reply {
    upgrades: Vec<PartJson>,
}

const ALONE: &str = "doubling the metadata wants a pool that nobody has open";

/// Gives a closed pool a second copy of its metadata.
fn double(args: &UpgradeArgs) -> Result<Vec<PartJson>, Failure> {
    args.pool.refuse_volatile()?;
    refuse_name(&args.pool, ALONE, "")?;
    args.pool.expect_there()?;
    let device = args.pool.open_device("")?;
    let _claim = patience::until_free(|| device.claim(Sharing::Alone).map_err(failure::device))
        .map_err(|busy| not_while_served(&args.pool, ALONE, "", busy))?;
    let doubled = double_metadata_of(&device, &mut |_| ()).map_err(failure::pool)?;
    let pairs = PartJson {
        name: "pairs".into(),
        lacks: "each page of metadata is there once: a damaged one costs the volumes that need it, or the pool".into(),
        gives: "each page of metadata is there twice, and a damaged one costs nothing".into(),
    };
    Ok(if doubled { vec![pairs] } else { Vec::new() })
}

fn part(&Upgrade { name, lacks, gives, .. }: &Upgrade) -> PartJson {
    PartJson { name: name.into(), lacks: lacks.into(), gives: gives.into() }
}

/// Runs the command.
pub fn run(args: &UpgradeArgs) -> Result<(), Failure> {
    if args.metadata_copies.is_some() {
        return tell(args, double(args)?);
    }
    let pool = Opened::open(&args.pool, if args.dry_run { Access::Look } else { Access::Change })?;
    let upgraded = match pool.by() {
        By::Us(pool) => {
            let upgraded = if args.dry_run { Ok(pool.upgrades()) } else { pool.upgrade().map_err(failure::pool) };
            upgraded.map(|upgrades| upgrades.into_iter().map(part).collect())
        }
        By::Them(Holder { remote, pool }) => {
            let upgrade = t::Upgrade { pool: pool.clone(), dry_run: Some(args.dry_run) };
            remote.call("UpgradePool", &upgrade).map(|reply: Reply| reply.upgrades)
        }
    };
    let closed = pool.close();
    let upgrades = upgraded?;
    closed?;
    tell(args, upgrades)
}

fn tell(args: &UpgradeArgs, upgrades: Vec<PartJson>) -> Result<(), Failure> {
    if args.json {
        return output::json(&UpgradeJson { pool: args.pool.to_string(), dry_run: args.dry_run, upgrades });
    }
    output::text(&text(&args.pool.to_string(), args.dry_run, &upgrades));
    Ok(())
}

fn text(pool: &str, dry_run: bool, upgrades: &[PartJson]) -> String {
    if upgrades.is_empty() {
        return format!("{pool}: it lacks nothing that this sheave knows\n");
    }
    let mut text = String::new();
    for PartJson { name, lacks, gives } in upgrades {
        // Writing to a String does not fail.
        let _ = match dry_run {
            true => writeln!(text, "{pool}: it has no {name}: {lacks}. After an upgrade {gives}"),
            false => writeln!(text, "{pool}: it has {name} now: {gives}"),
        };
    }
    text.push_str(match dry_run {
        true => "Nothing was changed. Older programs will refuse the pool once it is upgraded\n",
        false => "Older programs refuse the pool from now on\n",
    });
    text
}
