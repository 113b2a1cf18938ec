//! Arguments of `sheave man` and `sheave completions`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

const MAN_EXAMPLES: &str = "\
Examples:
  sheave man ~/.local/share/man/man1 && man sheave-volume-create
        a page for each command, named as sheave-pool-grow.1 is

Exit code: 0 done, 1 it failed, 2 the command line makes no sense.";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  sheave completions bash > ~/.local/share/bash-completion/completions/sheave
  sheave completions zsh > ~/.zfunc/_sheave
  sheave completions fish > ~/.config/fish/completions/sheave.fish

Exit code: 0 done, 1 it failed, 2 the command line makes no sense.";

/// Arguments of `sheave man`.
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// The directory for the pages; made if it is not there.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Arguments of `sheave completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}
