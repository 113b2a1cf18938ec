//! A static HTTP server on Sheave's ring beside the same server on the kernel's io_uring, under `wrk`.
//!
//! ```sh
//! cargo bench --bench http                                  # all rows
//! cargo bench --bench http -- cold --connections 64 --pairs 5 --seconds 2
//! ```
//!
//! Owns the load and what is printed. Both servers are one thread that accepts, receives, reads the document with
//! `IOSQE_ASYNC`, as a server does that may not block in its file system, and sends it; they run the same code
//! ([`server`]) over one trait of six calls. They take turns in this process, pair after pair; `wrk` is a process of
//! its own, so the CPU time of this one is the server's with its workers. The figures are medians of the pairs.

mod kernel;
mod ours;
mod server;
#[path = "../timing/mod.rs"]
mod timing;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::server::{DOCUMENTS, Documents, Engine};
use crate::timing::{median, process_ns, spread};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "usage: http [cached|cold]... [--connections N] [--pairs N] [--seconds N] [--workers N] \
     [--dir PATH] [--only ours|kernel]";

/// Number of requests and CPU time of one turn.
#[derive(Clone, Copy)]
struct Turn {
    per_second: f64,
    cpu_us: f64,
}

struct Plan {
    pairs: u32,
    turn: Duration,
    workers: u32,
    connections: Vec<u32>,
    dir: PathBuf,
    /// If set, only this side (`ours` or `kernel`) is run, for example under a profiler.
    only: Option<String>,
}

fn main() -> Result<()> {
    let mut plan = Plan {
        pairs: 5,
        turn: Duration::from_secs(2),
        workers: 16,
        connections: vec![1, 16, 64, 256],
        dir: std::env::temp_dir(),
        only: None,
    };
    let (mut rows, mut args) = (Vec::new(), std::env::args().skip(1));
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|value| value.parse::<u32>().ok()).ok_or(USAGE);
        match arg.as_str() {
            "--bench" => {}
            "--pairs" => plan.pairs = number()?.max(1),
            "--seconds" => plan.turn = Duration::from_secs(number()?.max(1).into()),
            "--workers" => plan.workers = number()?.max(1),
            "--connections" => plan.connections = vec![number()?.max(1)],
            "--dir" => plan.dir = args.next().ok_or(USAGE)?.into(),
            "--only" => plan.only = Some(args.next().ok_or(USAGE)?),
            "cached" | "cold" => rows.push(arg == "cold"),
            _ => return Err(USAGE.into()),
        }
    }
    if rows.is_empty() {
        rows = vec![false, true];
    }
    if Command::new("wrk").arg("-v").output().is_err() {
        return Err("there is no `wrk`: install it with `apt-get install wrk`".into());
    }
    let dir = tempfile::tempdir_in(&plan.dir)?;
    let documents = Arc::new(Documents::write(dir.path())?);
    let script = dir.path().join("paths.lua");
    let paths = format!(
        "local n = 0\nrequest = function() n = n + 7; return wrk.format('GET', '/' .. (n % {DOCUMENTS})) end\n"
    );
    std::fs::write(&script, paths)?;
    println!("{} workers at most, {} pairs of {:?}", plan.workers, plan.pairs, plan.turn);
    for is_cold in rows {
        println!(
            "\n{}",
            if is_cold { "cold: every 8th document is read from the disk" } else { "cached: no read waits" }
        );
        for &connections in &plan.connections {
            row(&plan, &documents, is_cold, connections, &script)?;
        }
    }
    Ok(())
}

fn middle(turns: &[Turn], of: fn(&Turn) -> f64) -> f64 {
    median(&turns.iter().map(of).collect::<Vec<_>>())
}

fn row(plan: &Plan, documents: &Arc<Documents>, is_cold: bool, connections: u32, script: &Path) -> Result<()> {
    let (mut ours, mut kernel) = (Vec::new(), Vec::new());
    // The first pair warms up.
    for pair in 0..=plan.pairs {
        let runs = |side: &str| plan.only.as_ref().is_none_or(|only| only == side);
        if runs("ours") {
            let turn = turn::<ours::Ours>(plan, documents, is_cold, connections, script)?;
            ours.extend((pair > 0).then_some(turn));
        }
        if runs("kernel") {
            let turn = turn::<kernel::Kernel>(plan, documents, is_cold, connections, script)?;
            kernel.extend((pair > 0).then_some(turn));
        }
    }
    if let Some(only) = &plan.only {
        let turns = if only == "ours" { &ours } else { &kernel };
        println!("{connections:>4} connections, {only}: {:.0} requests/s", middle(turns, |turn| turn.per_second));
        return Ok(());
    }
    let ratio = |of: fn(&Turn) -> f64| ours.iter().zip(&kernel).map(|(a, b)| of(a) / of(b)).collect::<Vec<_>>();
    let [rate, cpu]: [fn(&Turn) -> f64; 2] = [|turn| turn.per_second, |turn| turn.cpu_us];
    println!(
        "{connections:>4} connections: {:>6.0} requests/s, kernel {:>6.0}, ratio {}; \
         CPU a request {:.1} us, kernel {:.1} us, ratio {}",
        middle(&ours, rate),
        middle(&kernel, rate),
        spread(&ratio(rate), ""),
        middle(&ours, cpu),
        middle(&kernel, cpu),
        spread(&ratio(cpu), ""),
    );
    Ok(())
}

/// Runs a server on `E`, checks one answer of it byte by byte, and then has `wrk` ask it.
fn turn<E: Engine>(
    plan: &Plan,
    documents: &Arc<Documents>,
    is_cold: bool,
    connections: u32,
    script: &Path,
) -> Result<Turn> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let stop = Arc::new(AtomicBool::new(false));
    let (workers, shared, ended) = (plan.workers, Arc::clone(documents), Arc::clone(&stop));
    let server = std::thread::spawn(move || -> Result<()> {
        let mut engine = E::new(&shared, workers, connections + 2)?;
        server::serve(&mut engine, &listener, &shared, connections + 2, is_cold, &ended)
    });
    let measured = documents.check(address).and_then(|()| ask(plan, connections, script, address));
    stop.store(true, Ordering::Release);
    // Ends the accept that the server waits for.
    drop(TcpStream::connect(address));
    server.join().map_err(|_| "the server panicked")??;
    measured
}

fn ask(plan: &Plan, connections: u32, script: &Path, address: SocketAddr) -> Result<Turn> {
    let before = process_ns();
    let said = Command::new("wrk")
        .args(["-t", "1", "-c", &connections.to_string(), "-d", &format!("{}s", plan.turn.as_secs())])
        .arg("-s")
        .arg(script)
        .arg(format!("http://{address}/"))
        .output()?;
    let used_us = (process_ns() - before) / 1e3;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    if !said.status.success() || text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(format!("wrk: {}\n{text}{}", said.status, String::from_utf8_lossy(&said.stderr)).into());
    }
    let number = |line: &str| line.split_whitespace().find_map(|word| word.parse::<f64>().ok());
    let find = |what: &str| text.lines().find(|line| line.contains(what)).and_then(number);
    let (Some(per_second), Some(requests)) = (find("Requests/sec:"), find(" requests in ")) else {
        return Err(format!("wrk says something else:\n{text}").into());
    };
    Ok(Turn { per_second, cpu_us: used_us / requests })
}
