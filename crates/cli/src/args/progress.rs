//! Style of the progress display, the same for all long commands.

use clap::ValueEnum;

/// How a command is shown while it goes on; always on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressStyle {
    /// A bar on a terminal; else a line now and then, as JSON if the result is JSON.
    Auto,
    /// A bar.
    Bar,
    /// A line every five seconds.
    Lines,
    /// A JSON object a line every five seconds.
    Json,
    /// Nothing.
    None,
}
