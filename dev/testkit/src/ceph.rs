//! A Ceph cluster of one node on the loopback address: a monitor and an OSD, with keys, in a directory of its own.
//!
//! Owns the processes, which end when the value is dropped. A cluster takes about 7 s to start, so a test program
//! starts one and runs all its scenarios on it. There is no manager, because pools and images need none.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process;
use crate::tools::require;

/// The user that may do everything.
const ADMIN: &str = "client.admin";
/// Time limit of a command.
const PATIENCE: Duration = Duration::from_secs(60);

/// The object store of the OSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// In memory, until the OSD ends.
    Memory,
    /// In a sparse file of this number of bytes, managed by BlueStore, so that the OSD may be killed.
    Blue(u64),
}

#[derive(Debug)]
pub struct Ceph {
    dir: TempDir,
    monitor: Child,
    osd: Child,
}

impl Ceph {
    /// Starts a cluster with a pool `rbd`. Returns `None` after a loud skip if a tool is missing.
    ///
    /// # Panics
    ///
    /// Panics if the cluster does not come up, with the output of the tool that failed.
    pub fn start(store: Store) -> Option<Ceph> {
        for tool in ["ceph-mon", "ceph-osd", "ceph", "ceph-authtool", "monmaptool", "rbd"] {
            require(tool)?;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|free| free.local_addr());
        let port = port.expect("a free port").port();
        let (fsid, osd_id) = (uuid(), uuid());
        let _ = fs::create_dir(at("mon")).and_then(|()| fs::create_dir(at("osd")));
        fs::write(at("ceph.conf"), configuration(dir.path(), &fsid, port, store)).expect("written");
        let run = |program: &str, words: &[&str]| run(dir.path(), program, words).expect_good();
        let text = |name: &str| at(name).display().to_string();
        let (keyring, map, address) = (text("keyring"), text("monmap"), format!("[v2:127.0.0.1:{port}]"));
        run("ceph-authtool", &[&keyring, "--create-keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"]);
        let all = ["--cap", "mon", "allow *", "--cap", "osd", "allow *"];
        run("ceph-authtool", &[&[&*keyring, "--gen-key", "-n", ADMIN], &all[..]].concat());
        run("monmaptool", &["--create", "--fsid", &fsid, "--addv", "a", &address, &map]);
        run("ceph-mon", &["-i", "a", "--mkfs", "--monmap", &map, "--fsid", &fsid, "--keyring", &keyring]);
        let monitor = daemon(dir.path(), "ceph-mon", "a");
        let secret = run("ceph-authtool", &["--gen-print-key"]);
        fs::write(at("secret"), format!("{{\"cephx_secret\": \"{}\"}}", secret.trim())).expect("written");
        run("ceph", &["osd", "new", &osd_id, "-i", &text("secret")]);
        let (keyring, key) = (text("osd/keyring"), secret.trim());
        run("ceph-authtool", &["--create-keyring", &keyring, "--name", "osd.0", "--add-key", key]);
        run("ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", &osd_id, "--fsid", &fsid]);
        let osd = daemon(dir.path(), "ceph-osd", "0");
        let ceph = Ceph { dir, monitor, osd };
        ceph.ceph(&["osd", "pool", "create", "rbd", "8", "8"]);
        ceph.rbd(&["pool", "init", "rbd"]);
        Some(ceph)
    }

    /// Returns the directory with all files of the cluster.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the configuration file, which names the keyring of the user `admin`.
    pub fn conf(&self) -> PathBuf {
        self.dir.path().join("ceph.conf")
    }

    /// Runs `rbd` with these arguments, and returns its output.
    ///
    /// # Panics
    ///
    /// Panics if it fails.
    pub fn rbd(&self, words: &[&str]) -> String {
        self.run("rbd", words).expect_good()
    }

    /// Runs `ceph` with these arguments, and returns its output.
    ///
    /// # Panics
    ///
    /// Panics if it fails.
    pub fn ceph(&self, words: &[&str]) -> String {
        self.run("ceph", words).expect_good()
    }

    /// Runs one of Ceph's tools on the cluster, for at most a minute.
    pub fn run(&self, program: &str, words: &[&str]) -> Ran {
        run(self.dir.path(), program, words)
    }

    /// Stops the OSD (SIGSTOP), and waits until each of its threads has stopped.
    ///
    /// # Panics
    ///
    /// Panics if the OSD is not there, or does not stop.
    pub fn stop_osd(&self) {
        process::stop(self.osd.id());
    }

    /// Lets the OSD go on (SIGCONT).
    ///
    /// # Panics
    ///
    /// Panics if the OSD is not there.
    pub fn continue_osd(&self) {
        process::signal(self.osd.id(), "-CONT");
    }

    /// Kills the OSD, and starts it again with the objects it has kept: none with [`Store::Memory`].
    ///
    /// # Panics
    ///
    /// Panics if it does not start.
    pub fn kill_osd_and_start(&mut self) {
        let _ = self.osd.kill();
        let _ = self.osd.wait();
        self.osd = daemon(self.dir.path(), "ceph-osd", "0");
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in ["ceph-mon", "ceph-osd"] {
                let said = fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap_or_default();
                eprintln!("{name} of the failed test said:\n{said}");
            }
        }
        for daemon in [&mut self.osd, &mut self.monitor] {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[derive(Debug)]
pub struct Ran {
    what: String,
    output: Output,
}

impl Ran {
    /// Returns true if the command succeeded.
    pub fn is_good(&self) -> bool {
        self.output.status.success()
    }

    /// Returns the command's stderr.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Returns the command's stdout.
    ///
    /// # Panics
    ///
    /// Panics if the command failed.
    pub fn expect_good(&self) -> String {
        assert!(self.is_good(), "{}: {:?}\n{}", self.what, self.output.status, self.errors());
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }
}

fn run(dir: &Path, program: &str, words: &[&str]) -> Ran {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE.as_secs().to_string()).arg(program).args(words).env("CEPH_CONF", dir.join("ceph.conf"));
    let what = format!("{program} {}", words.join(" "));
    let output = command.current_dir(dir).stdin(Stdio::null()).output();
    Ran { output: output.unwrap_or_else(|error| panic!("{what}: {error}")), what }
}

/// Starts a daemon in the foreground, to be killed by the caller.
fn daemon(dir: &Path, program: &str, id: &str) -> Child {
    let log = fs::File::create(dir.join(format!("{program}.log"))).expect("a log");
    let mut command = Command::new(require(program).expect("it was asked for"));
    command.args(["-f", "-i", id, "-c"]).arg(dir.join("ceph.conf"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
    // A daemon that cannot run ends at once. For one that runs, the next command waits until it is ready.
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        if let Ok(Some(ended)) = child.try_wait() {
            let said = fs::read_to_string(dir.join(format!("{program}.log"))).unwrap_or_default();
            panic!("{program} ended with {ended}: {said}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

fn uuid() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid").expect("Linux has it").trim().to_owned()
}

fn configuration(dir: &Path, fsid: &str, port: u16, store: Store) -> String {
    let dir = dir.display();
    let store = match store {
        // The read lease of a placement group is 0.8 of the grace. An OSD that was stopped for longer than that can
        // leave requests waiting for ever, because no second OSD renews the lease.
        Store::Memory => "osd objectstore = memstore\nmemstore page set = true\nmemstore device bytes = 4294967296\n\
             osd heartbeat grace = 600"
            .to_owned(),
        Store::Blue(bytes) => format!(
            "osd objectstore = bluestore\nbluestore block create = true\nbluestore block size = {bytes}\n\
             bluestore fsck on mount = false"
        ),
    };
    format!(
        "[global]\n\
         fsid = {fsid}\n\
         mon host = [v2:127.0.0.1:{port}]\n\
         auth cluster required = cephx\n\
         auth service required = cephx\n\
         auth client required = cephx\n\
         keyring = {dir}/keyring\n\
         osd pool default size = 1\n\
         osd pool default min size = 1\n\
         osd crush chooseleaf type = 0\n\
         mon allow pool size one = true\n\
         run dir = {dir}\n\
         log to file = false\n\
         mon cluster log to file = false\n\
         admin socket =\n\
         public addr = 127.0.0.1\n\
         cluster addr = 127.0.0.1\n\
         [mon]\n\
         mon data = {dir}/mon\n\
         mon data avail warn = 2\n\
         mon data avail crit = 1\n\
         [osd]\n\
         osd data = {dir}/osd\n\
         keyring = {dir}/osd/keyring\n\
         osd memory target = 939524096\n\
         # A client that has died is out after so many seconds.\n\
         osd client watch timeout = 5\n\
         {store}\n"
    )
}
