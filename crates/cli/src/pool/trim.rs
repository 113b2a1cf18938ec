//! `sheave pool trim`: discards free space, so that the file system or device below can use it.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::units::fmt_bytes;
use sheave_daemon::api::types as t;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::Access;
use sheave_load::signals;

use crate::args::pool::TrimArgs;
use crate::control::opened::{By, Opened};
use crate::control::remote::Holder;
use crate::output;
use crate::progress::Progress;

/// Result as JSON.
#[derive(Serialize)]
struct Trimmed {
    pool: String,
    /// Number of free bytes that were discarded.
    trimmed_bytes: u64,
    /// Number of free bytes that stay allocated, because little space is free.
    left_bytes: u64,
    completed: bool,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &TrimArgs) -> Result<(), Failure> {
    let stop = signals::stop_flag()?;
    let pool = Opened::open(&args.pool, Access::Change)?;
    let mut progress = Progress::new("trim", args.progress, args.json, None);
    let done = match pool.by() {
        By::Us(pool) => pool.trim(&mut |at| {
            progress.set(at.done_bytes, at.total_bytes);
            // Relaxed: the flag carries nothing but itself.
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }),
        By::Them(holder) => {
            return there(holder, args, progress, &stop);
        }
    };
    let seconds = progress.finish().as_secs_f64();
    let closed = pool.close();
    let done = done.map_err(failure::pool)?;
    closed?;
    tell(
        args,
        Done { trimmed_bytes: done.trimmed_bytes, left_bytes: done.left_bytes, completed: done.completed },
        seconds,
    )
}

/// Result of a trim.
#[derive(Deserialize)]
struct Done {
    trimmed_bytes: u64,
    left_bytes: u64,
    completed: bool,
}

/// Runs the trim in the daemon that holds the pool, while it serves.
fn there(holder: &Holder, args: &TrimArgs, mut progress: Progress, stop: &AtomicBool) -> Result<(), Failure> {
    let of = t::OfPool { pool: holder.pool.clone() };
    let done: Done = holder.remote.long("TrimPool", &of, &[], &mut progress, stop)?;
    tell(args, done, progress.finish().as_secs_f64())
}

fn tell(args: &TrimArgs, done: Done, seconds: f64) -> Result<(), Failure> {
    let Done { trimmed_bytes, left_bytes, completed } = done;
    if args.json {
        let pool = args.pool.to_string();
        output::json(&Trimmed { pool, trimmed_bytes, left_bytes, completed, seconds })?;
    } else {
        let left = if left_bytes > 0 { format!(", {} kept back", fmt_bytes(left_bytes)) } else { String::new() };
        output::text(&format!(
            "{}: {} of free space given back{left}; {seconds:.1} s\n",
            args.pool,
            fmt_bytes(trimmed_bytes)
        ));
    }
    match completed {
        true => Ok(()),
        false => Err(Failure::interrupted("the trim was ended before it had been everywhere")),
    }
}
