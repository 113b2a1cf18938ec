//! The row of TLS: the rate at which `nbdcopy` reads over one connection, and the server's CPU time.
//!
//! Uses nbdcopy and not `nbd_load`, because nbdcopy uses GnuTLS like the usual clients. Certificates are made for the
//! run.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sheave_testkit::certificates::Authority;

use super::serve::{Running, SIZE_BYTES, Server, What, start_with};
use super::table::median;
use crate::cargo;

/// Number of copies of the export per turn. There are several, because CPU time is counted in hundredths of a second.
const COPIES: u32 = 4;
/// Number of units of CPU time in `/proc` per second.
const TICKS_PER_SECOND: f64 = 100.0;

const SERVERS: [Server; 2] = [
    Server {
        name: "Sheave",
        program: "sheave",
        what: What::Memory,
        words: "serve ram:size=256M --name x --nbd unix:DIR/s --tls require --tls-cert TLS/server-cert.pem \
                --tls-key TLS/server-key.pem",
    },
    Server {
        name: "nbdkit memory",
        program: "nbdkit",
        what: What::Memory,
        words: "-f -t1 --tls=require --tls-certificates=TLS LISTEN memory 256M",
    },
];

/// Returns the row: medians of `rounds` turns.
pub(super) fn row(rounds: usize) -> Result<String> {
    let authority = Authority::new();
    let certificates = authority.server().display().to_string();
    let client = authority.anonymous().display().to_string();
    let mut running = Vec::new();
    for (number, server) in SERVERS.iter().enumerate() {
        let words = server.words.replace("TLS", &certificates);
        let answers = |running: &Running| copy(running, &client, 1).map(drop);
        running.push(start_with(server, &words, 50 + number as u16, false, &answers)?);
    }
    let mut found = vec![(Vec::new(), Vec::new()); running.len()];
    for _ in 0..rounds {
        for (server, found) in running.iter().zip(&mut found) {
            let (rate, cpu) = copy(server, &client, COPIES)?;
            found.0.push(rate);
            found.1.push(cpu);
        }
    }
    let medians: Vec<(f64, f64)> = found.into_iter().map(|(rate, cpu)| (median(rate), median(cpu))).collect();
    let shown: Vec<String> = SERVERS
        .iter()
        .zip(&medians)
        .map(|(server, (rate, cpu))| format!("{} {rate:.0} MB/s, {cpu:.2} ns a byte", server.name))
        .collect();
    let [(rate, cpu), (their_rate, their_cpu)] = medians[..] else { anyhow::bail!("one of two servers is missing") };
    let missed = if rate < their_rate || cpu > their_cpu { ", **missed**" } else { "" };
    Ok(format!(
        "| TLS (x509), two CPUs, one connection, nbdcopy reads, 1x of both | {} | rate {:.2}, CPU {:.2}{missed} |\n",
        shown.join("; "),
        rate / their_rate,
        their_cpu / cpu
    ))
}

/// Reads the export `times` times. Returns megabytes a second, and nanoseconds of the server's CPU time per byte.
fn copy(server: &Running, certificates: &str, times: u32) -> Result<(f64, f64)> {
    let socket = server.dir.join("s").display().to_string();
    let uri = format!("nbds+unix:///x?socket={socket}&tls-certificates={certificates}");
    let (begun, before) = (Instant::now(), ticks(server.pid)?);
    for _ in 0..times {
        let mut command = Command::new("taskset");
        command.args(["-c", "1", "nbdcopy", "--no-extents", "--connections=1", "--requests=16"]);
        command.args(["--request-size=262144", &uri, "null:"]);
        let (_, errors, success) = cargo::capture(command)?;
        ensure!(success, "nbdcopy failed: {errors}");
    }
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = (ticks(server.pid)? - before) / TICKS_PER_SECOND;
    let bytes = SIZE_BYTES.parse::<f64>()? * f64::from(times);
    Ok((bytes / seconds / 1e6, cpu * 1e9 / bytes))
}

/// Returns the CPU time of a process in ticks, including threads that have ended.
fn ticks(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the server has ended")?;
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let of = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    of(11).zip(of(12)).map(|(user, system)| user + system).context("no CPU times in /proc")
}
