//! The control socket of a daemon.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use sheave_serve::{Address, Listener};
use sheave_varlink::{Limits, Roles, Server};

use crate::api::paths::default_path;
use crate::config;
use crate::daemon::Daemon;
use crate::failure::{self, Failure};
use crate::service::Control;
use crate::trace;

/// A control socket that is served.
pub struct Running {
    server: Server,
    /// Removes the socket's path when it goes.
    listener: Listener,
    /// Where its traces are.
    traces: PathBuf,
}

/// Makes the runtime directory, if the socket is to be there, while the daemon may still make one.
pub fn prepare(plan: &config::Plan) {
    let Some(wanted) = &plan.control else { return };
    let name = wanted.path.file_name().unwrap_or_default().to_string_lossy();
    if Some(&wanted.path) == default_path(&name).as_ref()
        && let Some(directory) = wanted.path.parent()
    {
        // What is in the way is told by the bind.
        let _ = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory);
    }
    if plan.confine {
        // One that cannot be made is told by the start of a trace.
        let _ = trace::prepare(&trace::directory(&wanted.path));
    }
}

impl Running {
    /// Begins to serve it.
    pub fn start(daemon: &Arc<Daemon>, wanted: &config::Control) -> Result<Running, Failure> {
        let address = Address::Unix(wanted.path.clone());
        let listener = Listener::bind_private(&address).map_err(failure::serve)?;
        let failed = |error: std::io::Error| {
            Failure::run(format!("cannot serve the control socket {}: {error}", wanted.path.display()))
        };
        let socket = UnixListener::from(listener.try_clone().map_err(failed)?);
        let roles = Roles { admin_uids: wanted.admin_uids.clone(), admin_gids: wanted.admin_gids.clone() };
        let service = Arc::new(Control::new(daemon.clone()));
        let server = Server::start(socket, service, Limits::default(), roles).map_err(failed)?;
        // Only now, so that nobody has connected who may not.
        let mode = std::fs::Permissions::from_mode(wanted.mode);
        std::fs::set_permissions(&wanted.path, mode).map_err(failed)?;
        Ok(Running { server, listener, traces: trace::directory(&wanted.path) })
    }

    /// Ends it; no call is handled any more when this returns.
    pub fn stop(self) {
        let Running { server, listener, traces } = self;
        server.stop();
        drop(listener);
        // One with traces in it stays.
        let _ = std::fs::remove_dir(traces);
    }
}
