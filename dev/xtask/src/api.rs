//! `cargo xtask api`: checks the library's public interface, and what a program gets that depends on the library.
//!
//! Owns the comparison of the public names with `docs/public-api.txt`, the list of crates that a program that uses only
//! rings builds, the number of packages in a program's lock file, the combinations of features, and the oldest
//! compiler. Build time is printed and never judged: a line in the nightly report shows how it grows.
//!
//! Public items must also be documented, extensible, and typed ([`rules`]).
//!
//! Invariant A1: a listing that lacks items which every listing has was parsed wrongly, and is refused.

mod listing;
mod locked;
mod rules;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, cargo};
use crate::workspace;

const PAGE: &str = "docs/public-api.txt";
/// Compiler wrapper in `dev/xtask/rustc` for builds with few features.
const COMPILER: &str = "strict";
/// Command that writes the list of names anew.
const RENEW: &str = "cargo xtask api --write";
/// Lines that every listing has (A1): a method, a trait implementation, an automatic trait, an attribute, and the
/// module of a feature.
const PRESENT: &[&str] = &[
    "pub fn push(&mut self, op: impl Op) -> Result<(), Box<SqFull>>",
    "impl Iterator for Completions<'_>",
    "impl !Send for Ring",
    "#[non_exhaustive]",
    "struct sheave::volumes::Pool",
];
/// Crates that a program that uses only rings must not build.
const NOT_FOR_RINGS: &[&str] = &["sheave-vol", "zerocopy", "crc-fast"];
/// Features to build with, one at a time. Programs use one of these or several together.
const FEATURES: &[&str] = &["", "volumes", "drivers", "raw"];

pub fn main(args: &[String]) -> Result<()> {
    match args {
        [] => run(),
        [flag] if flag == "--write" => {
            std::fs::write(page(), made()?).with_context(|| format!("writing {PAGE}"))?;
            println!("{PAGE} is written: look at what changed, and say why in the commit");
            Ok(())
        }
        _ => bail!("usage: cargo xtask api [--write]"),
    }
}

/// Runs all checks of CI.
pub fn run() -> Result<()> {
    let now = made()?;
    let kept = std::fs::read_to_string(page()).with_context(|| format!("reading {PAGE}: `{RENEW}` makes it"))?;
    compare(&kept, &now)?;
    println!("{} public items, as in {PAGE}", now.lines().filter(|line| is_item(line)).count());
    let (tree, ..) = cargo::capture(cargo([
        "tree",
        "-p",
        "sheave",
        "--no-default-features",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]))?;
    let crates = crates_of(&tree)?;
    println!("a program of rings alone builds {} crates: {}", crates.len(), crates.join(" "));
    println!("a program that depends on the library has {} other packages in its lock file", locked::check()?);
    oldest_compiler()?;
    features()
}

fn page() -> PathBuf {
    workspace::root().join(PAGE)
}

/// Makes the listing of the library as it is now.
fn made() -> Result<String> {
    let pages = workspace::target_dir().join("doc/sheave");
    // The program of the same name may have left its pages in this directory.
    match std::fs::remove_dir_all(&pages) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut command = cargo(["doc", "-p", "sheave", "--lib", "--no-deps", "--all-features", "--quiet"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    cargo::run(command)?;
    let (text, undocumented) = listing::read(&pages, "sheave")?;
    ensure!(undocumented.is_empty(), "public names without documentation: {}", undocumented.join(", "));
    let broken = rules::broken(&text);
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    for present in PRESENT {
        ensure!(text.contains(present), "the pages of rustdoc are read wrongly: `{present}` is missing (A1)");
    }
    let rustc = compiler()?;
    Ok(format!("# The public names of the library `sheave`, all features. `{RENEW}` renews it.\n# {rustc}\n{text}"))
}

/// Returns the compiler's name and version.
fn compiler() -> Result<String> {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.arg("--version");
    let name = cargo::capture(command)?.0;
    // The commit is left out, because it differs between two builds of one version.
    Ok(name.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

/// Returns true if a line begins an item.
fn is_item(line: &str) -> bool {
    !line.is_empty() && !line.starts_with([' ', '#'])
}

/// Fails with the differences of the two listings, if there are any.
fn compare(kept: &str, now: &str) -> Result<()> {
    let (old, new) = (entries(kept), entries(now));
    let gone = old.iter().filter(|entry| !new.contains(entry)).map(|(item, line)| format!("- {item}: {line}"));
    let come = new.iter().filter(|entry| !old.contains(entry)).map(|(item, line)| format!("+ {item}: {line}"));
    let changes: Vec<String> = gone.chain(come).collect();
    if changes.is_empty() {
        return Ok(());
    }
    let compilers: Vec<&str> = [kept, now].iter().filter_map(|text| text.lines().nth(1)).collect();
    let other = match compilers[..] {
        [old, new] if old != new => {
            format!("\n(the page was made with {old}, this is {new}: rustdoc may write otherwise)")
        }
        _ => String::new(),
    };
    bail!(
        "the public names of the library are not those of {PAGE}:\n{}\nIf that is meant, `{RENEW}` renews the page; \
         what is gone or changed belongs into CHANGELOG.md{other}",
        changes.join("\n")
    );
}

/// Returns each line together with the item that it belongs to.
fn entries(text: &str) -> Vec<(&str, &str)> {
    let mut item = "";
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            if is_item(line) {
                item = line;
            }
            (item, line.trim_start())
        })
        .collect()
}

/// Returns the crates in the output of `cargo tree`, each once. Fails if one of them is not needed for rings.
fn crates_of(tree: &str) -> Result<Vec<&str>> {
    let mut crates: Vec<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    crates.sort_unstable();
    crates.dedup();
    ensure!(crates.contains(&"sheave-uring"), "`cargo tree` does not name the crate of rings");
    let found: Vec<&str> = NOT_FOR_RINGS.iter().copied().filter(|name| crates.contains(name)).collect();
    ensure!(found.is_empty(), "a program of rings alone builds {}: make it part of a feature", found.join(", "));
    Ok(crates)
}

/// Builds the library with the compiler of `rust-version`: the current one if it has that version, else one of rustup.
fn oldest_compiler() -> Result<()> {
    let manifest = std::fs::read_to_string(workspace::root().join("Cargo.toml"))?;
    let entries = workspace::parse_manifest(&manifest);
    let oldest = entries.iter().find(|entry| entry.section == "workspace.package" && entry.key == "rust-version");
    let oldest = oldest.context("Cargo.toml states no rust-version")?.value.trim_matches('"').to_owned();
    let guide = std::fs::read_to_string(workspace::root().join("docs/concepts/embedding.md"))?;
    let stated = format!("Rust {oldest} or newer");
    ensure!(guide.contains(&stated), "docs/concepts/embedding.md does not say `{stated}`, as Cargo.toml has it");
    let this = compiler()?;
    if this.strip_prefix("rustc ").is_some_and(|version| version.starts_with(&format!("{oldest}."))) {
        println!("the oldest compiler is {oldest}, and all is built with it here ({this})");
        return Ok(());
    }
    let mut command = Command::new("rustup");
    command.args(["run", &oldest, "cargo", "check", "-p", "sheave", "--all-features", "--quiet", "--target-dir"]);
    command.arg(workspace::target_dir().join("oldest")).current_dir(workspace::root());
    cargo::run(command)
        .with_context(|| format!("building with the oldest compiler: `rustup toolchain add {oldest}`"))?;
    println!("built with the oldest compiler, {oldest}");
    Ok(())
}

/// Builds the library with each feature alone. Warnings are errors.
fn features() -> Result<()> {
    for features in FEATURES {
        let mut command = cargo(["check", "-p", "sheave", "--lib", "--no-default-features", "--quiet", "--features"]);
        command.arg(features);
        cargo::run(cargo::with_compiler(command, COMPILER))?;
    }
    println!("no warnings with any one of the features{}", FEATURES.join(" "));
    Ok(())
}

/// Measures the first build of a program that uses only rings, into an empty directory. The nightly run prints the
/// time.
pub fn first_build() -> Result<()> {
    let dir = workspace::target_dir().join("library");
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let started = Instant::now();
    let mut command = cargo(["build", "-p", "sheave", "--lib", "--no-default-features", "--quiet", "--target-dir"]);
    command.arg(&dir);
    cargo::run(command)?;
    let took = started.elapsed().as_secs_f64();
    println!("a program of rings alone waits {took:.1} s for the first build of the library (dev profile)");
    Ok(())
}

#[cfg(test)]
mod tests;
