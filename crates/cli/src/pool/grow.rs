//! `sheave pool grow`: a larger file or device, or one more member.

use serde::Serialize;
use sheave::base::units::fmt_bytes;
use sheave::vol::{OpenOptions, Pool};

use super::signature;
use crate::args::pool::GrowArgs;
use crate::failure::{self, Failure};
use crate::{confirm, output};

/// What became of it, for programs.
#[derive(Serialize)]
struct Grown {
    pool: String,
    size_bytes_before: u64,
    size_bytes: u64,
}

/// Does it.
pub fn run(args: &GrowArgs) -> Result<(), Failure> {
    args.pool.refuse_volatile()?;
    args.pool.expect_there()?;
    let options = match (args.size, args.pool.single_path()) {
        (None, _) => String::new(),
        (Some(size), Some(path)) => {
            let now = args.pool.open_device(",readonly=on")?.size_bytes();
            if size < now {
                let cause = format!("--size {size} is less than the {now} bytes that {} has", path.display());
                return Err(Failure::usage(cause).fix("pools grow only; make a smaller one and copy the volumes"));
            }
            format!(",size={size}")
        }
        (Some(_), None) => {
            return Err(Failure::usage("--size is for a pool in one file")
                .fix("grow the last member (truncate -s SIZE FILE), then run this without --size"));
        }
    };
    let devices = args.pool.open_members(&options)?;
    let device = args.pool.open_device(&options)?;
    let pool = Pool::open(&device, &OpenOptions::default()).map_err(failure::pool)?;
    let before = pool.info().size_bytes;
    ask_about_new_members(args, &devices, before)?;
    let after = pool.grow().map_err(failure::pool)?;
    pool.close().map_err(failure::pool)?;
    if args.json {
        return output::json(&Grown { pool: args.pool.to_string(), size_bytes_before: before, size_bytes: after });
    }
    if after == before {
        output::text(&format!("{} has {} already, all that its device has\n", args.pool, fmt_bytes(after)));
    } else {
        output::text(&format!("{}: {} before, {} now\n", args.pool, fmt_bytes(before), fmt_bytes(after)));
    }
    Ok(())
}

/// A member that begins where the pool ends, or later, is new: what is on it is about to be overwritten.
fn ask_about_new_members(args: &GrowArgs, devices: &[sheave::Device], pool_bytes: u64) -> Result<(), Failure> {
    let mut start = 0;
    for device in devices {
        if start > 0
            && start >= pool_bytes
            && let Some(what) = signature::find(device)?
        {
            confirm::destroy(args.yes, &format!("{} holds {what}; adding it destroys that", device.name()))?;
        }
        start += device.size_bytes();
    }
    Ok(())
}
