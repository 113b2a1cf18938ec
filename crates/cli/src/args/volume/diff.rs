//! Arguments of `sheave volume diff`, `export-diff` and `import-diff`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sheave_daemon::place::VolumePlace;

use crate::args::{ProgressStyle, value};

const DIFF_EXAMPLES: &str = "\
Examples:
  sheave volume diff 'pool.img#root@monday' 'pool.img#root'
        what was written or discarded since the snapshot root@monday
  sheave volume diff 'pool.img#root@monday' 'pool.img#root@tuesday' --json
        the same between two snapshots, as qemu-img map prints it

Maps say what may differ. Where a write to a part of what a snapshot shares has copied the rest, the blocks of both are
read and compared, so that what differs is told and nothing else; blocks whose checksums differ are not read.";

const EXPORT_EXAMPLES: &str = "\
Examples:
  sheave volume export-diff 'pool.img#root@monday' monday.diff
        all of a snapshot: where a chain of backups begins
  sheave volume export-diff 'pool.img#root@tuesday' --from @monday tuesday.diff
        what changed between two snapshots
  sheave volume export-diff 'pool.img#root@tuesday' --from @monday --format v1 - | rbd import-diff - rbd/root
        into Ceph, which takes version 1

What changed is read, and what was copied beside it, to be told apart. docs/operate/pools.md has a backup with diffs
from end to end.";

const IMPORT_EXAMPLES: &str = "\
Examples:
  sheave volume import-diff monday.diff 'copy.img#root'
        a diff that begins at nothing makes the volume, and its snapshot root@monday
  sheave volume import-diff tuesday.diff 'copy.img#root'
        brings it from root@monday to root@tuesday, and makes that snapshot
  rbd export-diff rbd/root@tuesday - | sheave volume import-diff - 'pool.img#root' --as @tuesday

A snapshot that has its volume's name gets the name of the volume here: web@monday becomes root@monday of root. One
without keeps its name.

The volume must hold exactly what its snapshot at the beginning of the diff holds. It changes in one step at the end: an
import that fails or is killed leaves it as it was, and is started again with the same command.";

/// `sheave volume diff`.
#[derive(Debug, Args)]
#[command(after_help = DIFF_EXAMPLES)]
pub struct DiffArgs {
    /// The volume or snapshot to begin at.
    #[arg(value_name = "POOL#OLD")]
    pub before: VolumePlace,

    /// The volume or snapshot to lead to, of the same pool.
    #[arg(value_name = "POOL#NEW")]
    pub after: VolumePlace,

    /// Print a JSON array in the shape of `qemu-img map --output=json`: the extents of NEW that differ.
    #[arg(long)]
    pub json: bool,

    /// How to show the progress.
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: ProgressStyle,
}

/// The version of a diff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffFormat {
    /// For Ceph's `rbd`: snapshots have names alone.
    V1,
    /// Snapshots have an identity too, so that a diff goes onto the right one only.
    V2,
}

/// `sheave volume export-diff`.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub struct ExportDiffArgs {
    /// The snapshot that the diff leads to, or a volume as it is now.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// The diff to write: a file, or - for stdout.
    #[arg(value_name = "OUT")]
    pub file: PathBuf,

    /// The snapshot that the diff begins at; @SNAPSHOT for one of the same volume [default: nothing, so that all data
    /// is in it].
    #[arg(long, value_name = "SNAPSHOT", value_parser = value::snapshot_name)]
    pub from: Option<String>,

    /// Version of the format.
    #[arg(long, value_enum, default_value = "v2")]
    pub format: DiffFormat,

    /// Overwrite a file that exists, without asking.
    #[arg(long, short = 'y')]
    pub yes: bool,

    /// Print one JSON object instead of text (not with - , where stdout is the diff).
    #[arg(long)]
    pub json: bool,

    /// How to show the progress.
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: ProgressStyle,
}

/// `sheave volume import-diff`.
#[derive(Debug, Args)]
#[command(after_help = IMPORT_EXAMPLES)]
pub struct ImportDiffArgs {
    /// The diff: a file, or - for stdin.
    #[arg(value_name = "IN")]
    pub file: PathBuf,

    /// The volume. Made by a diff that begins at nothing.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// What the snapshot at the beginning of the diff is called here; @SNAPSHOT for one of the volume [default: as in
    /// the diff].
    #[arg(long, value_name = "SNAPSHOT", value_parser = value::snapshot_name)]
    pub base: Option<String>,

    /// Disconnect the clients of the volume first, where a server serves it.
    #[arg(long, short = 'f')]
    pub force: bool,

    /// What to call the snapshot that the diff leads to; @SNAPSHOT makes it one of the volume [default: as in the
    /// diff].
    #[arg(long = "as", value_name = "SNAPSHOT", value_parser = value::snapshot_name)]
    pub name: Option<String>,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How to show the progress.
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: ProgressStyle,
}
