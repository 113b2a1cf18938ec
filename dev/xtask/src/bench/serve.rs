//! `sheave serve` compared with other NBD servers: CPU time of the server per request.
//!
//! Owns the servers, each on the first CPU, and the list of cases. The client is `nbd_load`, an example of the crate
//! `serve`, on the same CPU or on the second. Servers take turns in each case, so that noise affects them alike.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sheave_testkit::install::Installer;
use sheave_testkit::tools::Tool;

use super::table;
use crate::cargo::{self, cargo};
use crate::workspace;

/// Tools of this comparison only. A server that cannot be installed is left out.
const TOOLS: [Tool; 5] = [
    Tool { name: "nbdkit", packages: &["nbdkit"], why: "serves memory, nothing and a file" },
    Tool { name: "nbd-server", packages: &["nbd-server"], why: "serves a file" },
    Tool { name: "nbdcopy", packages: &["libnbd-bin"], why: "reads by TLS" },
    Tool { name: "qemu-nbd", packages: &["qemu-utils"], why: "serves a file" },
    Tool { name: "qemu-storage-daemon", packages: &["qemu-system-common"], why: "serves a file or a qcow2 image" },
];

/// Size of the exports.
const SIZE: &str = "256M";
pub(super) const SIZE_BYTES: &str = "268435456";

/// Arguments of QEMU's daemon for an export.
const EXPORT: &str = "--export nbd,id=e,node-name=x,writable=on";

/// A server that always goes into the background. It writes its process id into a file.
const NBD_SERVER: &str = "nbd-server";

/// The kind of export.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum What {
    Memory,
    Nothing,
    File,
    Thin,
}

/// A server and its arguments. `DIR` stands for the directory of its files, `PORT` for its port.
pub(super) struct Server {
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    pub(super) what: What,
    pub(super) words: &'static str,
}

const SERVERS: &[Server] = &[
    Server {
        name: "Sheave",
        program: "sheave",
        what: What::Memory,
        words: "serve ram:size=256M --name x --nbd unix:DIR/s --nbd tcp:127.0.0.1:PORT",
    },
    Server { name: "nbdkit memory", program: "nbdkit", what: What::Memory, words: "-f -t1 LISTEN memory 256M" },
    Server {
        name: "qemu-nbd",
        program: "qemu-nbd",
        what: What::Memory,
        words: "-t -e 64 -x x -f raw LISTEN DIR/image",
    },
    Server {
        name: "qemu-storage-daemon",
        program: "qemu-storage-daemon",
        what: What::Memory,
        words: "--blockdev file,node-name=x,filename=DIR/image --nbd-server LISTEN EXPORT",
    },
    Server { name: NBD_SERVER, program: NBD_SERVER, what: What::Memory, words: "-C DIR/config -p DIR/pid" },
    Server {
        name: "Sheave",
        program: "sheave",
        what: What::Nothing,
        words: "serve null:size=256M --name x --nbd unix:DIR/s",
    },
    Server { name: "nbdkit null", program: "nbdkit", what: What::Nothing, words: "-f -t1 LISTEN null 256M" },
    Server {
        name: "Sheave",
        program: "sheave",
        what: What::File,
        words: "serve file:DIR/image --name x --nbd unix:DIR/s",
    },
    Server { name: "nbdkit file", program: "nbdkit", what: What::File, words: "-f -t1 LISTEN file DIR/image" },
    Server { name: "Sheave", program: "sheave", what: What::Thin, words: "serve DIR/pool#v --name x --nbd unix:DIR/s" },
    Server {
        name: "qemu-storage-daemon",
        program: "qemu-storage-daemon",
        what: What::Thin,
        words: "--blockdev qcow2,node-name=x,file.driver=file,file.filename=DIR/qcow2 --nbd-server LISTEN EXPORT",
    },
];

/// A row of the table: the number of CPUs, the arguments of the client, and the smallest allowed ratio of the CPU time
/// of the first other server to ours.
struct Case {
    name: &'static str,
    what: What,
    cpus: u8,
    tcp: bool,
    words: &'static str,
    aim: f64,
}

const fn case(name: &'static str, what: What, cpus: u8, tcp: bool, words: &'static str, aim: f64) -> Case {
    Case { name, what, cpus, tcp, words, aim }
}

const CASES: &[Case] = &[
    case("one CPU, unix, 4k read d16", What::Memory, 1, false, "--depth 16", 2.5),
    case("one CPU, unix, 4k read d64", What::Memory, 1, false, "--depth 64", 3.0),
    case("one CPU, unix, 4k write d16", What::Memory, 1, false, "--depth 16 --rw randwrite", 2.5),
    case("one CPU, TCP, 4k read d16", What::Memory, 1, true, "--depth 16", 2.5),
    case("two CPUs, unix, 4k read d16", What::Memory, 2, false, "--depth 16", 1.3),
    case("two CPUs, TCP, 4k read d16", What::Memory, 2, true, "--depth 16", 1.8),
    case("two CPUs, unix, 4k read d64", What::Memory, 2, false, "--depth 64", 1.8),
    case("two CPUs, TCP, 4k read d64", What::Memory, 2, true, "--depth 64", 3.0),
    case("two CPUs, unix, 4k read d16, 16 connections", What::Memory, 2, false, "--depth 16 --conns 16", 1.8),
    case("two CPUs, TCP, 4k read d16, 16 connections", What::Memory, 2, true, "--depth 16 --conns 16", 2.5),
    case("null, one CPU, 4k read d16", What::Nothing, 1, false, "--depth 16", 4.0),
    case("null, one CPU, 4k read d64", What::Nothing, 1, false, "--depth 64", 3.0),
    case("one CPU, unix, 4k read d1", What::Memory, 1, false, "--depth 1", 1.1),
    case("two CPUs, unix, 4k read d1", What::Memory, 2, false, "--depth 1", 1.0),
    case("one CPU, unix, 256k read d16", What::Memory, 1, false, "--depth 16 --bs 262144", 1.15),
    case("one CPU, unix, 256k write d16", What::Memory, 1, false, "--depth 16 --bs 262144 --rw randwrite", 1.0),
    case("file on tmpfs, one CPU, 4k read d16", What::File, 1, false, "--depth 16", 1.5),
    case("thin volume, one CPU, 4k read d16", What::Thin, 1, false, "--depth 16", 2.5),
];

/// A running server. The process and its directory are removed on drop.
pub(super) struct Running {
    name: &'static str,
    what: What,
    child: Child,
    /// Id of the server's process: the child, or a process that the child left in the background.
    pub(super) pid: u32,
    pub(super) dir: PathBuf,
    port: u16,
}

impl Running {
    fn is_in_the_background(&self) -> bool {
        self.pid != self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself.
        if self.is_in_the_background() {
            let _ = Command::new("kill").arg(self.pid.to_string()).status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Returns the table: medians of `rounds` turns, of the cases whose names contain `filter`.
pub fn table(rounds: usize, filter: &str) -> Result<String> {
    cargo::run(cargo(["build", "--release", "--quiet", "-p", "sheave-serve", "--example", "nbd_load"]))?;
    Installer::host().ensure(&TOOLS);
    let mut text =
        String::from("| case, aim | CPU a request in us: server (client) | second / first |\n|---|---|---:|\n");
    for what in [What::Memory, What::Nothing, What::File, What::Thin] {
        let cases: Vec<&Case> = CASES.iter().filter(|case| case.what == what && case.name.contains(filter)).collect();
        if cases.is_empty() {
            continue;
        }
        for tcp in [false, true] {
            let cases: Vec<&&Case> = cases.iter().filter(|case| case.tcp == tcp).collect();
            if cases.is_empty() {
                continue;
            }
            let servers = start_all(what, tcp)?;
            for case in cases {
                text += &row(case, &servers, rounds)?;
            }
        }
    }
    Ok(text)
}

fn start_all(what: What, tcp: bool) -> Result<Vec<Running>> {
    let mut running = Vec::new();
    for (number, server) in SERVERS.iter().enumerate().filter(|(_, server)| server.what == what) {
        match start(server, number as u16, tcp) {
            Ok(one) => running.push(one),
            // The first two servers are ours and the one that it is compared with. Without both of them there is no
            // row.
            Err(error) if running.len() < 2 => return Err(error.context(server.name)),
            Err(error) => eprintln!("{}: left out: {error:#}", server.name),
        }
    }
    Ok(running)
}

fn start(server: &Server, number: u16, tcp: bool) -> Result<Running> {
    let running = start_with(server, server.words, number, tcp, &|running| {
        load(running, tcp, 1, "--time 0.01 --warm 0").map(drop)
    })?;
    if server.what != What::Nothing {
        load(&running, tcp, 1, "--fill --time 0.01 --warm 0")?;
    }
    Ok(running)
}

/// Starts a server with these arguments, and waits until `ask` succeeds.
pub(super) fn start_with(
    server: &Server,
    words: &str,
    number: u16,
    tcp: bool,
    ask: &dyn Fn(&Running) -> Result<()>,
) -> Result<Running> {
    let dir = PathBuf::from(format!("/dev/shm/sheave-bench-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let (shown, port) = (dir.display().to_string(), 21_000 + number);
    let sheave = workspace::target_dir().join("release/sheave").display().to_string();
    let image = "truncate -s 256M image";
    let made = match (server.what, server.program) {
        (What::Thin, "sheave") => {
            format!("{sheave} pool create pool --size 512M --yes && {sheave} volume create pool#v --size {SIZE}")
        }
        (What::Thin, _) => format!("qemu-img create -q -f qcow2 qcow2 {SIZE}"),
        (_, NBD_SERVER) => {
            // With a Unix socket the server does not listen on TCP.
            let listen =
                if tcp { format!("listenaddr=127.0.0.1\\nport={port}") } else { format!("unixsock={shown}/s") };
            format!("{image} && printf '[generic]\\n{listen}\\n[x]\\nexportname={shown}/image\\n' > config")
        }
        _ => image.into(),
    };
    sh(&dir, &made)?;
    let listen = match (server.program, tcp) {
        ("nbdkit", false) => format!("-U {shown}/s"),
        ("nbdkit", true) => format!("-i 127.0.0.1 -p {port}"),
        ("qemu-nbd", false) => format!("-k {shown}/s"),
        ("qemu-nbd", true) => format!("-b 127.0.0.1 -p {port}"),
        (_, false) => format!("addr.type=unix,addr.path={shown}/s"),
        (_, true) => format!("addr.type=inet,addr.host=127.0.0.1,addr.port={port}"),
    };
    let words = words
        .replace("LISTEN", &listen)
        .replace("EXPORT", EXPORT)
        .replace("DIR", &shown)
        .replace("PORT", &port.to_string());
    let program = if server.program == "sheave" { &sheave } else { server.program };
    let mut command = Command::new("taskset");
    command.args(["-c", "0", program]).args(words.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().context("taskset does not start")?;
    let mut pid = child.id();
    if server.program == NBD_SERVER {
        ensure!(child.wait()?.success(), "it does not start: {words}");
        pid = background(&dir.join("pid")).with_context(|| format!("it does not start: {words}"))?;
    }
    let mut running = Running { name: server.name, what: server.what, child, pid, dir, port };
    let begun = Instant::now();
    while let Err(error) = ask(&running) {
        let ended = !running.is_in_the_background() && running.child.try_wait()?.is_some();
        ensure!(!ended, "it ended at once: {words}");
        ensure!(begun.elapsed() < Duration::from_secs(20), "it does not answer: {words}: {error:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(running)
}

/// Waits for the id of the process that a server left in the background. That process may write the id only after the
/// process that started it has ended.
fn background(file: &Path) -> Result<u32> {
    let begun = Instant::now();
    loop {
        let number = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = number {
            return Ok(pid);
        }
        ensure!(begun.elapsed() < Duration::from_secs(5), "no number of a process in {}", file.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the client. Returns the CPU times of server and client per request, in microseconds.
fn load(server: &Running, tcp: bool, cpus: u8, words: &str) -> Result<(f64, f64)> {
    let mut command = Command::new("taskset");
    command.args(["-c", if cpus == 1 { "0" } else { "1" }]);
    command.arg(workspace::target_dir().join("release/examples/nbd_load"));
    let place = server.dir.join("s").display().to_string();
    let (kind, place) = if tcp { ("--tcp", format!("127.0.0.1:{}", server.port)) } else { ("--unix", place) };
    command.args([kind, &place, "--export", "x", "--size", SIZE_BYTES, "--json"]);
    command.args(["--pid", &server.pid.to_string()]).args(words.split(' '));
    let (json, errors, success) = cargo::capture(command)?;
    ensure!(success, "nbd_load failed: {errors}");
    let number = |name| table::number(&json, name).with_context(|| format!("no number `{name}` in {json}"));
    Ok((number("server_us")?, number("client_us")?))
}

fn row(case: &Case, servers: &[Running], rounds: usize) -> Result<String> {
    let mut found = vec![(Vec::new(), Vec::new()); servers.len()];
    for _ in 0..rounds {
        for (server, found) in servers.iter().zip(&mut found) {
            debug_assert!(server.what == case.what);
            let words = format!("{} --time 0.4 --warm 0.1", case.words);
            let (cpu, own) = load(server, case.tcp, case.cpus, &words).with_context(|| server.name)?;
            found.0.push(cpu);
            found.1.push(own);
        }
    }
    let medians: Vec<(f64, f64)> =
        found.into_iter().map(|(cpu, own)| (table::median(cpu), table::median(own))).collect();
    let shown: Vec<String> = servers
        .iter()
        .zip(&medians)
        .map(|(server, (cpu, own))| format!("{} {cpu:.2} ({own:.2})", server.name))
        .collect();
    let [(ours, _), (theirs, _), ..] = medians[..] else { bail!("nothing to compare with") };
    let ratio = theirs / ours;
    let missed = if ratio < case.aim { ", **missed**" } else { "" };
    Ok(format!("| {}, {}x | {} | {ratio:.2}{missed} |\n", case.name, case.aim, shown.join("; ")))
}

fn sh(dir: &std::path::Path, script: &str) -> Result<()> {
    let mut command = Command::new("sh");
    command.current_dir(dir).args(["-c", script]);
    let (_, errors, success) = cargo::capture(command)?;
    ensure!(success, "`{script}` failed:\n{errors}");
    Ok(())
}
