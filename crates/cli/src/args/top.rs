//! Arguments of `sheave top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sheave_base::units::parse_duration;

/// Arguments of `sheave top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Print what happens in one interval, and end.
    #[arg(long)]
    pub once: bool,

    /// With --once: print a JSON object instead of text.
    #[arg(long, requires = "once")]
    pub json: bool,

    /// How long to count before each look.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,

    /// The control socket of the server.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Keys: 1 exports, 2 clients, 3 pools, 4 queues, which are the rings of the threads that serve, 5 devices (or Tab); s
sorts exports by the next column; up and down choose an export, Enter shows its reads, writes and other I/O, Esc goes
back; q ends.

%UTIL is the share of the time in which a device had at least one request.

SPLIT is where the time of I/O goes: w with a worker, t waiting for a tag, p gathered in a batch, d in the driver,
r ended and not yet seen.

Examples:
  sheave top
  sheave top --interval 5s
  sheave top --once
  sheave top --once --json

Exit code: 0 done, 1 it failed, 2 the command line makes no sense.";

fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).map_err(|error| error.to_string())?;
    let is_sane = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval);
    if is_sane { Ok(interval) } else { Err("an interval is 100ms to 1h".into()) }
}
