//! Arguments of `sheave serve`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

use sheave_daemon::log::Verbosity;
use sheave_serve::vhost_user::MAX_QUEUES;
use sheave_serve::{Address, Limit};

use super::value;

const EXAMPLES: &str = "\
SPEC is POOL#NAME for a volume or snapshot (put it in quotes, as some shells give # a meaning), or a device spec such
as file:disk.img or ram:size=1G. Snapshots are read-only.

Examples:
  sheave serve 'pool.img#root' --nbd unix:/run/root.sock
        until Ctrl-C; clients: qemu-img info 'nbd+unix:///root?socket=/run/root.sock'
  sheave serve 'pool.img#root' --nbd unix:/run/root.sock --socket-group libvirt-qemu
        for QEMU under another user
  sheave serve 'pool.img#root' --nbd tcp:127.0.0.1:10809
        over the network, without encryption or password: choose whom you let in by the address
  sheave serve 'pool.img#root' --nbd tcp:0.0.0.0:10809 --tls-cert cert.pem --tls-key key.pem --tls-ca clients.pem
        over the network with TLS, for clients whose certificates are of that authority
  sheave serve 'pool.img#root' --read-only --run 'nbdcopy \"$uri\" backup.img'
        for one command, which gets the address as $uri, on a socket made for it
  sheave serve 'pool.img#root' --run 'qemu-img convert -p -f qcow2 -O raw -n debian.qcow2 \"$uri\"'
        an image into a volume, without a temporary file
  nbdcopy -- [ sheave serve 'pool.img#root@monday' ] backup.img
        for one NBD client, which starts the server and passes it a socket
  sheave serve 'pool.img#root' --vhost-user unix:/run/root.sock
        for a virtual machine, which shares its memory with the server (docs/operate/vhost-user.md)
  sheave serve --config /etc/sheave/sheave.toml
        several pools and exports; SIGHUP reads the file again
  sheave serve --config /etc/sheave/sheave.toml --check
        what it would serve, and what is wrong with it, before a start or a reload
  sheave serve 'pool.img#root' --nbd unix:/run/root.sock --web 9180
        with a status page at http://127.0.0.1:9180/
  sheave serve --config /etc/sheave/sheave.toml --standby
        on two hosts with one Ceph cluster: the second takes over when the first dies (docs/operate/pools.md)

Exit code: 0 ended by Ctrl-C or SIGTERM, with --run that of the command; 1 it failed, 2 the command line
makes no sense. With --check: 0 all of it would be served, 1 some of it would not, 2 it would not start.";

/// Use of TLS by clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsMode {
    /// There is no TLS.
    Off,
    /// Clients may use it.
    Allow,
    /// Clients must use it.
    Require,
}

/// Arguments of `sheave serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("sockets").args(["nbd", "vhost_user"]).multiple(true))]
pub struct ServeArgs {
    /// The volume, snapshot or device to serve.
    #[arg(value_name = "SPEC", required_unless_present = "config")]
    pub spec: Option<String>,

    /// Look for members of the pool that are not named in this directory, too. Several times for several; a
    /// configuration has `search` for each pool.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    pub search: Vec<std::path::PathBuf>,

    /// Serve what this file says: several pools and exports, that can change while it runs (docs/operate/serve.md).
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "spec", "nbd", "read_only", "name", "run", "threads", "max_clients", "control", "tls", "tls_cert",
            "tls_key", "tls_ca", "tls_allow", "limit", "socket_mode", "socket_owner", "socket_group", "vhost_user",
            "vhost_queues", "vhost_in_order"
        ]
    )]
    pub config: Option<std::path::PathBuf>,

    /// Check the configuration as a start would, without taking anything, and print what it would serve.
    #[arg(long, requires = "config")]
    pub check: bool,

    /// With --check: print one JSON object instead of text.
    #[arg(long, requires = "check")]
    pub json: bool,

    /// Wait for pools that another host has, and take them over when their storage has cut that host off (rbd: alone).
    #[arg(long, requires = "config")]
    pub standby: bool,

    /// Take over from the server at the other end of stdin; `sheave upgrade` starts the new process so.
    #[arg(long, requires = "config", conflicts_with = "check", hide = true)]
    pub take_over: bool,

    /// Serve it over NBD, at unix:PATH or tcp:HOST:PORT (port 0: a free one). Several times for several addresses. Not
    /// needed if the parent process passes a listening socket (LISTEN_FDS), as nbdinfo, nbdcopy and systemd do.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub nbd: Vec<Address>,

    /// Let a virtual machine attach it by vhost-user, at unix:PATH (docs/operate/vhost-user.md).
    #[arg(long, value_name = "ADDRESS", value_parser = value::socket_path)]
    pub vhost_user: Option<PathBuf>,

    /// Queues that the virtual machine may use, 1 to 64 [default: one for each thread].
    #[arg(
        long,
        value_name = "NUMBER",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_QUEUES)),
        requires = "vhost_user"
    )]
    pub vhost_queues: Option<u16>,

    /// Offer VIRTIO_F_IN_ORDER: requests are completed in the order in which the guest has made them available.
    #[arg(long, requires = "vhost_user")]
    pub vhost_in_order: bool,

    /// The mode of unix sockets of --nbd and --vhost-user, such as 0660 [default: the umask decides; 0660 with an owner
    /// or a group].
    #[arg(long, value_name = "MODE", value_parser = value::mode, requires = "sockets")]
    pub socket_mode: Option<u32>,

    /// Their owner: a user's name or number.
    #[arg(long, value_name = "USER", requires = "sockets")]
    pub socket_owner: Option<String>,

    /// Their group: a name or number.
    #[arg(long, value_name = "GROUP", requires = "sockets")]
    pub socket_group: Option<String>,

    /// Whether clients must use TLS, may, or cannot [default: require with --tls-cert, off without].
    #[arg(long, value_name = "MODE", requires = "tls_cert")]
    pub tls: Option<TlsMode>,

    /// The server's certificate (PEM), and those that lead from it to the authority that clients know.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<std::path::PathBuf>,

    /// The key of the server's certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<std::path::PathBuf>,

    /// Let clients in that have a certificate of an authority in this file (PEM), and nobody else.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<std::path::PathBuf>,

    /// Of these let those in whose certificate has this common name. Several times for several names.
    #[arg(long, value_name = "CN", requires = "tls_ca")]
    pub tls_allow: Vec<String>,

    /// Refuse all changes.
    #[arg(long)]
    pub read_only: bool,

    /// How fast it may be, for all clients together: iops=N, bps=BYTES, burst=TIME (docs/operate/serve.md).
    #[arg(long, value_name = "LIMIT")]
    pub limit: Option<Limit>,

    /// The export's name [default: the volume's, or "disk"]. Clients that name none get it too.
    #[arg(long, value_parser = value::export_name)]
    pub name: Option<String>,

    /// Run this with the shell, with the address of NBD as $uri and the path of --vhost-user as $socket; end when it
    /// ends, with its exit code.
    #[arg(long, value_name = "COMMAND")]
    pub run: Option<String>,

    /// Threads that serve [default: one for each CPU that this process may use].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,

    /// Most clients at a time; further ones wait.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_clients: u32,

    /// How much is logged: off, error, warn, info or debug [default: info, or as the configuration says].
    #[arg(long, value_name = "LEVEL", value_parser = verbosity)]
    pub log: Option<Verbosity>,

    /// The socket by which other commands reach the pool meanwhile [default: one in the runtime directory].
    #[arg(long, value_name = "PATH")]
    pub control: Option<std::path::PathBuf>,

    /// Show a status page in browsers: at a port of this machine alone, or at HOST:PORT (port 0: a free one).
    #[arg(long, value_name = "[HOST:]PORT", value_parser = value::web_address)]
    pub web: Option<String>,
}

fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|error: sheave_serve::ServeError| error.to_string())
}

fn verbosity(text: &str) -> Result<Verbosity, String> {
    text.parse()
}
