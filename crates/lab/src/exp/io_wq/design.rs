//! The design of the experiment: its arms by index, and its points.

use sheave_base::units;

use crate::point::{Parameter, Point, Values};
use crate::terms::{ArmInfo, Role};
use crate::wq::{self, Side, Work};
use crate::{LabError, Value};

/// Its name.
pub const ID: &str = "io-wq";

/// Index of an arm.
pub const BEFORE: usize = 0;
/// See above.
pub const SEED: usize = 1;
/// See above.
pub const SHARDED: usize = 2;
/// See above.
pub const AFTER: usize = 3;
/// See above.
pub const RING: usize = 4;
/// See above.
pub const KERNEL: usize = 5;

/// The arms.
pub const ARMS: [ArmInfo; 6] = [
    ArmInfo {
        name: "before",
        role: Role::Before,
        what: "The kernel's structure as it was: one list, one spinlock, a worker more for each item that finds none \
               free (IOSQE_ASYNC); flags read wherever they are needed.",
    },
    ArmInfo { name: "seed", role: Role::Seed, what: "The same, with the flags read once." },
    ArmInfo {
        name: "sharded",
        role: Role::Other,
        what: "A list and a lock for each worker, submitters going round, nobody helps anybody: the idea that came up \
               in the thread.",
    },
    ArmInfo {
        name: "after",
        role: Role::After,
        what: "Sheave's pool: sharded by submitter, taken in batches, stolen by workers that have nothing.",
    },
    ArmInfo {
        name: "ring",
        role: Role::Other,
        what: "The same pool under a ring: NOPs with IOSQE_ASYNC, results as CQEs. More work per item than the arms \
               before it.",
    },
    ArmInfo {
        name: "kernel",
        role: Role::Other,
        what: "The kernel's own io-wq under its io_uring: NOPs with IOSQE_ASYNC. Its locks cannot be looked into from \
               here.",
    },
];

/// The sides of the arms.
pub const SIDES: [Side; 6] = [
    Side::Ours(wq::Arm::OneList),
    Side::Ours(wq::Arm::FlagsOnce),
    Side::Ours(wq::Arm::Sharded),
    Side::Ours(wq::Arm::Stealing),
    Side::Ours(wq::Arm::Ring),
    Side::Kernel,
];

/// As many as the pools take.
const MOST_WORKERS: u64 = 4096;

/// What its points may have.
pub const PARAMETERS: &[Parameter] = &[
    Parameter { name: "workers", values: Values::Numbers(1, MOST_WORKERS) },
    Parameter { name: "cpus", values: Values::Numbers(1, u64::MAX) },
    Parameter { name: "stepped", values: Values::Numbers(0, 1) },
    Parameter { name: "work", values: Values::Text },
];

/// What other experiments' points have, and these do not.
pub const UNUSED: &[&str] = &["bs", "rw"];

/// A flood of NOPs.
pub fn flood(workers: u64) -> Point {
    Point { depth: 128, batch: 32, ..Point::default() }.with("workers", workers)
}

/// Workers of the rows whose items do something.
pub const SOME: u64 = 16;
/// The label of the row of items that block.
pub const BLOCKING: &str = "blocking: items sleep 1 ms";
/// The label of the row of items in the shape of the thread's web server.
pub const SERVING: &str = "HTTP-like: 1 of 8 waits";

/// Items that block.
pub fn blocking(workers: u64) -> Point {
    Point { batch: 64, depth: 64, ..flood(workers) }.with("work", "sleep:1ms")
}

/// Items like those of a web server: one of 8 waits 50 us, the others take 2 us.
pub fn serving(workers: u64) -> Point {
    flood(workers).with("work", "http")
}

/// What an item does, as a point has it.
pub fn work_of(point: &Point) -> Result<Work, LabError> {
    let text = match point.extra.get("work") {
        None => return Ok(Work::Nop),
        Some(Value::Text(text)) => text.as_str(),
        Some(Value::Number(_)) => "a number",
    };
    let time = |text| units::parse_duration(text).map_err(|err| bad(&err.to_string()));
    match text.split_once(':') {
        None if text == "nop" => Ok(Work::Nop),
        None if text == "http" => Ok(Work::Http),
        Some(("spin", text)) => Ok(Work::Spin(time(text)?)),
        Some(("sleep", text)) => Ok(Work::Sleep(time(text)?)),
        _ => Err(bad(&format!("work={text} is none of nop, http, spin:TIME, sleep:TIME"))),
    }
}

/// A point that makes no sense.
pub fn bad(why: &str) -> LabError {
    LabError::usage(why).fix("write for example depth=128,batch=32,workers=16,work=sleep:1ms")
}
