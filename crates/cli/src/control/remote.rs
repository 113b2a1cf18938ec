//! A daemon as a command sees it: found, and called.
//!
//! A command sends it nothing but what it was asked to do, and descriptors of files that it has opened itself. So it
//! trusts no daemon but one of root, of its own user, or of the owner of the pool's file: another one could answer in
//! the place of the pool's owner.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_daemon::api::paths;
use sheave_daemon::api::types::{self as t, INTERFACE};
use sheave_daemon::failure::Failure;
use sheave_daemon::place::PoolPlace;
use sheave_varlink::{Client, ClientError};

use crate::output;
use crate::progress::Progress;

/// Sockets of a directory that are tried, at most.
const MAX_SOCKETS: usize = 256;
/// How long a daemon may take to say which pools it holds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon.
pub struct Remote {
    client: RefCell<Client>,
    socket: PathBuf,
}

/// What to do when no daemon answers.
const FIX: &str = "start one: sheave serve --config FILE; or name its control socket: --control PATH";

/// A daemon that holds a pool.
pub struct Holder {
    /// It.
    pub remote: Remote,
    /// Its name of the pool.
    pub pool: String,
}

/// The socket that `--control` of this command names.
static NAMED: OnceLock<PathBuf> = OnceLock::new();

/// Pools are asked for at this socket alone, if there is one. Whoever names it trusts who listens there.
pub fn name(path: Option<PathBuf>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    // One that is not there is told now, and not as a pool that is in use.
    Remote::only(Some(&path))?;
    // The command line is read once.
    let _ = NAMED.set(path);
    Ok(())
}

/// A pool that somebody has open, and no daemon that was asked: where else one may be.
pub fn look_elsewhere(busy: Failure) -> Failure {
    if !busy.is_busy() {
        return busy;
    }
    let fix = busy.how_to_mend().unwrap_or("wait until it ends").trim_end_matches('.').to_owned();
    match NAMED.get() {
        Some(path) => busy.fix(format!("{fix}; the server at {} does not have this pool", path.display())),
        None => busy.fix(format!("{fix}; a server whose control socket is elsewhere is named by --control PATH")),
    }
}

/// Control sockets that may be there.
fn sockets() -> Vec<PathBuf> {
    if let Some(named) = NAMED.get() {
        return vec![named.clone()];
    }
    let mut found = Vec::new();
    for directory in paths::directories() {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let named = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("control") && name.ends_with(".sock")
        });
        found.extend(named.map(|entry| entry.path()).take(MAX_SOCKETS));
    }
    found.sort_unstable();
    found
}

/// The daemons that can be asked, and their pools.
pub fn daemons(owners: &[u32]) -> impl Iterator<Item = (Remote, Vec<t::PoolRow>)> {
    sockets().into_iter().filter_map(move |path| {
        // One that is gone, or does not answer this user, does not hold up the others.
        let is_wanted = |remote: &Remote| NAMED.get().is_some() || remote.is_trusted(owners);
        let remote = Remote::connect(&path).ok().filter(is_wanted)?;
        let pools = remote.call::<_, t::Pools>("ListPools", &t::Nothing {}).ok()?;
        Some((remote, pools.pools))
    })
}

/// By which a daemon knows the members of one of its pools.
pub fn nodes(row: &t::PoolRow) -> BTreeSet<(u64, u64)> {
    row.devices.iter().map(|id| (id.device, id.inode)).collect()
}

/// The daemon that holds this pool, if there is one that can be asked: all that is named are members of its pool, by
/// whatever name. A loop device is known by its file, too, and a file by its loop device.
pub fn holder(place: &PoolPlace) -> Option<Holder> {
    let owners = owners(place);
    let mut found = None;
    for wanted in [place.identities(), place.other_identities()].into_iter().filter(|wanted| !wanted.is_empty()) {
        found = found.or_else(|| {
            daemons(&owners).find_map(|(remote, rows)| {
                let has = |row: &t::PoolRow| row.failed.is_none() && wanted.iter().all(|id| nodes(row).contains(id));
                let row = rows.into_iter().find(has)?;
                Some(Holder { remote, pool: row.name })
            })
        });
    }
    found
}

/// The daemon that has a pool of this name: a name without a slash, where there is no file or device of this name.
///
/// # Errors
///
/// Several daemons have one, or the pool is not open.
pub fn named(place: &PoolPlace) -> Result<Option<Holder>, Failure> {
    let Some(name) = place.as_name() else { return Ok(None) };
    let mut found = Vec::new();
    for (remote, rows) in daemons(&[]) {
        if let Some(row) = rows.into_iter().find(|row| row.name == name) {
            found.push((remote, row));
        }
    }
    let Some((remote, row)) = found.pop() else { return Ok(None) };
    if let Some((other, _)) = found.pop() {
        let who = format!("{} and {}", other.socket.display(), remote.socket.display());
        return Err(Failure::usage(format!("two servers have a pool '{name}': those at {who}"))
            .fix("name one of its files or devices"));
    }
    match row.failed {
        None => Ok(Some(Holder { remote, pool: row.name })),
        Some(why) => {
            let failure = Failure::run(format!("the pool '{name}' of {} is not open: {why}", remote.describe()));
            Err(failure.fix(row.fix.unwrap_or_else(|| "mend the cause, then reload the server (SIGHUP)".into())))
        }
    }
}

/// Refuses a pool that is named as a daemon has it, for what wants it closed.
pub fn refuse_name(place: &PoolPlace, what: &str, instead: &str) -> Result<(), Failure> {
    named(place)?.map_or(Ok(()), |holder| Err(refused_by(&holder, place, what, instead)))
}

/// Says of a pool that is in use, and of which a daemon has a part of what was named, which pool that is.
pub fn not_all_of_it(place: &PoolPlace, busy: Failure) -> Failure {
    let wanted = place.identities();
    if !busy.is_busy() || wanted.len() < 2 {
        return busy;
    }
    let part = |row: &&t::PoolRow| row.failed.is_none() && wanted.iter().any(|id| nodes(row).contains(id));
    let served =
        daemons(&owners(place)).find_map(|(remote, rows)| Some((rows.iter().find(part)?.name.clone(), remote)));
    match served {
        Some((name, remote)) => {
            let who = remote.describe();
            Failure::busy(format!("{who} serves a part of what {place} names, as its pool '{name}', and not all of it"))
                .fix(format!("name one of its members alone, or '{name}'"))
        }
        None => busy,
    }
}

/// A pool that was found in use, for what a daemon that holds it cannot do: then the refusal names the way.
pub fn not_while_served(place: &PoolPlace, what: &str, instead: &str, busy: Failure) -> Failure {
    match holder(place).filter(|_| busy.is_busy()) {
        Some(holder) => refused_by(&holder, place, what, instead),
        None => busy,
    }
}

/// The refusal of what wants a pool closed that a daemon has open.
pub fn refused_by(Holder { remote, pool }: &Holder, place: &PoolPlace, what: &str, instead: &str) -> Failure {
    let who = remote.describe();
    Failure::busy(format!("{what}, and {who} serves {place} (its pool '{pool}')")).fix(format!(
        "{instead}take the pool and its exports out of the configuration of that server and send it SIGHUP, or end it; \
         then run this again"
    ))
}

impl Remote {
    /// The daemon at this socket.
    fn connect(path: &Path) -> io::Result<Remote> {
        let mut client = Client::connect(path)?;
        client.set_patience(Some(PATIENCE));
        Ok(Remote { client: RefCell::new(client), socket: path.to_owned() })
    }

    /// The daemon that somebody has named, or the only one that there is.
    pub fn only(named: Option<&Path>) -> Result<Remote, Failure> {
        if let Some(path) = named {
            return Remote::connect(path)
                .map_err(|error| Failure::run(format!("no server answers at {}: {error}", path.display())).fix(FIX));
        }
        let mut found = Remote::answering();
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => Err(Failure::run("no server answers this user").fix(FIX)),
            _ => {
                let paths: Vec<String> = found.iter().map(|remote| remote.socket.display().to_string()).collect();
                Err(Failure::usage(format!("several servers answer: {}", paths.join(", ")))
                    .fix("choose one by --control PATH"))
            }
        }
    }

    /// All daemons that answer this user; one at least.
    pub fn all() -> Result<Vec<Remote>, Failure> {
        let found = Remote::answering();
        if found.is_empty() {
            return Err(Failure::run("no server answers this user").fix(FIX));
        }
        Ok(found)
    }

    fn answering() -> Vec<Remote> {
        let mut found: Vec<Remote> = sockets().iter().filter_map(|path| Remote::connect(path).ok()).collect();
        found.retain(|remote| remote.is_trusted(&[]));
        found
    }

    /// Its control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn is_trusted(&self, owners: &[u32]) -> bool {
        let peer = self.client.borrow().peer_uid();
        let own = rustix::process::geteuid().as_raw();
        peer.is_some_and(|peer| peer == 0 || peer == own || owners.contains(&peer))
    }

    /// Who it is, in words.
    pub fn describe(&self) -> String {
        match self.client.borrow().peer_pid() {
            Some(pid) => format!("'sheave serve' (process {pid})"),
            None => "'sheave serve'".into(),
        }
    }

    /// Calls a method.
    pub fn call<P: Serialize, R: DeserializeOwned>(&self, method: &str, parameters: &P) -> Result<R, Failure> {
        let method = format!("{INTERFACE}.{method}");
        // The words of a failure look at the client, too.
        let reply = self.client.borrow_mut().call(&method, parameters);
        read(reply.map_err(|error| self.failure(error))?)
    }

    /// Calls a method that takes files, which this process has opened.
    pub fn call_with<P: Serialize, R: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &P,
        fds: &[BorrowedFd<'_>],
    ) -> Result<R, Failure> {
        let method = format!("{INTERFACE}.{method}");
        let reply = self.client.borrow_mut().call_more(&method, parameters, fds, &mut |_| Ok(()));
        read(reply.map_err(|error| self.failure(error))?)
    }

    /// From now on an answer may take as long as it wants.
    pub fn be_patient(&self) {
        self.client.borrow_mut().set_patience(None);
    }

    /// Calls a method that tells how far it is; ends it when `stop` is set.
    pub fn long<P: Serialize, R: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &P,
        fds: &[BorrowedFd<'_>],
        progress: &mut Progress,
        stop: &AtomicBool,
    ) -> Result<R, Failure> {
        let mut each = |reply: Value| {
            // Relaxed: the flag carries nothing but itself.
            if stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if let Ok(at) = serde_json::from_value::<t::Progress>(reply["progress"].clone()) {
                progress.reach(at.done_bytes, at.total_bytes);
            }
            Ok(())
        };
        let method = format!("{INTERFACE}.{method}");
        let reply = self.client.borrow_mut().call_more(&method, parameters, fds, &mut each);
        match reply {
            Err(ClientError::Io(error)) if error.kind() == io::ErrorKind::Interrupted => {
                Err(Failure::interrupted("it was ended; the server undoes what it had begun"))
            }
            Err(error) => Err(self.failure(error)),
            Ok(reply) => read(reply),
        }
    }

    /// Calls a method that replies again and again, until it fails, or nobody reads stdout any more.
    pub fn stream<P: Serialize>(
        &self,
        method: &str,
        parameters: &P,
        each: &mut dyn FnMut(Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut failed = None;
        let mut reply = |reply: Value| {
            each(reply).map_err(|why| {
                failed = Some(why);
                io::ErrorKind::Interrupted.into()
            })
        };
        let method = format!("{INTERFACE}.{method}");
        let ended = self.client.borrow_mut().call_more_while(&method, parameters, &mut reply, &output::is_read);
        match (failed, ended) {
            (Some(why), _) => Err(why),
            (None, Ok(_)) => Ok(()),
            (None, Err(_)) if !output::is_read() => Ok(()),
            (None, Err(error)) => Err(self.failure(error)),
        }
    }

    fn failure(&self, error: ClientError) -> Failure {
        match error {
            ClientError::Refused { error, parameters } if error == format!("{INTERFACE}.Refused") => {
                match serde_json::from_value::<t::Refused>(parameters) {
                    Ok(t::Refused { kind, cause, fix }) => Failure::told(&kind, cause, fix),
                    Err(error) => Failure::run(format!("the server sends what is no reply: {error}")),
                }
            }
            ClientError::Refused { error, .. } if error == "org.varlink.service.PermissionDenied" => Failure::run(
                format!("{} lets this user look, and change nothing", self.describe()),
            )
            .fix("run it as root or the user of the server, or name this user in admin_uids of its configuration"),
            ClientError::Refused { error, parameters } => {
                Failure::run(format!("{} does not know this call: {error} {parameters}", self.describe()))
                    .fix("use the same version of sheave for both")
            }
            error => Failure::run(format!("{} at {} does not answer: {error}", self.describe(), self.socket.display()))
                .fix("see whether it has ended, then try again"),
        }
    }
}

fn read<R: DeserializeOwned>(reply: Value) -> Result<R, Failure> {
    serde_json::from_value(reply).map_err(|error| {
        Failure::run(format!("the server's reply is not understood: {error}")).fix("use the same version of sheave")
    })
}

/// Users that own the files of a pool.
fn owners(place: &PoolPlace) -> Vec<u32> {
    place.file_paths().iter().filter_map(|path| Some(std::fs::metadata(path).ok()?.uid())).collect()
}
