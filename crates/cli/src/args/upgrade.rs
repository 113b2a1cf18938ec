//! Arguments of `sheave upgrade`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
This program takes over from a running server: pools, exports, sockets and all connected clients, which notice a pause
of a fraction of a second. If anything is in the way, the old server goes on as if nothing had happened. The way back
is the same: run the older program's `upgrade`.

Clients that use TLS are disconnected when their requests are answered, and connect again. A server of one SPEC, and one
with exports in memory, is restarted instead (docs/operate/upgrade.md).

Examples:
  ./sheave-new upgrade --dry-run
        what would be taken over, and what is in the way
  ./sheave-new upgrade
  ./sheave-new upgrade --config /etc/sheave/new.toml --control /run/sheave/control.sock
        with another configuration, which still has all that is in use

Exit code: 0 the new server serves (with --dry-run: it would), 1 it does not and the old one goes on, 2 the command line
or the configuration makes no sense.";

/// Arguments of `sheave upgrade`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UpgradeArgs {
    /// Take over with this configuration [default: that of the running server].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check only: print what would be taken over, and everything that is in the way.
    #[arg(long)]
    pub dry_run: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// The control socket of the server [default: that of the only one that answers this user].
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}
