//! Signals to the processes that a test has started, and waits for what these do.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// Unit of the CPU time of a process in `/proc`.
const TICK: Duration = Duration::from_millis(10);

/// Sends the signal `name`, as `kill` takes it (`-TERM`, `-CONT`, ...), to the process `id`.
///
/// # Panics
///
/// Panics if the process is not there.
pub fn signal(id: u32, name: &str) {
    let sent = Command::new("kill").args([name, &*id.to_string()]).status();
    assert!(sent.is_ok_and(|sent| sent.success()), "kill {name} {id}");
}

/// Stops the process `id` with SIGSTOP, and waits until each of its threads has stopped. On a busy machine some threads
/// still answer requests for a while after the signal was sent. [`signal`] with `-CONT` continues the process.
///
/// # Panics
///
/// Panics if the process is not there, or does not stop.
pub fn stop(id: u32) {
    signal(id, "-STOP");
    let until = Instant::now() + PATIENCE;
    while !has_stopped(id) {
        assert!(Instant::now() < until, "process {id} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the process `id` catches SIGINT and has used `work` of CPU time. However busy the machine is, a program
/// is then in the middle of work that takes much longer.
///
/// # Panics
///
/// Panics if the process ends before, or does not get there.
pub fn wait_until_working(id: u32, work: Duration) {
    let until = Instant::now() + PATIENCE;
    while !catches_sigint(id) || cpu_time(id) < work {
        assert!(Instant::now() < until, "process {id} has used {:?} of CPU time", cpu_time(id));
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn catches_sigint(id: u32) -> bool {
    const SIGINT: u64 = 1 << (2 - 1);
    let status = fs::read_to_string(format!("/proc/{id}/status")).expect("the process is there");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    // A process that has ended, and that nobody has waited for, catches nothing.
    let caught = u64::from_str_radix(caught.expect("a mask").trim(), 16).expect("a number");
    assert!(!status.contains("State:\tZ"), "process {id} has ended");
    caught & SIGINT != 0
}

/// Returns the CPU time of all threads of the process, user and system.
fn cpu_time(id: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("the process is there");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u32>().expect("a number"));
    ticks.sum::<u32>() * TICK
}

/// Returns true if all threads of the process are stopped. A thread that ends meanwhile does not count.
fn has_stopped(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).expect("the process is there").flatten();
    let states = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    states.into_iter().all(|status| status.lines().any(|line| line.starts_with("State:\tT")))
}
