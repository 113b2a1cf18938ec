//! Arguments of `sheave doctor`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  sheave doctor                      probe the machine
  sheave doctor /var/lib/vm.img      and whether this file can do direct I/O
  sheave doctor /dev/nvme0n1 --json  and this device, as one JSON object

Exit code 0 when everything `file:` needs is there (warnings are fine), 1 when something is missing.";

/// Arguments of `sheave doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// A file, directory or block device that I/O shall go to.
    pub path: Option<PathBuf>,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}
