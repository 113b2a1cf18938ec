//! The control socket of a daemon.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use sheave_serve::{Address, Listener};
use sheave_varlink::{Limits, Roles, Server};

use crate::config;
use crate::daemon::Daemon;
use crate::failure::{self, Failure};
use crate::paths::default_path;
use crate::service::Control;
use crate::trace;

/// A running control socket.
pub struct Running {
    server: Server,
    /// Removes the path of the socket on drop.
    listener: Listener,
    /// Directory of traces.
    traces: PathBuf,
}

/// Creates the runtime directory (if the socket is in it) and the directory of traces before the daemon is confined.
pub fn prepare(plan: &config::Plan) {
    let Some(wanted) = &plan.control else { return };
    let name = wanted.path.file_name().unwrap_or_default().to_string_lossy();
    if Some(&wanted.path) == default_path(&name).as_ref()
        && let Some(directory) = wanted.path.parent()
    {
        // An error here is reported when the socket is bound.
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory);
    }
    if plan.confine {
        // An error here is reported when a trace is started.
        let _ = trace::prepare(&trace::directory(&wanted.path));
    }
}

/// Binds the socket. Only this user and root can connect until [`Running::start`] sets its mode.
pub fn bind(wanted: &config::Control) -> Result<Listener, Failure> {
    Listener::bind_private(&Address::Unix(wanted.path.clone())).map_err(failure::serve)
}

impl Running {
    /// Starts serving the socket.
    pub fn start(daemon: &Arc<Daemon>, wanted: &config::Control, listener: Listener) -> Result<Running, Failure> {
        let failed = |error: std::io::Error| {
            Failure::run(format!("cannot serve the control socket {}: {error}", wanted.path.display()))
        };
        let socket = UnixListener::from(listener.try_clone().map_err(failed)?);
        let roles = Roles { admin_uids: wanted.admin_uids.clone(), admin_gids: wanted.admin_gids.clone() };
        let service = Arc::new(Control::new(daemon.clone()));
        let server = Server::start(socket, service, Limits::default(), roles).map_err(failed)?;
        // Set after the bind, which creates the socket with mode 0600, so that nobody can connect before the mode is
        // right.
        let mode = std::fs::Permissions::from_mode(wanted.mode);
        std::fs::set_permissions(&wanted.path, mode).map_err(failed)?;
        Ok(Running { server, listener, traces: trace::directory(&wanted.path) })
    }

    /// Stops serving. No call is being handled when this returns.
    pub fn stop(self) {
        let Running { server, listener, traces } = self;
        server.stop();
        drop(listener);
        // Fails if there are traces in the directory, which then stays.
        let _ = std::fs::remove_dir(traces);
    }
}
