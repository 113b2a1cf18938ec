//! The configuration file of the daemon, and the [`Plan`] that it is parsed into.
//!
//! Every error in the file is reported with its line. `sheave serve SPEC` builds a plan from its arguments, so both
//! ways to start a server share the code behind the plan.

pub(crate) mod allow;
pub mod listen;
mod sockets;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use sheave_base::units::parse_duration;
use sheave_iomap::slow::DEFAULT_SLOW_LIMIT;
use sheave_serve::{Address, Allow, Limit, SocketAccess};
use toml::Spanned;

use self::allow::AllowTable;
use self::listen::ListenEntry;
use self::sockets::{SocketEntry, Sockets};
use crate::failure::Failure;
use crate::log::{Sink, Verbosity};
use crate::paths;
use crate::place::{PoolPlace, VolumePlace};
use crate::tls::{TlsPlan, TlsTable};
use crate::value;
use crate::vhost_user::VhostUserPlan;

const MAX_BYTES: u64 = 1 << 20;
/// Name of the pool in the plan of `sheave serve POOL#VOLUME`.
pub const ONLY_POOL: &str = "pool";
/// Default name of an export of a device.
const DISK: &str = "disk";

/// Everything that the daemon is to serve, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Addresses that NBD clients connect to.
    pub listen: Vec<Address>,
    /// Mode and owner of the unix sockets among these addresses. A socket without an entry gets its mode from the
    /// umask.
    pub access: Vec<(Address, SocketAccess)>,
    pub tls: Vec<TlsPlan>,
    /// Number of reactor threads; `None` means one for each CPU.
    pub threads: Option<u16>,
    pub max_clients: u32,
    /// I/O that takes longer is recorded as slow, whatever the usual latency is.
    pub slow_limit: Duration,
    pub control: Option<Control>,
    /// True if the daemon confines itself with Landlock.
    pub confine: bool,
    /// Additional files and directories that stay accessible when confined.
    pub reach: Vec<PathBuf>,
    pub log: Verbosity,
    /// Destination of the log.
    pub log_to: Sink,
    /// Host and port of `/metrics`.
    pub metrics: Option<String>,
    /// Host and port of the status page.
    pub web: Option<String>,
    /// Pools, with unique names.
    pub pools: Vec<PoolPlan>,
    /// Exports, with unique names.
    pub exports: Vec<ExportPlan>,
}

impl Plan {
    /// Returns the plan with `standby` set on every pool that is not read-only.
    #[must_use]
    pub fn all_standby(mut self) -> Plan {
        self.pools.iter_mut().for_each(|pool| pool.standby |= !pool.read_only);
        self
    }
}

/// Options of the command line that override the configuration.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub log: Option<Verbosity>,
    /// Sets `standby` on every pool that is not read-only.
    pub standby: bool,
    /// Host and port of the status page.
    pub web: Option<String>,
}

impl Overrides {
    /// Returns the arguments of the command line that mean these options.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let log = self.log.map(|log| ["--log".to_owned(), log.to_string()]);
        let web = self.web.clone().map(|web| ["--web".to_owned(), web]);
        let standby = self.standby.then(|| "--standby".to_owned());
        log.into_iter().chain(web).flatten().chain(standby).collect()
    }

    pub(crate) fn apply(&self, mut plan: Plan) -> Plan {
        plan.log = self.log.unwrap_or(plan.log);
        plan.web = self.web.clone().or(plan.web);
        if self.standby { plan.all_standby() } else { plan }
    }
}

/// Settings of the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    pub path: PathBuf,
    /// Permission bits of the socket.
    pub mode: u32,
    /// Users that may call methods that change something.
    pub admin_uids: Vec<u32>,
    /// Groups whose members may call them.
    pub admin_gids: Vec<u32>,
    /// True if the socket was asked for explicitly: the daemon does not start without it.
    pub wanted: bool,
}

/// A pool in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    pub name: String,
    /// UUID or members of the pool.
    pub place: PoolPlace,
    pub read_only: bool,
    /// Wait for the pool while another host holds it, and again after its storage fenced this host.
    pub standby: bool,
}

/// An export in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPlan {
    pub name: String,
    pub what: What,
    pub read_only: bool,
    pub limit: Option<Limit>,
    /// Rules that decide which clients may open the export.
    pub allow: Allow,
    /// The socket where a virtual machine attaches it, if there is one.
    pub vhost_user: Option<VhostUserPlan>,
}

/// Source of an export's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A volume or snapshot of a pool.
    Volume {
        pool: String,
        /// Name of the volume or snapshot.
        volume: String,
    },
    /// A device outside of any pool.
    Device { spec: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    listen: Vec<Spanned<ListenEntry>>,
    #[serde(default)]
    tls: Vec<TlsTable>,
    threads: Option<Spanned<u16>>,
    max_clients: Option<Spanned<u32>>,
    slow_limit: Option<Spanned<String>>,
    control: Option<ControlTable>,
    metrics: Option<Spanned<String>>,
    web: Option<Spanned<String>>,
    confine: Option<bool>,
    #[serde(default)]
    reach: Vec<PathBuf>,
    log: Option<Spanned<String>>,
    log_to: Option<Spanned<String>>,
    #[serde(default)]
    pool: Vec<PoolTable>,
    #[serde(default)]
    export: Vec<ExportTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlTable {
    path: Option<Spanned<PathBuf>>,
    mode: Option<Spanned<String>>,
    #[serde(default)]
    admin_uids: Vec<u32>,
    #[serde(default)]
    admin_gids: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolTable {
    name: Spanned<String>,
    path: Option<Spanned<String>>,
    uuid: Option<Spanned<String>>,
    #[serde(default)]
    search: Vec<PathBuf>,
    #[serde(default)]
    read_only: bool,
    standby: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportTable {
    name: Option<Spanned<String>>,
    pool: Option<Spanned<String>>,
    volume: Option<Spanned<String>>,
    spec: Option<Spanned<String>>,
    limit: Option<Spanned<String>>,
    allow: Option<Spanned<Vec<AllowTable>>>,
    #[serde(default)]
    read_only: bool,
    vhost_user: Option<Spanned<SocketEntry>>,
    vhost_queues: Option<Spanned<u16>>,
    vhost_in_order: Option<Spanned<bool>>,
}

impl ExportTable {
    /// Offset of the table's first value in the file.
    fn place(&self) -> usize {
        let given = [&self.name, &self.volume, &self.spec, &self.pool];
        given.iter().filter_map(|key| key.as_ref()).map(|key| key.span().start).min().unwrap_or(0)
    }
}

/// The text of a configuration and its path, from which error messages are made.
struct Text<'a> {
    path: &'a Path,
    text: String,
}

impl Text<'_> {
    fn file(&self) -> Result<File, Failure> {
        toml::from_str(&self.text)
            .map_err(|error| self.wrong(error.span().map_or(0, |span| span.start), error.message()))
    }

    fn wrong(&self, at: usize, what: impl std::fmt::Display) -> Failure {
        let line = self.text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
        Failure::usage(format!("{}, line {line}: {what}", self.path.display()))
            .fix("docs/operate/serve.md tells what a configuration may have")
    }
}

/// Line numbers of the parts of a configuration. Each list has the order of the corresponding list in the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) listen: Vec<usize>,
    pub(crate) tls: Vec<usize>,
    pub(crate) pools: Vec<usize>,
    pub(crate) exports: Vec<usize>,
    pub(crate) control: Option<usize>,
    pub(crate) metrics: Option<usize>,
    pub(crate) web: Option<usize>,
}

impl PoolTable {
    /// Offset of the value that identifies the pool.
    fn place(&self) -> usize {
        self.path.as_ref().or(self.uuid.as_ref()).unwrap_or(&self.name).span().start
    }
}

impl Lines {
    fn of(text: &Text<'_>, file: &File) -> Lines {
        // A binary search among the line ends: counting from the start of the file for each of thousands of exports is
        // quadratic.
        let ends: Vec<usize> = text.text.match_indices('\n').map(|(at, _)| at).collect();
        let line = |at: usize| ends.partition_point(|end| *end < at) + 1;
        let of = |key: Option<&Spanned<String>>| key.map(|key| line(key.span().start));
        let is_on = |table: &&TlsTable| !table.means_nothing();
        Lines {
            listen: file.listen.iter().map(|address| line(address.span().start)).collect(),
            tls: file.tls.iter().filter(is_on).map(|table| line(table.place())).collect(),
            pools: file.pool.iter().map(|table| line(table.place())).collect(),
            exports: file.export.iter().map(|table| line(table.place())).collect(),
            control: file.control.as_ref().and_then(|table| Some(line(table.path.as_ref()?.span().start))),
            metrics: of(file.metrics.as_ref()),
            web: of(file.web.as_ref()),
        }
    }
}

pub fn read(path: &Path) -> Result<Plan, Failure> {
    Ok(read_with_lines(path)?.0)
}

/// Reads a configuration. Returns the plan, and the line numbers of its parts.
pub(crate) fn read_with_lines(path: &Path) -> Result<(Plan, Lines), Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        Failure::run(format!("cannot read the configuration {}: {why}", path.display()))
            .fix("check the path and its permissions")
    };
    let len = std::fs::metadata(path).map_err(|error| failed(&error))?.len();
    if len > MAX_BYTES {
        return Err(failed(&format!("it has {len} bytes, at most {MAX_BYTES}")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let text = Text { path, text };
    let file = text.file()?;
    let lines = Lines::of(&text, &file);
    Ok((plan(&text, file)?, lines))
}

fn plan(text: &Text<'_>, file: File) -> Result<Plan, Failure> {
    let address =
        |entry: &Spanned<ListenEntry>| entry.get_ref().meaning().map_err(|why| text.wrong(entry.span().start, why));
    let entries: Vec<(Address, Option<SocketAccess>)> = file.listen.iter().map(address).collect::<Result<_, _>>()?;
    let access = entries.iter().filter_map(|(address, access)| Some((address.clone(), (*access)?))).collect();
    let listen: Vec<Address> = entries.into_iter().map(|(address, _)| address).collect();
    let tls = file.tls.into_iter().filter_map(|table| table.plan(&listen).transpose());
    let tls: Vec<_> = tls.collect::<Result<_, _>>().map_err(|(at, why)| text.wrong(at, why))?;
    if let Some(threads) = file.threads.as_ref().filter(|threads| !(1..=256).contains(threads.get_ref())) {
        return Err(text.wrong(threads.span().start, "threads are 1 to 256"));
    }
    if let Some(at) = file.metrics.as_ref().filter(|at| format!("tcp:{}", at.get_ref()).parse::<Address>().is_err()) {
        return Err(text.wrong(at.span().start, "metrics are at a host and port, such as \"127.0.0.1:9100\""));
    }
    let web = file.web.map(|at| value::web_address(at.get_ref()).map_err(|why| text.wrong(at.span().start, why)));
    let web = web.transpose()?;
    if let Some(most) = file.max_clients.as_ref().filter(|most| !(1..=65536).contains(most.get_ref())) {
        return Err(text.wrong(most.span().start, "max_clients are 1 to 65536"));
    }
    let slow_limit = file.slow_limit.map_or(Ok(DEFAULT_SLOW_LIMIT), |limit| {
        let parsed = parse_duration(limit.get_ref());
        parsed
            .map_err(|error| text.wrong(limit.span().start, format!("slow_limit is a time, such as \"50ms\": {error}")))
    })?;
    let pools = pools(text, &file.pool)?;
    let control = control(text, file.control)?;
    let exports = exports(text, &file.export, &pools, &tls, Sockets::new(&listen, control.as_ref()))?;
    Ok(Plan {
        listen,
        access,
        tls,
        threads: file.threads.map(Spanned::into_inner),
        max_clients: file.max_clients.map_or(1024, Spanned::into_inner),
        slow_limit,
        control,
        metrics: file.metrics.map(Spanned::into_inner),
        web,
        confine: file.confine.unwrap_or(true),
        reach: file.reach,
        log: named(text, file.log.as_ref())?,
        log_to: named(text, file.log_to.as_ref())?,
        pools,
        exports,
    })
}

/// Parses a value that is given by name; returns the default if it is missing.
fn named<T: Default + FromStr<Err = String>>(text: &Text<'_>, name: Option<&Spanned<String>>) -> Result<T, Failure> {
    let Some(name) = name else { return Ok(T::default()) };
    name.get_ref().parse().map_err(|why: String| text.wrong(name.span().start, why))
}

fn pools(text: &Text<'_>, tables: &[PoolTable]) -> Result<Vec<PoolPlan>, Failure> {
    let mut names = BTreeSet::new();
    let mut pools = Vec::new();
    for PoolTable { name, path, uuid, search, read_only, standby } in tables {
        if !names.insert(name.get_ref()) {
            return Err(text.wrong(name.span().start, format!("there is a pool '{}' already", name.get_ref())));
        }
        let (spelled, at) = match (path, uuid) {
            (Some(path), None) => (path.get_ref().clone(), path.span().start),
            (None, Some(uuid)) => (format!("uuid:{}", uuid.get_ref()), uuid.span().start),
            _ => return Err(text.wrong(name.span().start, "a pool has either path or uuid")),
        };
        let place: PoolPlace = spelled.parse().map_err(|why: String| text.wrong(at, why))?;
        let place = place.search_in(search.clone());
        let waits = standby.as_ref().is_some_and(|standby| *standby.get_ref());
        if let (Some(standby), true, true) = (standby, waits, *read_only) {
            return Err(text.wrong(standby.span().start, "a pool that is read only is not waited for"));
        }
        pools.push(PoolPlan { name: name.get_ref().clone(), place, read_only: *read_only, standby: waits });
    }
    Ok(pools)
}

fn exports(
    text: &Text<'_>,
    tables: &[ExportTable],
    pools: &[PoolPlan],
    tls: &[TlsPlan],
    mut sockets: Sockets<'_>,
) -> Result<Vec<ExportPlan>, Failure> {
    let mut names = BTreeSet::new();
    let mut exports = Vec::new();
    for table in tables {
        let at = table.place();
        let what = match (&table.pool, &table.volume, &table.spec) {
            (Some(pool), Some(volume), None) => {
                if !pools.iter().any(|known| known.name == *pool.get_ref()) {
                    return Err(text.wrong(pool.span().start, format!("there is no pool '{}'", pool.get_ref())));
                }
                let name = value::volume_name(volume.get_ref());
                let volume = name.map_err(|why| text.wrong(volume.span().start, why))?;
                What::Volume { pool: pool.get_ref().clone(), volume }
            }
            (None, None, Some(spec)) => What::Device { spec: spec.get_ref().clone() },
            _ => return Err(text.wrong(at, "an export has either pool and volume, or spec")),
        };
        let name = match (&table.name, &what) {
            (Some(name), _) => name.get_ref().clone(),
            (None, What::Volume { volume, .. }) => volume.clone(),
            (None, What::Device { .. }) => return Err(text.wrong(at, "an export of a spec wants a name")),
        };
        let name = value::export_name(&name).map_err(|why| text.wrong(at, why))?;
        if !names.insert(name.clone()) {
            return Err(text.wrong(at, format!("there is an export '{name}' already")));
        }
        let limit = table
            .limit
            .as_ref()
            .map(|limit| limit.get_ref().parse::<Limit>().map_err(|why| text.wrong(limit.span().start, why)));
        let vhost_user = table.vhost_user(&name, &mut sockets).map_err(|(at, why)| text.wrong(at, why))?;
        // A rule may name the addresses at which the clients of this export connect.
        let own = vhost_user.as_ref().map(VhostUserPlan::address);
        let allow = allow::allow(table.allow.as_ref(), sockets.listen(), own.as_ref(), tls);
        let allow = allow.map_err(|(at, why)| text.wrong(at, why))?;
        let limit = limit.transpose()?;
        exports.push(ExportPlan { name, what, read_only: table.read_only, limit, allow, vhost_user });
    }
    Ok(exports)
}

fn control(text: &Text<'_>, table: Option<ControlTable>) -> Result<Option<Control>, Failure> {
    let Some(ControlTable { path, mode, admin_uids, admin_gids }) = table else {
        return Ok(paths::default_path("control.sock").map(Control::at));
    };
    let mode = match &mode {
        None => 0o600,
        Some(mode) => value::mode(mode.get_ref()).map_err(|why| text.wrong(mode.span().start, why))?,
    };
    let wanted = path.is_some();
    let path = path.map(Spanned::into_inner).or_else(|| paths::default_path("control.sock"));
    Ok(path.map(|path| Control { path, mode, admin_uids, admin_gids, wanted }))
}

impl Control {
    /// Settings of a socket at `path` that only this user and root can connect to.
    fn at(path: PathBuf) -> Control {
        Control { path, mode: 0o600, admin_uids: Vec::new(), admin_gids: Vec::new(), wanted: false }
    }
}

/// Arguments of `sheave serve SPEC`.
#[derive(Clone, Debug)]
pub struct One {
    /// Spec of the volume, snapshot or device.
    pub spec: String,
    /// Addresses that NBD clients connect to.
    pub listen: Vec<Address>,
    /// The socket where a virtual machine attaches it.
    pub vhost_user: Option<VhostUserPlan>,
    /// Mode and owner of the unix sockets among `listen`; `None` leaves the mode to the umask.
    pub access: Option<SocketAccess>,
    /// TLS on the addresses in `listen`.
    pub tls: Option<TlsPlan>,
    pub read_only: bool,
    pub limit: Option<Limit>,
    /// Name of the export; by default the volume's name.
    pub name: Option<String>,
    /// Shell command that gets the address of the export. The server ends with it.
    pub run: Option<String>,
    /// Number of reactor threads; `None` means one for each CPU.
    pub threads: Option<u16>,
    pub max_clients: u32,
    /// Path of the control socket; by default one in the runtime directory.
    pub control: Option<PathBuf>,
    /// Host and port of the status page.
    pub web: Option<String>,
    pub log: Verbosity,
}

/// Builds the plan that serves a single volume, snapshot or device.
///
/// # Errors
///
/// The spec cannot be parsed.
pub fn of_one(args: &One) -> Result<Plan, Failure> {
    let text = args.spec.as_str();
    let spec = text.strip_prefix("vol:").unwrap_or(text);
    let volume = spec.contains('#') && !Path::new(spec).exists();
    let (pools, what, name) = if volume {
        let place: VolumePlace = spec.parse().map_err(|why| Failure::usage(format!("{spec}: {why}")))?;
        let pool = PoolPlan { name: ONLY_POOL.into(), place: place.pool, read_only: args.read_only, standby: false };
        let what = What::Volume { pool: ONLY_POOL.into(), volume: place.name.clone() };
        (vec![pool], what, place.name)
    } else {
        (Vec::new(), What::Device { spec: text.into() }, DISK.to_owned())
    };
    let name = args.name.clone().unwrap_or(name);
    let control = match &args.control {
        Some(path) => Some(Control { wanted: true, ..Control::at(path.clone()) }),
        None => paths::default_path(&format!("control-{}.sock", std::process::id())).map(Control::at),
    };
    if let Some(vhost_user) = &args.vhost_user {
        let mut sockets = Sockets::new(&args.listen, control.as_ref());
        let taken = |why| Failure::usage(why).fix("give each socket a path of its own");
        sockets.take(&vhost_user.path, &name).map_err(taken)?;
    }
    let (read_only, limit, vhost_user) = (args.read_only, args.limit, args.vhost_user.clone());
    let exports = vec![ExportPlan { name, what, read_only, limit, allow: Allow::All, vhost_user }];
    // A command that the daemon runs would inherit the confinement.
    let confine = args.run.is_none();
    let (listen, max_clients) = (args.listen.clone(), args.max_clients);
    let tls = args.tls.iter().cloned().collect();
    let unix = listen.iter().filter(|address| matches!(address, Address::Unix(_)));
    let access = unix.filter_map(|address| Some((address.clone(), args.access?))).collect();
    Ok(Plan {
        listen,
        access,
        tls,
        threads: args.threads,
        max_clients,
        slow_limit: DEFAULT_SLOW_LIMIT,
        control,
        confine,
        reach: Vec::new(),
        log: args.log,
        log_to: Sink::Auto,
        metrics: None,
        web: args.web.clone(),
        pools,
        exports,
    })
}

#[cfg(test)]
mod tests;
