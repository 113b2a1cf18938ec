//! `sheave pool create`: checks the devices for content, then formats them.

use std::path::Path;

use serde::Serialize;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::is_missing;
use sheave_daemon::shapes::pool::PoolJson;
use sheave_vol::{CreateOptions, OpenOptions, Pool};

use super::{allocate, signature};
use crate::args::Switch;
use crate::args::pool::{AllocateArg, CreateArgs};
use crate::made::Made;
use crate::{confirm, output};

/// Smallest size of a pool in bytes: metadata and a few units.
const MIN_SIZE: u64 = 4 << 20;

/// Result as JSON.
#[derive(Serialize)]
struct Created {
    created: String,
    replaced: Option<String>,
    pool: PoolJson,
}

/// Runs the command.
pub fn run(args: &CreateArgs) -> Result<(), Failure> {
    args.pool.refuse_volatile()?;
    if args.allocate == AllocateArg::Full && args.discard == Some(Switch::On) {
        return Err(Failure::usage("--allocate full takes all of the space, and --discard on gives it back")
            .fix("leave one of them out"));
    }
    let options = match (args.size, args.pool.single_path()) {
        (Some(size), Some(_)) if size < MIN_SIZE => {
            return Err(Failure::usage(format!("--size {size}: a pool has at least {MIN_SIZE} bytes"))
                .fix("give it more; a file takes space only as it is written"));
        }
        (Some(size), Some(_)) => format!(",size={size}"),
        (Some(_), None) => {
            return Err(Failure::usage("--size is for a pool in one file")
                .fix("give each member its own: file:a.img,size=5G+file:b.img,size=5G"));
        }
        (None, Some(path)) if is_missing(path) => {
            return Err(Failure::usage(format!("{}: there is no such file, and no size to make it with", args.pool))
                .fix("add --size, such as --size 10G; the file takes space only as it is written"));
        }
        (None, _) => String::new(),
    };
    let made = Made::begin(&args.pool, args.size.is_some())?;
    let (replaced, pool) = format(args, &options)?;
    made.keep();
    let pool_json = PoolJson::new(&args.pool, &pool.info());
    pool.close().map_err(failure::pool)?;
    if args.json {
        return output::json(&Created { created: args.pool.to_string(), replaced, pool: pool_json });
    }
    output::text(&format!(
        "created {}: {}\nnext: sheave volume create '{}#NAME' --size 100G\n",
        args.pool,
        pool_json.in_short(),
        args.pool
    ));
    Ok(())
}

/// Checks for content, asks for confirmation, formats, and opens the new pool.
fn format(args: &CreateArgs, options: &str) -> Result<(Option<String>, Pool), Failure> {
    let mut found = Vec::new();
    match args.pool.single_path().filter(|path| path.is_file()) {
        // If the file were opened as a device with --size, it would be extended before the user has confirmed.
        Some(path) => {
            found.extend(signature::find_in_file(path)?.map(|what| format!("{} holds {what}", path.display())))
        }
        // Every member is checked, because each may have been used for something else before.
        None => {
            for device in args.pool.open_members(options)? {
                if let Some(what) = signature::find(&device)? {
                    found.push(format!("{} holds {what}", device.name()));
                }
            }
            // For files, their data extents are searched too. A device on top of a file does not show these extents.
            for path in args.pool.file_paths().iter().map(Path::new).filter(|path| path.is_file()) {
                if let Some(what) = signature::find_in_file(path)?.filter(|_| found.is_empty()) {
                    found.push(format!("{} holds {what}", path.display()));
                }
            }
        }
    }
    let replaced = (!found.is_empty()).then(|| found.join(", "));
    if let Some(found) = &replaced {
        confirm::destroy(args.yes, &format!("{found}; a new pool destroys it"))?;
    }
    let device = args.pool.new_device(options)?;
    sheave_daemon::value::check_low_water(Some(args.low_water), device.size_bytes())?;
    if args.allocate == AllocateArg::Full {
        allocate::all(&args.pool)?;
    }
    let create = CreateOptions::default()
        .unit_bytes(args.block)
        .journal_bytes(args.journal)
        .checksum(args.checksum.kind())
        .metadata_copies(args.metadata_copies)
        .low_water(args.low_water)
        .discard(args.discard.map_or(args.allocate == AllocateArg::Sparse, Switch::is_on))
        .uuid(None)
        .overwrite(replaced.is_some());
    Pool::create(&device, &create).map_err(failure::pool)?;
    let pool = Pool::open(&device, &OpenOptions::default()).map_err(failure::pool)?;
    Ok((replaced, pool))
}
