//! `rbd:` compared with fio's RBD engine, on the same filled image of a one-node cluster that keeps everything in
//! memory.
//!
//! Owns the list of cases. librbd is set to cache writes from the first one on. By default it would do so only after
//! the first flush, which fio's engine sends and `sheave bench` does not. Clients take turns on two CPUs, which the
//! cluster's daemons use too. Neither client pins a thread, because librbd's threads do most of the work. CPU times are
//! those of the client's process from start to end; the number of requests is the one that the client reports.

use std::fs;

use anyhow::{Context, Result};
use sheave_testkit::ceph::{Ceph, Store};
use sheave_testkit::install::Installer;
use sheave_testkit::tools::TOOLS;

use super::nbd::{client, in_turns};
use crate::cargo::{self, cargo};
use crate::workspace;

/// CPUs of the clients.
const CPUS: &str = "0,1";
/// Duration of a turn in seconds.
const SECONDS: &str = "3";
/// Largest allowed ratio of the CPU time of a request to that of fio.
const CPU: f64 = 1.05;

const CASES: [(&str, &str, u32); 6] = [
    ("4k random reads, depth 1", "randread", 1),
    ("4k random reads, depth 16", "randread", 16),
    ("4k random reads, depth 64", "randread", 64),
    ("4k random writes, depth 1", "randwrite", 1),
    ("4k random writes, depth 16", "randwrite", 16),
    ("4k random writes, depth 64", "randwrite", 64),
];

/// Returns the table: medians of `rounds` turns, of the cases whose names contain `filter`.
pub fn table(rounds: usize, filter: &str) -> Result<String> {
    cargo::run(cargo(["build", "--release", "--quiet", "-p", "sheave-cli"]))?;
    let wanted: Vec<_> =
        TOOLS.iter().filter(|tool| tool.name == "fio" || tool.name.starts_with("ceph")).copied().collect();
    Installer::host().ensure(&wanted);
    let ceph = Ceph::start(Store::Memory).context("there is no Ceph here")?;
    let sheave = workspace::target_dir().join("release/sheave").display().to_string();
    let (conf, random) = (ceph.dir().join("client.conf"), ceph.dir().join("random").display().to_string());
    let text = fs::read_to_string(ceph.conf())?;
    fs::write(&conf, text.replacen("[global]", "[global]\nrbd cache writethrough until flush = false", 1))?;
    let conf = conf.display();
    client(CPUS, ceph.dir(), "dd if=/dev/urandom of=random bs=1M count=256 status=none")?;
    ceph.rbd(&["import", &random, "image"]);
    let mut text = String::from("| case | Sheave | fio | ratio, aim |\n|---|---|---|---|\n");
    for (name, rw, depth) in CASES.iter().filter(|(name, ..)| name.contains(filter)) {
        let ours = format!(
            "{sheave} bench rbd:rbd/image,conf={conf} --rw {rw} --overwrite --bs 4k --depth {depth} \
             --pin=off --runtime {SECONDS}s --json"
        );
        let theirs = format!(
            "CEPH_CONF={conf} fio --name=x --ioengine=rbd --clientname=admin --pool=rbd --rbdname=image \
             --rw={rw} --bs=4k --iodepth={depth} --time_based --runtime={SECONDS} --norandommap --randrepeat=0 \
             --output-format=terse --terse-version=3"
        );
        let [ours, theirs] = in_turns(rounds, CPUS, ceph.dir(), [&ours, &theirs], *rw == "randwrite")?;
        let [ours, theirs] = [ours, theirs].map(|(rate, a_second)| (rate, 1e6 / a_second));
        let (rate, cpu) = (ours.0 / theirs.0, ours.1 / theirs.1);
        let missed = if rate < 1.0 || cpu > CPU { ", **missed**" } else { "" };
        let shown = |(rate, cpu): (f64, f64)| format!("{:.1}k/s, {cpu:.1} us of CPU each", rate / 1e3);
        text += &format!(
            "| {name} | {} | {} | rate {rate:.2}, aim 1; CPU {cpu:.2}, at most {CPU}{missed} |\n",
            shown(ours),
            shown(theirs)
        );
    }
    Ok(text)
}
