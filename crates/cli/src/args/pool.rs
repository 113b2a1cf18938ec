//! Arguments of `sheave pool`.

use clap::{Args, Subcommand, ValueEnum};
use sheave::vol::LowWater;

use super::value;
use crate::pool::place::PoolPlace;

const EXAMPLES: &str = "\
POOL is one of
  pool.img                       a file or block device
  a.img+b.img                    several, end to end, always named in the same order
  file:pool.img,direct=off       a device spec (sheave bench --help lists them)

Examples:
  sheave pool create pool.img --size 10G
  sheave pool info pool.img
  sheave pool check pool.img --dry-run
  sheave pool grow pool.img --size 20G
  sheave pool set pool.img --low-water 15%

A pool is open in one process at a time. Volumes in it: sheave volume --help.
Exit code: 0 done, 1 it failed or a check found something, 2 the command line makes no sense.";

const SET_EXAMPLES: &str = "\
Examples:
  sheave pool set pool.img --low-water 15%
  sheave pool set pool.img --low-water 200G
  sheave pool set pool.img --low-water off";

/// What `sheave pool` is asked.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PoolArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PoolCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Format a file or block device as a pool.
    Create(CreateArgs),
    /// Show how large and how full a pool is.
    Info(InfoArgs),
    /// Verify a closed pool: all of its metadata, and every reference in it.
    Check(CheckArgs),
    /// Take in what the file or device has grown by.
    Grow(GrowArgs),
    /// Change what can be changed of a pool.
    Set(SetArgs),
    /// Read all data and compare it with its checksums.
    Scrub(ScrubArgs),
}

/// Checksums of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChecksumArg {
    /// None; metadata has its own always.
    None,
    /// CRC32C of every 4 KiB, verified by each read.
    Crc32c,
}

impl ChecksumArg {
    /// As pools call it.
    pub fn kind(self) -> sheave::vol::Checksum {
        match self {
            Self::None => sheave::vol::Checksum::None,
            Self::Crc32c => sheave::vol::Checksum::Crc32c,
        }
    }
}

/// `sheave pool create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The file or device, or several joined by `+`.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Size of the file. A missing file is made (sparse), a shorter one grown [default: what is there].
    #[arg(long, value_name = "SIZE", value_parser = value::size)]
    pub size: Option<u64>,

    /// Allocation unit: what volumes get space in, and what a shared piece is copied in; a power of two from 4k to 1M.
    #[arg(long, value_name = "SIZE", value_parser = value::unit_size, default_value = "64k")]
    pub block: u64,

    /// Bytes of the journal [default: by the size of the pool].
    #[arg(long, value_name = "SIZE", value_parser = value::size)]
    pub journal: Option<u64>,

    /// Checksums of data.
    #[arg(long, value_enum, default_value = "none")]
    pub checksum: ChecksumArg,

    /// Free space below which the pool counts as low and commands warn: of the pool (10%), bytes (5G), or off.
    #[arg(long, value_name = "MARK", value_parser = value::low_water, default_value = "10%")]
    pub low_water: LowWater,

    /// Overwrite what is there, without asking.
    #[arg(long)]
    pub yes: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `sheave pool info`.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `sheave pool check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Mend what can be mended, after showing it and asking.
    #[arg(long)]
    pub repair: bool,

    /// Only show what --repair would do.
    #[arg(long)]
    pub dry_run: bool,

    /// Repair without asking.
    #[arg(long)]
    pub yes: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `sheave pool grow`.
#[derive(Debug, Args)]
pub struct GrowArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Make the file this large first [default: take in what is there].
    #[arg(long, value_name = "SIZE", value_parser = value::size)]
    pub size: Option<u64>,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `sheave pool set`.
#[derive(Debug, Args)]
#[command(after_help = SET_EXAMPLES)]
pub struct SetArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Free space below which the pool counts as low and commands warn: of the pool (10%), bytes (5G), or off.
    #[arg(long, value_name = "MARK", value_parser = value::low_water, required = true)]
    pub low_water: LowWater,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `sheave pool scrub`.
#[derive(Debug, Args)]
pub struct ScrubArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How to show the progress.
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: super::ProgressStyle,
}
