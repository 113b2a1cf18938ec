//! The design of the experiment: its arms by index, the points of the published tables, and the points that it can
//! measure.

use sheave_load::Rw;

use super::subject::{self, Place};
use crate::terms::{ArmInfo, Role};
use crate::{LabError, Point};

pub const ID: &str = "dio-completion";

/// The settings in which the ring arms differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Earliest place at which overwrites complete.
    pub place: Place,
    /// True if I/O is submitted one by one, like on a demoted file, and not as a run of plain I/O.
    pub general: bool,
}

/// Index of the arm whose writes complete in the issuer's task.
pub const SEED: usize = 1;
/// Index of the arm whose writes complete where they are reaped. Everything else is like in `before` and `seed`.
pub const INLINE: usize = 2;
/// Index of the arm with Sheave like it ships.
pub const AFTER: usize = 3;

pub const SYNC: usize = 4;

pub static ARMS: [ArmInfo; 5] = [
    ArmInfo {
        name: "before",
        role: Role::Before,
        what: "Every write completes in a worker (MAP_WORKER), whether it has anything to do there or not",
    },
    ArmInfo {
        name: "seed",
        role: Role::Seed,
        what: "An overwrite completes in the issuer's task (MAP_TASK): the ring's thread, after the reap; the thread's \
               patches 2 to 5, for rows with interrupts",
    },
    ArmInfo {
        name: "inline",
        role: Role::Other,
        what: "An overwrite completes where it is reaped; it goes in one by one, as in the two before; the thread's \
               patch 1, for polled rows",
    },
    ArmInfo { name: "after", role: Role::After, what: "Sheave: the same, and plain overwrites also go in as one run" },
    ArmInfo {
        name: "sync pwrite",
        role: Role::Other,
        what: "A synchronous write, beside which async ones were found slow: its caller maps, submits, waits and \
               finishes by itself; one at a time, so in rows of QD 1 alone",
    },
];

/// Settings of the arms that use a ring, by index.
pub const KINDS: [Kind; 4] = [
    Kind { place: Place::Worker, general: false },
    Kind { place: Place::Task, general: false },
    Kind { place: Place::Inline, general: true },
    Kind { place: Place::Inline, general: false },
];

/// Queue depths of the published tables.
pub const DEPTHS: [u32; 5] = [1, 2, 4, 8, 16];

/// Name of the sweep over the CPU of the workers.
pub const PLACEMENT: &str = "placement";
/// Label of the row with one I/O at a time and the workers on the ring's CPU.
pub const ON_RINGS_CPU: &str = "QD 1, ring's CPU";

/// Returns a point of random overwrites of 4 KiB, submitted one by one.
pub fn overwrites(depth: u32) -> Point {
    Point { bs: 4096, batch: 1, depth, threads: 1, rw: Rw::Randwrite, ..Point::default() }
}

/// Returns a point of the same overwrites on a device that ends I/O by itself, like an interrupt does.
pub fn interrupted(depth: u32) -> Point {
    overwrites(depth).with("ends", "interrupt")
}

/// Returns true if a synchronous write does the same work at `point`: one write at a time, on the file in memory,
/// without a flush.
pub fn is_synchronous(point: &Point) -> bool {
    let in_memory = point.text("file").is_none_or(|text| text == "memory");
    let dsync = subject::cell(point).is_ok_and(subject::Cell::dsync);
    point.depth == 1 && point.batch == 1 && in_memory && point.text("worker").is_none() && !dsync
}

/// Returns the points of QD 1 for each kind of write and of completion, where a synchronous write is compared with
/// async ones.
pub fn one_at_a_time() -> [(&'static str, Point); 4] {
    let unwritten = |point: Point| point.with("cell", "unwritten");
    [
        ("overwrite, polled", overwrites(1)),
        ("overwrite, interrupts", interrupted(1)),
        ("unwritten, polled", unwritten(overwrites(1))),
        ("unwritten, interrupts", unwritten(interrupted(1))),
    ]
}

/// Returns the label of a row of the published tables.
pub fn row_label(depth: u32, ends: &str) -> String {
    format!("QD {depth}, {ends}")
}

/// Checks that every arm can be built for a point.
pub fn admit(point: &Point) -> Result<(), LabError> {
    point.check(ID, &subject::PARAMETERS, &[])?;
    if point.threads != 1 || !point.rw.writes() || point.rw.reads() {
        return Err(LabError::usage(format!("dio-completion writes with one thread, but the point is {point}"))
            .fix("use threads=1 and rw=randwrite or rw=write"));
    }
    subject::fits(point)
}
