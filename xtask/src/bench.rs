//! `cargo xtask bench`: the measurements of docs/performance.md, as a Markdown table to paste there.
//!
//! Owns the list of `sheave bench` commands. Does not own any measuring: `sheave bench` does that, and interleaves
//! with the kernel by itself. Run it on an idle machine.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::{self, cargo};
use crate::workspace;

/// One row of the table: the arguments of `sheave bench`. FILE stands for a file in the target directory.
const ROWS: &[&str] = &[
    "null:size=1T --rw randread --bs 512 --depth 128 --batch 32 --poll --compare kernel",
    "null:size=1T --rw randread --bs 512 --depth 1 --batch 1 --poll --compare kernel",
    "null:size=1T --rw randread --bs 512 --depth 128 --batch 32 --poll --stats off",
    "ram:size=1G --rw randread --bs 512 --depth 128 --batch 32 --poll --compare memcpy",
    "ram:size=1G --rw randread --bs 4k --depth 32 --batch 16 --poll --compare memcpy",
    "file:FILE,size=1G --rw randread --bs 4k --depth 1 --compare kernel",
    "file:FILE,size=1G --rw randread --bs 4k --depth 4 --compare kernel",
    "file:FILE,size=1G --rw randread --bs 4k --depth 16 --compare kernel",
    "file:FILE,size=1G --rw randread --bs 4k --depth 32 --compare kernel",
    "file:FILE,size=1G --rw randwrite --bs 4k --depth 1 --compare kernel",
    "file:FILE,size=1G --rw randwrite --bs 4k --depth 4 --compare kernel",
    "file:FILE,size=1G --rw randwrite --bs 4k --depth 16 --compare kernel",
    "file:FILE,size=1G --rw randwrite --bs 4k --depth 32 --compare kernel",
];

/// The columns after the command: heading, key of the JSON object, digits after the point.
const COLUMNS: &[(&str, &str, usize)] = &[
    ("IOPS", "iops", 0),
    ("ns/IO", "ns_per_io", 1),
    ("CPU ns/IO", "cpu_ns_per_io", 1),
    ("p99 ns", "p99_ns", 0),
    ("IOPS ours/theirs", "ratio_iops", 2),
    ("CPU ours/theirs", "ratio_cpu", 2),
];

/// The command: all rows, or those that contain every one of the given words.
pub fn main(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg.starts_with("--help")) {
        bail!("usage: cargo xtask bench [WORD]... [--runtime TIME]");
    }
    let (words, runtime) = match args {
        [words @ .., flag, time] if flag == "--runtime" => (words, time.as_str()),
        words => (words, "5s"),
    };
    cargo::run(cargo(["build", "--release", "--quiet", "-p", "sheave-cli"]))?;
    let file = workspace::target_dir().join("bench.img");
    println!("{}", heading());
    for row in ROWS.iter().filter(|row| words.iter().all(|word| row.contains(word.as_str()))) {
        let args = row.replace("FILE", &file.to_string_lossy());
        let mut command = Command::new(workspace::target_dir().join("release/sheave"));
        command.arg("bench").args(args.split(' ')).args(["--runtime", runtime, "--json"]);
        let shown = cargo::show(&command);
        let (json, errors, success) = cargo::capture(command)?;
        if !success {
            bail!("{shown} failed:\n{errors}");
        }
        println!("{}", table_row(row, &json).with_context(|| format!("{shown} printed:\n{json}"))?);
    }
    let _ = std::fs::remove_file(file);
    Ok(())
}

fn heading() -> String {
    let (names, rules): (String, String) = COLUMNS.iter().map(|(name, ..)| (format!(" {name} |"), "---:|")).unzip();
    format!("| `sheave bench ...` |{names}\n|---|{rules}")
}

fn table_row(command: &str, json: &str) -> Result<String> {
    let mut line = format!("| `{command}` |");
    for &(_, key, digits) in COLUMNS {
        let cell = match number(json, key) {
            Some(value) => format!("{value:.digits$}"),
            None if key.starts_with("ratio") => "".into(), // no comparison in this row
            None => bail!("no number `{key}`"),
        };
        line += &format!(" {cell} |");
    }
    Ok(line)
}

/// The number after `"key":`, wherever it stands. The keys we ask for stand once in the report.
fn number(json: &str, key: &str) -> Option<f64> {
    let quoted = format!("\"{key}\"");
    let after = json.split_once(quoted.as_str())?.1.trim_start().strip_prefix(':')?.trim_start();
    let end = after.find(|char: char| !matches!(char, '0'..='9' | '.' | '-' | '+' | 'e' | 'E')).unwrap_or(after.len());
    after[..end].parse().ok()
}

#[cfg(test)]
mod tests;
