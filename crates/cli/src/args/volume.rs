//! Arguments of `sheave volume`.

pub mod diff;
pub mod several;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use sheave_daemon::place::{PoolPlace, VolumePlace};

use super::{ProgressStyle, value};

const EXAMPLES: &str = "\
A volume or snapshot is POOL#NAME; put it in quotes, as some shells give # a meaning. POOL: sheave pool --help.
Names are 1 to 255 of the characters A-Z a-z 0-9 . _ - and begin with neither '-' nor '.'. A snapshot of a volume is
VOLUME@SNAPSHOT, so that each volume may have a 'monday'; where a command is about a volume, '@monday' is that of it.

Examples:
  sheave volume create 'pool.img#root' --size 20G
  sheave volume create 'pool.img#log' --max-size 100G    # grows as it is written
  sheave volume snapshot 'pool.img#root@nightly' --wait=5m    # if another command has the pool
  sheave volume import debian.img 'pool.img#root'
  sheave volume snapshot 'pool.img#root@before-upgrade'
  sheave volume snapshot 'pool.img#root' log data --at monday    # three volumes at one moment
  sheave volume clone 'pool.img#root@before-upgrade' try-it
  sheave volume rollback 'pool.img#root' @before-upgrade
  sheave volume export 'pool.img#root' - | zstd > root.img.zst
  sheave volume export-diff 'pool.img#root@tue' --from @mon - | ssh host sheave volume import-diff - 'copy.img#root'

Exit code: 0 done, 1 it failed, 2 the command line makes no sense, 130 Ctrl-C ended a copy.";

/// Arguments of `sheave volume`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct VolumeArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: VolumeCommand,

    /// Wait for a pool that another process has, this long at most [without a TIME: until Ctrl-C]: `--wait 20s`.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = value::patience,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "forever",
        global = true
    )]
    pub wait: Option<Duration>,

    /// Look for members of the pool that are not named in this directory, too. Several times for several.
    #[arg(long, value_name = "DIR", global = true)]
    pub search: Vec<PathBuf>,

    /// The control socket of the server that has the pool, if the server has one that is not in the runtime directory.
    #[arg(long, value_name = "PATH", global = true)]
    pub control: Option<PathBuf>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make an empty volume. It takes space as it is written.
    Create(CreateArgs),
    /// List the volumes and snapshots of a pool.
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show one volume or snapshot.
    #[command(alias = "show")]
    Info(OneArgs),
    /// Change the size of a volume; a smaller one loses its end.
    Resize(ResizeArgs),
    /// Give a volume or snapshot another name. Snapshots that have the volume's name follow.
    #[command(alias = "mv")]
    Rename(RenameArgs),
    /// Freeze the state of a volume under a new name, or of several volumes at one moment.
    #[command(alias = "snap")]
    Snapshot(SnapshotArgs),
    /// Make a writable volume with the content of a snapshot, or of a volume as it is.
    Clone(CloneArgs),
    /// Make a volume again what a snapshot of it is.
    Rollback(RollbackArgs),
    /// Delete volumes and snapshots. Clones of them stay.
    #[command(aliases = ["rm", "remove", "destroy"])]
    Delete(DeleteArgs),
    /// Show which parts are data, unwritten space or holes, and where on the pool they lie.
    Map(MapArgs),
    /// Copy a raw image into a volume; zeroes and holes take no space.
    Import(ImportArgs),
    /// Copy a volume into a raw image, leaving holes where there is no data.
    Export(ExportArgs),
    /// Show what differs between two volumes or snapshots of a pool, by their maps.
    Diff(diff::DiffArgs),
    /// Write what changed since a snapshot, in the RBD diff format.
    ExportDiff(diff::ExportDiffArgs),
    /// Bring a volume from one snapshot to the next, by a diff.
    ImportDiff(diff::ImportDiffArgs),
}

const CREATE_EXAMPLES: &str = "\
Examples:
  sheave volume create 'pool.img#root' --size 20G
  sheave volume create 'pool.img#log' --max-size 100G
        grows as it is written, from nothing";

/// `sheave volume create`.
#[derive(Debug, Args)]
#[command(after_help = CREATE_EXAMPLES)]
pub struct CreateArgs {
    /// The new volume.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// Size that its users see [default with --max-size: 0].
    #[arg(long, value_name = "SIZE", value_parser = value::volume_size_or_none, required_unless_present = "max_size")]
    pub size: Option<u64>,

    /// Let writes beyond its end make it larger, as they do a file, up to this size.
    #[arg(long, value_name = "SIZE", value_parser = value::volume_size)]
    pub max_size: Option<u64>,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const LIST_EXAMPLES: &str = "\
Examples:
  sheave volume list pool.img
  sheave volume list pool.img --json
  sheave volume list pool.img --kind volume --names
        the names of the volumes, a line each
  sheave volume list pool.img --of root --names
        those of the snapshots of root, the oldest first
  sheave volume list pool.img --rescue
        what is left of a pool that does not open";

/// `sheave volume list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// List what can be found in a damaged pool that does not open otherwise.
    #[arg(long)]
    pub rescue: bool,

    /// List the snapshots of this volume alone, the oldest first.
    #[arg(long, value_name = "VOLUME", value_parser = value::volume_name)]
    pub of: Option<String>,

    /// List volumes alone, or snapshots alone.
    #[arg(long, value_enum)]
    pub kind: Option<Kind>,

    /// Print the names alone, a line each.
    #[arg(long, conflicts_with = "json")]
    pub names: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// What is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// What can be written.
    Volume,
    /// What cannot.
    Snapshot,
}

const INFO_EXAMPLES: &str = "\
Examples:
  sheave volume info 'pool.img#root'
  sheave volume info 'pool.img#root@before-upgrade' --json";

/// `sheave volume info`.
#[derive(Debug, Args)]
#[command(after_help = INFO_EXAMPLES)]
pub struct OneArgs {
    /// The volume or snapshot.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const RESIZE_EXAMPLES: &str = "\
Examples:
  sheave volume resize 'pool.img#root' 40G
  sheave volume resize 'pool.img#root' +10G
  sheave volume resize 'pool.img#root' -5G --yes
        what lies in its last 5 GiB is gone
  sheave volume resize 'pool.img#log' --max-size 200G";

/// `sheave volume resize`.
#[derive(Debug, Args)]
#[command(after_help = RESIZE_EXAMPLES)]
pub struct ResizeArgs {
    /// The volume.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// The new size; +SIZE and -SIZE are taken from the present one.
    #[arg(
        value_name = "SIZE",
        value_parser = value::new_size,
        allow_hyphen_values = true,
        required_unless_present = "max_size"
    )]
    pub size: Option<value::NewSize>,

    /// How large writes may make it from now on, if it was created with a --max-size.
    #[arg(long, value_name = "SIZE", value_parser = value::volume_size)]
    pub max_size: Option<u64>,

    /// Cut off what lies beyond a smaller size, without asking.
    #[arg(long, short = 'y')]
    pub yes: bool,

    /// Disconnect the clients that a server has for it, which are a reason to refuse otherwise.
    #[arg(long, short = 'f')]
    pub force: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const RENAME_EXAMPLES: &str = "\
Examples:
  sheave volume rename 'pool.img#try-it' root2
        its snapshots try-it@... are root2@... then
  sheave volume rename 'pool.img#root@monday' @first";

/// `sheave volume rename`.
#[derive(Debug, Args)]
#[command(after_help = RENAME_EXAMPLES)]
pub struct RenameArgs {
    /// The volume or snapshot.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// Its new name; @NEW_NAME for a snapshot of the same volume.
    #[arg(value_name = "NEW_NAME", value_parser = value::snapshot_name)]
    pub new_name: String,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const SNAPSHOT_EXAMPLES: &str = "\
Examples:
  sheave volume snapshot 'pool.img#root@monday'
        makes the snapshot root@monday
  sheave volume snapshot 'pool.img#root' log data --at monday
        makes root@monday, log@monday and data@monday at one moment: all of them, or none
  sheave volume snapshot 'pool.img#root' golden
        a name without a volume's is unique in the pool
  sheave volume snapshot 'pool.img#root@nightly' --wait=5m
        waits while another process has the pool";

/// `sheave volume snapshot`.
#[derive(Debug, Args)]
#[command(
    after_help = SNAPSHOT_EXAMPLES,
    override_usage = "sheave volume snapshot [OPTIONS] <POOL#NAME@SNAPSHOT>\n       \
                      sheave volume snapshot <POOL#NAME>... --at <SNAPSHOT>\n       \
                      sheave volume snapshot [OPTIONS] <POOL#NAME> <NAME>"
)]
pub struct SnapshotArgs {
    /// The volume whose state to freeze, and behind an '@' the name of the snapshot.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// With --at: further volumes of the pool, as NAME or POOL#NAME. Without: the whole name of the snapshot.
    #[arg(value_name = "NAME")]
    pub more: Vec<String>,

    /// Freeze all these volumes at one moment, each as NAME@SNAPSHOT: all of them, or none.
    #[arg(long, value_name = "SNAPSHOT", value_parser = value::own_name)]
    pub at: Option<String>,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const CLONE_EXAMPLES: &str = "\
Examples:
  sheave volume clone 'pool.img#root@monday' try-it";

/// `sheave volume clone`.
#[derive(Debug, Args)]
#[command(after_help = CLONE_EXAMPLES)]
pub struct CloneArgs {
    /// The snapshot, or a volume as it is now.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// Name of the new volume.
    #[arg(value_name = "NEW_NAME", value_parser = value::volume_name)]
    pub name: String,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const ROLLBACK_EXAMPLES: &str = "\
Examples:
  sheave volume rollback 'pool.img#root' @monday --yes
        what was written since root@monday is gone; the snapshot stays";

/// `sheave volume rollback`.
#[derive(Debug, Args)]
#[command(after_help = ROLLBACK_EXAMPLES)]
pub struct RollbackArgs {
    /// The volume.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// The snapshot whose content it gets; @SNAP for one of the volume.
    #[arg(value_name = "SNAP", value_parser = value::snapshot_name)]
    pub snapshot: String,

    /// Give up what was written since, without asking.
    #[arg(long, short = 'y')]
    pub yes: bool,

    /// Disconnect the clients that a server has for it, which are a reason to refuse otherwise.
    #[arg(long, short = 'f')]
    pub force: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const DELETE_EXAMPLES: &str = "\
Examples:
  sheave volume delete 'pool.img#try-it'
  sheave volume delete 'pool.img#root@monday' root@tuesday log@monday --yes";

/// `sheave volume delete`.
#[derive(Debug, Args)]
#[command(after_help = DELETE_EXAMPLES)]
pub struct DeleteArgs {
    /// A volume or snapshot.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// Further ones of the same pool, as NAME or POOL#NAME.
    #[arg(value_name = "NAME")]
    pub more: Vec<String>,

    /// Delete without asking.
    #[arg(long, short = 'y')]
    pub yes: bool,

    /// Disconnect the clients that a server has for it, which are a reason to refuse otherwise.
    #[arg(long, short = 'f')]
    pub force: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const MAP_EXAMPLES: &str = "\
Examples:
  sheave volume map 'pool.img#root'
  sheave volume map 'pool.img#root' --offset 1G --length 64M --json";

/// `sheave volume map`.
#[derive(Debug, Args)]
#[command(after_help = MAP_EXAMPLES)]
pub struct MapArgs {
    /// The volume or snapshot.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// First byte to show.
    #[arg(long, value_name = "SIZE", value_parser = value::position, default_value = "0")]
    pub offset: u64,

    /// Bytes to show [default: to the end].
    #[arg(long, value_name = "SIZE", value_parser = value::size)]
    pub length: Option<u64>,

    /// Print a JSON array in the shape of `qemu-img map --output=json`.
    #[arg(long)]
    pub json: bool,
}

const IMPORT_EXAMPLES: &str = "\
Examples:
  sheave volume import debian.img 'pool.img#root'
  sheave volume import debian.img 'pool.img#root' --size 20G --yes
  zstd -dc root.img.zst | sheave volume import - 'pool.img#root'
  cat disk.luks | sheave volume import - 'pool.img#root'
        takes the bytes of a file as they are; by its name, what is no raw image is refused";

/// `sheave volume import`.
#[derive(Debug, Args)]
#[command(after_help = IMPORT_EXAMPLES)]
pub struct ImportArgs {
    /// The raw image: a file, a block device, a server's export (nbd:unix:PATH, nbd:HOST:PORT/EXPORT), an image
    /// of a Ceph cluster (rbd:POOL/IMAGE), or - for stdin.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The volume. Made if it does not exist; else overwritten, which asks first if it has data.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// Size of a volume that is made [default: that of the image].
    #[arg(long, value_name = "SIZE", value_parser = value::volume_size)]
    pub size: Option<u64>,

    /// Overwrite a volume that has data, without asking.
    #[arg(long, short = 'y')]
    pub yes: bool,

    /// Disconnect the clients that a server has for it, which are a reason to refuse otherwise.
    #[arg(long, short = 'f')]
    pub force: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How to show the progress.
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: ProgressStyle,
}

const EXPORT_EXAMPLES: &str = "\
Examples:
  sheave volume export 'pool.img#root' root.img
  sheave volume export 'pool.img#root' - | zstd > root.img.zst
  sheave volume export 'pool.img#root' root.img --rescue --json
        goes on past blocks that cannot be read, and lists them; exit code 1 if there are any

A pool that was not closed is recovered in memory: an export writes nothing to its pool.";

/// What an export writes in place of a block that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BadBlocks {
    /// Zeroes.
    Zero,
    /// Nothing.
    Skip,
}

/// `sheave volume export`.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub struct ExportArgs {
    /// The volume or snapshot.
    #[arg(value_name = "POOL#NAME")]
    pub volume: VolumePlace,

    /// The raw image to write: a file, a block device, a server's export (nbd:...), an image of a Ceph cluster
    /// (rbd:...), or - for stdout. A file that is there is replaced when all of the new one is durable.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Go on past blocks that cannot be read, list them, and open a damaged pool as far as it goes. In place of a bad
    /// block write zeroes, or skip it: in a block device what is there stays.
    #[arg(
        long,
        value_name = "BAD_BLOCKS",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "zero"
    )]
    pub rescue: Option<BadBlocks>,

    /// Overwrite a file that exists, without asking.
    #[arg(long, short = 'y')]
    pub yes: bool,

    /// Print one JSON object instead of text (not with - , where stdout is the image).
    #[arg(long)]
    pub json: bool,

    /// How to show the progress.
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: ProgressStyle,
}
