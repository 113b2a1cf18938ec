//! Python modules that tests use and Debian does not have. They are found, or pip installs them into the target
//! directory.
//!
//! Owns [`MODULES`], like [`crate::tools`] owns the programs: `cargo xtask test --all --install` installs missing
//! modules, and a test only searches for them. They are in a directory of their own, so that no Python of the machine
//! is changed.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::install::Outcome;
use crate::skip;

/// A Python module. Its package has the same name.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    pub name: &'static str,
    /// The version to install. It is fixed, because another version may behave differently.
    pub version: &'static str,
    /// The purpose that the tests use it for.
    pub why: &'static str,
}

pub const MODULES: &[Module] =
    &[Module { name: "varlink", version: "31.0.0", why: "calls the control socket as programs that others wrote do" }];

fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/python"))
}

/// Returns a command for Python that finds the modules.
#[must_use]
pub fn python() -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", directory());
    command
}

fn has(name: &str) -> bool {
    let mut command = python();
    command.args(["-c", &format!("import {name}")]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Searches for the modules. The outcomes are in the order of [`MODULES`]. Installs nothing.
#[must_use]
pub fn look() -> Vec<Outcome> {
    let one = |module: &Module| match has(module.name) {
        true => Outcome::Present(directory()),
        false => Outcome::Skipped(cure(module)),
    };
    MODULES.iter().map(one).collect()
}

/// Installs each module that is missing, if possible. The outcomes are in the order of [`MODULES`].
#[must_use]
pub fn ensure() -> Vec<Outcome> {
    let one = |module: &Module| {
        if has(module.name) {
            return Outcome::Present(directory());
        }
        let wanted = format!("{}=={}", module.name, module.version);
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
        pip.arg(directory()).arg(&wanted).stdin(Stdio::null());
        match pip.status() {
            Ok(status) if status.success() && has(module.name) => Outcome::Installed(directory()),
            Ok(status) => Outcome::Skipped(format!("pip could not install {wanted} ({status}); {}", cure(module))),
            Err(error) => Outcome::Skipped(format!("no python3: {error}; {}", cure(module))),
        }
    };
    MODULES.iter().map(one).collect()
}

fn cure(module: &Module) -> String {
    format!("python3 -m pip install --target target/python {}", module.name)
}

/// Returns Python with a module that the calling test needs, or `None` after a loud skip: then return from the test.
///
/// # Panics
///
/// Panics in CI if the module is missing, and always if it is not in [`MODULES`].
#[must_use]
pub fn require(name: &str) -> Option<Command> {
    let module = MODULES.iter().find(|module| module.name == name);
    let module = module.unwrap_or_else(|| panic!("`{name}` is not in sheave_testkit::python::MODULES: add a row"));
    if has(name) {
        return Some(python());
    }
    let reason = format!("Python's `{name}` is missing ({}): {}", module.why, cure(module));
    assert!(!skip::in_ci(), "in CI a missing module is a failure: {reason}");
    skip::skip(&reason);
    None
}
