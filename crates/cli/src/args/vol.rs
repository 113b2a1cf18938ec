//! Arguments for `sheave bench vol:` with a pool in memory, which is created for the run.

use clap::Args;

use super::pool::ChecksumArg;
use super::value;

/// Settings of the pool in memory.
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
    /// Returns the allocation unit in bytes.
    pub fn block(&self) -> u64 {
        self.block.unwrap_or(64 << 10)
    }

    /// Returns the kind of checksums.
    pub fn checksum(&self) -> ChecksumArg {
        self.checksum.unwrap_or(ChecksumArg::None)
    }
}
