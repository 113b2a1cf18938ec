//! A flood of small work items for worker pools, measured by `sheave-lab wq` and by the experiment io-wq.
//!
//! Owns the description of a flood, and the pools that can run it. Each turn makes a pool and rings of its own. The
//! caller decides the order of turns.
//!
//! | module | holds |
//! |---|---|
//! | [`turn`] | one turn: submitters that run together, each with the loop of all benches |
//! | [`side`] | the things measured: the ring, the pool, earlier pools, the kernel |
//! | [`pool_engine`], [`ring_engine`] | the engines that let the loop drive a pool or a ring |
//! | [`arms`] | earlier designs of the pool, kept for comparison |

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

#[derive(Clone, Debug)]
pub struct Flood {
    /// Number of items in flight, for each submitter.
    pub depth: u32,
    /// Number of items submitted together.
    pub batch: u32,
    /// Largest number of workers.
    pub workers: u32,
    pub submitters: u32,
    pub work: Work,
    /// Number of hashes over which the items are spread; 0 for items without a hash.
    pub hashed: u32,
    pub warm_up: Limit,
    pub turn: Limit,
    /// CPUs of the submitters, assigned in turn; empty for no pinning.
    pub cpus: Vec<usize>,
    /// CPUs of the workers; empty for no pinning.
    pub worker_cpus: Vec<usize>,
    /// True for a pool without worker threads, in which the only submitter runs the items while it waits. Used to count
    /// instructions.
    pub stepped: bool,
    /// Set by Ctrl-C.
    pub stop: Arc<AtomicBool>,
}

impl Flood {
    /// Returns true if submitters and workers may use more than one CPU in all, so that both can run at once.
    pub fn has_cpus_for_both(&self) -> bool {
        let allowed = sheave_load::cpu::allowed();
        let or_all = |cpus: &[usize]| if cpus.is_empty() { allowed.clone() } else { cpus.to_vec() };
        let mut all = [or_all(&self.cpus), or_all(&self.worker_cpus)].concat();
        all.sort_unstable();
        all.dedup();
        all.len() > 1
    }
}

/// End of a phase: the warm-up, or the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Time(Duration),
    /// The phase ends after this number of items of each submitter.
    Items(u64),
}

/// Work of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Nop,
    Spin(Duration),
    Sleep(Duration),
    /// The shape of a web server's work: of 8 items one waits 50 us for a connection; the others read or write
    /// available data, 2 us each.
    Http,
}

impl Work {
    /// Returns the work of the item in a slot.
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

/// A pool of ours, or a ring over one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// A ring, with SQEs that have IOSQE_ASYNC and results as CQEs.
    Ring,
    /// The pool that rings use, without a ring: one queue per submitter, with stealing.
    Stealing,
    /// One list under one lock. The flags of an item are read at each use, like in the kernel's io-wq before the patch.
    OneList,
    /// One list under one lock. The flags of an item are read once, when it is taken.
    FlagsOnce,
    /// One list per worker. Submitters fill them round-robin; there is no stealing.
    Sharded,
}

impl Arm {
    /// Returns the name that the command line and JSON use.
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
