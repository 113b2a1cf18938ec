//! Definition of the command line for clap: names, defaults, help texts and parsers of single values.
//!
//! `bench::plan` checks later that the values fit together and fit the device.

mod bench;
pub mod control;
mod doctor;
mod man;
pub mod pool;
mod progress;
pub mod serve;
mod status;
mod switch;
#[cfg(test)]
mod tests;
mod top;
pub mod trace;
pub mod upgrade;
pub mod value;
mod vol;
pub mod volume;

use std::ffi::OsString;
use std::io::IsTerminal;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use bench::{BenchArgs, Peer};
pub use doctor::DoctorArgs;
pub use man::{CompletionsArgs, ManArgs};
pub use progress::ProgressStyle;
use sheave_daemon::failure::Failure;
pub use status::StatusArgs;
pub use switch::Switch;
pub use top::TopArgs;

const EXAMPLES: &str = "\
Examples:
  sheave doctor
        what this machine lacks for fast I/O, and how to fix it
  sheave bench file:/tmp/first.img,size=64M --rw randrw --verify
        reads and writes on a file that it makes, every block checked
  sheave bench null:size=1T --poll --compare kernel
        what an I/O costs, beside the kernel's io_uring
  sheave pool create pool.img --size 10G
  sheave volume create 'pool.img#disk' --size 100G
        a pool in a file, and a thin volume in it
  sheave serve 'pool.img#disk' --nbd unix:/tmp/disk.sock
        the volume for QEMU, nbdcopy, fio and others

All options of a command: sheave bench --help";

/// The Linux block I/O fast path in user space.
#[derive(Debug, Parser)]
#[command(name = "sheave", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Tell nothing on stderr but warnings and errors: neither who is asked nor how far it is.
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure a device, or check that it keeps what is written to it.
    Bench(Box<BenchArgs>),
    /// Make and look after pools: space on files and block devices for thin volumes.
    #[command(alias = "pools")]
    Pool(pool::PoolArgs),
    /// Work with the thin volumes of a pool: create, snapshot, clone, import, export.
    #[command(aliases = ["volumes", "vol"])]
    Volume(volume::VolumeArgs),
    /// Serve a volume, snapshot or device over NBD, to QEMU, nbdcopy, the kernel and others.
    Serve(serve::ServeArgs),
    /// Take over from a running server: its clients notice a short pause.
    Upgrade(upgrade::UpgradeArgs),
    /// List, add and remove what a running server serves.
    #[command(alias = "exports")]
    Export(control::ExportArgs),
    /// List and disconnect the clients of a running server.
    #[command(alias = "clients")]
    Client(control::ClientArgs),
    /// List the devices under a running server, and turn their statistics on and off.
    #[command(alias = "devices")]
    Device(control::DeviceArgs),
    /// Show everything about the running servers on one screen: what is wrong, pools and exports.
    Status(StatusArgs),
    /// Show which I/Os of a running server were slow, and why.
    Slow(control::SlowArgs),
    /// Record each request of a running server, and export what was recorded.
    Trace(trace::TraceArgs),
    /// Watch what a running server does: its exports, clients and pools.
    Top(TopArgs),
    /// Probe this machine for what Sheave needs, and say how to fix what is missing.
    Doctor(DoctorArgs),
    /// Write the manual pages of all commands.
    Man(ManArgs),
    /// Print the completions for a shell.
    Completions(CompletionsArgs),
}

/// A non-breaking blank. It replaces the blanks in examples while clap wraps a page.
const UNBREAKABLE: &str = "\u{a0}";

/// Parses a command line.
pub fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&unbroken(Cli::command()).try_get_matches_from(args)?)
}

/// Protects the examples in help texts from being wrapped on a narrow terminal, so that they can be copied.
fn unbroken(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(unbroken);
    let Some(text) = command.get_after_help().map(ToString::to_string) else { return command };
    let whole = |line: &str| if line.starts_with(' ') { line.replace(' ', UNBREAKABLE) } else { line.to_owned() };
    command.after_help(text.lines().map(whole).collect::<Vec<_>>().join("\n"))
}

/// Formats a page of help for printing.
pub fn page(page: &clap::Error) -> String {
    let styled = page.render();
    let has_colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let text = if has_colours { styled.ansi().to_string() } else { styled.to_string() };
    text.replace(UNBREAKABLE, " ")
}

/// Converts the error for a command line that clap refuses into a failure. Clap's text goes to stderr unchanged.
pub fn command_line(err: &clap::Error) -> Failure {
    let text = err.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let cause = lines.next().unwrap_or("the command line makes no sense");
    Failure::usage(cause.strip_prefix("error: ").unwrap_or(cause)).fix("see --help")
}
