//! `nbd:` as a client, compared with fio's NBD engine and nbdcopy on the same server.
//!
//! Owns the list of cases. The server is nbdkit with memory, on the first CPU; the clients take turns on the second.
//! CPU times are those of the client's process from start to end, as printed by the shell. The number of requests is
//! the one that the client reports. Copies run between the server and a file in memory, which is the image that
//! `nbdcopy` reads or writes, or the pool with the volume.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sheave_testkit::install::Installer;
use sheave_testkit::tools::Tool;

use super::serve::{Running, Server, What, start_with};
use super::table::{self, median};
use crate::cargo::{self, cargo};
use crate::workspace;

/// Tools of the comparison.
const TOOLS: [Tool; 3] = [
    Tool { name: "nbdkit", packages: &["nbdkit"], why: "serves memory" },
    Tool { name: "fio", packages: &["fio"], why: "asks by its engine of NBD" },
    Tool { name: "nbdcopy", packages: &["libnbd-bin"], why: "copies images" },
];

const SERVER: Server =
    Server { name: "nbdkit memory", program: "nbdkit", what: What::Memory, words: "-f -t4 LISTEN memory 256M" };

/// Size of the export in bytes.
const SIZE: f64 = (256 << 20) as f64;
/// Duration of a turn of requests in seconds.
const SECONDS: &str = "1";

/// A row of requests, with two smallest allowed ratios to the peer: that of requests per second of CPU time, and that
/// of requests per second.
struct Case {
    name: &'static str,
    rw: &'static str,
    depth: u32,
    cpu: f64,
    rate: f64,
}

const CASES: [Case; 4] = [
    Case { name: "4k random reads, depth 32", rw: "randread", depth: 32, cpu: 1.5, rate: 0.0 },
    Case { name: "4k random writes, depth 32", rw: "randwrite", depth: 32, cpu: 1.4, rate: 0.0 },
    Case { name: "4k random reads, depth 1", rw: "randread", depth: 1, cpu: 1.0, rate: 1.0 },
    Case { name: "4k random writes, depth 1", rw: "randwrite", depth: 1, cpu: 1.0, rate: 1.0 },
];

/// Output and times of a client.
pub(super) struct Took {
    printed: String,
    cpu_seconds: f64,
    seconds: f64,
}

/// Returns the table: medians of `rounds` turns, of the cases whose names contain `filter`.
pub fn table(rounds: usize, filter: &str) -> Result<String> {
    cargo::run(cargo(["build", "--release", "--quiet", "-p", "sheave-cli"]))?;
    Installer::host().ensure(&TOOLS);
    let server = start_with(&SERVER, SERVER.words, 80, false, &|running| {
        let uri = uri(running);
        client(SECOND, &running.dir, &format!("nbdinfo --size '{uri}'")).map(drop)
    })?;
    let sheave = workspace::target_dir().join("release/sheave").display().to_string();
    client(
        SECOND,
        &server.dir,
        &format!("dd if=/dev/urandom of=random bs=1M count=256 status=none && nbdcopy random '{}'", uri(&server)),
    )?;
    let mut text = String::from("| case | Sheave | beside it | ratio, aim |\n|---|---|---|---|\n");
    for case in CASES.iter().filter(|case| case.name.contains(filter)) {
        text += &requests(case, &server, &sheave, rounds)?;
    }
    for (name, is_import) in [("import of 256 MiB", true), ("export of 256 MiB", false)] {
        if name.contains(filter) {
            text += &copies((name, is_import), &server, &sheave, rounds)?;
        }
    }
    Ok(text)
}

fn uri(server: &Running) -> String {
    format!("nbd+unix:///?socket={}", server.dir.join("s").display())
}

/// The CPU of the clients.
const SECOND: &str = "1";

/// Runs a script on these CPUs. Returns its output and the times that it took.
pub(super) fn client(cpus: &str, dir: &Path, script: &str) -> Result<Took> {
    let timed = format!("TIMEFORMAT='took %U %S %R'; time {{ {script}; }}");
    let mut command = Command::new("taskset");
    command.current_dir(dir).args(["-c", cpus, "bash", "-c", &timed]);
    let (printed, errors, success) = cargo::capture(command)?;
    ensure!(success, "`{script}` failed:\n{errors}");
    let took = errors.lines().rev().find_map(|line| line.strip_prefix("took ")).context("bash tells no times")?;
    let numbers: Vec<f64> = took.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [user, system, seconds] = numbers[..] else { anyhow::bail!("bash tells other times: {took}") };
    Ok(Took { printed, cpu_seconds: user + system, seconds })
}

/// Runs `sheave bench` and fio in turns on these CPUs. Returns the medians of requests per second and of requests per
/// second of CPU time.
pub(super) fn in_turns(
    rounds: usize,
    cpus: &str,
    dir: &Path,
    [ours, theirs]: [&str; 2],
    writes: bool,
) -> Result<[(f64, f64); 2]> {
    let mut found = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
    for _ in 0..rounds {
        let took = client(cpus, dir, ours)?;
        let number = |name| table::number(&took.printed, name).with_context(|| format!("no number `{name}`"));
        let (ios, rate) = (number("ios")?, number("iops")?);
        found[0].0.push(rate);
        found[0].1.push(ios / took.cpu_seconds);
        let took = client(cpus, dir, theirs)?;
        let (ios, seconds) = terse(&took.printed, writes).context("fio tells something else")?;
        found[1].0.push(ios / seconds);
        found[1].1.push(ios / took.cpu_seconds);
    }
    Ok(found.map(|(rate, a_second)| (median(rate), median(a_second))))
}

fn requests(case: &Case, server: &Running, sheave: &str, rounds: usize) -> Result<String> {
    let (rw, depth) = (case.rw, case.depth);
    let socket = server.dir.join("s").display().to_string();
    let ours = format!(
        "{sheave} bench nbd:unix:{socket} --rw {rw} --overwrite --bs 4k --depth {depth} --runtime {SECONDS}s --json"
    );
    let theirs = format!(
        "fio --name=x --ioengine=nbd --uri='{}' --rw={rw} --bs=4k --iodepth={depth} --size=256M --time_based \
         --runtime={SECONDS} --norandommap --randrepeat=0 --output-format=terse --terse-version=3",
        uri(server)
    );
    let [ours, theirs] = in_turns(rounds, SECOND, &server.dir, [&ours, &theirs], rw == "randwrite")?;
    let (cpu, rate) = (ours.1 / theirs.1, ours.0 / theirs.0);
    let missed = if cpu < case.cpu || rate < case.rate { ", **missed**" } else { "" };
    let shown = |(rate, a_second): (f64, f64)| format!("{:.1}k/s, {:.0}k per CPU second", rate / 1e3, a_second / 1e3);
    let aim = if case.rate > 0.0 { format!("{}x of both", case.rate) } else { format!("{}x", case.cpu) };
    Ok(format!(
        "| {} | {} | fio: {} | requests per CPU second {cpu:.2}, rate {rate:.2}; aim {aim}{missed} |\n",
        case.name,
        shown(ours),
        shown(theirs)
    ))
}

/// Parses requests and seconds from a line of fio's terse output, version 3.
pub(super) fn terse(line: &str, writes: bool) -> Option<(f64, f64)> {
    // Each direction has these fields: KiB, KiB a second, requests a second, milliseconds. Reads begin at the sixth
    // field.
    let at = if writes { 46 } else { 5 };
    let fields: Vec<&str> = line.lines().find(|line| line.starts_with("3;"))?.split(';').collect();
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let (kib, milliseconds) = (number(at)?, number(at + 3)?);
    (kib > 0.0).then_some((kib / 4.0, milliseconds / 1e3))
}

fn copies((name, is_import): (&str, bool), server: &Running, sheave: &str, rounds: usize) -> Result<String> {
    let socket = server.dir.join("s").display().to_string();
    let (ours, theirs) = if is_import {
        (format!("{sheave} volume import nbd:unix:{socket} p.img#v"), format!("nbdcopy '{}' image", uri(server)))
    } else {
        (format!("{sheave} volume export --yes p.img#v nbd:unix:{socket}"), format!("nbdcopy random '{}'", uri(server)))
    };
    let again = format!("rm -f p.img image; {sheave} pool create p.img --size 512M");
    let fill = format!("{again} && {sheave} volume import random p.img#v");
    let mut found = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
    for _ in 0..rounds {
        client(SECOND, &server.dir, if is_import { &again } else { &fill })?;
        for (script, found) in [&ours, &theirs].into_iter().zip(&mut found) {
            let took = client(SECOND, &server.dir, script)?;
            found.0.push(SIZE / took.seconds);
            found.1.push(took.cpu_seconds);
        }
    }
    let [ours, theirs] = found.map(|(rate, cpu)| (median(rate), median(cpu)));
    let (rate, cpu) = (ours.0 / theirs.0, ours.1 / theirs.1);
    let missed = if rate < 1.0 || cpu > 1.0 { ", **missed**" } else { "" };
    let shown = |(rate, cpu): (f64, f64)| format!("{:.0} MB/s, {cpu:.3} s of CPU", rate / 1e6);
    Ok(format!(
        "| {name} | {} | nbdcopy: {} | rate {rate:.2}, aim 1; CPU {cpu:.2}, at most 1{missed} |\n",
        shown(ours),
        shown(theirs)
    ))
}
