//! Sockets where virtual machines attach exports by vhost-user: their settings, their binding, and reports about the
//! devices.
//!
//! * U1. A socket of the configuration, or of a call with the daemon's rights that passes none, is bound when its
//!   export is opened, and its path is removed when the export ends. If it cannot be bound, the export is not served,
//!   and is tried again.
//! * U2. Any other caller of the control socket binds the socket itself, with its own rights, and passes it. The passed
//!   socket stays open as long as the export is in the list, also while the export is not served, because the daemon
//!   must not bind a path that such a caller has named.

use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheave_serve::listen::handover;
use sheave_serve::vhost_user::MAX_QUEUES;
use sheave_serve::{Address, Listener, SocketAccess, VhostUser, VhostUserStatus};

use crate::api::types as t;
use crate::failure::{self, Failure};
use crate::rights::Rights;
use crate::{confine, value};

/// Length of the queue of connections that wait at a passed socket.
const BACKLOG: i32 = 128;

/// The socket where a virtual machine attaches an export, and the settings of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserPlan {
    /// Path of the unix socket.
    pub path: PathBuf,
    /// Mode and owner of the socket; `None` leaves the mode to the umask.
    pub access: Option<SocketAccess>,
    /// Number of queues; `None` means one for each reactor.
    pub queues: Option<u16>,
    /// True if the device offers `VIRTIO_F_IN_ORDER`.
    pub in_order: bool,
    /// The socket itself, if a caller of the control socket has bound it (U2).
    pub passed: Option<PassedSocket>,
}

impl VhostUserPlan {
    /// Parses the parameters of a call, if they describe a device. Takes the socket from the descriptors of the call:
    /// a file comes as two descriptors, and the socket after them.
    pub(crate) fn of_call(
        add: &t::AddExport,
        fds: &mut Vec<OwnedFd>,
        rights: Rights,
    ) -> Result<Option<VhostUserPlan>, Failure> {
        let Some(path) = &add.vhost_user else {
            return match add.vhost_queues.is_some() || add.vhost_in_order.is_some() {
                true => Err(Failure::usage("vhost_queues and vhost_in_order are of an export with vhost_user")
                    .fix("give vhost_user, too, or leave them out")),
                false => Ok(None),
            };
        };
        let path = value::socket_path(path).map_err(|why| Failure::usage(why).fix("choose another path"))?;
        if !path.is_absolute() {
            return Err(Failure::usage(format!("{}: the path of a socket begins with a slash", path.display()))
                .fix("name it from the root on, since the daemon has another working directory"));
        }
        let queues = add.vhost_queues.map(|queues| u16::try_from(queues).unwrap_or(u16::MAX));
        if queues.is_some_and(|queues| !(1..=MAX_QUEUES).contains(&queues)) {
            return Err(
                Failure::usage(format!("a device has 1 to {MAX_QUEUES} queues")).fix("choose a number of these")
            );
        }
        let fd = if fds.len() % 2 == 1 { fds.pop() } else { None };
        rights.expect_socket(&path, fd.is_some())?;
        let passed = fd.map(|fd| PassedSocket::new(fd, &path, rights)).transpose()?;
        let in_order = add.vhost_in_order.unwrap_or(false);
        Ok(Some(VhostUserPlan { path, access: None, queues, in_order, passed }))
    }

    /// Returns the address of the socket.
    pub fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }

    /// Returns true if the plan removes the path of the socket, which a caller has passed.
    pub(crate) fn removes_path(&self) -> bool {
        self.passed.as_ref().is_some_and(|passed| passed.0.inode.is_some())
    }

    /// Listens on the socket (U1), or on the one that was passed (U2).
    pub(crate) fn bind(&self) -> Result<VhostUser, Failure> {
        let address = self.address();
        let listener = match (&self.passed, &self.access) {
            (Some(passed), _) => passed.listener()?,
            (None, access) => {
                if let Some(refused) = confine::socket_refusal(&self.path).filter(|_| !handover::has(&address)) {
                    return Err(refused);
                }
                let bound = match access {
                    Some(access) => Listener::bind_for(&address, access),
                    None => Listener::bind(&address),
                };
                bound.map_err(failure::serve)?
            }
        };
        Ok(VhostUser { listener, queues: self.queues, in_order: self.in_order })
    }

    /// Returns the number of queues of a server with `reactors` threads.
    pub(crate) fn queues(&self, reactors: usize) -> u16 {
        let most = reactors.clamp(1, usize::from(MAX_QUEUES));
        self.queues.unwrap_or(most as u16)
    }

    /// Describes the device for a reply. `status` is `None` while the export is not served; then `reactors` is the
    /// number of queues, unless the plan has one.
    pub(crate) fn row(&self, status: Option<&VhostUserStatus>, reactors: usize) -> t::VhostUser {
        if let Some(status) = status {
            return served(status);
        }
        let queues = self.queues(reactors).into();
        t::VhostUser { socket: self.path.display().to_string(), queues, client: None, running: Vec::new() }
    }
}

fn served(status: &VhostUserStatus) -> t::VhostUser {
    let socket = match &status.address {
        Address::Unix(path) => path.display().to_string(),
        Address::Tcp(_) => status.address.to_string(),
    };
    let running = status.running.iter().map(|queue| t::VhostQueue {
        queue: queue.index.into(),
        reactor: queue.reactor as u64,
        size: queue.size.into(),
        in_flight: queue.in_flight.into(),
    });
    t::VhostUser { socket, queues: status.queues.into(), client: status.client, running: running.collect() }
}

/// A listening socket that a caller of the control socket has bound and passed (U2).
#[derive(Clone, Debug)]
pub struct PassedSocket(Arc<Bound>);

#[derive(Debug)]
struct Bound {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the path, if it is to be removed with the socket.
    inode: Option<(u64, u64)>,
}

/// Two are equal if they are the same socket of the same call.
impl PartialEq for PassedSocket {
    fn eq(&self, other: &PassedSocket) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PassedSocket {}

impl PassedSocket {
    /// Checks that `fd` listens at `path`. If the caller has the daemon's rights, the path is removed with the socket;
    /// for any other caller the daemon removes nothing, since the caller could put another file there in time.
    pub(crate) fn new(fd: OwnedFd, path: &Path, rights: Rights) -> Result<PassedSocket, Failure> {
        let wrong = |what: String| {
            Failure::usage(what).fix("pass a unix socket that listens, and name it by the path that it was bound to")
        };
        let listener = fd.try_clone().map_err(|error| Failure::run(format!("taking the socket: {error}")))?;
        let listener = Listener::inherited(listener).map_err(|error| wrong(error.to_string()))?;
        let path = path.to_owned();
        if *listener.address() != Address::Unix(path.clone()) {
            let what =
                format!("the socket that came is at {}, and the call names {}", listener.address(), path.display());
            return Err(wrong(what));
        }
        // A connection reports the process that called `listen` last. Without this call that would be the command,
        // which ends, and the next server at this path would replace the socket as that of a dead server.
        rustix::net::listen(&fd, BACKLOG)
            .map_err(|error| Failure::run(format!("listening at {}: {error}", path.display())))?;
        let inode = if rights == Rights::Own { socket_at(&path) } else { None };
        Ok(PassedSocket(Arc::new(Bound { fd, path, inode })))
    }

    fn listener(&self) -> Result<Listener, Failure> {
        let fd = self.0.fd.try_clone().map_err(|error| {
            Failure::run(format!("taking the socket {}: {error}", self.0.path.display()))
                .fix("raise the limit of descriptors (ulimit -n, LimitNOFILE)")
        })?;
        Listener::inherited(fd).map_err(failure::serve)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.inode.is_some() && socket_at(&self.path) == self.inode {
            // Fails in a directory that the confinement excludes. The next server at this path replaces the socket.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns device and inode of the socket at `path`, if there is one.
fn socket_at(path: &Path) -> Option<(u64, u64)> {
    let is_socket = |found: &Metadata| found.file_type().is_socket();
    std::fs::symlink_metadata(path).ok().filter(is_socket).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests;
