//! Arguments of `sheave status`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `sheave status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// Print a JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// The control socket of the server [default: all servers that answer this user].
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Problems come first, the most severe one first, each with its cause and what to do about it; then servers, pools and
exports.

Examples:
  sheave status
  sheave status --json | jq .severity

Exit code, as of a check of Nagios: 0 all is well, 1 a warning, 2 something is not served, fails or was lost, 3 no
server could be asked. A command line that makes no sense is 2, too.";
