//! Arguments of `sheave bench vol:` alone: the pool that is made for a run in memory.

use clap::Args;

use super::pool::ChecksumArg;
use super::value;

/// The pool of a run in memory.
#[derive(Debug, Clone, Args)]
pub struct VolArgs {
    /// Allocation unit of the pool that vol:ram: and vol:null: make [default: 64k].
    #[arg(long, value_name = "SIZE", value_parser = value::unit_size, help_heading = "For vol: in memory")]
    pub block: Option<u64>,

    /// Checksums of data in that pool [default: none].
    #[arg(long, value_enum, help_heading = "For vol: in memory")]
    pub checksum: Option<ChecksumArg>,
}

impl VolArgs {
    /// The allocation unit.
    pub fn block(&self) -> u64 {
        self.block.unwrap_or(64 << 10)
    }

    /// The checksums.
    pub fn checksum(&self) -> ChecksumArg {
        self.checksum.unwrap_or(ChecksumArg::None)
    }
}
