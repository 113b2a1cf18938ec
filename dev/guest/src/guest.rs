//! A running guest: its output, its input, its virtual machine, and its end.
//!
//! Owns QEMU's process and the files that it makes. The first serial port is the guest's console. The second one is the
//! file `status`, to which the guest writes `up` when it has booted and `exit N` when the script has ended.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::boot::{Boot, DIMM_MIB, Disk};
use crate::qmp::Qmp;
use crate::{Kit, directory};

/// Exit status of a guest whose time was up.
pub const TIMED_OUT: i32 = 124;
/// Exit status of a guest that did not run its script.
pub const NEVER_UP: i32 = 125;

#[derive(Debug)]
pub struct Guest {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Lines that were read so far.
    output: Vec<String>,
    /// Number of lines that [`Guest::next_line`] has returned.
    passed: usize,
    disks: Vec<Disk>,
    qmp: Option<Qmp>,
    started: Instant,
    limit: Duration,
    dir: TempDir,
    _lock: File,
}

/// A guest that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit status of the script, [`TIMED_OUT`] or [`NEVER_UP`].
    pub code: i32,
    /// The output of the script, of the kernel and of QEMU.
    pub output: String,
    /// The guest's clock in seconds when it began the script for the last time, and the release of its kernel.
    pub booted: Option<String>,
    pub took: Duration,
}

impl Guest {
    pub(crate) fn start(boot: &Boot, kit: &Kit) -> Result<Guest> {
        let lock = File::create(directory().join("guest.lock"))?;
        lock.lock()?;
        let dir = tempfile::Builder::new().prefix("sheave-guest").tempdir()?;
        let mut command = boot.command(kit, dir.path())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().context("starting QEMU by setpriv")?;
        let input = child.stdin.take().context("stdin was piped")?;
        let (sender, lines) = mpsc::channel();
        forward(child.stdout.take().context("stdout was piped")?, sender.clone());
        forward(child.stderr.take().context("stderr was piped")?, sender);
        Ok(Guest {
            child,
            input,
            lines,
            output: Vec::new(),
            passed: 0,
            disks: boot.disks.clone(),
            qmp: None,
            started,
            limit: boot.limit,
            dir,
            _lock: lock,
        })
    }

    /// Waits until the guest prints a line that contains `words`, after the line that the last call has returned.
    ///
    /// # Panics
    ///
    /// Panics with the guest's output if it ends before that.
    #[track_caller]
    pub fn until(&mut self, words: &str) -> String {
        while let Some(line) = self.next_line() {
            if line.contains(words) {
                return line;
            }
        }
        panic!("the guest does not print '{words}':\n{}", self.output.join("\n"))
    }

    /// Sends a line to the script's standard input, as soon as the guest has booted: the kernel loses characters that
    /// come before it has set up its console.
    ///
    /// # Panics
    ///
    /// Panics if QEMU has ended, or the guest does not boot in its time.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        while read_status(&self.status()).1.is_none() {
            let runs = matches!(self.child.try_wait(), Ok(None)) && !self.time_left().is_zero();
            assert!(runs, "the guest does not boot:\n{}", self.output.join("\n"));
            thread::sleep(Duration::from_millis(10));
        }
        writeln!(self.input, "{line}").expect("QEMU runs");
    }

    /// Runs a command of QMP with its arguments, a JSON object. Returns the reply.
    ///
    /// # Panics
    ///
    /// Panics if QEMU refuses it.
    #[track_caller]
    pub fn qmp(&mut self, command: &str, arguments: &str) -> String {
        let reply = self.control().and_then(|qmp| qmp.execute(command, arguments));
        reply.unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Removes the disk `number`, counted from 0, and waits until the guest has let go of it. The connection to its
    /// back end is closed.
    ///
    /// # Panics
    ///
    /// Panics if the guest keeps the disk.
    #[track_caller]
    pub fn unplug(&mut self, number: usize) {
        self.qmp("device_del", &format!("{{\"id\": \"disk{number}\"}}"));
        let words = ["\"DEVICE_DELETED\"", &format!("\"disk{number}\"")];
        let event = self.control().and_then(|qmp| qmp.event(&words));
        event.unwrap_or_else(|error| panic!("{error:#}:\n{}", self.output.join("\n")));
        if matches!(self.disks[number], Disk::VhostUser { .. }) {
            self.qmp("chardev-remove", &format!("{{\"id\": \"char{number}\"}}"));
        }
    }

    /// Adds the disk `number` again, by a new connection to its back end.
    ///
    /// # Panics
    ///
    /// Panics if QEMU refuses it.
    #[track_caller]
    pub fn plug(&mut self, number: usize) {
        let disk = self.disks[number].clone();
        if let Disk::VhostUser { socket, .. } = &disk {
            let address = format!("{{\"type\": \"unix\", \"data\": {{\"path\": \"{}\"}}}}", socket.display());
            let backend = format!("{{\"type\": \"socket\", \"data\": {{\"addr\": {address}, \"server\": false}}}}");
            self.qmp("chardev-add", &format!("{{\"id\": \"char{number}\", \"backend\": {backend}}}"));
        }
        self.qmp("device_add", &disk.device(number));
    }

    /// Adds a memory module of 512 MiB to the virtual machine, which has room for two. `name` is its name in QMP.
    ///
    /// # Panics
    ///
    /// Panics if QEMU refuses it.
    #[track_caller]
    pub fn plug_memory(&mut self, name: &str) {
        let size = u64::from(DIMM_MIB) << 20;
        let memory = "\"qom-type\": \"memory-backend-memfd\", \"share\": true";
        self.qmp("object-add", &format!("{{{memory}, \"id\": \"{name}-memory\", \"size\": {size}}}"));
        let device = format!("{{\"driver\": \"pc-dimm\", \"id\": \"{name}\", \"memdev\": \"{name}-memory\"}}");
        self.qmp("device_add", &device);
    }

    /// Resets the virtual machine, as a button on a machine does. The guest must have been started with
    /// [`Boot::reboots`].
    ///
    /// # Panics
    ///
    /// Panics if QEMU has ended.
    #[track_caller]
    pub fn reset(&mut self) {
        self.qmp("system_reset", "{}");
    }

    /// Returns the next line of the output, after the line that the last call has returned. Returns `None` if the
    /// guest has ended or its time is up.
    pub fn next_line(&mut self) -> Option<String> {
        if self.output.get(self.passed).is_none() && !self.read() {
            return None;
        }
        self.passed += 1;
        self.output.get(self.passed - 1).cloned()
    }

    /// Waits until the guest ends.
    pub fn end(mut self) -> Ended {
        while self.read() {}
        // QEMU has closed its output, or is out of time. A kill of a process that has ended does nothing.
        if self.time_left().is_zero() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        while self.read() {}
        let (code, booted) = read_status(&self.status());
        Ended { code, output: self.output.join("\n") + "\n", booted, took: self.started.elapsed() }
    }

    fn control(&mut self) -> Result<&mut Qmp> {
        if self.qmp.is_none() {
            self.qmp = Some(Qmp::connect(&self.dir.path().join("qmp"))?);
        }
        self.qmp.as_mut().context("it was just connected")
    }

    fn status(&self) -> String {
        fs::read_to_string(self.dir.path().join("status")).unwrap_or_default()
    }

    fn time_left(&self) -> Duration {
        self.limit.saturating_sub(self.started.elapsed())
    }

    /// Reads a line. Returns false if the guest has ended or its time is up.
    fn read(&mut self) -> bool {
        match self.lines.recv_timeout(self.time_left()) {
            Ok(line) => {
                self.output.push(line);
                true
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Returns the output of a script that has succeeded, on a kernel that has reported no error.
    ///
    /// # Panics
    ///
    /// Panics with the output if the script has failed, or the kernel has reported an error.
    #[track_caller]
    pub fn expect_good(self) -> String {
        assert_eq!(self.code, 0, "the guest's script failed:\n{}", self.output);
        for words in ["I/O error", "Call Trace:", "EXT4-fs error", "XFS (", "hung_task", "blocked for more than"] {
            assert!(!self.output.contains(words), "the guest's kernel reports '{words}':\n{}", self.output);
        }
        self.output
    }
}

/// Returns the exit status of a guest, and what it said about its last boot.
fn read_status(status: &str) -> (i32, Option<String>) {
    let last = |word: &str| status.lines().rev().find_map(|line| line.trim().strip_prefix(word));
    let code = last("exit ").and_then(|code| code.parse().ok());
    let booted = last("up ").map(str::to_owned);
    (code.unwrap_or(if booted.is_some() { TIMED_OUT } else { NEVER_UP }), booted)
}

/// Sends the lines of a stream to the reader of the guest's output.
fn forward(stream: impl Read + Send + 'static, lines: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).replace('\r', "");
            if lines.send(line).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_does_not_end_its_script_is_out_of_time() {
        assert_eq!(read_status(""), (NEVER_UP, None));
        assert_eq!(read_status("up 8.1 6.12\r\n"), (TIMED_OUT, Some("8.1 6.12".into())));
        assert_eq!(read_status("up 8.1 6.12\nup 9.2 6.12\nexit 7\n"), (7, Some("9.2 6.12".into())));
    }
}
