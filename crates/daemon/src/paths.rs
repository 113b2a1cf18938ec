//! Location of control sockets, and of the recent changes of pools: the runtime directory, which is
//! `$SHEAVE_RUNTIME_DIR`, else `/run/sheave` for root, else `$XDG_RUNTIME_DIR/sheave`. An empty `$SHEAVE_RUNTIME_DIR`
//! means that there is none. Sockets in it are named `control*.sock`, and recent changes are in `recent`.

use std::path::{Path, PathBuf};

/// Runtime directory of root's daemons.
const SYSTEM: &str = "/run/sheave";

/// Runtime directory of this user's daemons, if there is one.
fn own_directory() -> Option<PathBuf> {
    if let Some(chosen) = std::env::var_os("SHEAVE_RUNTIME_DIR") {
        return (!chosen.is_empty()).then(|| chosen.into());
    }
    if rustix::process::geteuid().is_root() {
        return Some(SYSTEM.into());
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|runtime| !runtime.is_empty())?;
    Some(Path::new(&runtime).join("sheave"))
}

/// Default path of a socket with this name.
pub fn default_path(name: &str) -> Option<PathBuf> {
    Some(own_directory()?.join(name))
}

/// Directory with the changes of pools that no commit has made durable yet, if there is a runtime directory.
pub fn recent_directory() -> Option<PathBuf> {
    default_path("recent")
}

/// Directories in which commands search for sockets.
pub fn directories() -> Vec<PathBuf> {
    let own = own_directory();
    // An explicitly chosen directory is the only one.
    let chosen = std::env::var_os("SHEAVE_RUNTIME_DIR").is_some();
    let system = (!chosen).then(|| PathBuf::from(SYSTEM)).filter(|system| own.as_ref() != Some(system));
    own.into_iter().chain(system).collect()
}
