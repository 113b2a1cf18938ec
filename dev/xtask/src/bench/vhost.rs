//! `sheave serve --vhost-user` compared with other vhost-user back-ends: CPU time of the back-end per request.
//!
//! Owns the back-ends, each on the first CPU, and the list of cases. The driver is `vhost_load`, an example of
//! `dev/vhost-front`, which stands for QEMU and a guest, on the same CPU or on the second. Back-ends take turns in each
//! case, so that noise affects them alike. A back-end that does not start is left out of its rows.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sheave_testkit::install::Installer;
use sheave_testkit::tools::lookup;

use super::table;
use crate::cargo::{self, cargo};
use crate::{vhost_peers, workspace};

/// Number of turns of each back-end, unless `--rounds` is given.
pub const ROUNDS: usize = 5;

/// Time for a back-end to listen and to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The kind of device.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Nothing,
    Memory,
    File,
    Thin,
}

/// A program that serves a device.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Sheave,
    /// QEMU's storage daemon.
    Qsd,
    /// A device on the crate `vhost-user-backend`, in `dev/vhost-peers`.
    Crate,
    /// The loop by hand, an example of the crate `vhost-front`.
    Bare,
    /// The same loop without sleep.
    BarePolls,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Sheave => "Sheave",
            Side::Qsd => "qemu-storage-daemon",
            Side::Crate => "vhost-user-backend",
            Side::Bare => "bare loop",
            Side::BarePolls => "bare loop, polls",
        }
    }

    fn program(self) -> PathBuf {
        let built = |path: &str| workspace::target_dir().join(path);
        match self {
            Side::Sheave => built("release/sheave"),
            Side::Qsd => PathBuf::from("qemu-storage-daemon"),
            Side::Crate => vhost_peers::program("null"),
            Side::Bare | Side::BarePolls => built("release/examples/vhost_bare"),
        }
    }
}

/// A back-end and its arguments. `DIR` stands for the directory of its files, `EXPORT` for QEMU's arguments of an
/// export.
struct BackEnd {
    side: Side,
    what: What,
    words: &'static str,
    /// Shell command that makes its files. `SHEAVE` stands for the measured `sheave`.
    prepare: &'static str,
}

const fn back_end(side: Side, what: What, words: &'static str, prepare: &'static str) -> BackEnd {
    BackEnd { side, what, words, prepare }
}

const EXPORT: &str = "--export vhost-user-blk,id=e,node-name=x,addr.type=unix,addr.path=DIR/s,writable=on,num-queues=1";

const BACK_ENDS: &[BackEnd] = &[
    back_end(Side::Sheave, What::Nothing, "serve null:size=256M --vhost-user unix:DIR/s", ""),
    back_end(
        Side::Qsd,
        What::Nothing,
        "--blockdev null-co,node-name=x,size=268435456,read-zeroes=off EXPORT", // the size is taken in bytes only
        "",
    ),
    back_end(Side::Crate, What::Nothing, "DIR/s --size 268435456", ""),
    back_end(Side::Bare, What::Nothing, "DIR/s --size 268435456", ""),
    back_end(Side::BarePolls, What::Nothing, "DIR/s --size 268435456 --poll", ""),
    back_end(Side::Sheave, What::Memory, "serve ram:size=256M --vhost-user unix:DIR/s", ""),
    back_end(Side::Bare, What::Memory, "DIR/s --size 268435456 --ram", ""),
    back_end(Side::Sheave, What::File, "serve file:DIR/image --vhost-user unix:DIR/s", "truncate -s 256M image"),
    back_end(Side::Qsd, What::File, "--blockdev file,node-name=x,filename=DIR/image EXPORT", "truncate -s 256M image"),
    back_end(
        Side::Sheave,
        What::Thin,
        "serve DIR/pool#v --vhost-user unix:DIR/s",
        "SHEAVE pool create pool --size 512M --yes && SHEAVE volume create pool#v --size 256M",
    ),
    back_end(
        Side::Qsd,
        What::Thin,
        "--blockdev qcow2,node-name=x,file.driver=file,file.filename=DIR/qcow2 EXPORT",
        "qemu-img create -q -f qcow2 qcow2 256M",
    ),
];

/// A row of the table: the number of CPUs, the arguments of the driver, and for some other back-ends the smallest
/// allowed ratio of their CPU time to ours.
struct Case {
    name: &'static str,
    what: What,
    cpus: u8,
    words: &'static str,
    aims: &'static [(Side, f64)],
}

const fn case(name: &'static str, what: What, cpus: u8, words: &'static str, aims: &'static [(Side, f64)]) -> Case {
    Case { name, what, cpus, words, aims }
}

const NULL_ONE_CPU: &[(Side, f64)] = &[(Side::Qsd, 5.0), (Side::Crate, 1.5)];

const CASES: &[Case] = &[
    case("null, one CPU, 4k read d1", What::Nothing, 1, "--depth 1", &[(Side::Crate, 1.0)]),
    case("null, one CPU, 4k read d32", What::Nothing, 1, "--depth 32", NULL_ONE_CPU),
    case("null, one CPU, 4k write d32", What::Nothing, 1, "--depth 32 --rw randwrite", NULL_ONE_CPU),
    case("null, two CPUs, 4k read d32", What::Nothing, 2, "--depth 32", &[(Side::Qsd, 4.0), (Side::Crate, 1.3)]),
    // At most 1.3 times the time of the loop.
    case("ram, one CPU, 4k read d32", What::Memory, 1, "--depth 32", &[(Side::Bare, 1.0 / 1.3)]),
    case("file on tmpfs, one CPU, 4k read d32", What::File, 1, "--depth 32", &[(Side::Qsd, 1.5)]),
    case("file on tmpfs, one CPU, 256k read d8", What::File, 1, "--depth 8 --bs 262144", &[(Side::Qsd, 1.2)]),
    case("thin volume, one CPU, 4k read d32", What::Thin, 1, "--depth 32", &[(Side::Qsd, 2.5)]),
];

/// The directory of a back-end. Removed on drop.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // fails if it could not be made
    }
}

/// A running back-end. The process ends on drop.
struct Running {
    side: Side,
    child: Child,
    dir: Dir,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the table: medians of `rounds` turns, of the cases whose names contain `filter`.
pub fn table(rounds: usize, filter: &str) -> Result<String> {
    build()?;
    let tools: Vec<_> = ["qemu-storage-daemon", "qemu-img"].iter().filter_map(|name| lookup(name)).copied().collect();
    Installer::host().ensure(&tools);
    let mut text =
        String::from("| case | CPU a request in us: back-end (driver) | other / Sheave, aim |\n|---|---|---|\n");
    for what in [What::Nothing, What::Memory, What::File, What::Thin] {
        let cases: Vec<&Case> = CASES.iter().filter(|case| case.what == what && case.name.contains(filter)).collect();
        if cases.is_empty() {
            continue;
        }
        let running = start_all(what);
        for case in cases {
            text += &row(case, &running, rounds)?;
        }
    }
    Ok(text)
}

/// Builds the driver and the other back-ends.
fn build() -> Result<()> {
    cargo::run(cargo(["build", "--release", "--quiet", "-p", "sheave-vhost-front", "--examples"]))?;
    vhost_peers::build()
}

fn start_all(what: What) -> Vec<Running> {
    let mut running = Vec::new();
    for (number, back_end) in BACK_ENDS.iter().enumerate().filter(|(_, back_end)| back_end.what == what) {
        match start(back_end, number) {
            Ok(one) => running.push(one),
            Err(error) => eprintln!("{}: left out: {error:#}", back_end.side.name()),
        }
    }
    running
}

fn start(back_end: &BackEnd, number: usize) -> Result<Running> {
    let dir = Dir(PathBuf::from(format!("/dev/shm/sheave-vhost-{}-{number}", std::process::id())));
    std::fs::create_dir_all(&dir.0)?;
    let shown = dir.0.display().to_string();
    let mut prepare = Command::new("sh");
    let script = back_end.prepare.replace("SHEAVE", &Side::Sheave.program().display().to_string());
    prepare.current_dir(&dir.0).args(["-c", &script]);
    let words = back_end.words.replace("EXPORT", EXPORT).replace("DIR", &shown);
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(back_end.side.program()).args(words.split(' '));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let (_, errors, success) = cargo::capture(prepare)?;
    ensure!(success, "`{script}` failed:\n{errors}");
    let child = command.spawn().context("taskset does not start")?;
    let mut running = Running { side: back_end.side, child, dir };
    let begun = Instant::now();
    // A device with data is filled, so that reads find blocks that exist.
    let fill = if back_end.what == What::Nothing { "" } else { " --fill" };
    while let Err(error) = load(&running, 1, &format!("--seconds 0.01 --warm 0{fill}")) {
        ensure!(running.child.try_wait()?.is_none(), "it ended at once: {words}");
        ensure!(begun.elapsed() < PATIENCE, "it does not answer: {words}: {error:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(running)
}

/// Runs the driver. Returns the CPU times of back-end and driver per request, in microseconds.
fn load(back_end: &Running, cpus: u8, words: &str) -> Result<(f64, f64)> {
    let mut command = Command::new("taskset");
    command.args(["-c", if cpus == 1 { "0" } else { "1" }]);
    command.arg(workspace::target_dir().join("release/examples/vhost_load")).arg(back_end.dir.0.join("s"));
    command.args(["--json", "--pid", &back_end.child.id().to_string()]).args(words.split(' '));
    let (json, errors, success) = cargo::capture(command)?;
    ensure!(success, "vhost_load failed: {errors}");
    let number = |name| table::number(&json, name).with_context(|| format!("no number `{name}` in {json}"));
    Ok((number("backend_us")?, number("driver_us")?))
}

fn row(case: &Case, running: &[Running], rounds: usize) -> Result<String> {
    // A loop that spins is compared only where it has a CPU of its own.
    let left_out = if case.cpus == 1 { Side::BarePolls } else { Side::Bare };
    let running: Vec<&Running> = running.iter().filter(|one| one.side != left_out).collect();
    let mut found = vec![(Vec::new(), Vec::new()); running.len()];
    for _ in 0..rounds {
        for (back_end, found) in running.iter().zip(&mut found) {
            let words = format!("{} --seconds 0.4 --warm 0.1", case.words);
            let (cpu, own) = load(back_end, case.cpus, &words).with_context(|| back_end.side.name())?;
            found.0.push(cpu);
            found.1.push(own);
        }
    }
    let medians: Vec<(Side, f64, f64)> =
        running.iter().zip(found).map(|(one, (cpu, own))| (one.side, table::median(cpu), table::median(own))).collect();
    Ok(format!("| {} | {} | {} |\n", case.name, shown(&medians), judged(case.aims, &medians)))
}

fn shown(medians: &[(Side, f64, f64)]) -> String {
    let cells = medians.iter().map(|(side, cpu, own)| format!("{} {cpu:.3} ({own:.2})", side.name()));
    cells.collect::<Vec<_>>().join("; ")
}

/// Compares the CPU times of other back-ends with ours. Empty if ours did not run.
fn judged(aims: &[(Side, f64)], medians: &[(Side, f64, f64)]) -> String {
    let of = |wanted| medians.iter().find(|(side, ..)| *side == wanted).map(|(_, cpu, _)| *cpu);
    let Some(ours) = of(Side::Sheave) else { return String::new() };
    let judge = |(side, aim): &(Side, f64)| {
        let ratio = of(*side)? / ours;
        let missed = if ratio < *aim { ", **missed**" } else { "" };
        Some(format!("{} {ratio:.2}, {aim:.2}{missed}", side.name()))
    };
    aims.iter().filter_map(judge).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_judged_by_the_ratio_to_our_time() {
        let medians = [(Side::Sheave, 0.2, 0.1), (Side::Crate, 0.31, 0.1), (Side::Qsd, 0.9, 0.1)];
        assert_eq!(
            judged(NULL_ONE_CPU, &medians),
            "qemu-storage-daemon 4.50, 5.00, **missed**; vhost-user-backend 1.55, 1.50"
        );
        assert_eq!(judged(&[(Side::Bare, 1.0)], &medians), "", "the other one did not run");
        assert_eq!(judged(NULL_ONE_CPU, &medians[1..]), "", "ours did not run");
    }

    #[test]
    fn each_aim_names_a_back_end_of_its_device() {
        for case in CASES {
            let has = |side| BACK_ENDS.iter().any(|one| one.what == case.what && one.side == side);
            assert!(has(Side::Sheave) && case.aims.iter().all(|(side, _)| has(*side)), "{}", case.name);
        }
    }
}
