//! A systemd that is PID 1 of its own namespaces. A test may start, break and stop units on this init system, without
//! effect on the host's processes, mounts, network and systemd.
//!
//! Owns the processes and a directory of control groups below the test's own. The processes end when the value is
//! dropped, and also when the test is killed (`unshare --kill-child`). The root is an overlay over the host's root,
//! whose upper layer is in memory. Of the host's units only the journal is started; a test adds its own units.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::skip::skip;
use crate::tools::require;

/// Time limit of any operation, long enough for loaded machines.
const PATIENCE: Duration = Duration::from_secs(120);

/// A script that makes the root in `$1` and becomes its systemd. It runs in its own namespaces. The files in the
/// directory `$2` appear in `/usr/bin` of the machine.
const BOOT: &str = r#"
set -e
t=$1 r=$1/root programs=$2
mount -t tmpfs -o mode=755 tmpfs "$t"
mkdir "$t/upper" "$t/work" "$r"
mount -t overlay -o lowerdir=/,upperdir="$t/upper",workdir="$t/work" overlay "$r"
mount -t proc proc "$r/proc"
mount --bind "$r/proc/sys" "$r/proc/sys"
mount -o remount,bind,ro "$r/proc/sys"
mount -t sysfs -o ro sysfs "$r/sys"
mount -t cgroup2 cgroup2 "$r/sys/fs/cgroup"
for dir in run tmp dev; do mount -t tmpfs -o mode=755 tmpfs "$r/$dir"; done
chmod 1777 "$r/tmp"
for node in null zero full random urandom; do
    : > "$r/dev/$node"
    mount --bind "/dev/$node" "$r/dev/$node"
done
mkdir "$r/dev/shm" "$r/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$r/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$r/dev/pts"
ln -s pts/ptmx "$r/dev/ptmx"
for link in 'fd /proc/self/fd' 'stdin fd/0' 'stdout fd/1' 'stderr fd/2'; do set -- $link; ln -s "$2" "$r/dev/$1"; done
for program in "$programs"/*; do
    : > "$r/usr/bin/${program##*/}"
    mount --bind "$program" "$r/usr/bin/${program##*/}"
done
rm -rf "$r"/etc/systemd/system "$r"/lib/systemd/system/*.wants "$r"/lib/systemd/system-generators "$r/var/log/journal"
mkdir -p "$r/etc/systemd/system/sysinit.target.wants"
for unit in systemd-journald.socket systemd-journald-dev-log.socket; do
    ln -s "/lib/systemd/system/$unit" "$r/etc/systemd/system/sysinit.target.wants/"
done
ln -s /lib/systemd/system/basic.target "$r/etc/systemd/system/default.target"
echo 0123456789abcdef0123456789abcdef > "$r/etc/machine-id"
exec chroot "$r" env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system \
    --log-target=console --log-level=info --show-status=false
"#;

/// Arguments of `unshare` for the namespaces of the machine.
const NAMESPACES: &[&str] = &["--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup", "--kill-child"];

#[derive(Debug)]
pub struct Systemd {
    unshare: Child,
    /// Process id of the machine's PID 1 on the host.
    init: u32,
    cgroup: PathBuf,
    dir: TempDir,
}

impl Systemd {
    /// Boots a machine, with copies of `programs` in its `/usr/bin`. Returns `None` after a loud skip if a tool is
    /// missing, or this user may not make namespaces.
    ///
    /// # Panics
    ///
    /// Panics if the machine does not come up. The message has the output of its console.
    pub fn boot(programs: &[&Path]) -> Option<Systemd> {
        for tool in ["systemd", "unshare", "nsenter"] {
            require(tool)?;
        }
        let tried = Command::new("unshare").args(NAMESPACES).arg("true").output().expect("unshare runs");
        if !tried.status.success() {
            let said = String::from_utf8_lossy(&tried.stderr).into_owned();
            skip(&format!("a systemd in namespaces wants root and the right to make them: {said}"));
            return None;
        }
        let Some(parent) = own_cgroup() else {
            skip("a systemd in namespaces wants a mounted cgroup2");
            return None;
        };
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["root", "programs"] {
            fs::create_dir(dir.path().join(name)).expect("made");
        }
        for program in programs {
            let name = program.file_name().expect("a program has a name");
            let to = dir.path().join("programs").join(name);
            fs::hard_link(program, &to).or_else(|_| fs::copy(program, &to).map(drop)).expect("a program is copied");
        }
        let name = dir.path().file_name().expect("it was drawn").to_string_lossy();
        let cgroup = parent.join(format!("sheave-test-{name}"));
        fs::create_dir(&cgroup).expect("root makes a control group");
        let log = fs::File::create(dir.path().join("console")).expect("made");
        // A control-group namespace has as its root the group in which `unshare` is: the one made for this machine.
        let script = "echo $$ > \"$1/cgroup.procs\" && shift && exec unshare \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(&cgroup).args(NAMESPACES);
        command.args(["sh", "-c", BOOT, "sh"]).arg(dir.path().join("root")).arg(dir.path().join("programs"));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("one more")).stderr(log);
        let unshare = command.spawn().expect("sh runs");
        let mut machine = Systemd { unshare, init: 0, cgroup, dir };
        machine.until("it has come up", |machine| {
            assert!(machine.unshare.try_wait().expect("asked").is_none(), "it has ended:\n{}", machine.console());
            machine.init = child_of(machine.unshare.id()).unwrap_or(0);
            machine.init != 0 && machine.run("systemctl is-active basic.target").is_ok()
        });
        Some(machine)
    }

    /// Returns the host's path for a path of the machine. Files written there appear in the machine, and sockets bound
    /// by the machine can be connected to.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.init)).join(inside.trim_start_matches('/'))
    }

    /// Writes a file of the machine, and makes its directory.
    ///
    /// # Panics
    ///
    /// Panics if that fails.
    pub fn write(&self, inside: &str, text: &str) {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    /// Runs a shell command in the machine. Returns its output.
    ///
    /// # Errors
    ///
    /// Returns the output as an error if the command failed.
    pub fn run(&self, line: &str) -> Result<String, String> {
        let Output { status, stdout, stderr } = self.enter(line).output().expect("nsenter runs");
        let (out, err) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
        if status.success() { Ok(out) } else { Err(format!("{line}: {status}\n{out}{err}")) }
    }

    /// Runs a shell command in the machine that must succeed. Returns its output.
    ///
    /// # Panics
    ///
    /// Panics if it fails, with the machine's console.
    pub fn ok(&self, line: &str) -> String {
        self.run(line).unwrap_or_else(|said| panic!("{said}\nThe console:\n{}", self.console()))
    }

    /// Returns a property of a unit, as `systemctl show` prints it.
    pub fn show(&self, unit: &str, property: &str) -> String {
        self.ok(&format!("systemctl show --value -p {property} {unit}")).trim().to_owned()
    }

    /// Waits until `is_so` returns true. `what` names the condition in the panic message.
    ///
    /// # Panics
    ///
    /// Panics after two minutes.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < until, "not so: {what}\n{}", self.console());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the output of the machine's systemd, and of the journal once that runs.
    pub fn console(&self) -> String {
        let mut said = String::new();
        if let Ok(mut file) = fs::File::open(self.dir.path().join("console")) {
            let _ = file.read_to_string(&mut said);
        }
        if self.init != 0 {
            let journal = self.enter("journalctl --no-pager -o short-monotonic").output();
            let journal = journal.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
            let _ = write!(said, "The journal:\n{journal}");
        }
        said
    }

    fn enter(&self, line: &str) -> Command {
        let root = format!("/proc/{}/root", self.init);
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-m", "-p", "-u", "-i", "-n", "-C"]);
        command.args([&format!("--root={root}"), &format!("--wd={root}")]);
        command.args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "sh", "-c", line]);
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Systemd {
    /// Kills PID 1, whereupon the kernel ends all processes, mounts and the network of the machine. Then removes the
    /// control groups, which are empty.
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        // The last process of the namespaces ends a little after `unshare`.
        let until = Instant::now() + PATIENCE;
        while remove_cgroups(&self.cgroup).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Removes a directory of control groups, the lowest first. A missing one is no error.
fn remove_cgroups(dir: &Path) -> std::io::Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_cgroups(&entry.path())?;
    }
    fs::remove_dir(dir)
}

/// Returns the directory of this process's control group, if the host has mounted cgroup2.
fn own_cgroup() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(own)).filter(|dir| dir.is_dir())
}

fn child_of(parent: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
