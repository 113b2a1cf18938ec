//! That the release binary has nothing of the lab in it.
//!
//! Owns the words that would give it away. They are looked for in the whole file: in its symbols, and in the names that
//! its debug information gives for functions and source files, which name what was inlined too. So a call to a hook,
//! or a single function of the lab, is found however much the linker has optimized.
//!
//! * I1. A binary without such names proves nothing: what must be in it is looked for first.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, cargo};
use crate::workspace;

/// What every product has: a name of a source file, and of a function that is in use (I1).
const PRESENT: &[&str] = &["crates/blk/src/bio_set.rs", "iter_plain"];

/// Names of the lab (its crate, its files), and of its hooks in the floors.
const ABSENT: &[&str] = &[
    "sheave_lab",
    "crates/lab/",
    "BioStore",
    "set_bio_store",
    "set_bio_cache",
    "set_max_cached",
    "EachRead",
    "set_each_read",
    "LateCompletions",
    "late_completions",
];

/// `cargo xtask product`: builds the release binary and looks at it, or looks at the one that is named.
pub fn main(args: &[String]) -> Result<()> {
    match args {
        [] => {
            cargo::run(cargo(["build", "--release", "--quiet"]))?;
            check(&workspace::target_dir().join("release/sheave"))
        }
        [binary] if !binary.starts_with('-') => check(Path::new(binary)),
        _ => bail!("usage: cargo xtask product [BINARY]"),
    }
}

/// Looks at a binary.
pub fn check(binary: &Path) -> Result<()> {
    let bytes = std::fs::read(binary).with_context(|| format!("reading {}", binary.display()))?;
    look(&String::from_utf8_lossy(&bytes)).with_context(|| binary.display().to_string())?;
    println!("{}: {} bytes, and nothing of the lab in them", binary.display(), bytes.len());
    Ok(())
}

/// Names are plain ASCII, so reading the rest of the file as text does no harm.
fn look(text: &str) -> Result<()> {
    let blind: Vec<&str> = PRESENT.iter().copied().filter(|word| !text.contains(word)).collect();
    ensure!(
        blind.is_empty(),
        "no names to look at: {} should be there. Build the release profile as Cargo.toml has it, not stripped (I1)",
        blind.join(", ")
    );
    let found: Vec<&str> = ABSENT.iter().copied().filter(|word| text.contains(word)).collect();
    if !found.is_empty() {
        bail!("it has something of the lab in it: {}. Only `--cfg sheave_lab` may compile that in", found.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
