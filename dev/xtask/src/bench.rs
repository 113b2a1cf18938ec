//! `cargo xtask bench`: the measurements of docs/reference/performance.md and of the README, as Markdown tables that it
//! can write into the pages.
//!
//! Owns the list of commands for each section of the page. `sheave bench` measures the times and runs the turns with
//! the kernel itself. Run this on an idle machine.
//!
//! | module | holds |
//! |---|---|
//! | `table` | a row from the JSON of a run |
//! | `program` | the measured `sheave`, and its output |
//! | `counts` | instructions, system calls, idle CPU, build time |
//! | `peers` | volumes compared with ext4, XFS and qcow2 |
//! | `serve` | `sheave serve` compared with other NBD servers |
//! | `serve_tls` | the same comparison with TLS |
//! | `vhost` | vhost-user exports compared with other back-ends |
//! | `nbd` | `nbd:` compared with other NBD clients |
//! | `rbd` | `rbd:` compared with fio's engine |
//! | `page` | writing a section into the page |

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, cargo};
use crate::workspace;

mod counts;
mod nbd;
pub mod page;
mod peers;
mod program;
mod rbd;
mod serve;
mod serve_tls;
mod table;
mod vhost;

use program::run;

/// The file that rows with `file:` create. It is removed at the end.
const FILE: &str = "target/bench.img";

/// The pool of the section on volumes.
const POOL: &str = "target/bench-pool.img";

/// A section of a page.
struct Section {
    /// Name in the page's `bench:NAME` marker, and on the command line.
    name: &'static str,
    what: What,
}

impl Section {
    /// Returns the page of the section.
    fn page(&self) -> &'static str {
        if matches!(self.what, What::Headlines(_)) { "README.md" } else { "docs/reference/performance.md" }
    }
}

/// Content of a section.
enum What {
    /// One sentence about the machine.
    Machine,
    /// A row for each of these arguments of `sheave bench`.
    Runs(&'static [&'static str]),
    /// A row with fewer columns for each of these arguments of `sheave bench`; the first string is the name of the row.
    Headlines(&'static [(&'static str, &'static str)]),
    /// A row for each of these arguments, run in turns with statistics and without.
    Statistics(&'static [&'static str]),
    /// Rows on volumes of a pool that is made for them.
    Volumes(&'static [&'static str]),
    /// Volumes compared with other thin space.
    Peers,
    /// Exports compared with those of other servers.
    Serve,
    /// vhost-user exports compared with other back-ends.
    Vhost,
    /// `nbd:` compared with other clients.
    Nbd,
    /// `rbd:` compared with fio's engine.
    Rbd,
    /// Large pools: opening, recovering, snapshots.
    Pools,
    /// Numbers of instructions, compared with the aims for them.
    Aims,
    /// Instructions, system calls, idle CPU time.
    Counts,
    /// Duration of a build into an empty directory.
    Build,
}

const SECTIONS: &[Section] = &[
    Section { name: "machine", what: What::Machine },
    Section {
        name: "null",
        what: What::Runs(&[
            "null:size=1T --rw randread --bs 512 --depth 128 --batch 32 --poll --compare kernel",
            "null:size=1T --rw randwrite --bs 512 --depth 128 --batch 32 --poll --compare kernel",
            "null:size=1T --rw randread --bs 512 --depth 1 --batch 1 --poll --compare kernel",
        ]),
    },
    Section {
        name: "stats",
        what: What::Statistics(&[
            "null:size=1T --rw randread --bs 512 --depth 128 --batch 32 --poll",
            "null:size=1T --rw randread --bs 512 --depth 1 --batch 1 --poll",
        ]),
    },
    Section {
        name: "file",
        what: What::Runs(&[
            "file:target/bench.img,size=1G --rw randread --bs 4k --depth 1 --pairs 15 --compare kernel",
            "file:target/bench.img,size=1G --rw randread --bs 4k --depth 4 --pairs 15 --compare kernel",
            "file:target/bench.img,size=1G --rw randread --bs 4k --depth 16 --pairs 15 --compare kernel",
            "file:target/bench.img,size=1G --rw randread --bs 4k --depth 32 --pairs 15 --compare kernel",
            "file:target/bench.img,size=1G --rw randwrite --bs 4k --depth 1 --pairs 15 --compare kernel",
            "file:target/bench.img,size=1G --rw randwrite --bs 4k --depth 4 --pairs 15 --compare kernel",
            "file:target/bench.img,size=1G --rw randwrite --bs 4k --depth 16 --pairs 15 --compare kernel",
            "file:target/bench.img,size=1G --rw randwrite --bs 4k --depth 32 --pairs 15 --compare kernel",
        ]),
    },
    Section {
        name: "ram",
        what: What::Runs(&[
            "ram:size=1G --rw randread --bs 512 --depth 128 --batch 32 --poll --pairs 15 --compare memcpy",
            "ram:size=1G --rw randread --bs 4k --depth 32 --batch 16 --poll --pairs 15 --compare memcpy",
        ]),
    },
    Section {
        name: "headlines",
        what: What::Headlines(&[
            (
                "512 B read, answered at once; beside a NOP of io_uring",
                "null:size=1T --rw randread --bs 512 --depth 128 --batch 32 --poll --compare kernel",
            ),
            (
                "the same, one I/O at a time",
                "null:size=1T --rw randread --bs 512 --depth 1 --batch 1 --poll --compare kernel",
            ),
            (
                "4 KiB random read of a file; beside io_uring on the same file",
                "file:target/bench.img,size=1G --rw randread --bs 4k --depth 16 --pairs 15 --compare kernel",
            ),
            (
                "4 KiB random write of a file; beside the same",
                "file:target/bench.img,size=1G --rw randwrite --bs 4k --depth 16 --pairs 15 --compare kernel",
            ),
            (
                "512 B random read from 1 GiB of memory; beside memcpy",
                "ram:size=1G --rw randread --bs 512 --depth 128 --batch 32 --poll --pairs 15 --compare memcpy",
            ),
        ]),
    },
    Section {
        name: "volumes",
        what: What::Volumes(&[
            "vol:null:size=1T --range 1G --fill --rw randread --depth 128 --batch 32 --poll --pairs 15 --compare raw",
            "vol:null:size=1T --range 1G --fill --rw randwrite --depth 128 --batch 32 --poll --pairs 15 --compare raw",
            "vol:ram:size=4G --range 3G --rw randwrite --ios 262144 --depth 128 --batch 32 --poll",
            "vol:target/bench-pool.img#v --fill --overwrite --rw randread --depth 16 --pairs 15 --compare raw",
            "vol:target/bench-pool.img#v --fill --overwrite --rw randwrite --depth 16 --pairs 15 --compare raw",
            "vol:target/bench-pool.img#v --fill --overwrite --rw randwrite --dsync --depth 1 --pairs 15 --compare raw",
        ]),
    },
    Section { name: "pools", what: What::Pools },
    Section { name: "peers", what: What::Peers },
    Section { name: "serve", what: What::Serve },
    Section { name: "vhost", what: What::Vhost },
    Section { name: "nbd", what: What::Nbd },
    Section { name: "rbd", what: What::Rbd },
    Section { name: "aims", what: What::Aims },
    Section { name: "counts", what: What::Counts },
    Section { name: "build", what: What::Build },
];

/// Number of turns of each side in most comparisons with peers, unless `--rounds` is given.
const ROUNDS: usize = 3;

struct Options<'a> {
    /// Sections to measure; all if none is named.
    sections: Vec<&'a Section>,
    runtime: &'a str,
    /// Number of turns of each side in comparisons with peers, if it is given.
    rounds: Option<usize>,
    /// Filter for the names of cases, for sections with servers or clients.
    only: &'a str,
    write: bool,
}

pub fn main(args: &[String]) -> Result<()> {
    let options = parse(args)?;
    cargo::run(cargo(["build", "--release", "--quiet", "-p", "sheave-cli"]))?;
    std::fs::create_dir_all(workspace::root().join("target"))?;
    for section in &options.sections {
        let text = measure(section, &options).with_context(|| format!("section {}", section.name))?;
        println!("### {}\n\n{text}", section.name);
        if options.write {
            page::write(section.page(), section.name, &text)?;
        }
    }
    for file in [FILE, counts::IMAGE] {
        let _ = std::fs::remove_file(workspace::root().join(file)); // fails if no row made the file
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Options<'_>> {
    let names: Vec<&str> = SECTIONS.iter().map(|section| section.name).collect();
    let usage = || {
        format!(
            "usage: cargo xtask bench [{}]... [--runtime TIME] [--rounds N] [--only CASE] [--write]",
            names.join("|")
        )
    };
    let mut options = Options { sections: Vec::new(), runtime: "10s", rounds: None, only: "", write: false };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--write" => options.write = true,
            "--only" => options.only = args.next().with_context(usage)?,
            "--runtime" => options.runtime = args.next().with_context(usage)?,
            "--rounds" => {
                let rounds = args.next().and_then(|rounds| rounds.parse().ok()).filter(|rounds| *rounds > 0);
                options.rounds = Some(rounds.with_context(usage)?);
            }
            name => match SECTIONS.iter().find(|section| section.name == name) {
                Some(section) => options.sections.push(section),
                None => bail!("no section `{name}`; {}", usage()),
            },
        }
    }
    if options.sections.is_empty() {
        options.sections.extend(SECTIONS);
    }
    Ok(options)
}

fn measure(section: &Section, options: &Options<'_>) -> Result<String> {
    let (runtime, rounds) = (options.runtime, options.rounds.unwrap_or(ROUNDS));
    let mut lines = Vec::new();
    match section.what {
        What::Machine => lines.push(counts::machine()?),
        What::Runs(rows) => {
            lines.push(table::heading());
            for row in rows {
                lines.push(table::row(row, &run(row, &["--runtime", runtime])?)?);
            }
        }
        What::Headlines(rows) => {
            lines.push(table::HEADLINES.into());
            for (what, row) in rows {
                lines.push(table::headline(what, row, &run(row, &["--runtime", runtime])?)?);
            }
        }
        What::Statistics(rows) => {
            lines.push(table::statistics_heading());
            for row in rows {
                lines.push(statistics(row)?);
            }
        }
        What::Volumes(rows) => {
            let pool = Pool::make()?;
            lines.push(table::heading());
            for row in rows {
                lines.push(table::row(row, &run(row, &["--runtime", runtime])?)?);
            }
            drop(pool);
        }
        What::Pools => {
            let bench = cargo(["bench", "--quiet", "-p", "sheave-vol", "--bench", "pools"]);
            let (text, errors, success) = cargo::capture(bench)?;
            ensure!(success, "the benchmark of pools failed:\n{errors}");
            lines.push(text.trim_end().into());
        }
        What::Peers => lines.push(peers::table(rounds)?.trim_end().into()),
        What::Serve => {
            lines.push(serve::table(rounds, options.only)?.trim_end().into());
            if "TLS".contains(options.only) {
                // An error leaves out only this row, because the other rows have taken minutes.
                match serve_tls::row(rounds) {
                    Ok(row) => lines.push(row.trim_end().into()),
                    Err(error) => eprintln!("TLS: left out: {error:#}"),
                }
            }
        }
        What::Vhost => {
            lines.push(vhost::table(options.rounds.unwrap_or(vhost::ROUNDS), options.only)?.trim_end().into())
        }
        What::Nbd => lines.push(nbd::table(rounds, options.only)?.trim_end().into()),
        What::Rbd => lines.push(rbd::table(rounds, options.only)?.trim_end().into()),
        What::Aims => lines.push(counts::aims()?),
        What::Counts => lines.push(counts::table()?),
        What::Build => lines.push(counts::build()?),
    }
    Ok(lines.join("\n") + "\n")
}

/// Number of turns with statistics, and of turns without.
const TURNS: usize = 5;

fn statistics(row: &str) -> Result<String> {
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        for (with, list) in [("on", &mut on), ("off", &mut off)] {
            let json = run(row, &["--stats", with, "--runtime", "1s"])?;
            list.push(table::number(&json, "cpu_ns_per_io").context("no number `cpu_ns_per_io`")?);
        }
    }
    Ok(table::statistics_row(row, on, off))
}

/// The pool for volumes in a file. Removed when dropped.
struct Pool;

impl Pool {
    fn make() -> Result<Self> {
        for args in [
            &["pool", "create", POOL, "--size", "4G", "--yes"][..],
            &["volume", "create", &format!("{POOL}#v"), "--size", "1G"],
        ] {
            let mut command = Command::new(workspace::target_dir().join("release/sheave"));
            command.current_dir(workspace::root()).args(args);
            let (_, errors, success) = cargo::capture(command)?;
            ensure!(success, "sheave {} failed:\n{errors}", args.join(" "));
        }
        Ok(Self)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(workspace::root().join(POOL)); // fails if the pool could not be made
    }
}

#[cfg(test)]
mod tests;
