//! A daemon with a pool, whose process changes with each upgrade, and NBD clients.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sheave_testkit::process;

use crate::sheave::{Dir, Said, no_io_uring, sheave};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// Configuration with a pool, an export of its volume, and an address.
pub const ONE: &str = r#"
listen = ["unix:nbd.sock"]
threads = 2

[[pool]]
name = "a"
path = "a.img"

[[export]]
name = "va"
pool = "a"
volume = "v"
"#;

/// Waits until `is` returns true.
#[track_caller]
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A directory with the pool `a.img`, and the daemon that serves it. All processes of the daemon are killed when the
/// value is dropped.
pub struct Rig {
    pub dir: Dir,
    first: Option<Child>,
}

impl Rig {
    /// Makes the pool with its volume, and starts a daemon with this configuration.
    pub fn start(config: &str) -> Option<Rig> {
        let rig = Rig::new(config)?;
        Some(rig.run("serve --config c.toml"))
    }

    /// Makes the pool, the configuration and the runtime directory.
    pub fn new(config: &str) -> Option<Rig> {
        if no_io_uring() {
            return None;
        }
        let dir = Dir::new();
        dir.ok("pool create a.img --size 128M");
        dir.ok("volume create a.img#v --size 16M");
        fs::create_dir(dir.path("run")).expect("made");
        fs::write(dir.path("c.toml"), config).expect("written");
        Some(Rig { dir, first: None })
    }

    /// Starts a daemon with this command line. Its stdout and stderr are appended to files.
    pub fn run(mut self, line: &str) -> Rig {
        self.run_again(line);
        self
    }

    pub fn run_again(&mut self, line: &str) {
        self.wait_for_first();
        let lines = self.said().lines().count();
        let open =
            |name: &str| fs::File::options().append(true).create(true).open(self.dir.path(name)).expect("opened");
        let mut command = sheave(line);
        command.current_dir(self.dir.path("")).env("SHEAVE_RUNTIME_DIR", self.dir.path("run"));
        command.stdin(Stdio::null()).stdout(open("out")).stderr(open("said"));
        let mut child = command.spawn().expect("it runs");
        until("it serves", || {
            assert!(child.try_wait().expect("a status").is_none(), "the daemon ended:\n{}", self.said());
            self.said().lines().skip(lines).any(|line| line.contains("serving "))
        });
        self.first = Some(child);
    }

    /// Returns a configuration file of this content.
    pub fn config(&self, name: &str, content: &str) -> String {
        fs::write(self.dir.path(name), content).expect("written");
        format!("--config {name}")
    }

    /// Returns what the processes of the daemon have said so far.
    pub fn said(&self) -> String {
        fs::read_to_string(self.dir.path("said")).unwrap_or_default()
    }

    /// Returns a command that may call the daemon.
    pub fn command(&self, line: &str) -> Command {
        let mut command = self.dir.command(line);
        command.env("SHEAVE_RUNTIME_DIR", self.dir.path("run")).stdin(Stdio::null());
        command
    }

    pub fn ask(&self, line: &str) -> Said {
        Said::of(self.command(line).output().expect("it runs"))
    }

    #[track_caller]
    pub fn ok(&self, line: &str) -> Said {
        let said = self.ask(line);
        assert_eq!(said.code, 0, "{line}\n{}{}\nlog:\n{}", said.out, said.err, self.said());
        said
    }

    /// Runs an upgrade that succeeds. Returns what it tells.
    #[track_caller]
    pub fn upgrade(&self) -> Value {
        let told = self.ok("upgrade --json").json();
        assert_eq!(told["done"], "upgraded", "{told}");
        told
    }

    /// Runs an upgrade that does not take place. Returns what it says.
    #[track_caller]
    pub fn refused(&self, line: &str, code: i32) -> String {
        let said = self.ask(line);
        assert_eq!(said.code, code, "{line}\n{}{}\nlog:\n{}", said.out, said.err, self.said());
        said.err
    }

    /// Starts the command `upgrade`, and waits until its new process is there.
    pub fn begin(&self, line: &str) -> Begun {
        self.begin_with(line, || {})
    }

    /// Same as [`Rig::begin`], and does something for the command before its process is waited for.
    pub fn begin_with(&self, line: &str, meanwhile: impl FnOnce()) -> Begun {
        let mut command = self.command(line);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        meanwhile();
        let (mut new, until) = (None, Instant::now() + PATIENCE);
        // The command may end before its child was seen.
        while new.is_none() && !is_zombie(command.id()) {
            assert!(Instant::now() < until, "it starts no process");
            new = child_of(command.id());
        }
        Begun { command, new }
    }

    /// Returns the processes that serve in the directory, or are about to.
    pub fn servers(&self) -> Vec<u32> {
        let here = self.dir.path("");
        let here = here.canonicalize().expect("it is there");
        let is = |pid: &u32| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|at| at == here)
                && fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"serve"))
                && !is_zombie(*pid)
        };
        pids().filter(is).collect()
    }

    /// Returns the only process that serves.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        let mut all = Vec::new();
        until(&format!("one process serves\n{}", self.said()), || {
            all = self.servers();
            all.len() == 1
        });
        all[0]
    }

    pub fn connect(&self, export: &str) -> Nbd {
        Nbd::connect(&self.dir.path("nbd.sock"), export).expect("it is served")
    }

    /// Ends the daemon by SIGTERM. Asserts that the pool was closed and is whole.
    pub fn end(self) {
        self.end_and(|| {});
    }

    /// Same as [`Rig::end`], and looks at something more before the directory is removed.
    pub fn end_and(mut self, look: impl FnOnce()) {
        let pid = self.pid();
        process::signal(pid, "-TERM");
        self.wait_for_first();
        until("it ends", || self.servers().is_empty());
        assert_eq!(self.dir.ok("pool info a.img --json").json()["recovered"], false, "{}", self.said());
        self.dir.ok("pool check a.img");
        let left = ["nbd.sock", "run/control.sock"].map(|name| self.dir.path(name).exists());
        assert_eq!(left, [false, false], "sockets are left\n{}", self.said());
        look();
    }

    fn wait_for_first(&mut self) {
        // The first process ends with the first upgrade, and nobody else waits for it.
        self.first.take().into_iter().for_each(|mut first| _ = first.wait());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemon of the failed test said:\n{}", self.said());
        }
        let until = Instant::now() + Duration::from_secs(10);
        while !self.servers().is_empty() && Instant::now() < until {
            for pid in self.servers() {
                // Fails if the process has ended.
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status();
            }
        }
        self.wait_for_first();
    }
}

/// An upgrade under way: the command, and the process that it has started, if that was seen.
pub struct Begun {
    pub command: Child,
    pub new: Option<u32>,
}

impl Begun {
    pub fn end(self) -> Said {
        Said::of(self.command.wait_with_output().expect("it ends"))
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").expect("read").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the state of a process and the id of its parent.
fn state_of(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn is_zombie(pid: u32) -> bool {
    state_of(pid).is_none_or(|(state, _)| state == "Z" || state == "X")
}

fn child_of(parent: u32) -> Option<u32> {
    pids().find(|pid| state_of(*pid).is_some_and(|(state, of)| of == parent && state != "Z"))
}

/// NBD client that is connected to an export.
pub struct Nbd(pub UnixStream);

const REQUEST: u32 = 0x2560_9513;

impl Nbd {
    /// Connects to an export. Returns `None` if there is no such export.
    pub fn connect(socket: &Path, export: &str) -> Option<Nbd> {
        let mut stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.read_exact(&mut [0; 18]).ok()?;
        stream.write_all(&Nbd::asks_for(export)).ok()?;
        stream.read_exact(&mut [0; 10]).ok()?;
        Some(Nbd(stream))
    }

    /// Returns the bytes by which a client asks for an export after the greeting.
    pub fn asks_for(export: &str) -> Vec<u8> {
        let option = [b"IHAVEOPT".as_slice(), &1u32.to_be_bytes(), &(export.len() as u32).to_be_bytes()].concat();
        [vec![0, 0, 0, 3], option, export.as_bytes().to_vec()].concat()
    }

    /// Returns the bytes of a request without data.
    pub fn request(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
        let head = [REQUEST.to_be_bytes().as_slice(), &[0, 0], &command.to_be_bytes()].concat();
        [&head, cookie.to_be_bytes().as_slice(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
    }

    /// Receives the head of a reply: its cookie and its error.
    pub fn reply(&mut self) -> std::io::Result<(u64, u32)> {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        let (error, cookie) = reply[4..].split_at(4);
        Ok((u64::from_be_bytes(cookie.try_into().expect("8")), u32::from_be_bytes(error.try_into().expect("4"))))
    }

    /// Writes, and waits for the reply. Returns its error number.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> std::io::Result<u32> {
        self.0.write_all(&[Nbd::request(1, 9, offset, data.len() as u32), data.to_vec()].concat())?;
        Ok(self.reply()?.1)
    }

    pub fn flush(&mut self) -> std::io::Result<u32> {
        self.0.write_all(&Nbd::request(3, 9, 0, 0))?;
        Ok(self.reply()?.1)
    }

    pub fn read(&mut self, offset: u64, len: u32) -> std::io::Result<Vec<u8>> {
        self.0.write_all(&Nbd::request(0, 9, offset, len))?;
        assert_eq!(self.reply()?, (9, 0), "a read at {offset}");
        let mut data = vec![0; len as usize];
        self.0.read_exact(&mut data)?;
        Ok(data)
    }
}
