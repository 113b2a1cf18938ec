//! Arguments of `sheave bench vol:` alone: the pool that is made for a run in memory.

use clap::Args;

use super::pool::ChecksumArg;
use super::value;

/// The pool of a run in memory.
#[derive(Debug, Clone, Args)]
pub struct VolArgs {
    /// Allocation unit of the pool that vol:ram: and vol:null: make.
    #[arg(long, value_name = "SIZE", value_parser = value::unit_size, default_value = "64k",
          help_heading = "For vol: in memory")]
    pub block: u64,

    /// Checksums of data in that pool.
    #[arg(long, value_enum, default_value = "none", help_heading = "For vol: in memory")]
    pub checksum: ChecksumArg,
}
