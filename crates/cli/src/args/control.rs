//! Arguments of `sheave export`, `sheave client`, `sheave device` and `sheave slow`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use sheave_base::units::parse_duration;
use sheave_serve::Limit;
use sheave_serve::vhost_user::MAX_QUEUES;

use super::{Switch, value};

const EXAMPLES: &str = "\
These ask a running `sheave serve`: the one whose control socket is in the runtime directory ($SHEAVE_RUNTIME_DIR, else
/run/sheave for root, else $XDG_RUNTIME_DIR/sheave), or the one named by --control.

Examples:
  sheave export list
  sheave export add 'pool.img#root'
  sheave export add ram:size=1G --name scratch
  sheave export add 'pool.img#root' --vhost-user /run/sheave/root.sock
  sheave export limit root iops=2000,bps=100M
  sheave export remove root --force
  sheave client list --json
  sheave client disconnect 7

Exit code: 0 done, 1 it failed, 2 the command line makes no sense.";

/// Arguments of `sheave export`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ExportCommand,

    /// The control socket of the server.
    #[arg(long, value_name = "PATH", global = true)]
    pub control: Option<PathBuf>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum ExportCommand {
    /// List what is served, and what is not because it could not be opened.
    #[command(alias = "ls", after_help = "Examples:\n  sheave export list --json")]
    List {
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Serve one more volume, snapshot or device, until the server ends.
    #[command(after_help = "Examples:\n  sheave export add 'pool.img#monday' --read-only")]
    Add {
        /// A volume of a pool that the server has, or a device spec.
        #[arg(value_name = "SPEC")]
        spec: String,

        /// The export's name [default: the volume's].
        #[arg(long)]
        name: Option<String>,

        /// Refuse all changes.
        #[arg(long)]
        read_only: bool,

        #[command(flatten)]
        vhost_user: VhostUserArgs,

        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Show or change how fast an export may be, while its clients stay; until the server ends or reads its
    /// configuration again.
    #[command(after_help = "\
Examples:
  sheave export limit root
        show it
  sheave export limit root iops=2000,bps=100M,burst=200ms
  sheave export limit root off")]
    Limit {
        /// The export.
        #[arg(value_name = "NAME")]
        name: String,

        /// So many requests and bytes a second for all clients together, and how long what was not used is saved; or
        /// `off`.
        #[arg(value_name = "LIMIT", value_parser = limit)]
        limit: Option<LimitArg>,

        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// End an export.
    #[command(aliases = ["rm", "delete"], after_help = "Examples:\n  sheave export remove monday --force")]
    Remove {
        /// The export.
        #[arg(value_name = "NAME")]
        name: String,

        /// Disconnect its clients first.
        #[arg(long, short = 'f')]
        force: bool,

        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of a vhost-user device.
#[derive(Debug, Args)]
pub struct VhostUserArgs {
    /// Let a virtual machine attach it by vhost-user, at this path (docs/operate/vhost-user.md). This command makes the
    /// socket, with the rights of this user.
    #[arg(long = "vhost-user", value_name = "PATH", value_parser = value::socket_path)]
    pub path: Option<PathBuf>,

    /// Queues that the virtual machine may use, 1 to 64 [default: one for each thread of the server].
    #[arg(
        long = "vhost-queues",
        value_name = "NUMBER",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_QUEUES)),
        requires = "path"
    )]
    pub queues: Option<u16>,

    /// Offer VIRTIO_F_IN_ORDER: requests are completed in the order in which the guest has made them available.
    #[arg(long = "vhost-in-order", requires = "path")]
    pub in_order: bool,

    /// The mode of the socket, such as 0660 [default: the umask decides; 0660 with an owner or a group].
    #[arg(long, value_name = "MODE", value_parser = value::mode, requires = "path")]
    pub socket_mode: Option<u32>,

    /// Its owner: a user's name or number.
    #[arg(long, value_name = "USER", requires = "path")]
    pub socket_owner: Option<String>,

    /// Its group: a name or number.
    #[arg(long, value_name = "GROUP", requires = "path")]
    pub socket_group: Option<String>,
}

/// A rate limit, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitArg {
    /// No limit.
    Off,
    /// This limit.
    On(Limit),
}

fn limit(text: &str) -> Result<LimitArg, String> {
    if text == "off" { Ok(LimitArg::Off) } else { text.parse().map(LimitArg::On) }
}

/// Arguments of `sheave slow`.
#[derive(Debug, Args)]
#[command(after_help = SLOW_EXAMPLES)]
pub struct SlowArgs {
    /// Go on with those that come, until Ctrl-C or the end of the reader.
    #[arg(long)]
    pub follow: bool,

    /// Print a JSON object instead of text; with --follow one a line for each I/O.
    #[arg(long)]
    pub json: bool,

    /// Set from when on I/O counts as slow, whatever is usual, such as 50ms; until the server ends or reads its
    /// configuration again.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with_all = ["follow", "json"])]
    pub limit: Option<Duration>,

    /// The control socket of the server.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

const SLOW_EXAMPLES: &str = "\
A server keeps the last 256 I/Os of each of its threads that took longer than a limit (a second, unless it is told
otherwise), or than four times what 99.9 % of their kind on their volume took over the last ten seconds.

Examples:
  sheave slow
  sheave slow --follow
  sheave slow --json
  sheave slow --limit 50ms

Exit code: 0 done, 1 it failed, 2 the command line makes no sense.";

/// Arguments of `sheave client`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ClientArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ClientCommand,

    /// The control socket of the server.
    #[arg(long, value_name = "PATH", global = true)]
    pub control: Option<PathBuf>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// List who is connected.
    #[command(alias = "ls", after_help = "Examples:\n  sheave client list --json")]
    List {
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Disconnect clients, by their numbers.
    #[command(after_help = "Examples:\n  sheave client disconnect 7 8")]
    Disconnect {
        /// The clients.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<u64>,

        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
}

const DEVICE_EXAMPLES: &str = "\
The devices are those that the pools and exports of a running `sheave serve` stand on. Statistics of a device are what
`sheave top`, /metrics and `sheave slow` show. Without them an I/O costs a little less time, and its latency is not
counted for the exports and volumes on the device either.

Examples:
  sheave device list
  sheave device list --json
  sheave device statistics off file:/srv/pool.img
  sheave device statistics on

Exit code: 0 done, 1 it failed, 2 the command line makes no sense.";

/// Arguments of `sheave device`.
#[derive(Debug, Args)]
#[command(after_help = DEVICE_EXAMPLES)]
pub struct DeviceArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DeviceCommand,

    /// The control socket of the server.
    #[arg(long, value_name = "PATH", global = true)]
    pub control: Option<PathBuf>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// List the devices with their counters since they were opened.
    #[command(alias = "ls", after_help = "Examples:\n  sheave device list --json")]
    List {
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Turn statistics of a device, or of all, on or off, until the device is opened the next time.
    #[command(
        aliases = ["stats", "statistic"],
        after_help = "\
Examples:
  sheave device statistics off file:/srv/pool.img
  sheave device statistics on
        of all devices"
    )]
    Statistics {
        /// On or off.
        #[arg(value_name = "ON|OFF")]
        state: Switch,

        /// The device, by its name in the list [default: all].
        #[arg(value_name = "DEVICE")]
        device: Option<String>,

        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
}
