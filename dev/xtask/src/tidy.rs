//! `cargo xtask tidy`: the repository's own rules. Each is a small check with tests in which it fails.
//!
//! Owns the table of checks and the printing of their findings. A check is a function from the [`Tree`] (all files,
//! read once) to findings. It reads nothing from disk, so that its tests can pass it a few lines of text.

mod banned;
mod circles;
mod compat;
mod confined;
mod contract;
mod deps;
mod docs;
mod finding;
mod floors;
mod harness;
mod layout;
mod lengths;
mod lexer;
mod orderings;
mod source;
mod storeys;
pub mod tree;
pub mod unsafety;

use anyhow::{Result, bail, ensure};

use crate::workspace;
use finding::Finding;
use tree::Tree;

/// A rule, and the function that finds its violations.
struct Check {
    name: &'static str,
    run: fn(&Tree) -> Vec<Finding>,
}

const CHECKS: &[Check] = &[
    Check { name: "every file opens with //! and has lines of at most 120 columns", run: layout::check },
    Check { name: "unsafe code stays in listed files, each with its reason", run: unsafety::check },
    Check { name: "floors: arrows only point down", run: floors::check },
    Check { name: "folders of a crate form no circle", run: circles::check },
    Check { name: "storeys: inside vol, too, arrows point down", run: storeys::check },
    Check { name: "names that only few files may use stay there", run: confined::check },
    Check { name: "every memory ordering names its partner", run: orderings::check },
    Check { name: "no banned words, no catch-all modules", run: banned::check },
    Check { name: "every dependency has its reason", run: deps::check },
    Check { name: "every file of tests is in a program", run: harness::check },
    Check { name: "docs name only what exists", run: docs::check },
    Check { name: "every row of the durability contract is cited by a test", run: contract::check },
    Check { name: "liburing's programs that find the same here name a test that is there", run: compat::check },
];

pub fn main(args: &[String]) -> Result<()> {
    match args {
        [] => run(),
        _ => bail!("usage: cargo xtask tidy"),
    }
}

/// Runs all checks over the repository and prints their findings.
pub fn run() -> Result<()> {
    let tree = Tree::read(&workspace::root())?;
    let mut total = 0;
    for check in CHECKS {
        let findings = (check.run)(&tree);
        println!("{:>4}  {}", if findings.is_empty() { "ok".into() } else { findings.len().to_string() }, check.name);
        for finding in &findings {
            println!("      {finding}");
        }
        total += findings.len();
    }
    for warning in lengths::check(&tree) {
        println!("warning: {warning}");
    }
    println!("{} Rust files, {} pages, {} manifests", tree.sources.len(), tree.pages.len(), tree.manifests.len());
    ensure!(total == 0, "tidy found {total} things to mend");
    Ok(())
}
