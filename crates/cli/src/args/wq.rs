//! Arguments of `sheave bench wq:`, which measures the worker pool and no device.

use std::time::Duration;

use clap::{Args, ValueEnum};
use sheave::base::units;
use sheave_lab::wq::{Arm, Work};

use super::value;

/// What `sheave bench wq:` is asked beside what all runs are asked.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Workers (wq: only)")]
pub struct WqArgs {
    /// Most workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), default_value_t = 2)]
    pub workers: u32,

    /// Threads that queue work, each with --depth items in flight.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256), default_value_t = 1)]
    pub submitters: u32,

    /// CPUs that workers run on, such as 0 or 0-3, as --cpu places submitters [default: those of the process].
    #[arg(long, value_name = "LIST", value_parser = value::cpu_list)]
    pub worker_cpu: Option<value::CpuList>,

    /// What an item does: nop, spin:TIME or sleep:TIME, as spin:500ns or sleep:100us.
    #[arg(long, value_name = "WORK", value_parser = work, default_value = "nop")]
    pub work: Work,

    /// Give items one of N hashes in turn; items of one hash never run at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096), default_value_t = 0)]
    pub hashed: u32,

    /// What to measure [default: ring for nop without hashes, else stealing].
    #[arg(long, value_enum)]
    pub arm: Option<ArmArg>,
}

/// A pool, or a way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArmArg {
    /// A ring's own way: SQEs with IOSQE_ASYNC, results as CQEs.
    Ring,
    /// The pool that rings use, without a ring.
    Stealing,
    /// One list under one lock, flags read where they are needed: as the kernel's io-wq was.
    OneList,
    /// The same with the flags read once.
    FlagsOnce,
    /// A list a worker, submitters going round, nobody helps anybody.
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
