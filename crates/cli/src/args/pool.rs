//! Arguments of `sheave pool`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use sheave_daemon::place::PoolPlace;
use sheave_vol::LowWater;

use super::switch::Switch;
use super::value;

const EXAMPLES: &str = "\
POOL is one of
  pool.img                       a file or block device
  a.img+b.img                    several, end to end; any one of them leads to the others, by their labels
  file:pool.img,direct=off       a device spec (sheave bench --help lists them)
  uuid:0123...cdef               its identity, wherever it is: sheave pool scan lists those of this host
  main                           its name in a server that has it open, if no file here is called so

Examples:
  sheave pool create pool.img --size 10G
  sheave pool scan /srv
  sheave pool info pool.img
  sheave pool check pool.img --dry-run
  sheave pool scrub pool.img --rate 100M
  sheave pool trim pool.img
  sheave pool grow pool.img --size 20G
  sheave pool grow pool.img --add more.img --size 50G
  sheave pool set pool.img --low-water 15%
  sheave pool upgrade pool.img --dry-run

A pool is open in one process at a time. Volumes in it: sheave volume --help.
Exit code: 0 done, 1 it failed or a check found something, 2 the command line makes no sense.";

const SET_EXAMPLES: &str = "\
Examples:
  sheave pool set pool.img --low-water 15%
  sheave pool set pool.img --low-water 200G
  sheave pool set pool.img --low-water off
  sheave pool set pool.img --discard on
        what is free already goes back by sheave pool trim
  sheave pool set pool.img --acknowledge-loss
        pool info names no volumes any more that may have lost data";

/// Arguments of `sheave pool`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PoolArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PoolCommand,

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
pub enum PoolCommand {
    /// Format a file or block device as a pool.
    Create(CreateArgs),
    /// List the pools on this host, by what their files and devices say.
    Scan(ScanArgs),
    /// Show how large and how full a pool is.
    #[command(aliases = ["show", "status"])]
    Info(InfoArgs),
    /// Verify a closed pool: all of its metadata, and every reference in it.
    Check(CheckArgs),
    /// Add a file or device, or take in what one has grown by.
    Grow(GrowArgs),
    /// Change what can be changed of a pool.
    Set(SetArgs),
    /// Read all metadata and data, and tell what has rotted.
    Scrub(ScrubArgs),
    /// Give free space back to the file system or device that holds the pool.
    Trim(TrimArgs),
    /// Give a pool that an older sheave made what it lacks.
    Upgrade(UpgradeArgs),
    /// Tell each change of a pool's space between ok, low and full, until Ctrl-C or the end of its reader.
    Watch(WatchArgs),
}

const SCAN_EXAMPLES: &str = "\
Looks at all block devices that this user may read, and at the files of the directories, not of those within. Reads the
first 8 KiB of each, takes no lock, writes nothing, and ends after 10 seconds, whatever a disk does.

Examples:
  sheave pool scan /srv /mnt/images
  sheave pool scan --no-devices --json | jq -r '.pools[] | select(.state != \"complete\") | .problem'
  sheave pool info uuid:0123456789abcdef0123456789abcdef --search /srv
        a pool by the identity that the scan tells

A member is: member (it belongs to the newest state of the pool), older copy (a copy from before, which is never taken),
stray (its addition was cut off), refused (a newer sheave made it, or it is damaged).
Exit code: 0 it has looked, 1 a directory cannot be read, 2 the command line makes no sense.";

/// `sheave pool scan`.
#[derive(Debug, Args)]
#[command(after_help = SCAN_EXAMPLES)]
pub struct ScanArgs {
    /// Directories whose files are looked at [default: the one in which this runs].
    #[arg(value_name = "DIR")]
    pub directories: Vec<PathBuf>,

    /// Look at no block devices.
    #[arg(long)]
    pub no_devices: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const WATCH_EXAMPLES: &str = "\
Examples:
  sheave pool watch pool.img
        a line now, and one with each change; of a pool that a server has, in the server
  sheave pool watch pool.img --json | while read -r line; do echo \"$line\"; done
        an object a line

Exit code: 1 the pool was closed or it failed, 2 the command line makes no sense.";

/// `sheave pool watch`.
#[derive(Debug, Args)]
#[command(after_help = WATCH_EXAMPLES)]
pub struct WatchArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Print a JSON object a line.
    #[arg(long)]
    pub json: bool,
}

/// Checksums of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChecksumArg {
    /// None; metadata has its own always.
    None,
    /// CRC32C of every 4 KiB, verified by each read.
    Crc32c,
}

impl ChecksumArg {
    /// Returns the same kind as a type of `sheave_vol`.
    pub fn kind(self) -> sheave_vol::Checksum {
        match self {
            Self::None => sheave_vol::Checksum::None,
            Self::Crc32c => sheave_vol::Checksum::Crc32c,
        }
    }
}

/// Time at which the files of a pool are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AllocateArg {
    /// Now, so that the file system cannot be full before the pool is.
    Full,
    /// As the pool is used.
    Sparse,
}

const CREATE_EXAMPLES: &str = "\
Examples:
  sheave pool create pool.img --size 10G
  sheave pool create pool.img --size 10G --checksum crc32c --low-water 15%
  sheave pool create pool.img --size 10G --allocate full
        takes the 10 GiB of the file system now, and keeps them: what is deleted does not go back
  sheave pool create /dev/vg/pool --yes
  sheave pool create file:a.img,size=10G+file:b.img,size=10G";

/// `sheave pool create`.
#[derive(Debug, Args)]
#[command(after_help = CREATE_EXAMPLES)]
pub struct CreateArgs {
    /// The file or device, or several joined by `+`.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Size of the file. A missing file is made (sparse), a shorter one grown [default: what is there].
    #[arg(long, value_name = "SIZE", value_parser = value::size)]
    pub size: Option<u64>,

    /// Allocation unit: what volumes get space in, and what a shared piece is copied in; a power of two from 4k to 1M.
    #[arg(long, value_name = "SIZE", value_parser = value::unit_size, default_value = "64k")]
    pub block: u64,

    /// Bytes of the journal [default: by the size of the pool].
    #[arg(long, value_name = "SIZE", value_parser = value::size)]
    pub journal: Option<u64>,

    /// Checksums of data.
    #[arg(long, value_enum, default_value = "none")]
    pub checksum: ChecksumArg,

    /// Copies of each page of metadata, 1 or 2: with two, on different members, a damaged page costs nothing
    /// [default: 2 on several members, else 1].
    #[arg(long, value_name = "COPIES", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub metadata_copies: Option<u8>,

    /// Free space below which the pool counts as low and commands warn: of the pool (10%), bytes (5G), or off.
    #[arg(long, value_name = "MARK", value_parser = value::low_water, default_value = "10%")]
    pub low_water: LowWater,

    /// Give what becomes free back to the file system or device below, in the background [default: on, and off with
    /// --allocate full].
    #[arg(long, value_enum)]
    pub discard: Option<Switch>,

    /// Take all of the space now (full), or as the pool is used (sparse).
    #[arg(long, value_enum, default_value = "sparse")]
    pub allocate: AllocateArg,

    /// Overwrite what is there, without asking.
    #[arg(long, short = 'y')]
    pub yes: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const INFO_EXAMPLES: &str = "\
Examples:
  sheave pool info pool.img
  sheave pool info a.img+b.img --json

It writes nothing: a pool that was not closed is recovered in memory.";

/// `sheave pool info`.
#[derive(Debug, Args)]
#[command(after_help = INFO_EXAMPLES)]
pub struct InfoArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const CHECK_EXAMPLES: &str = "\
Reads all metadata of a pool that nobody has open, and no data: sheave pool scrub reads that. Memory: about 256 MiB for
each TiB that is mapped in units of 64 KiB.

Examples:
  sheave pool check pool.img
  sheave pool check pool.img --dry-run
        says of each finding what a repair would do
  sheave pool check pool.img --repair --yes
        repairs all of it, or nothing; take a copy before: cp --sparse=always pool.img copy.img

Exit code: 0 all is well (now), 1 something is wrong, 2 the command line makes no sense or --yes is needed.";

/// `sheave pool check`.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub struct CheckArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Mend what can be mended, after showing it and asking.
    #[arg(long)]
    pub repair: bool,

    /// Only show what --repair would do.
    #[arg(long)]
    pub dry_run: bool,

    /// Repair without asking.
    #[arg(long, short = 'y')]
    pub yes: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How to show the progress.
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: super::ProgressStyle,
}

const GROW_EXAMPLES: &str = "\
Examples:
  sheave pool grow pool.img --size 20G                   a larger file
  sheave pool grow /dev/vg/pool                          a block device that has grown
  sheave pool grow pool.img --add more.img --size 50G    one more file, made if it is not there
  sheave pool grow pool.img --add /dev/sdb               one more device
  sheave pool grow more.img --add third.img              the same pool, by another member

A pool with several members is named by any one of them; the others are found by their labels, in its directory, among
the block devices, where they lay last, and in --search DIR. It opens with all of them or not at all. A pool that a
server has takes what is added; all else wants it closed.";

/// `sheave pool grow`.
#[derive(Debug, Args)]
#[command(after_help = GROW_EXAMPLES)]
pub struct GrowArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// A file or device that becomes the last member of the pool.
    #[arg(long, value_name = "SPEC")]
    pub add: Option<PoolPlace>,

    /// Make the file this large first, the added one with --add [default: take in what is there].
    #[arg(long, value_name = "SIZE", value_parser = value::size)]
    pub size: Option<u64>,

    /// Take the space that is added from the file system now, or as it is written [default: as the pool has its own:
    /// all of it, if no part of its files is sparse].
    #[arg(long, value_enum, value_name = "FULL|SPARSE")]
    pub allocate: Option<AllocateArg>,

    /// Overwrite what is on the added device, without asking.
    #[arg(long, requires = "add")]
    pub yes: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `sheave pool set`.
#[derive(Debug, Args)]
#[command(after_help = SET_EXAMPLES)]
pub struct SetArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Free space below which the pool counts as low and commands warn: of the pool (10%), bytes (5G), or off.
    #[arg(
        long,
        value_name = "MARK",
        value_parser = value::low_water,
        required_unless_present_any = ["acknowledge_loss", "discard"]
    )]
    pub low_water: Option<LowWater>,

    /// Whether what becomes free goes back to the file system or device below, in the background.
    #[arg(long, value_enum)]
    pub discard: Option<Switch>,

    /// You have seen which volumes may have lost data because a flush failed (pool info names them), and have checked
    /// or restored them: they are named no more.
    #[arg(long)]
    pub acknowledge_loss: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const TRIM_EXAMPLES: &str = "\
What deleted volumes had is used again by others. A trim gives all that is free back to the file system or device
below: it makes holes in a file, and discards on a block device. Pools with --discard on (pool info tells) do that by
themselves with what becomes free; a trim does it for those without, and for what a crash or a slow device left over.
Beside a program that has the pool open: Pool::trim.

Examples:
  sheave volume delete 'pool.img#old' --yes && sheave pool trim pool.img
  sheave pool trim pool.img --wait=1h --json --progress none";

/// `sheave pool trim`.
#[derive(Debug, Args)]
#[command(after_help = TRIM_EXAMPLES)]
pub struct TrimArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How to show the progress.
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: super::ProgressStyle,
}

const UPGRADE_EXAMPLES: &str = "\
Opening a pool never changes its format, so the sheave that made it can still open it. An upgrade does: older programs
refuse the pool from then on, and nothing takes that back. It writes one checkpoint, whatever the size of the pool.
A second copy of the metadata is given only when it is asked for: it takes as much space again as the metadata has,
wants a pool that nobody has open, and checks it before and after. Cut off, the pool has one copy as before, or two.

Examples:
  sheave pool upgrade pool.img --dry-run
        what the pool lacks, and what an upgrade changes
  sheave pool upgrade pool.img
  sheave pool upgrade pool.img --metadata-copies 2
        a second copy of each page of metadata";

/// `sheave pool upgrade`.
#[derive(Debug, Args)]
#[command(after_help = UPGRADE_EXAMPLES)]
pub struct UpgradeArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Give a closed pool a second copy of each page of metadata, and nothing else: COPIES is 2.
    #[arg(long, value_name = "COPIES", value_parser = clap::value_parser!(u8).range(2..=2), conflicts_with = "dry_run")]
    pub metadata_copies: Option<u8>,

    /// Only tell what would change.
    #[arg(long)]
    pub dry_run: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

const SCRUB_EXAMPLES: &str = "\
Reads all metadata and all data that volumes have written, each shared piece once, and compares what has a checksum
with it. A program that has the pool open scrubs it with Pool::scrub, beside its work; this command is for pools that
nobody has open. Without checksums (pool create --checksum crc32c) data cannot be verified: it is read, so that what
the disk cannot read shows, and the metadata is verified all the same.

Examples:
  sheave pool scrub pool.img
  sheave pool scrub pool.img --rate 100M
        reads 100 MiB a second at most, so that others on the disk have their share
  sheave pool scrub pool.img --json --progress none
        one JSON object; each finding has its volume, offset, length and address on the pool

Exit code: 0 all is well, 1 something was found (or it failed), 130 it was ended before its end.";

/// `sheave pool scrub`.
#[derive(Debug, Args)]
#[command(after_help = SCRUB_EXAMPLES)]
pub struct ScrubArgs {
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: PoolPlace,

    /// Most bytes to read in a second [default: as fast as it goes].
    #[arg(long, value_name = "SIZE", value_parser = value::size)]
    pub rate: Option<u64>,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How to show the progress.
    #[arg(long, value_enum, default_value = "auto")]
    pub progress: super::ProgressStyle,
}
