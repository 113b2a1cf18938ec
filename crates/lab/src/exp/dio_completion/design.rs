//! The design of the experiment: its arms by index, the points of the thread's tables, and which points it can measure.

use sheave_load::Rw;

use super::subject::{self, Place};
use crate::terms::{ArmInfo, Role};
use crate::{LabError, Point};

/// Its name.
pub const ID: &str = "dio-completion";

/// What distinguishes the arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Where overwrites complete at the earliest.
    pub place: Place,
    /// I/O goes in one by one, as what is demoted does, and not as a run of plain I/O.
    pub general: bool,
}

/// Index of the arm that completes in the issuer's task.
pub const SEED: usize = 1;
/// Index of the arm that completes where it is reaped, and differs from the first two in nothing else.
pub const INLINE: usize = 2;
/// Index of the product.
pub const AFTER: usize = 3;

/// Index of the synchronous write.
pub const SYNC: usize = 4;

/// The arms.
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

/// What each arm is made of that goes through a ring.
pub const KINDS: [Kind; 4] = [
    Kind { place: Place::Worker, general: false },
    Kind { place: Place::Task, general: false },
    Kind { place: Place::Inline, general: true },
    Kind { place: Place::Inline, general: false },
];

/// Queue depths of the thread's tables.
pub const DEPTHS: [u32; 5] = [1, 2, 4, 8, 16];

/// The name of the sweep over the CPU of the workers.
pub const PLACEMENT: &str = "placement";
/// Its row of one I/O at a time with workers on the ring's CPU.
pub const ON_RINGS_CPU: &str = "QD 1, ring's CPU";

/// Random overwrites of 4 KiB, handed over one by one.
pub fn overwrites(depth: u32) -> Point {
    Point { bs: 4096, batch: 1, depth, threads: 1, rw: Rw::Randwrite, ..Point::default() }
}

/// The same on a device that ends I/O by itself.
pub fn interrupted(depth: u32) -> Point {
    overwrites(depth).with("ends", "interrupt")
}

/// Whether a synchronous write does the same work there: one at a time, and not through a pool's sums or a flush.
pub fn is_synchronous(point: &Point) -> bool {
    let in_memory = point.text("file").is_none_or(|text| text == "memory");
    let dsync = subject::cell(point).is_ok_and(subject::Cell::dsync);
    point.depth == 1 && point.batch == 1 && in_memory && point.text("worker").is_none() && !dsync
}

/// One write at a time by what it finds and how it ends: where a synchronous one stands beside each async one.
pub fn one_at_a_time() -> [(&'static str, Point); 4] {
    let unwritten = |point: Point| point.with("cell", "unwritten");
    [
        ("overwrite, polled", overwrites(1)),
        ("overwrite, interrupts", interrupted(1)),
        ("unwritten, polled", unwritten(overwrites(1))),
        ("unwritten, interrupts", unwritten(interrupted(1))),
    ]
}

/// The name of a row of the thread's tables.
pub fn row_label(depth: u32, ends: &str) -> String {
    format!("QD {depth}, {ends}")
}

/// Whether an arm can be built for a point.
pub fn admit(point: &Point) -> Result<(), LabError> {
    point.check(ID, &subject::PARAMETERS, &[])?;
    if point.threads != 1 || !point.rw.writes() || point.rw.reads() {
        return Err(LabError::usage(format!("dio-completion writes with one thread, but the point is {point}"))
            .fix("use threads=1 and rw=randwrite or rw=write"));
    }
    subject::fits(point)
}
