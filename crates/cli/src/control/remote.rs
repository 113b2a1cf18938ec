//! The calling side of the control socket: finds a daemon, and calls its methods.
//!
//! A command sends its request, and descriptors of files that it opened itself. Therefore it trusts only daemons of
//! root, of its own user, or of the owner of the pool's file. A daemon of anybody else could pretend to be that of the
//! owner.

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
use sheave_daemon::api::types::{self as t, INTERFACE};
use sheave_daemon::failure::Failure;
use sheave_daemon::paths;
use sheave_daemon::place::PoolPlace;
use sheave_varlink::{Client, ClientError};

use crate::output;
use crate::progress::Progress;

/// Largest number of sockets that are tried in a directory.
const MAX_SOCKETS: usize = 256;
/// Time limit for a daemon's list of pools.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a daemon.
pub struct Remote {
    client: RefCell<Client>,
    socket: PathBuf,
}

/// Advice in errors if no daemon responds.
const FIX: &str = "start one: sheave serve --config FILE; or name its control socket: --control PATH";

/// A daemon that holds a pool.
pub struct Holder {
    pub remote: Remote,
    /// Name of the pool in the daemon.
    pub pool: String,
}

/// The socket named with `--control`.
static NAMED: OnceLock<PathBuf> = OnceLock::new();

/// Restricts the search for pools to the daemon at this socket, if one is given. That daemon is trusted, whoever owns
/// it.
pub fn name(path: Option<PathBuf>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    // Connects once, so that a missing socket is reported as missing, and not as a pool in use.
    Remote::only(Some(&path))?;
    // Fails only on a second call; the command line is parsed once.
    let _ = NAMED.set(path);
    Ok(())
}

/// Adds advice to the failure for a pool that is in use but that no known daemon holds: a daemon may have another
/// socket.
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

/// Returns the paths of control sockets that may exist.
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

/// Connects to the trusted daemons, and returns each with its list of pools.
pub fn daemons(owners: &[u32]) -> impl Iterator<Item = (Remote, Vec<t::PoolRow>)> {
    sockets().into_iter().filter_map(move |path| {
        // Skips a socket whose daemon has ended or does not respond to this user.
        let is_wanted = |remote: &Remote| NAMED.get().is_some() || remote.is_trusted(owners);
        let remote = Remote::connect(&path).ok().filter(is_wanted)?;
        let pools = remote.call::<_, t::Pools>("ListPools", &t::Nothing {}).ok()?;
        Some((remote, pools.pools))
    })
}

/// Returns the identities of the members of a pool.
pub fn nodes(row: &t::PoolRow) -> BTreeSet<(u64, u64)> {
    row.devices.iter().map(|id| (id.device, id.inode)).collect()
}

/// Returns the daemon that holds this pool, if it can be found. All named members must belong to one pool of the
/// daemon. A loop device also matches the file under it, and a file matches its loop device.
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

/// Returns the daemon that has a pool of this name. A name contains no slash, and is not the path of a file or device.
///
/// # Errors
///
/// Returns an error if several daemons have such a pool, or if the pool is not open.
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

/// Fails if the pool is given as a name in a daemon. Used for operations that need the pool closed.
pub fn refuse_name(place: &PoolPlace, what: &str, instead: &str) -> Result<(), Failure> {
    named(place)?.map_or(Ok(()), |holder| Err(refused_by(&holder, place, what, instead)))
}

/// Improves the failure for a pool in use if the pool of a daemon has only some of the named members.
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

/// Improves the failure for a pool in use, for operations that the daemon which holds the pool cannot do.
pub fn not_while_served(place: &PoolPlace, what: &str, instead: &str, busy: Failure) -> Failure {
    match holder(place).filter(|_| busy.is_busy()) {
        Some(holder) => refused_by(&holder, place, what, instead),
        None => busy,
    }
}

/// Returns the failure for an operation that needs the pool closed while a daemon has it open.
pub fn refused_by(Holder { remote, pool }: &Holder, place: &PoolPlace, what: &str, instead: &str) -> Failure {
    let who = remote.describe();
    Failure::busy(format!("{what}, and {who} serves {place} (its pool '{pool}')")).fix(format!(
        "{instead}take the pool and its exports out of the configuration of that server and send it SIGHUP, or end it; \
         then run this again"
    ))
}

impl Remote {
    /// Connects to the daemon at a socket.
    fn connect(path: &Path) -> io::Result<Remote> {
        let mut client = Client::connect(path)?;
        client.set_patience(Some(PATIENCE));
        Ok(Remote { client: RefCell::new(client), socket: path.to_owned() })
    }

    /// Connects to the daemon at `named`. Without a name, connects to the only daemon.
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

    /// Connects to all daemons that respond to this user; fails if there is none.
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

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn is_trusted(&self, owners: &[u32]) -> bool {
        let peer = self.client.borrow().peer_uid();
        let own = rustix::process::geteuid().as_raw();
        peer.is_some_and(|peer| peer == 0 || peer == own || owners.contains(&peer))
    }

    /// Returns a description of the daemon for messages.
    pub fn describe(&self) -> String {
        match self.client.borrow().peer_pid() {
            Some(pid) => format!("'sheave serve' (process {pid})"),
            None => "'sheave serve'".into(),
        }
    }

    /// Calls a method.
    pub fn call<P: Serialize, R: DeserializeOwned>(&self, method: &str, parameters: &P) -> Result<R, Failure> {
        let method = format!("{INTERFACE}.{method}");
        // This is a separate statement, because formatting the failure borrows the client again.
        let reply = self.client.borrow_mut().call(&method, parameters);
        read(reply.map_err(|error| self.failure(error))?)
    }

    /// Calls a method, and passes files that this process has opened.
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

    /// Calls a method that may end the daemon's control socket, and so its own connection, before its reply has left.
    pub fn last_call<P: Serialize>(&self, method: &str, parameters: &P, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        let method = format!("{INTERFACE}.{method}");
        let reply = self.client.borrow_mut().call_more(&method, parameters, fds, &mut |_| Ok(()));
        match reply {
            Ok(_) | Err(ClientError::Io(_)) => Ok(()),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Removes the time limit for replies.
    pub fn be_patient(&self) {
        self.client.borrow_mut().set_patience(None);
    }

    /// Calls a method that reports progress, and ends the call when `stop` is set.
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

    /// Calls a method that has any number of replies, until it fails or the reader of stdout is gone.
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

/// Returns the owners of the pool's files.
fn owners(place: &PoolPlace) -> Vec<u32> {
    place.file_paths().iter().filter_map(|path| Some(std::fs::metadata(path).ok()?.uid())).collect()
}
