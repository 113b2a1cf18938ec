//! The design of the experiment: its arms by index, and its points.

use sheave_base::units;

use crate::point::{Parameter, Point, Values};
use crate::terms::{ArmInfo, Role};
use crate::wq::{self, Side, Work};
use crate::{LabError, Value};

pub const ID: &str = "io-wq";

/// Index of the arm with the kernel's structure before the patch. The next constants are the indices of the other arms.
pub const BEFORE: usize = 0;
pub const SEED: usize = 1;
pub const SHARDED: usize = 2;
pub const AFTER: usize = 3;
pub const RING: usize = 4;
pub const KERNEL: usize = 5;

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

/// Implementation of each arm, by index.
pub const SIDES: [Side; 6] = [
    Side::Ours(wq::Arm::OneList),
    Side::Ours(wq::Arm::FlagsOnce),
    Side::Ours(wq::Arm::Sharded),
    Side::Ours(wq::Arm::Stealing),
    Side::Ours(wq::Arm::Ring),
    Side::Kernel,
];

/// Largest number of workers that a pool accepts.
const MOST_WORKERS: u64 = 4096;

/// Parameters of this experiment's points beyond those of every point.
pub const PARAMETERS: &[Parameter] = &[
    Parameter { name: "workers", values: Values::Numbers(1, MOST_WORKERS) },
    Parameter { name: "cpus", values: Values::Numbers(1, u64::MAX) },
    Parameter { name: "stepped", values: Values::Numbers(0, 1) },
    Parameter { name: "work", values: Values::Text },
];

/// Those parameters of every point that have no meaning in this experiment.
pub const UNUSED: &[&str] = &["bs", "rw"];

pub fn flood(workers: u64) -> Point {
    Point { depth: 128, batch: 32, ..Point::default() }.with("workers", workers)
}

/// Number of workers in the rows whose items do some work.
pub const SOME: u64 = 16;
/// Label of the row of items that block.
pub const BLOCKING: &str = "blocking: items sleep 1 ms";
/// Label of the row of items that resemble those of the published web server.
pub const SERVING: &str = "HTTP-like: 1 of 8 waits";

pub fn blocking(workers: u64) -> Point {
    Point { batch: 64, depth: 64, ..flood(workers) }.with("work", "sleep:1ms")
}

/// Returns a point of items like those of a web server: one of 8 waits 50 us, the others take 2 us.
pub fn serving(workers: u64) -> Point {
    flood(workers).with("work", "http")
}

/// Parses the parameter `work` of a point.
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

/// Returns the usage error for a point that cannot be measured.
pub fn bad(why: &str) -> LabError {
    LabError::usage(why).fix("write for example depth=128,batch=32,workers=16,work=sleep:1ms")
}
