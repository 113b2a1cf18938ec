//! The configuration of the daemon, and what it means: a [`Plan`].
//!
//! Whatever is wrong in the file is told with its line. `sheave serve SPEC` makes a plan of its arguments, so that
//! there is one way from a plan to a server.

pub(crate) mod allow;
pub mod listen;

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
use crate::api::paths;
use crate::failure::Failure;
use crate::log::{Sink, Verbosity};
use crate::place::{PoolPlace, VolumePlace};
use crate::tls::{TlsPlan, TlsTable};
use crate::value;

/// Most bytes of a configuration.
const MAX_BYTES: u64 = 1 << 20;
/// Name of the pool of `sheave serve POOL#VOLUME`.
pub const ONLY_POOL: &str = "pool";
/// Name of an export that is no volume.
const DISK: &str = "disk";

/// What is to be served, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where.
    pub listen: Vec<Address>,
    /// Who may connect to unix sockets among these; of the others the umask decides.
    pub access: Vec<(Address, SocketAccess)>,
    /// TLS of these addresses.
    pub tls: Vec<TlsPlan>,
    /// Reactors; `None`: one for each CPU.
    pub threads: Option<u16>,
    /// Clients at a time.
    pub max_clients: u32,
    /// I/O that takes longer is kept as slow, whatever is usual.
    pub slow_limit: Duration,
    /// The control socket.
    pub control: Option<Control>,
    /// It locks itself in.
    pub confine: bool,
    /// Files and directories that it may reach beside what is named above.
    pub reach: Vec<PathBuf>,
    /// How much is logged.
    pub log: Verbosity,
    /// Where.
    pub log_to: Sink,
    /// Where `/metrics` is: host and port.
    pub metrics: Option<String>,
    /// Where the status page is: host and port.
    pub web: Option<String>,
    /// Pools, each with a name of its own.
    pub pools: Vec<PoolPlan>,
    /// Exports, each with a name of its own.
    pub exports: Vec<ExportPlan>,
}

impl Plan {
    /// Every pool that is not read only is waited for.
    #[must_use]
    pub fn all_standby(mut self) -> Plan {
        self.pools.iter_mut().for_each(|pool| pool.standby |= !pool.read_only);
        self
    }
}

/// What a command line says about a configuration that the file does not.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// How much is logged.
    pub log: Option<Verbosity>,
    /// Each pool that another host has is waited for.
    pub standby: bool,
    /// Where the status page is: host and port.
    pub web: Option<String>,
}

impl Overrides {
    pub(crate) fn apply(&self, mut plan: Plan) -> Plan {
        plan.log = self.log.unwrap_or(plan.log);
        plan.web = self.web.clone().or(plan.web);
        if self.standby { plan.all_standby() } else { plan }
    }
}

/// A control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// Where it is.
    pub path: PathBuf,
    /// Who may connect.
    pub mode: u32,
    /// Users that may change something.
    pub admin_uids: Vec<u32>,
    /// Groups that may.
    pub admin_gids: Vec<u32>,
    /// Somebody has asked for it: without it there is no daemon.
    pub wanted: bool,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub place: PoolPlace,
    /// It is only looked at.
    pub read_only: bool,
    /// While another host has it, it is waited for; when its storage has cut this host off, it is waited for again.
    pub standby: bool,
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPlan {
    /// Its name.
    pub name: String,
    /// What it is.
    pub what: What,
    /// It is not changed.
    pub read_only: bool,
    /// The limit of its speed, if it has one.
    pub limit: Option<Limit>,
    /// The rules that say which clients may open it.
    pub allow: Allow,
}

/// What an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A volume or snapshot of a pool.
    Volume {
        /// The pool's name.
        pool: String,
        /// Its own.
        volume: String,
    },
    /// A device.
    Device {
        /// Its spec.
        spec: String,
    },
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
}

impl ExportTable {
    /// The byte at which its first value stands.
    fn place(&self) -> usize {
        let given = [&self.name, &self.volume, &self.spec, &self.pool];
        given.iter().filter_map(|key| key.as_ref()).map(|key| key.span().start).min().unwrap_or(0)
    }
}

/// A file, and what is wrong in it.
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
            .fix("docs/serve.md tells what a configuration may have")
    }
}

/// The lines in which parts of a configuration stand, each list as the plan has it.
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
    /// Where it says which pool it is.
    fn place(&self) -> usize {
        self.path.as_ref().or(self.uuid.as_ref()).unwrap_or(&self.name).span().start
    }
}

impl Lines {
    fn of(text: &Text<'_>, file: &File) -> Lines {
        // Of thousands of exports each is found among the ends of lines, and not by a look at all before it.
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

/// Reads a configuration.
pub fn read(path: &Path) -> Result<Plan, Failure> {
    Ok(read_with_lines(path)?.0)
}

/// Reads a configuration, and says in which lines its parts stand.
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
    let exports = exports(text, &file.export, &pools, &listen, &tls)?;
    Ok(Plan {
        listen,
        access,
        tls,
        threads: file.threads.map(Spanned::into_inner),
        max_clients: file.max_clients.map_or(1024, Spanned::into_inner),
        slow_limit,
        control: control(text, file.control)?,
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

/// A value that is written by its name, or the default.
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
    listen: &[Address],
    tls: &[TlsPlan],
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
        let allow = allow::allow(table.allow.as_ref(), listen, tls).map_err(|(at, why)| text.wrong(at, why))?;
        let limit = limit.transpose()?;
        exports.push(ExportPlan { name, what, read_only: table.read_only, limit, allow });
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
    /// One that only this user and root reach.
    fn at(path: PathBuf) -> Control {
        Control { path, mode: 0o600, admin_uids: Vec::new(), admin_gids: Vec::new(), wanted: false }
    }
}

/// What `sheave serve SPEC` is asked.
#[derive(Clone, Debug)]
pub struct One {
    /// The volume, snapshot or device.
    pub spec: String,
    /// Where.
    pub listen: Vec<Address>,
    /// Who may connect to the unix sockets there; without it the umask decides.
    pub access: Option<SocketAccess>,
    /// TLS there.
    pub tls: Option<TlsPlan>,
    /// It is not changed.
    pub read_only: bool,
    /// The limit of its speed, if it has one.
    pub limit: Option<Limit>,
    /// The export's name, unless the volume's.
    pub name: Option<String>,
    /// A command that gets the address; the server ends with it.
    pub run: Option<String>,
    /// Reactors; `None`: one for each CPU.
    pub threads: Option<u16>,
    /// Clients at a time.
    pub max_clients: u32,
    /// The control socket, unless one in the runtime directory.
    pub control: Option<PathBuf>,
    /// Where the status page is: host and port.
    pub web: Option<String>,
    /// How much is logged.
    pub log: Verbosity,
}

/// The plan for one volume, snapshot or device.
///
/// # Errors
///
/// When it makes no sense.
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
    let exports = vec![ExportPlan { name, what, read_only: args.read_only, limit: args.limit, allow: Allow::All }];
    // A command that is run would be locked in, too.
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
