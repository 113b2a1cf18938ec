//! Signals to the processes that a test has started.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

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

/// Returns true if all threads of the process are stopped. A thread that ends meanwhile does not count.
fn has_stopped(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).expect("the process is there").flatten();
    let states = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    states.into_iter().all(|status| status.lines().any(|line| line.starts_with("State:\tT")))
}
