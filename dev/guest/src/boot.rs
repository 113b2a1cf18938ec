//! The description of a guest, and QEMU's command line for it.
//!
//! Owns the options. A disk is behind a port of its own, so that it can be unplugged while the guest runs. The name of
//! a disk in the guest follows from the order of the disks of its kind: `/dev/vda`, `/dev/vdb` ..., `/dev/nvme0n1` ....

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::archive::Archive;
use crate::{Guest, Kit, require};

/// Words for the kernel: no messages but errors, a reset instead of a wait after a panic, and no work for security that
/// makes an emulated machine slower.
const KERNEL: &str = "console=ttyS0 quiet panic=-1 tsc=reliable mitigations=off nokaslr random.trust_cpu=1 \
                      cryptomgr.notests";

/// Size of a memory module that is added to a running guest.
pub(crate) const DIMM_MIB: u32 = 512;

#[derive(Clone, Debug)]
pub(crate) enum Disk {
    VhostUser { socket: PathBuf, queues: u16, queue_size: u16 },
    Raw(PathBuf),
    Nvme(PathBuf),
}

/// A guest that can be started.
#[derive(Clone, Debug)]
pub struct Boot {
    pub(crate) script: String,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) disks: Vec<Disk>,
    memory_mib: u32,
    cpus: u32,
    pub(crate) limit: Duration,
    kernel: String,
    qemu: Vec<String>,
    kvm: bool,
    reboots: bool,
}

impl Boot {
    /// Returns a guest that runs `script` by busybox's `sh`: 2 CPUs, 768 MiB of memory, no disk, at most two minutes.
    pub fn new(script: impl Into<String>) -> Boot {
        Boot {
            script: script.into(),
            files: Vec::new(),
            disks: Vec::new(),
            memory_mib: 768,
            cpus: 2,
            limit: Duration::from_secs(120),
            kernel: KERNEL.to_owned(),
            qemu: Vec::new(),
            kvm: false,
            reboots: false,
        }
    }

    /// Adds the disk of a vhost-user-blk back end that listens on `socket`.
    pub fn vhost_user(mut self, socket: impl Into<PathBuf>, queues: u16, queue_size: u16) -> Boot {
        self.disks.push(Disk::VhostUser { socket: socket.into(), queues, queue_size });
        self
    }

    /// Adds a file as a virtio disk that QEMU serves itself.
    pub fn disk(mut self, file: impl Into<PathBuf>) -> Boot {
        self.disks.push(Disk::Raw(file.into()));
        self
    }

    /// Adds a file as an NVMe device. The kernel polls it after [`kernel`](Boot::kernel)`("nvme.poll_queues=1")`.
    pub fn nvme(mut self, file: impl Into<PathBuf>) -> Boot {
        self.disks.push(Disk::Nvme(file.into()));
        self
    }

    /// Copies a file to the root directory of the guest, with its permissions.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Boot {
        self.files.push(path.into());
        self
    }

    pub fn memory_mib(mut self, memory_mib: u32) -> Boot {
        self.memory_mib = memory_mib;
        self
    }

    pub fn cpus(mut self, cpus: u32) -> Boot {
        self.cpus = cpus;
        self
    }

    /// Sets the time after which the guest is killed.
    pub fn limit(mut self, limit: Duration) -> Boot {
        self.limit = limit;
        self
    }

    /// Adds words to the kernel's command line.
    pub fn kernel(mut self, words: &str) -> Boot {
        self.kernel = format!("{} {words}", self.kernel);
        self
    }

    /// Adds arguments of QEMU.
    pub fn qemu<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Boot {
        self.qemu.extend(words.into_iter().map(Into::into));
        self
    }

    /// Uses KVM. Without it QEMU emulates the CPUs, which works on each machine.
    pub fn kvm(mut self) -> Boot {
        self.kvm = true;
        self
    }

    /// Lets the guest boot again after a reset, which otherwise ends it. The script then runs once more.
    pub fn reboots(mut self) -> Boot {
        self.reboots = true;
        self
    }

    /// Starts the guest. Returns `None` after a loud skip if the kit is missing.
    ///
    /// # Panics
    ///
    /// Panics if QEMU does not start, and in CI if the kit is missing.
    pub fn start(&self) -> Option<Guest> {
        let kit = require()?;
        Some(self.start_with(&kit).unwrap_or_else(|error| panic!("the guest does not start: {error:#}")))
    }

    /// Starts the guest after the one that runs now, if there is one (G1).
    pub fn start_with(&self, kit: &Kit) -> Result<Guest> {
        Guest::start(self, kit)
    }

    /// Returns QEMU's command line. The directory `dir` gets the initial file system, and QEMU makes `status` and
    /// `qmp` in it.
    pub(crate) fn command(&self, kit: &Kit, dir: &Path) -> Result<Command> {
        let initrd = dir.join("initrd");
        self.write_initrd(kit, &initrd)?;
        let at = |name: &str| dir.join(name).display().to_string();
        let mut command = kit.qemu()?;
        command.args(["-M", "q35,memory-backend=memory", "-smp", &self.cpus.to_string()]);
        match self.kvm {
            true => command.args(["-accel", "kvm", "-cpu", "host"]),
            false => command.args(["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,pmu=off"]),
        };
        let memory = self.memory_mib;
        command.args(["-m", &format!("{memory},slots=2,maxmem={}M", memory + 2 * DIMM_MIB)]);
        command.args(["-object", &format!("memory-backend-memfd,id=memory,size={memory}M,share=on")]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        command.args(["-serial", "stdio", "-serial", &format!("file:{}", at("status"))]);
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp"))]);
        command.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
        if !self.reboots {
            command.arg("-no-reboot");
        }
        for (number, disk) in self.disks.iter().enumerate() {
            command.args(["-device", &format!("pcie-root-port,id=port{number},chassis={number},slot={number}")]);
            match disk {
                Disk::VhostUser { socket, .. } => {
                    command.args(["-chardev", &format!("socket,id=char{number},path={}", socket.display())])
                }
                Disk::Raw(file) | Disk::Nvme(file) => {
                    let file = file.display();
                    command.args(["-drive", &format!("if=none,id=drive{number},file={file},format=raw,discard=unmap")])
                }
            };
            command.args(["-device", &disk.device(number)]);
        }
        command.args(&self.qemu);
        command.arg("-kernel").arg(&kit.kernel).arg("-initrd").arg(initrd).args(["-append", &self.kernel]);
        Ok(command)
    }

    /// Writes the file system of the kit, followed by the script and the files.
    fn write_initrd(&self, kit: &Kit, path: &Path) -> Result<()> {
        let mut own = Archive::default();
        own.file("script.sh", 0o644, self.script.as_bytes());
        for file in &self.files {
            let content = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            let name = file.file_name().context("a file has a name")?.display().to_string();
            own.file(&name, 0o755, &content);
        }
        fs::copy(&kit.archive, path)?;
        let mut initrd = fs::OpenOptions::new().append(true).open(path)?;
        Ok(initrd.write_all(&own.finish())?)
    }
}

impl Disk {
    /// Returns the device as JSON, for the command line and for `device_add`.
    pub fn device(&self, number: usize) -> String {
        let place = format!("\"id\": \"disk{number}\", \"bus\": \"port{number}\"");
        match self {
            Disk::VhostUser { queues, queue_size, .. } => format!(
                "{{\"driver\": \"vhost-user-blk-pci\", {place}, \"chardev\": \"char{number}\", \
                 \"num-queues\": {queues}, \"queue-size\": {queue_size}}}"
            ),
            Disk::Raw(_) => format!("{{\"driver\": \"virtio-blk-pci\", {place}, \"drive\": \"drive{number}\"}}"),
            Disk::Nvme(_) => format!(
                "{{\"driver\": \"nvme\", {place}, \"drive\": \"drive{number}\", \"serial\": \"disk{number}\", \
                 \"max_ioqpairs\": 4}}"
            ),
        }
    }
}
