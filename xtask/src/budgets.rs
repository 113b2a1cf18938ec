//! `cargo xtask budgets`: the test that counts instructions, alone and for both profiles, and the way to record new
//! budgets.
//!
//! Owns nothing of the counting: `tests/budgets` does that. Called by hand, and by `test` for what is to be built
//! first.

use anyhow::{Result, bail};
use sheave_testkit::hot_loop::Profile;

use crate::cargo::{self, cargo};

/// As in `tests/budgets/main.rs`.
const RECORD_ENV: &str = "SHEAVE_RECORD_BUDGETS";

/// The command.
pub fn main(args: &[String]) -> Result<()> {
    let record = match args {
        [] => false,
        [flag] if flag == "--record" => true,
        _ => bail!("usage: cargo xtask budgets [--record]"),
    };
    Profile::ALL.into_iter().try_for_each(build)?;
    let mut test = cargo(["test", "--quiet", "-p", "sheave", "--test", "budgets", "--"]);
    if record {
        test.arg("instructions").env(RECORD_ENV, "1");
    } else {
        test.arg("--include-ignored");
    }
    cargo::run(test)
}

/// Builds what is counted by a profile, in the words of the test, which then finds nothing to build.
pub fn build(profile: Profile) -> Result<()> {
    profile.builds().try_for_each(|words| cargo::run(cargo(words)))
}
