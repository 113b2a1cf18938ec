//! The command line as clap sees it: names, defaults, help texts and the parsers of single values.
//!
//! Whether the values fit together, or fit the device, is judged later in `bench::plan`.

mod bench;
mod doctor;
#[cfg(test)]
mod tests;
mod value;
mod wq;

use clap::{Parser, Subcommand};

pub use bench::{BenchArgs, Peer, ProgressStyle, Rw};
pub use doctor::DoctorArgs;
pub use value::CpuList;
pub use wq::{Arm, Work};

const EXAMPLES: &str = "\
Examples:
  sheave doctor
        what this machine lacks for fast I/O, and how to fix it
  sheave bench file:/tmp/first.img,size=64M --rw randrw --verify
        reads and writes on a file that it makes, every block checked
  sheave bench null:size=1T --poll --compare kernel
        what an I/O costs, beside the kernel's io_uring

All options of a command: sheave bench --help";

/// The Linux block I/O fast path in user space.
#[derive(Debug, Parser)]
#[command(name = "sheave", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure a device, or check that it keeps what is written to it.
    Bench(Box<BenchArgs>),
    /// Probe this machine for what Sheave needs, and say how to fix what is missing.
    Doctor(DoctorArgs),
}
