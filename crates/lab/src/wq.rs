//! A flood of small work for worker pools: what `sheave-lab wq` and the experiment io-wq measure.
//!
//! Owns what a flood is, and the pools that can take it; each turn has a pool and rings of its own. Does not decide in
//! which order turns come.
//!
//! | module | holds |
//! |---|---|
//! | [`turn`] | one turn: submitters in step, each with the loop of all benches |
//! | [`side`] | what is measured: the ring, the pool, earlier pools, the kernel |
//! | [`pool_engine`], [`ring_engine`] | the loop's view of a pool, and of a ring |
//! | [`arms`] | pools as they were before, kept for comparison |

use sheave_base::sync::atomic::AtomicBool;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sheave_base::units;

pub mod arms;
pub mod pool_engine;
pub mod ring_engine;
pub mod side;
pub mod turn;

pub use side::Side;
pub use turn::{PoolFigures, Turn};

/// A flood.
#[derive(Clone, Debug)]
pub struct Flood {
    /// Items in flight, a submitter.
    pub depth: u32,
    /// Items handed over at once.
    pub batch: u32,
    /// Most workers.
    pub workers: u32,
    /// Threads that queue.
    pub submitters: u32,
    /// What an item does.
    pub work: Work,
    /// Hashes; 0 for none.
    pub hashed: u32,
    /// How long a turn warms up.
    pub warm_up: Limit,
    /// What ends a turn.
    pub turn: Limit,
    /// The CPU of each submitter in turn; none for any.
    pub cpus: Vec<usize>,
    /// CPUs of workers; none for any.
    pub worker_cpus: Vec<usize>,
    /// No worker threads: the one submitter runs the items itself while it waits. For counting instructions.
    pub stepped: bool,
    /// Set by Ctrl-C.
    pub stop: Arc<AtomicBool>,
}

impl Flood {
    /// Whether a submitter and a worker can run at once: they have more than one CPU between them.
    pub fn has_cpus_for_both(&self) -> bool {
        let allowed = sheave_load::cpu::allowed();
        let or_all = |cpus: &[usize]| if cpus.is_empty() { allowed.clone() } else { cpus.to_vec() };
        let mut all = [or_all(&self.cpus), or_all(&self.worker_cpus)].concat();
        all.sort_unstable();
        all.dedup();
        all.len() > 1
    }
}

/// What ends a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A time.
    Time(Duration),
    /// A number of items, of each submitter.
    Items(u64),
}

/// What an item does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing.
    Nop,
    /// Computes for this time.
    Spin(Duration),
    /// Sleeps for this time.
    Sleep(Duration),
    /// What a web server's workers do: of 8 items one waits for a connection, 50 us, and the others read or write what
    /// is there, 2 us each.
    Http,
}

impl Work {
    /// What the item in a slot does.
    pub fn of(self, slot: u32) -> Work {
        match self {
            Self::Http if slot.is_multiple_of(8) => Self::Sleep(Duration::from_micros(50)),
            Self::Http => Self::Spin(Duration::from_micros(2)),
            other => other,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nop => f.write_str("nop"),
            Self::Http => f.write_str("http"),
            Self::Spin(time) => write!(f, "spin:{}", units::fmt_ns(time.as_nanos() as u64)),
            Self::Sleep(time) => write!(f, "sleep:{}", units::fmt_ns(time.as_nanos() as u64)),
        }
    }
}

/// A pool, or a way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// A ring's own way: SQEs with IOSQE_ASYNC, results as CQEs.
    Ring,
    /// The pool that rings use, without a ring.
    Stealing,
    /// One list under one lock, flags read where they are needed: as the kernel's io-wq was.
    OneList,
    /// One list under one lock, the flags of an item read once, when it is taken.
    FlagsOnce,
    /// A list a worker, submitters going round, nobody helps anybody.
    Sharded,
}

impl Arm {
    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Stealing => "stealing",
            Self::OneList => "one-list",
            Self::FlagsOnce => "flags-once",
            Self::Sharded => "sharded",
        }
    }
}
