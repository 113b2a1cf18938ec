//! `cargo xtask lab`: builds and starts the lab, and runs its lints, documentation and tests.
//!
//! Owns the flags of the lab's build: `--cfg sheave_lab`, without which neither the lab nor its hooks in the product's
//! crates are compiled. Users run this command; `test` and `nightly` call it too.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::bench;
use crate::cargo;
use crate::counts::Counts;
use crate::workspace;

/// Flag under which the lab and its hooks are compiled.
pub const CFG: &str = "sheave_lab";
/// Flag under which the simulation of cache lines is compiled, in a separate build of the same library.
const LINES_CFG: &str = "sheave_mesi";

/// The page that has the figures of a run between its markers, and below it the HTML page of that run.
const PAGE: &str = "docs/internals/lab.md";
const EXAMPLE: &str = "docs/internals/lab-example.html";
/// Largest size in bytes of that HTML page; other files of the repository may have 100 KiB. The page shows a run with
/// all sweeps: 70 KB of text and tables, 55 KB of figures, 17 KB of the script that draws them. With plots as elements
/// it would have 577 KB.
const MOST: u64 = 160 << 10;

/// Runs `cargo xtask lab ARGS`: builds the lab and replaces this process by it. With `--write` the run also updates
/// `docs/internals/lab.md` and the example page. `--write --from FILE` updates both from a stored run.
pub fn main(args: &[String]) -> Result<()> {
    let binary = build()?;
    let mut command = Command::new(&binary);
    if args.iter().any(|arg| arg == "--write") {
        return write(command, args);
    }
    let error = command.args(args).exec();
    Err(error).with_context(|| format!("starting {}", binary.display()))
}

/// Runs the lab and writes its figures into the page, and the HTML page of the run. The run is stored in `target`, so
/// that both can be written again without measuring.
fn write(mut command: Command, args: &[String]) -> Result<()> {
    let of_write = ["--html", "--markdown", "--json", "--save"];
    if let Some(arg) = args.iter().find(|arg| of_write.contains(&arg.split('=').next().unwrap_or(arg))) {
        bail!("{arg} beside --write, which writes {PAGE} and {EXAMPLE}");
    }
    let [tables, page, run] =
        ["lab-tables.md", "lab-page.html", "lab-run.json"].map(|name| workspace::target_dir().join(name));
    command.args(args.iter().filter(|arg| *arg != "--write"));
    command.arg("--markdown").arg(&tables).arg("--html").arg(&page);
    if !args.iter().any(|arg| arg.split('=').next() == Some("--from")) {
        command.arg("--save").arg(&run);
    }
    cargo::run(command)?;
    let text = std::fs::read_to_string(&tables).with_context(|| format!("reading {}", tables.display()))?;
    bench::page::write(PAGE, "lab", &text)?;
    keep(&page, &workspace::root().join(EXAMPLE)).with_context(|| format!("{PAGE} was written, {EXAMPLE} was not"))?;
    println!("wrote {PAGE} and {EXAMPLE}");
    Ok(())
}

/// Copies the HTML page of a run into the repository, if it is not too large.
fn keep(page: &Path, example: &Path) -> Result<()> {
    let bytes = std::fs::metadata(page).with_context(|| format!("reading {}", page.display()))?.len();
    ensure!(bytes <= MOST, "{} has {bytes} bytes, and may have {MOST}", page.display());
    std::fs::copy(page, example).with_context(|| format!("writing {}", example.display()))?;
    Ok(())
}

/// Runs `cargo xtask lab-tests [FILTER]`: the tests of the lab and of its hooks.
pub fn tests_main(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg.starts_with('-')) {
        bail!("usage: cargo xtask lab-tests [FILTER]...");
    }
    let mut counts = Counts::default();
    let result = tests(args, &mut counts);
    println!("{counts}");
    result
}

/// Makes a cargo command that builds the lab.
fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    cargo::with_compiler(cargo::cargo(args), CFG)
}

/// Makes a cargo command that builds the simulation of cache lines.
fn cargo_of_lines<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    cargo::with_compiler(cargo::cargo(args), LINES_CFG)
}

/// Builds the lab, and the simulation of cache lines that the lab starts. Returns the path of the lab. The profile is
/// the one for packages, because the arms instantiate generic code that no product build has.
fn build() -> Result<PathBuf> {
    cargo::run(cargo(["build", "--profile", "dist", "--quiet", "-p", "sheave-lab", "--bin", "sheave-lab"]))?;
    cargo::run(cargo_of_lines(["build", "--profile", "dist", "--quiet", "-p", "sheave-lab", "--bin", "sheave-lines"]))?;
    Ok(workspace::target_dir().join("dist/sheave-lab"))
}

/// Lints the lab and the hooks in the crates below it. Passes the cfg as an argument of clippy, because clippy takes
/// the place of the compiler wrapper that sets it otherwise.
pub fn clippy() -> Result<()> {
    let mut command = cargo::cargo(["clippy", "-p", "sheave-lab", "--all-targets", "--quiet"]);
    command.args(["--", "-D", "warnings", "--cfg", CFG]);
    cargo::run(command)?;
    let mut command = cargo::cargo(["clippy", "-p", "sheave-lab", "--all-targets", "--quiet"]);
    command.args(["--", "-D", "warnings", "--cfg", CFG, "--cfg", LINES_CFG]);
    cargo::run(command)
}

/// Builds the documentation of the lab, like that of every other crate.
pub fn docs() -> Result<()> {
    let mut command = cargo(["doc", "-p", "sheave-lab", "--no-deps", "--document-private-items", "--quiet"]);
    command.env("RUSTDOCFLAGS", format!("-D warnings --cfg {CFG}"));
    cargo::run(command)
}

/// Runs the tests of the lab, and those of `bio_set` in `sheave-blk`, the module with most of the lab's hooks. Nextest
/// gets both in one build. In separate builds their common dependencies would have different features and be compiled
/// twice.
pub fn tests(filter: &[String], counts: &mut Counts) -> Result<()> {
    of_the_lab(filter, counts)?;
    if !filter.is_empty() && !filter.iter().any(|name| name.contains("lines")) {
        return Ok(());
    }
    // The product's code on a simulated machine, and the program that runs it.
    let mut command =
        cargo_of_lines(["test", "--no-fail-fast", "--quiet", "-p", "sheave-lab", "--lib", "--test=lines"]);
    command.args(["--", "lines", "a_seed", "what_cannot"]);
    cargo::run_tests(unoptimized(command), counts)
}

fn of_the_lab(filter: &[String], counts: &mut Counts) -> Result<()> {
    const TARGETS: &[&str] = &["-p", "sheave-lab", "-p", "sheave-blk", "--lib", "--test", "command", "--test", "lines"];
    if cargo::has_nextest() {
        let mut command = cargo(["nextest", "run", "--no-fail-fast", "--status-level", "fail"]);
        command.args(["--test-threads", &cargo::test_threads()]).args(TARGETS);
        command.args(["-E", "package(sheave-lab) | test(/^bio_set::/)"]).args(filter);
        return cargo::run_tests(unoptimized(command), counts);
    }
    let filter: Vec<&str> = filter.iter().map(String::as_str).collect();
    for (what, filter) in [(&["-p", "sheave-lab"][..], &filter[..]), (&["-p", "sheave-blk", "--lib"], &["bio_set::"])] {
        let command = cargo([&["test", "--no-fail-fast", "--quiet"], what, filter].concat());
        cargo::run_tests(unoptimized(command), counts)?;
    }
    Ok(())
}

/// Turns off optimization for the workspace, because all crates are compiled anew for the lab, and its tests compare
/// only counts.
fn unoptimized(mut command: Command) -> Command {
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    command
}

/// Runs the optimized lab like a user does. Its checks compare counts and data, never times.
pub fn smoke(counts: &mut Counts) -> Result<()> {
    let mut command = Command::new(build()?);
    command.args(["all", "--quick", "--json"]);
    let (stdout, stderr, success) = cargo::capture(command)?;
    // `not_shown` is the reason for a missing prediction. Two experiments have a prediction.
    ensure!(success && stdout.matches("\"not_shown\":null").count() >= 2, "no prediction in sheave-lab all --quick");
    ensure!(success && stdout.contains("\"verdict\""), "sheave-lab all --quick failed:\n{stderr}");
    counts.passed += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_too_large_does_not_take_the_place_of_the_one_that_is_kept() {
        let dir = std::env::temp_dir().join(format!("sheave-xtask-lab-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("made");
        let (page, example) = (dir.join("page.html"), dir.join("example.html"));
        let most = vec![b'p'; 160 << 10];
        std::fs::write(&page, &most).expect("written");
        keep(&page, &example).expect("160 KiB are kept");
        std::fs::write(&page, vec![b'q'; most.len() + 1]).expect("written");
        let error = keep(&page, &example).expect_err("a byte more").to_string();
        assert!(error.contains("has 163841 bytes, and may have 163840"), "{error}");
        assert!(std::fs::read(&example).expect("read") == most, "the page that was kept is another");
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    /// A page that was changed without `--write` must keep the same limit.
    #[test]
    fn the_page_that_the_repository_has_is_no_larger() {
        let example = workspace::root().join(EXAMPLE);
        if example.exists() {
            let bytes = std::fs::metadata(&example).expect("there").len();
            assert!(bytes <= MOST, "{EXAMPLE} has {bytes} bytes, and may have {MOST}");
        }
    }
}
