//! The result of the quick tier, stored in the target directory. If `--all` follows, like in CI, it does not run the
//! same tests again.
//!
//! Invariant I1: a result counts only for the commit on which it was made, and only while the checkout is unchanged.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};

use sheave_testkit::skip::PREFIX;

use crate::cargo;
use crate::counts::Counts;
use crate::workspace;

/// A run of the quick tier without failures.
#[derive(Debug, PartialEq, Eq)]
pub struct Passed {
    pub passed: u64,
    /// Names of tests that skipped themselves, mostly because a tool was missing.
    pub skipped: Vec<String>,
}

impl Passed {
    /// Returns the result of the last run, if that was on the current checkout (I1).
    pub fn on_this_commit() -> Option<Passed> {
        Self::read(&std::fs::read_to_string(path()).ok()?, &commit()?)
    }

    /// Stores the result of a run, if the checkout is a clean commit.
    pub fn note(counts: Counts) -> Result<()> {
        let Some(commit) = commit() else { return Ok(()) };
        let skips = std::fs::read_to_string(workspace::skip_log()).unwrap_or_default();
        let text = Self { passed: counts.passed, skipped: skipped(&skips) }.text(&commit);
        std::fs::write(path(), text).with_context(|| format!("writing {}", path().display()))
    }

    /// Removes the result of the last run. Called before a new run, which may fail.
    pub fn forget() {
        // Fails if there is no result yet.
        let _ = std::fs::remove_file(path());
    }

    fn text(&self, commit: &str) -> String {
        let mut text = format!("commit {commit}\npassed {}\n", self.passed);
        for name in &self.skipped {
            let _ = writeln!(text, "skipped {name}");
        }
        text
    }

    fn read(text: &str, commit: &str) -> Option<Passed> {
        let mut lines = text.lines();
        let of_it = lines.next()?.strip_prefix("commit ")? == commit;
        let passed = lines.next()?.strip_prefix("passed ")?.parse().ok()?;
        let skipped = lines.map(|line| line.strip_prefix("skipped ").map(str::to_owned)).collect::<Option<_>>()?;
        of_it.then_some(Passed { passed, skipped })
    }
}

/// Returns the names in a log of skips, `SKIPPED: NAME: REASON`, each once. NAME is the name of the test's thread,
/// which is that of the test.
fn skipped(log: &str) -> Vec<String> {
    let name =
        |line: &str| line.strip_prefix(PREFIX).and_then(|rest| rest.split_once(": ")).map(|(name, _)| name.into());
    let mut names: Vec<String> = log.lines().filter_map(name).collect();
    names.sort();
    names.dedup();
    names
}

fn path() -> PathBuf {
    workspace::target_dir().join("quick-tier.txt")
}

/// Returns the current commit, if the checkout has no changes.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.args(args).current_dir(workspace::root());
        let (text, _, success) = cargo::capture(command).ok()?;
        success.then(|| text.trim().to_owned())
    };
    let clean = git(&["status", "--porcelain"])?.is_empty();
    clean.then(|| git(&["rev-parse", "HEAD"]))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_of_its_commit_alone() {
        let run = Passed { passed: 7, skipped: vec!["a::b".into(), "c".into()] };
        let text = run.text("abc");
        assert_eq!(Passed::read(&text, "abc"), Some(run));
        assert_eq!(Passed::read(&text, "abd"), None);
        assert_eq!(Passed::read("commit abc\npassed x\n", "abc"), None);
        assert_eq!(Passed::read("", "abc"), None);
    }

    #[test]
    fn a_test_that_skips_twice_is_one() {
        let log = "SKIPPED: b::c: no fio\nnoise\nSKIPPED: a: no: fio\nSKIPPED: b::c: no strace\n";
        assert_eq!(skipped(log), ["a", "b::c"]);
    }
}
