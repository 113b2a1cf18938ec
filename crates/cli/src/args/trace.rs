//! Arguments of `sheave trace`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::value;

const EXAMPLES: &str = "\
A trace has the last requests that a server has sent to its devices, each with the time that it spent in every stage.
It is a file for each reactor in a directory beside the control socket (/run/sheave/control.trace for root), which stays
when the trace or the server ends, also by a crash. The next start replaces it.

Examples:
  sheave trace start --size 16M
  sheave trace stop
  sheave trace export --blktrace /tmp/t && blkparse -i /tmp/t -d /tmp/t.bin && btt -i /tmp/t.bin
  sheave trace export --chrome /tmp/t.json
        for ui.perfetto.dev
  sheave bench null:size=1T --trace /tmp/d && sheave trace export --from /tmp/d --chrome /tmp/t.json

Exit code: 0 done, 1 it failed, 2 the command line makes no sense.";

/// Arguments of `sheave trace`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TraceArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TraceCommand,

    /// The control socket of the server.
    #[arg(long, value_name = "PATH", global = true)]
    pub control: Option<PathBuf>,

    /// Print one JSON object instead of text.
    #[arg(long, global = true)]
    pub json: bool,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Begin a trace; the one before it goes.
    #[command(after_help = "Examples:\n  sheave trace start --size 16M")]
    Start {
        /// Bytes of the file of each reactor; an entry takes 32, and a power of two of them fits in. The newest replace
        /// the oldest.
        #[arg(long, value_name = "SIZE", value_parser = value::size, default_value = "2M")]
        size: u64,
    },
    /// End the trace; what was written stays.
    #[command(after_help = "Examples:\n  sheave trace stop")]
    Stop,
    /// Write what was traced for other tools. Needs no server, and may be asked while the trace goes on.
    #[command(after_help = "\
Examples:
  sheave trace export --blktrace /tmp/t
  sheave trace export --chrome /tmp/t.json --from /run/sheave/control.trace")]
    Export {
        /// Write BASE.blktrace.0 and so on, a file for each reactor, for blkparse, btt and fio.
        #[arg(long, value_name = "BASE", required_unless_present = "chrome")]
        blktrace: Option<PathBuf>,

        /// Write a JSON file that Perfetto and Chrome show.
        #[arg(long, value_name = "FILE")]
        chrome: Option<PathBuf>,

        /// A trace, or a directory of them [default: those of the server].
        #[arg(long, value_name = "PATH")]
        from: Option<PathBuf>,
    },
}
