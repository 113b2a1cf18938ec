//! Installs the missing outside tools through apt-get in one run, if this user may do that.
//!
//! Owns the decision if this machine may install (root, or sudo without a password; apt-get present) and the order of
//! attempts. Called only by `cargo xtask test --all --install` (I1), because a test that installs something would
//! surprise its user.
//!
//! Invariants:
//! - I4: nothing here asks a question or waits for a terminal.
//! - I5: package lists are fetched only after an installation with the present ones has failed.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::tools::{self, Tool};

/// The outcome for one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Present(PathBuf),
    Installed(PathBuf),
    /// The tool is missing. Holds the reason.
    Skipped(String),
}

/// A machine from the view of the installer: the programs in a `PATH`.
pub struct Installer {
    path: OsString,
    quiet: bool,
}

/// Options that limit the time that apt-get waits for another apt-get and for a mirror, and that make its output fit
/// for a log.
const APT_OPTIONS: &[&str] =
    &["-q", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::http::Timeout=30", "-o", "Dpkg::Use-Pty=0"];

impl Installer {
    /// Returns the installer for this machine.
    pub fn host() -> Self {
        Self { path: env::var_os("PATH").unwrap_or_default(), quiet: false }
    }

    #[cfg(test)]
    pub(crate) fn with_path(path: impl Into<OsString>) -> Self {
        Self { path: path.into(), quiet: true }
    }

    /// Searches for the tools in `wanted`. The outcomes are in the order of `wanted`. Installs nothing.
    pub fn look(&self, wanted: &[Tool]) -> Vec<Outcome> {
        let outcome = |tool: &Tool| match self.find(tool.name) {
            Some(path) => Outcome::Present(path),
            None => Outcome::Skipped(tool.cure()),
        };
        wanted.iter().map(outcome).collect()
    }

    /// Installs the missing ones of `wanted`, if possible. The outcomes are in the order of `wanted`. Before that it
    /// prints what will be installed: the tools, then apt-get's own list of packages with their sizes.
    pub fn ensure(&self, wanted: &[Tool]) -> Vec<Outcome> {
        let before: Vec<Option<PathBuf>> = wanted.iter().map(|tool| self.find(tool.name)).collect();
        let missing: Vec<&Tool> = wanted.iter().zip(&before).filter(|(_, at)| at.is_none()).map(|(t, _)| t).collect();
        let failure = if missing.is_empty() { None } else { self.install(&missing).err() };
        let outcome = |(tool, before): (&Tool, Option<PathBuf>)| match (before, self.find(tool.name)) {
            (Some(path), _) => Outcome::Present(path),
            (None, Some(path)) => Outcome::Installed(path),
            (None, None) => {
                let why = failure.as_deref().unwrap_or("apt-get succeeded without bringing it");
                Outcome::Skipped(format!("{why}; {}", tool.cure()))
            }
        };
        wanted.iter().zip(before).map(outcome).collect()
    }

    fn find(&self, name: &str) -> Option<PathBuf> {
        tools::find_in(name, &self.path)
    }

    fn install(&self, missing: &[&Tool]) -> Result<(), String> {
        let apt = self.apt_command()?;
        let apt_install = |tools: &[&Tool], consent: &str| {
            let packages = tools.iter().flat_map(|tool| tool.packages).copied();
            let words = ["install", "--no-install-recommends", consent];
            self.run(&apt, &words.into_iter().chain(packages).collect::<Vec<_>>())
        };
        let install = |tools: &[&Tool]| apt_install(tools, "--assume-yes");
        if !self.quiet {
            for tool in missing {
                println!("to be installed: {}, which {} ({})", tool.name, tool.why, tool.packages.join(", "));
            }
            println!(
                "packages of servers (Ceph, Prometheus, smartmontools) enable those: `systemctl disable` ends that"
            );
        }
        // A dry run that prints all packages with their sizes. It answers no at the prompt, so its failure is expected.
        apt_install(missing, "--assume-no");
        if install(missing) {
            return Ok(());
        }
        // Old or absent package lists are the usual cause (I5).
        if !self.run(&apt, &["update"]) {
            return Err("apt-get update failed (no network?)".into());
        }
        // Packages are installed one by one, so that a package that this release lacks does not prevent the others.
        if install(missing) || missing.iter().filter(|tool| !install(&[tool])).count() == 0 {
            return Ok(());
        }
        Err("apt-get install failed (its output is above)".into())
    }

    /// Returns the command that runs apt-get with the right to install, or the reason why there is none.
    fn apt_command(&self) -> Result<Vec<OsString>, String> {
        let apt = self.find("apt-get").ok_or("this system has no apt-get")?;
        if self.answer(Command::new("id").arg("-u")).is_some_and(|uid| uid.trim() == "0") {
            return Ok(vec![apt.into()]);
        }
        let sudo = self.find("sudo").ok_or("not root, and no sudo")?;
        if self.answer(Command::new(&sudo).args(["-n", "true"])).is_none() {
            return Err("not root, and sudo asks for a password".into());
        }
        Ok(vec![sudo.into(), "-n".into(), "DEBIAN_FRONTEND=noninteractive".into(), apt.into()])
    }

    /// Returns the standard output of a command, if it succeeds.
    fn answer(&self, command: &mut Command) -> Option<String> {
        let output = command.env("PATH", &self.path).stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn run(&self, words: &[OsString], args: &[&str]) -> bool {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(APT_OPTIONS).args(args);
        command.env("PATH", &self.path).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        if self.quiet {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        command.status().is_ok_and(|status| status.success())
    }
}
