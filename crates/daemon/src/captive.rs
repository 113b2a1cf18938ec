//! The command of `--run`, and a private socket for it.

use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use sheave_load::signals::{End, Ender};
use sheave_serve::Address;

use crate::failure::Failure;

/// A directory with mode 0700, removed on drop.
pub struct Directory(PathBuf);

impl Directory {
    /// Address of the socket in the directory.
    pub fn address(&self) -> Address {
        Address::Unix(self.0.join("nbd.sock"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Ignored: the directory may already have been removed.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Creates a directory with an unused name.
pub fn private_directory() -> Result<Directory, Failure> {
    let base = std::env::temp_dir();
    let mut last = None;
    for attempt in 0..100u32 {
        let path = base.join(format!("sheave-{}-{attempt}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(Directory(path)),
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(String::new, |error| format!(": {error}"));
    Err(Failure::run(format!("cannot make a directory for the socket in {}{why}", base.display()))
        .fix("set TMPDIR to a directory that this user may write to, or give --nbd unix:PATH"))
}

/// The running command.
pub struct Captive {
    id: Option<rustix::process::Pid>,
    status: std::thread::JoinHandle<std::io::Result<ExitStatus>>,
}

impl Captive {
    /// Starts `command` in a shell, with `$uri` set to the address of NBD, and `$socket` to the path of the vhost-user
    /// socket. A variable without a value is unset.
    pub fn start(command: &str, uri: Option<&str>, socket: Option<&Path>, ender: &Ender) -> Result<Captive, Failure> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command).env_remove("uri").env_remove("socket");
        shell.envs(uri.map(|uri| ("uri", uri))).envs(socket.map(|socket| ("socket", socket)));
        let started = shell.spawn();
        let mut child = started.map_err(|error| Failure::run(format!("cannot run /bin/sh: {error}")))?;
        let id = rustix::process::Pid::from_raw(child.id() as i32);
        let ended = ender.other().map_err(ender_failed)?;
        let status = std::thread::spawn(move || {
            let status = child.wait();
            ended.tell();
            status
        });
        Ok(Captive { id, status })
    }

    /// Waits until the command ends. Ctrl-C reaches the whole process group and so the command as well; SIGTERM is
    /// forwarded.
    pub fn wait(self, ender: &Ender) -> Result<u8, Failure> {
        let mut interrupted = false;
        while ender.wait().map_err(ender_failed)? == End::Signal {
            if let Some(id) = self.id {
                // Fails if the command has just ended.
                let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
            }
            if std::mem::replace(&mut interrupted, true) {
                break;
            }
        }
        let status = match self.status.join() {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => return Err(Failure::run(format!("cannot wait for the command: {error}"))),
            Err(_) => return Err(Failure::run("cannot wait for the command")),
        };
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        Ok(code.clamp(0, 255) as u8)
    }
}

/// The failure for an error while waiting for signals.
pub fn ender_failed(error: std::io::Error) -> Failure {
    Failure::run(format!("cannot wait for the end: {error}"))
}
