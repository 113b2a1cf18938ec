//! `sheave pool grow`: a larger file or device.
//!
//! No member is added: only a label at its start would tell it from another device the next time, and growing writes
//! none.

use serde::Serialize;
use sheave::base::units::fmt_bytes;
use sheave::vol::{OpenOptions, Pool};

use crate::args::pool::GrowArgs;
use crate::failure::{self, Failure};
use crate::output;

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
    refuse_new_members(&devices, before)?;
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

/// A member that begins where the pool ends, or later, is new.
fn refuse_new_members(devices: &[sheave::Device], pool_bytes: u64) -> Result<(), Failure> {
    let mut start = 0;
    for device in devices {
        if start > 0 && start >= pool_bytes {
            return Err(Failure::usage(format!("{} is no member of this pool, and none can be added", device.name()))
                .fix("make its last member larger; or make a pool of all of them and copy the volumes"));
        }
        start += device.size_bytes();
    }
    Ok(())
}
