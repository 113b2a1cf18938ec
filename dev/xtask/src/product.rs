//! Checks that the release binary contains nothing of the lab.
//!
//! Owns the names to search for. They are searched in the whole file, including its symbols and the names of functions
//! and source files in its debug information. Debug information also names inlined code, so that a call of a hook or a
//! single function of the lab is found whatever the linker has optimized away.
//!
//! * I1. A binary without any names would pass the check, so names of the product must be found first.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, cargo};
use crate::workspace;

/// Names that every product contains: a source file, and a function that is in use (I1).
const PRESENT: &[&str] = &["crates/blk/src/bio_set.rs", "iter_plain"];

/// Names of the lab (its crate, its files), and of its hooks in the product's crates.
const ABSENT: &[&str] = &[
    "sheave_lab",
    "lab/src/",
    "BioStore",
    "set_bio_store",
    "set_bio_cache",
    "set_max_cached",
    "EachRead",
    "set_each_read",
    "LateCompletions",
    "late_completions",
];

/// Runs `cargo xtask product`: builds the release binary and checks it, or checks the named one.
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

pub fn check(binary: &Path) -> Result<()> {
    let bytes = std::fs::read(binary).with_context(|| format!("reading {}", binary.display()))?;
    look(&String::from_utf8_lossy(&bytes)).with_context(|| binary.display().to_string())?;
    println!("{}: {} bytes, and nothing of the lab in them", binary.display(), bytes.len());
    Ok(())
}

/// Searches the binary as text. Its names are plain ASCII, so that a lossy conversion keeps them.
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
mod tests {
    use super::*;

    fn product() -> String {
        format!("{}\0crates/load/src/looper.rs\0sheave_load\0sheave-lab\0", PRESENT.join("\0"))
    }

    #[test]
    fn a_product_passes_and_may_speak_of_the_lab() {
        look(&product()).expect("nothing of the lab is in it");
    }

    #[test]
    fn every_name_of_the_lab_is_found_wherever_it_stands() {
        for word in ABSENT {
            for text in [format!("_ZN17{word}17h{}", product()), product() + word] {
                let error = look(&text).expect_err(word).to_string();
                assert!(error.contains(word), "{error}");
            }
        }
    }

    #[test]
    fn a_binary_without_names_proves_nothing() {
        for missing in PRESENT {
            let error = look(&product().replace(missing, "")).expect_err("nothing can be seen").to_string();
            assert!(error.contains(missing) && error.contains("(I1)"), "{error}");
        }
    }
}
