//! Cargo, for programs that cargo itself has started.

use std::ffi::OsStr;
use std::process::Command;

/// Returns a command that runs cargo as a shell would start it.
///
/// Cargo describes the package of the program that it runs in variables. Some build scripts, such as that of `ring`,
/// run again when these change: then each caller would rebuild all crates that use `ring`.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os().filter(|(name, _)| describes_package(name)) {
        command.env_remove(name);
    }
    command
}

fn describes_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|prefix| name.starts_with(prefix))
        || name == "OUT_DIR"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_not_told_the_package_of_its_caller() {
        let command = cargo();
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR", "CARGO_MANIFEST_DIR"] {
            assert!(std::env::var_os(name).is_some(), "cargo and cargo-nextest set {name} for tests");
            assert!(removed.contains(&OsStr::new(name)), "{name} is kept");
        }
        assert!(!describes_package(OsStr::new("CARGO_HOME")) && !describes_package(OsStr::new("CARGO_TARGET_DIR")));
    }
}
