//! Checks a configuration like a start of the daemon would, but takes nothing: no lock, socket or pool.
//!
//! Owns the findings, which have one of three grades:
//!
//! * F1. An *error* keeps a daemon from starting with this configuration, and a running one from reloading it.
//! * F2. An *unserved* part cannot be served; the other parts are.
//! * F3. A *warning* concerns a part that is served all the same.
//!
//! Problems that only an open would reveal are not found: a volume that its pool does not have, damage, a pool that
//! another process holds, a port that another server listens on.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::Access;
use serde::Serialize;
use sheave_drivers::Reach;
use sheave_drivers::spec::masked;
use sheave_serve::{Address, Allow, Tls, tls};

use crate::config::{self, ExportPlan, Lines, Overrides, Plan, PoolPlan, What};
use crate::failure::{self, Failure};
use crate::look::node_of;
use crate::place::is_missing;
use crate::tls::RENEW;
use crate::value::MAX_SOCKET_PATH;
use crate::{devices, log};

/// Severity of a finding, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// F3.
    Warning,
    /// F2.
    Unserved,
    /// F1.
    Error,
}

/// One problem that the check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub grade: Grade,
    /// Line of the configuration at fault, if a single line is.
    pub line: Option<usize>,
    pub cause: String,
    pub fix: Option<String>,
}

/// An export as the daemon would serve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Would {
    pub name: String,
    /// `POOL#VOLUME`, or the spec of a device with its secrets masked.
    pub of: String,
    pub read_only: bool,
    /// Rate limit, as written in the configuration.
    pub limit: Option<String>,
    /// Access rules as text; `None` if every client may open the export.
    pub allow: Option<Vec<String>>,
    /// Path of the vhost-user socket.
    pub vhost_user: Option<PathBuf>,
}

/// Result of a check: everything that would be served, and the findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Path of the configuration.
    pub config: PathBuf,
    pub listen: Vec<String>,
    pub pools: Vec<String>,
    pub exports: Vec<Would>,
    /// Findings, ordered by line.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns the highest grade among the findings.
    #[must_use]
    pub fn worst(&self) -> Option<Grade> {
        self.findings.iter().map(|finding| finding.grade).max()
    }
}

/// Checks a configuration.
///
/// # Errors
///
/// The configuration cannot be read or parsed.
pub fn configuration(path: &Path, overrides: &Overrides) -> Result<Report, Failure> {
    let (plan, lines) = config::read_with_lines(path)?;
    let plan = overrides.apply(plan);
    let mut look = Look::default();
    look.sockets(&plan, &lines);
    look.tls(&plan, &lines);
    look.pools(&plan, &lines);
    look.exports(&plan, &lines);
    look.rest(&plan);
    let mut findings = look.findings;
    findings.sort_by_key(|finding| (finding.line.unwrap_or(usize::MAX), std::cmp::Reverse(finding.grade)));
    let of = |export: &ExportPlan| match &export.what {
        What::Volume { pool, volume } => format!("{pool}#{volume}"),
        What::Device { spec } => masked(spec),
    };
    let would = |export: &ExportPlan| Would {
        name: export.name.clone(),
        of: of(export),
        read_only: export.read_only,
        limit: export.limit.map(|limit| limit.to_string()),
        allow: in_words(&export.allow),
        vhost_user: export.vhost_user.as_ref().map(|vhost_user| vhost_user.path.clone()),
    };
    Ok(Report {
        config: path.to_owned(),
        listen: plan.listen.iter().map(Address::to_string).collect(),
        pools: plan.pools.iter().map(|pool| pool.name.clone()).collect(),
        exports: plan.exports.iter().map(would).collect(),
        findings,
    })
}

/// Returns the access rules of an export as text, or `None` if every client may open it.
pub(crate) fn in_words(allow: &Allow) -> Option<Vec<String>> {
    match allow {
        Allow::All => None,
        Allow::Only(rules) => Some(rules.iter().map(ToString::to_string).collect()),
    }
}

/// A warning that the start of the daemon also logs: the name of its event, and the message.
pub(crate) type Advice = (&'static str, String);

/// Returns warnings about parts of `plan` that are served but may not be intended. `clear` are the addresses at which a
/// client needs no certificate.
pub(crate) fn advice<'a>(plan: &Plan, clear: impl Iterator<Item = &'a Address>) -> Vec<Advice> {
    let mut advice = Vec::new();
    let writable = plan.exports.iter().find(|export| !export.read_only && export.allow.is_all());
    for address in clear.filter(|address| is_for_others(address)) {
        if let Some(export) = writable {
            advice.push((
                "open_to_all",
                format!(
                    "whoever reaches {address} can change the export '{}': it asks for no certificate. Give the \
                     address TLS with client_ca, or listen on an address of this machine alone",
                    export.name
                ),
            ));
        }
    }
    for files in plan.tls.iter().filter_map(|tls| tls.files.as_ref()) {
        if others_read(&files.key) {
            advice.push((
                "key_is_readable",
                format!("every user of this machine can read the key {0}: chmod 600 {0}", files.key.display()),
            ));
        }
    }
    if plan.exports.is_empty() {
        let what = "nothing is served yet: the configuration has no [[export]]; 'sheave export add' adds one";
        advice.push(("serves_nothing", what.into()));
    }
    advice
}

/// Returns the addresses of `plan` at which a client needs no certificate.
pub(crate) fn clear(plan: &Plan) -> impl Iterator<Item = &Address> {
    let asks = |address: &Address| {
        let its = |listen: &[Address]| listen.is_empty() || listen.contains(address);
        let tls = plan.tls.iter().find(|tls| its(&tls.listen));
        tls.is_some_and(|tls| tls.required && tls.files.as_ref().is_some_and(|files| files.client_ca.is_some()))
    };
    plan.listen.iter().filter(move |address| !asks(address))
}

/// Returns true unless `address` is a unix socket or a loopback address.
fn is_for_others(address: &Address) -> bool {
    let Address::Tcp(place) = address else { return false };
    let host = place.rsplit_once(':').map_or(place.as_str(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse::<IpAddr>().map_or(host != "localhost", |ip| !ip.is_loopback())
}

fn others_read(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.mode() & 0o004 != 0)
}

/// First user of each file or device, by device and inode number, and true if it needs the file for itself.
type Users = BTreeMap<(u64, u64), (String, bool)>;

#[derive(Default)]
struct Look {
    findings: Vec<Finding>,
    users: Users,
}

impl Look {
    fn found(&mut self, grade: Grade, line: Option<usize>, cause: impl Into<String>, fix: impl Into<String>) {
        self.findings.push(Finding { grade, line, cause: cause.into(), fix: Some(fix.into()) });
    }

    fn failed(&mut self, grade: Grade, line: Option<usize>, why: &Failure) {
        let (cause, fix) = (why.cause().to_owned(), why.how_to_mend().map(str::to_owned));
        self.findings.push(Finding { grade, line, cause, fix });
    }

    fn sockets(&mut self, plan: &Plan, lines: &Lines) {
        for (number, address) in plan.listen.iter().enumerate() {
            let line = lines.listen.get(number).copied();
            let is_free_port = matches!(address, Address::Tcp(place) if place.ends_with(":0"));
            if plan.listen[..number].contains(address) && !is_free_port {
                self.found(Grade::Error, line, format!("{address} is named twice"), "listen there once");
            }
            match address {
                Address::Unix(path) => self.socket(Grade::Error, "", path, line),
                Address::Tcp(place) => self.port(place, line),
            }
        }
        if let (Some(control), Some(line)) = (&plan.control, lines.control) {
            self.socket(Grade::Error, "", &control.path, Some(line));
            if plan.listen.contains(&Address::Unix(control.path.clone())) {
                let what = format!("{} is the control socket, and an address of exports, too", control.path.display());
                self.found(Grade::Error, Some(line), what, "give each a path of its own");
            }
        }
        for (place, line) in [(&plan.metrics, lines.metrics), (&plan.web, lines.web)] {
            place.iter().for_each(|place| self.port(place, line));
        }
    }

    /// Checks that a unix socket can be created at `path`. `who` is put before the path in a finding.
    fn socket(&mut self, grade: Grade, who: &str, path: &Path, line: Option<usize>) {
        let text = format!("{who}{}", path.display());
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            let what = format!("{text} is too long for a socket");
            return self.found(grade, line, what, "choose a path of at most 107 bytes");
        }
        if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            let what = format!("{text} is there and is no socket");
            return self.found(grade, line, what, "choose another path, or remove it");
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            let what = format!("{text}: there is no directory {}", directory.display());
            self.found(grade, line, what, "make the directory first");
        } else if may(directory, Access::WRITE_OK | Access::EXEC_OK).is_err() {
            let what = format!("{text}: this user may not make a socket in {}", directory.display());
            self.found(grade, line, what, "choose a path that this user may write to");
        }
    }

    /// Checks that this machine has the TCP address `place`.
    fn port(&mut self, place: &str, line: Option<usize>) {
        let found = place.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // Binds port 0 of the address and not the named port: a server, perhaps this daemon itself, may be using that
        // one.
        let is_ours = found.and_then(|found| {
            let free: Vec<_> = found.iter().map(|address| (address.ip(), 0).into()).collect();
            TcpListener::bind(free.as_slice())
        });
        if let Err(error) = is_ours {
            let fix = "choose an address that this machine has, such as 127.0.0.1:10809";
            self.found(Grade::Error, line, format!("cannot listen on {place}: {error}"), fix);
        }
    }

    fn tls(&mut self, plan: &Plan, lines: &Lines) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        for (number, table) in plan.tls.iter().enumerate() {
            let line = lines.tls.get(number).copied();
            let Some(files) = &table.files else { continue };
            if let Err(why) = Tls::load(files, table.required) {
                self.failed(Grade::Error, line, &failure::serve(why));
                continue;
            }
            let Ok(Some(validity)) = tls::validity(&files.certificate) else { continue };
            let path = files.certificate.display();
            let days = (validity.until - now) / 86_400;
            let renew = "have its authority issue a new one, and reload";
            if validity.until <= now {
                self.found(Grade::Unserved, line, format!("{path} has expired: no client accepts it"), renew);
            } else if validity.from > now {
                let what = format!("{path} is not valid yet: no client accepts it");
                self.found(Grade::Unserved, line, what, "look at the clock of this machine, or wait");
            } else if validity.until <= now + RENEW.as_secs() as i64 {
                self.found(Grade::Warning, line, format!("{path} expires in {days} days"), renew);
            }
        }
    }

    fn pools(&mut self, plan: &Plan, lines: &Lines) {
        for (number, PoolPlan { name, place, read_only, .. }) in plan.pools.iter().enumerate() {
            let line = lines.pools.get(number).copied();
            if let Err(why) = place.expect_pool() {
                self.failed(Grade::Unserved, line, &named(&format!("pool '{name}'"), &why));
                continue;
            }
            // As at a start, members that the configuration does not name are searched for.
            let whole = match place.whole() {
                Ok(whole) => whole,
                Err(why) => {
                    self.failed(Grade::Unserved, line, &named(&format!("pool '{name}'"), &why));
                    continue;
                }
            };
            for spec in whole.specs() {
                self.device(&format!("pool '{name}'"), &spec, *read_only, true, line);
            }
        }
    }

    fn exports(&mut self, plan: &Plan, lines: &Lines) {
        for (number, ExportPlan { name, what, read_only, vhost_user, .. }) in plan.exports.iter().enumerate() {
            let line = lines.exports.get(number).copied();
            if let Some(vhost_user) = vhost_user {
                let who = format!("export '{name}': vhost_user: ");
                self.socket(Grade::Unserved, &who, &vhost_user.path, line);
            }
            let What::Device { spec } = what else { continue };
            let who = format!("export '{name}'");
            if spec.contains(':') {
                self.device(&who, spec, *read_only, false, line);
            } else {
                let what = format!("{who}: {spec} names neither a volume nor a device");
                self.found(Grade::Unserved, line, what, format!("write file:{spec} for the file as it is"));
            }
        }
    }

    /// Checks that every file and socket that `spec` reaches exists, is accessible, and has no other user in the
    /// configuration.
    fn device(&mut self, who: &str, spec: &str, read_only: bool, is_pool: bool, line: Option<usize>) {
        let reaches = match devices::reaches(spec) {
            Ok(reaches) => reaches,
            Err(why) => return self.failed(Grade::Unserved, line, &named(who, &failure::device(why))),
        };
        let read_only = read_only || spec.contains("readonly=on");
        for reach in reaches {
            let (path, rights) = match &reach {
                Reach::Data(path) if read_only => (path, Access::READ_OK),
                Reach::Data(path) => (path, Access::READ_OK | Access::WRITE_OK),
                Reach::Reads(path) => (path, Access::READ_OK),
                Reach::Socket(path) => (path, Access::WRITE_OK),
                _ => continue,
            };
            if is_missing(path) {
                // The driver creates a file whose spec has a size.
                if matches!(reach, Reach::Data(_)) && spec.contains("size=") && !read_only && !is_pool {
                    continue;
                }
                let what = format!("{who}: {} is not there", path.display());
                self.found(Grade::Unserved, line, what, "check the path");
            } else if let Err(error) = may(path, rights) {
                let what = format!("{who}: {}: {error}", path.display());
                self.found(Grade::Unserved, line, what, "see what this user may do with it, or add read_only = true");
            } else if matches!(reach, Reach::Data(_)) {
                self.uses(who, path, is_pool || !read_only, line);
            }
        }
    }

    /// Records `who` as a user of the file `path`; reports a conflict if it or an earlier user needs the file `alone`.
    fn uses(&mut self, who: &str, path: &Path, alone: bool, line: Option<usize>) {
        let Ok(found) = std::fs::metadata(path) else { return };
        let id = node_of(&found);
        match self.users.get(&id) {
            Some((other, others)) if *others || alone => {
                let what = format!("{who}: {} is in use by {other}", path.display());
                self.found(Grade::Unserved, line, what, "name each file and device once, or read them only");
            }
            _ => _ = self.users.insert(id, (who.to_owned(), alone)),
        }
    }

    fn rest(&mut self, plan: &Plan) {
        let is_attached = plan.exports.iter().any(|export| export.vhost_user.is_some());
        if plan.listen.is_empty() && plan.control.is_none() && !is_attached {
            let fix = "add listen = [\"unix:/run/sheave/nbd.sock\"], unless systemd gives sockets to the daemon";
            self.found(Grade::Warning, None, "it has no address to listen on", fix);
        }
        if let Err(why) = log::can(plan.log_to) {
            self.failed(Grade::Error, None, &why);
        }
        for path in plan.reach.iter().filter(|path| is_missing(path)) {
            let what = format!("reach: {} is not there, so the daemon will not reach it", path.display());
            self.found(Grade::Warning, None, what, "make it before the daemon starts, or leave it out");
        }
        for (_, what) in advice(plan, clear(plan)) {
            let (cause, fix) = what.split_once(". ").unwrap_or((&what, ""));
            let (cause, fix) = (cause.to_owned(), (!fix.is_empty()).then(|| fix.to_owned()));
            self.findings.push(Finding { grade: Grade::Warning, line: None, cause, fix });
        }
    }
}

/// Checks `rights` against the effective user and groups, with which the daemon later opens files.
fn may(path: &Path, rights: Access) -> Result<(), rustix::io::Errno> {
    rustix::fs::accessat(rustix::fs::CWD, path, rights, rustix::fs::AtFlags::EACCESS)
}

/// Returns the failure `why` with `who` before its cause.
fn named(who: &str, why: &Failure) -> Failure {
    let named = Failure::run(format!("{who}: {}", why.cause()));
    match why.how_to_mend() {
        Some(fix) => named.fix(fix),
        None => named,
    }
}
