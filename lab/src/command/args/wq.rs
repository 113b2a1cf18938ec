//! Arguments of `sheave-lab wq`, which measures the worker pool without a device.

use std::time::Duration;

use clap::{Args, ValueEnum};
use sheave_base::units;
use sheave_load::value;

use crate::wq::{Arm, Work};

const EXAMPLES: &str = "\
Examples:
  sheave-lab wq --depth 128 --batch 32 --workers 2 --compare kernel
        a flood of NOPs through a ring and its workers, and the same through the kernel's
  sheave-lab wq --depth 64 --batch 64 --workers 64 --work sleep:10ms
        work that blocks
  sheave-lab wq --depth 128 --batch 32 --workers 16 --submitters 2 --arm one-list
        a pool as it was before
  sheave-lab wq --work spin:500ns --hashed 50 --json

Times take ns, us, ms, s. What the figures mean: docs/internals/io-wq.md";

/// Arguments of `sheave-lab wq`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct WqArgs {
    /// Items in flight, of each submitter.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), default_value_t = 32)]
    pub depth: u32,

    /// Items handed over at once [default: a quarter of the depth, at most 32].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: Option<u32>,

    /// Maximum of workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), default_value_t = 2)]
    pub workers: u32,

    /// Threads that queue work, each with --depth items in flight.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256), default_value_t = 1)]
    pub submitters: u32,

    /// CPUs that submitters run on, one each in turn, such as 1 or 0-3 [default: those of the process].
    #[arg(long, value_name = "LIST", value_parser = value::cpu_list)]
    pub cpu: Option<value::CpuList>,

    /// CPUs that workers run on [default: those of the process].
    #[arg(long, value_name = "LIST", value_parser = value::cpu_list)]
    pub worker_cpu: Option<value::CpuList>,

    /// Work of an item: nop, spin:TIME or sleep:TIME, as spin:500ns or sleep:100us.
    #[arg(long, value_name = "WORK", value_parser = work, default_value = "nop")]
    pub work: Work,

    /// Give items one of N hashes in turn; items of one hash never run at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096), default_value_t = 0)]
    pub hashed: u32,

    /// Pool to measure [default: ring for nop without hashes, else stealing].
    #[arg(long, value_enum)]
    pub arm: Option<ArmArg>,

    /// Time to measure, for each side of a comparison.
    #[arg(long, value_name = "TIME", value_parser = value::duration, default_value = "5s")]
    pub runtime: Duration,

    /// Measure this beside the arm, in turns.
    #[arg(long, value_enum, value_name = "PEER")]
    pub compare: Option<PeerArg>,

    /// Pairs of turns with --compare; each side gets --runtime in all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 5)]
    pub pairs: u32,

    /// Print one JSON object to stdout instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// Peer of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeerArg {
    /// The kernel's io_uring: NOPs with IOSQE_ASYNC.
    Kernel,
}

/// A pool of ours, or a ring over one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArmArg {
    /// A ring: SQEs with IOSQE_ASYNC, results as CQEs.
    Ring,
    /// The pool that rings use, without a ring.
    Stealing,
    /// One list under one lock, flags read at each use, as in the kernel's io-wq before the patch.
    OneList,
    /// One list under one lock, the flags of an item read once when it is taken.
    FlagsOnce,
    /// One list per worker, filled round-robin by submitters; no stealing.
    Sharded,
}

impl From<ArmArg> for Arm {
    fn from(arm: ArmArg) -> Self {
        match arm {
            ArmArg::Ring => Self::Ring,
            ArmArg::Stealing => Self::Stealing,
            ArmArg::OneList => Self::OneList,
            ArmArg::FlagsOnce => Self::FlagsOnce,
            ArmArg::Sharded => Self::Sharded,
        }
    }
}

fn work(text: &str) -> Result<Work, String> {
    let time = |text: &str| match text.parse() {
        Ok(ns) => Ok(Duration::from_nanos(ns)),
        Err(_) => units::parse_duration(text).map_err(|err| err.to_string()),
    };
    match text.split_once(':') {
        None if text == "nop" => Ok(Work::Nop),
        Some(("spin", ns)) => Ok(Work::Spin(time(ns)?)),
        Some(("sleep", us)) => match us.parse() {
            Ok(us) => Ok(Work::Sleep(Duration::from_micros(us))),
            Err(_) => Ok(Work::Sleep(time(us)?)),
        },
        _ => Err("expected nop, spin:TIME or sleep:TIME; a bare number is ns to spin, us to sleep".into()),
    }
}
