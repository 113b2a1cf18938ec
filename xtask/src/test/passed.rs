//! What the quick tier has shown: kept in the target directory, so that `--all` behind it does not run the same tests
//! again, as CI would.
//!
//! Invariant I1: it counts for the very commit that it was made of, and only while nothing of that is changed.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};

use sheave_testkit::skip::PREFIX;

use crate::cargo;
use crate::counts::Counts;
use crate::workspace;

/// A run of the quick tier without a failure.
#[derive(Debug, PartialEq, Eq)]
pub struct Passed {
    /// Tests that passed.
    pub passed: u64,
    /// Names of tests that skipped themselves, most of them for want of a tool.
    pub skipped: Vec<String>,
}

impl Passed {
    /// What the last run has shown, if that was of what is here now.
    pub fn on_this_commit() -> Option<Passed> {
        Self::read(&std::fs::read_to_string(path()).ok()?, &commit()?)
    }

    /// Keeps what a run has shown, if it was of a commit.
    pub fn note(counts: Counts) -> Result<()> {
        let Some(commit) = commit() else { return Ok(()) };
        let skips = std::fs::read_to_string(workspace::skip_log()).unwrap_or_default();
        let text = Self { passed: counts.passed, skipped: skipped(&skips) }.text(&commit);
        std::fs::write(path(), text).with_context(|| format!("writing {}", path().display()))
    }

    /// Forgets the last run: another begins, and may fail.
    pub fn forget() {
        // There may be none.
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

/// The names in a log of skips: `SKIPPED: NAME: REASON`, each once. The thread that skips has the test's name.
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

/// The commit, if the checkout is exactly that.
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
