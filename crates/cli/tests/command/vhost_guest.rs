//! Linux guests on the disks of vhost-user-blk back ends: volumes served by `sheave serve`, and for comparison the
//! images of qemu-storage-daemon, which tells a fault of ours from one of the test or of QEMU.
//!
//! The scripts of the guests are in `dev/guest/scripts`. A test lets a guest run some of them, and meanwhile acts on
//! the back end or on the virtual machine.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sheave_guest::{Boot, Guest, Kit, Qmp};

use crate::daemon::{Daemon, ask_ok};
use crate::sheave::{Dir, no_io_uring};

const SIZE: u64 = 512 << 20;
const GROWN: u64 = 640 << 20;
/// Longest time of a guest. A test is killed after five minutes.
const LIMIT: Duration = Duration::from_secs(270);
/// Content of the file with a number, of 64 KiB, as `synced.sh` writes it.
const FILE: usize = 65536;

/// A back end with a disk of [`SIZE`] bytes. It ends when it is dropped.
trait BackEnd {
    fn socket(&self) -> PathBuf;

    /// Makes the disk larger while it is used.
    fn resize(&mut self, bytes: u64);

    /// Makes a snapshot of the disk while it is used.
    fn snapshot(&mut self, name: &str);

    /// Returns the number of bytes that the disk occupies.
    fn allocated(&mut self) -> u64;

    /// Ends the back end, and writes the content of a snapshot into a file.
    fn export(self: Box<Self>, snapshot: &str, file: &Path);
}

/// `sheave serve` with a volume of a pool.
struct Volume {
    dir: Dir,
    daemon: Daemon,
}

impl Volume {
    fn start(queues: u16) -> Option<Box<dyn BackEnd>> {
        if no_io_uring() {
            return None;
        }
        let dir = Dir::new();
        dir.ok("pool create p.img --size 2G");
        dir.ok(&format!("volume create p.img#v --size {SIZE}"));
        std::fs::create_dir(dir.path("run")).expect("made");
        let daemon = Daemon::run(&dir, &format!("serve p.img#v --vhost-user unix:vhost.sock --threads {queues}"));
        Some(Box::new(Volume { dir, daemon }))
    }
}

impl BackEnd for Volume {
    fn socket(&self) -> PathBuf {
        self.dir.path("vhost.sock")
    }

    fn resize(&mut self, bytes: u64) {
        ask_ok(&self.dir, &format!("volume resize p.img#v {bytes}"));
    }

    fn snapshot(&mut self, name: &str) {
        ask_ok(&self.dir, &format!("volume snapshot p.img#v {name}"));
    }

    fn allocated(&mut self) -> u64 {
        let info = ask_ok(&self.dir, "volume info p.img#v --json").json();
        info["allocated_bytes"].as_u64().expect("a number")
    }

    fn export(self: Box<Self>, snapshot: &str, file: &Path) {
        self.daemon.end();
        self.dir.ok(&format!("volume export p.img#{snapshot} {}", file.display()));
    }
}

/// qemu-storage-daemon with a qcow2 image.
struct Peer {
    dir: Dir,
    child: Child,
    qmp: Qmp,
}

impl Peer {
    fn start(queues: u16) -> Option<Box<dyn BackEnd>> {
        for tool in ["qemu-storage-daemon", "qemu-img"] {
            sheave_testkit::require(tool)?;
        }
        let dir = Dir::new();
        let made = dir.shell(&format!("qemu-img create -q -f qcow2 disk.qcow2 {SIZE}"));
        assert_eq!(made.code, 0, "{}", made.err);
        let mut command = Command::new("qemu-storage-daemon");
        let file = "file.driver=file,file.filename=disk.qcow2,file.discard=unmap";
        command.args(["--blockdev", &format!("driver=qcow2,node-name=disk,discard=unmap,{file}")]);
        let socket = "addr.type=unix,addr.path=vhost.sock";
        let export = format!("type=vhost-user-blk,id=e,node-name=disk,{socket},writable=on,num-queues={queues}");
        command.args(["--export", &export, "--chardev", "socket,id=qmp,path=qmp.sock,server=on,wait=off"]);
        command.args(["--monitor", "chardev=qmp"]).current_dir(dir.path("")).stdin(Stdio::null());
        let child = command.spawn().expect("it runs");
        let until = Instant::now() + Duration::from_secs(60);
        while !dir.path("vhost.sock").exists() || !dir.path("qmp.sock").exists() {
            assert!(Instant::now() < until, "qemu-storage-daemon does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        let qmp = Qmp::connect(&dir.path("qmp.sock")).expect("it listens");
        Some(Box::new(Peer { dir, child, qmp }))
    }

    fn ask(&mut self, command: &str, arguments: &str) {
        self.qmp.execute(command, arguments).expect("it does that");
    }
}

impl BackEnd for Peer {
    fn socket(&self) -> PathBuf {
        self.dir.path("vhost.sock")
    }

    fn resize(&mut self, bytes: u64) {
        self.ask("block_resize", &format!("{{\"node-name\": \"disk\", \"size\": {bytes}}}"));
    }

    fn snapshot(&mut self, name: &str) {
        self.ask("blockdev-snapshot-internal-sync", &format!("{{\"device\": \"disk\", \"name\": \"{name}\"}}"));
    }

    fn allocated(&mut self) -> u64 {
        std::fs::metadata(self.dir.path("disk.qcow2")).expect("it is there").blocks() * 512
    }

    fn export(mut self: Box<Self>, snapshot: &str, file: &Path) {
        self.ask("quit", "{}");
        let _ = self.child.wait();
        let line = format!("qemu-img convert -O raw -l snapshot.name={snapshot} disk.qcow2 {}", file.display());
        let said = self.dir.shell(&line);
        assert_eq!(said.code, 0, "{}", said.err);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The kill fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Start = fn(u16) -> Option<Box<dyn BackEnd>>;

/// Starts a back end. Returns `None` after a loud skip if a guest cannot run here, or the back end cannot.
fn begin(start: Start, queues: u16) -> Option<(Kit, Box<dyn BackEnd>)> {
    Some((sheave_guest::require()?, start(queues)?))
}

/// Returns a guest whose first disk is that of the back end. It runs the scripts of these names, one after the other,
/// after the assignments of variables in `variables`.
fn guest(disk: &dyn BackEnd, queues: u16, variables: &str, scripts: &[&str]) -> Boot {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/guest/scripts");
    let script = scripts
        .iter()
        .fold(format!("set -e\n{variables}\n"), |all, name| all + &format!("echo running {name}\n. /{name}.sh\n"));
    let files = std::fs::read_dir(dir).expect("the scripts").map(|entry| entry.expect("a script").path());
    files.fold(Boot::new(script), Boot::file).vhost_user(disk.socket(), queues, 256).limit(LIMIT)
}

/// Lets a guest trim its file system, and asserts that the disk occupies less space after that.
fn trims(guest: &mut Guest, disk: &mut dyn BackEnd) {
    guest.until("trim: written");
    let full = disk.allocated();
    guest.say("go");
    guest.until("trim: given back");
    let after = disk.allocated();
    assert!(after + (56 << 20) <= full, "of {full} bytes {after} are still in use");
    guest.say("go");
}

/// Makes the disk larger, and asserts that the guest sees that.
fn grows(guest: &mut Guest, disk: &mut dyn BackEnd) {
    guest.until(&format!("resize: {} sectors", SIZE / 512));
    disk.resize(GROWN);
    guest.say(&(GROWN / 512).to_string());
    guest.until("resize: the file system has grown");
}

/// The short form: one guest with an ext4, fio, fstrim and a disk that grows.
fn works(start: Start) {
    let Some((_, mut disk)) = begin(start, 1) else { return };
    let boot = guest(&*disk, 1, "FS=ext4 JOBS=1", &["files", "verify", "trim", "resize"]);
    let Some(mut guest) = boot.start() else { return };
    trims(&mut guest, &mut *disk);
    grows(&mut guest, &mut *disk);
    guest.end().expect_good();
}

/// An XFS and fio on two queues, twice.
fn works_with_two_queues(start: Start) {
    let Some((_, disk)) = begin(start, 2) else { return };
    let rounds = ["files", "verify"].repeat(2);
    let variables = "FS=xfs JOBS=2; [ $(ls /sys/block/vda/mq | wc -l) = 2 ]";
    let Some(guest) = guest(&*disk, 2, variables, &rounds).start() else { return };
    guest.end().expect_good();
}

/// Waits until the guest has made a file with a number above `number` durable. Returns its number.
fn synced(guest: &mut Guest, number: u32) -> u32 {
    loop {
        let line = guest.until("synced ");
        let synced = line.trim_start_matches("synced ").parse().expect("a number");
        if synced > number {
            return synced;
        }
    }
}

/// Takes snapshots while a guest writes. Each file that was durable before a snapshot must be in it.
fn snapshots_have_what_was_synced(start: Start) {
    let Some((kit, mut disk)) = begin(start, 1) else { return };
    let Some(mut guest) = guest(&*disk, 1, "", &["snapshot"]).start() else { return };
    let mut durable = 0;
    let mut taken = Vec::new();
    for name in ["first", "second", "third"] {
        durable = synced(&mut guest, durable + 10);
        disk.snapshot(name);
        taken.push((name, durable));
    }
    synced(&mut guest, durable);
    guest.say("enough");
    guest.end().expect_good();
    let dir = Dir::new();
    let image = dir.path("image");
    let (name, durable) = taken[1];
    disk.export(name, &image);
    has_files(&kit, &image, durable);
}

/// Asserts that the ext4 in an image is whole after its journal was replayed, and has these files.
fn has_files(kit: &Kit, image: &Path, count: u32) {
    let run = |program: &str, args: &[&str]| {
        let output = kit.command(program).expect("it is in the kit").args(args).arg(image).output().expect("it runs");
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output, said)
    };
    let (replayed, said) = run("fsck.ext4", &["-p"]);
    assert!(replayed.status.code().is_some_and(|code| code <= 1), "{said}");
    let (checked, said) = run("fsck.ext4", &["-f", "-n"]);
    assert!(checked.status.success(), "{said}");
    for number in 1..=count {
        let (read, said) = run("debugfs", &["-R", &format!("cat /{number}")]);
        let expected: Vec<u8> = format!("file {number}\n").into_bytes().into_iter().cycle().take(FILE).collect();
        assert!(read.stdout == expected, "file {number} of {count} has not its content: {said}");
    }
}

/// Removes the disk from a guest and adds it again, once while it is idle and once during writes.
fn is_unplugged_and_plugged(start: Start) {
    let Some((_, disk)) = begin(start, 1) else { return };
    let Some(mut guest) = guest(&*disk, 1, "", &["hotplug"]).start() else { return };
    for when in ["hotplug: idle", "hotplug: busy"] {
        guest.until(when);
        guest.unplug(0);
        guest.until("hotplug: gone");
        guest.plug(0);
    }
    let ended = guest.end();
    // The kernel reports the writes that the disk did not take any more.
    assert!(ended.code == 0 && ended.output.contains("hotplug: done"), "{}", ended.output);
}

/// Adds memory to a guest during writes. Pages of that memory must reach the back end as any others do.
fn sees_more_memory(start: Start) {
    let Some((_, disk)) = begin(start, 1) else { return };
    let Some(mut guest) = guest(&*disk, 1, "JOBS=1", &["memory"]).start() else { return };
    for name in ["first", "second"] {
        guest.until("memory: writing");
        guest.plug_memory(name);
    }
    guest.end().expect_good();
}

/// Resets a guest during writes. After that it must find each file that was durable.
fn survives_a_reset(start: Start) {
    let Some((_, disk)) = begin(start, 1) else { return };
    let Some(mut guest) = guest(&*disk, 1, "", &["reboot"]).reboots().start() else { return };
    let durable = synced(&mut guest, 20);
    guest.reset();
    guest.until("reboot: booted again");
    guest.say(&durable.to_string());
    guest.until(&format!("reboot: {durable} files are there"));
    guest.end().expect_good();
}

/// Makes the tests of a back end that are left to the nightly run.
macro_rules! tests {
    ($start:expr) => {
        use super::*;

        #[test]
        #[ignore = "emulates a machine for a minute: cargo xtask nightly guests"]
        fn two_queues_work() {
            works_with_two_queues($start);
        }

        #[test]
        #[ignore = "emulates a machine for a minute: cargo xtask nightly guests"]
        fn snapshots_during_writes_have_what_was_synced() {
            snapshots_have_what_was_synced($start);
        }

        #[test]
        #[ignore = "emulates a machine for a minute: cargo xtask nightly guests"]
        fn a_disk_is_unplugged_and_plugged() {
            is_unplugged_and_plugged($start);
        }

        #[test]
        #[ignore = "emulates a machine for a minute: cargo xtask nightly guests"]
        fn memory_is_added_during_writes() {
            sees_more_memory($start);
        }

        #[test]
        #[ignore = "emulates a machine for a minute: cargo xtask nightly guests"]
        fn a_reset_loses_nothing_synced() {
            survives_a_reset($start);
        }
    };
}

mod volume {
    tests!(Volume::start);

    #[test]
    fn a_guest_works() {
        works(Volume::start);
    }
}

mod peer {
    tests!(Peer::start);

    #[test]
    #[ignore = "emulates a machine for a minute: cargo xtask nightly guests"]
    fn a_guest_works() {
        works(Peer::start);
    }
}
