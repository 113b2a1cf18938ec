//! `cargo xtask budgets`: the test that counts instructions, alone, and the way to record new budgets.
//!
//! Owns nothing of the counting: `tests/budgets` does that. Called by hand, and by `test` for what is to be built
//! first.

use anyhow::{Result, bail};
use sheave_testkit::hot_loop::BUILD;

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
    build()?;
    let mut test = cargo(["test", "--quiet", "-p", "sheave", "--test", "budgets"]);
    if record {
        test.args(["--", "instructions"]).env(RECORD_ENV, "1");
    }
    cargo::run(test)
}

/// Builds the examples that are measured, in the words of the test, which then finds nothing to build.
pub fn build() -> Result<()> {
    cargo::run(cargo(BUILD.split(' ')))
}
