//! `cargo xtask budgets`: runs only the test that counts instructions, for both profiles, or records new budgets.
//!
//! `tests/budgets` does the counting. Users run this command; `test` calls it to build the counted packages first.

use anyhow::{Result, bail};
use sheave_testkit::hot_loop::Profile;

use crate::cargo::{self, cargo};

/// The same name as in `tests/budgets/main.rs`.
const RECORD_ENV: &str = "SHEAVE_RECORD_BUDGETS";

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

/// Builds the packages of a profile with the same cargo arguments as the test, which then has nothing to build.
pub fn build(profile: Profile) -> Result<()> {
    profile.builds().try_for_each(|words| cargo::run(cargo(words)))
}
