//! Fault runs: rings over the fault driver over every kind of device, from a seed.
//!
//! | module | defends |
//! |---|---|
//! | `completions` | every request gets exactly one completion, and nothing leaks, whatever fails |
//! | `bytes` | no acknowledged byte is lost, nor one that an fsync covered before a power cut; lies are detected |
//! | `dropped` | a ring or device dropped in the middle of I/O: no hang, no leak, no memory freed early |
//!
//! `program` generates and checks the I/O of one ring, `model` has the permitted contents of its blocks, `disk` is a
//! device with a volatile cache whose power can be cut.
//!
//! ```text
//! SHEAVE_SEED=4711 cargo test --test faults      # one seed again
//! cargo xtask asan -p sheave dropped             # one module under the address sanitizer
//! ```

mod bytes;
mod completions;
mod disk;
mod dropped;
mod model;
mod program;

use sheave::open_device;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// A time far longer than any run takes, on any machine.
const HANG: Duration = Duration::from_secs(120);

/// Runs `work` on a thread of its own, so that a hang is reported as a failure of `name`.
fn within_time(name: &str, work: impl FnOnce() + Send + 'static) {
    let (ended, wait) = channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = ended.send(());
    });
    match wait.recv_timeout(HANG) {
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                eprintln!("failed: {name}");
                std::panic::resume_unwind(panic);
            }
        }
        Err(RecvTimeoutError::Timeout) => panic!("{name}: hangs for more than {HANG:?}"),
    }
}

/// Returns true if rings over `file:` work here; reports a skip if not.
fn files_work() -> bool {
    let dir = tempfile::tempdir().expect("a directory for files");
    let device = open_device(&file_spec(&dir)).expect("a new file");
    let mut ring = sheave::Ring::builder().entries(8).build().expect("a ring");
    match ring.attach(&device) {
        Ok(_) => true,
        Err(error) => {
            sheave_testkit::skip(&format!("file: cannot be had here ({error}): its runs are left out"));
            false
        }
    }
}

/// Returns the spec of a file of the size of all test devices.
fn file_spec(dir: &tempfile::TempDir) -> String {
    format!("file:{},size={}", dir.path().join("disk.img").display(), program::DEVICE_BYTES)
}
