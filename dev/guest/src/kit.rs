//! The parts of a guest: QEMU, a kernel, and the programs inside, from [Debian packages](crate::debian).
//!
//! Owns the lists of packages and programs, and the file system of the guest without the files of a test. A file of the
//! kit is renamed into place when it is complete.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::archive::Archive;
use crate::debian::{LIBRARIES, LINKER, Packages, Root, run};

const PACKAGES: Packages = Packages {
    dir: "guest",
    packages: &[
        "qemu-system-x86",
        "linux-image-cloud-amd64",
        "busybox-static",
        "kmod",
        "util-linux",
        "e2fsprogs",
        "xfsprogs",
        "fio",
        "nbd-client",
    ],
    sources: &[],
    cure: crate::CURE,
};
/// Programs of the guest, beside those of busybox.
const PROGRAMS: &[&str] = &[
    "blkdiscard",
    "blkid",
    "blockdev",
    "debugfs",
    "dumpe2fs",
    "findmnt",
    "fio",
    "fsck.ext4",
    "fstrim",
    "losetup",
    "lsblk",
    "mkfs.ext4",
    "mkfs.xfs",
    "modprobe",
    "nbd-client",
    "resize2fs",
    "rmmod",
    "wipefs",
    "xfs_growfs",
    "xfs_io",
    "xfs_repair",
];
/// The first process of the guest.
const INIT: &str = include_str!("../init");

/// The unpacked packages, and what was made of them.
#[derive(Debug, Clone)]
pub struct Kit {
    root: Root,
    pub kernel: PathBuf,
    /// File system of the guest, without the script and the files of a test.
    pub archive: PathBuf,
}

/// Returns the directory with everything that guests need.
pub fn directory() -> PathBuf {
    PACKAGES.directory()
}

/// Returns the kit. Downloads and unpacks the packages first if that was not done yet, which takes half a minute.
pub fn ensure() -> Result<Kit> {
    PACKAGES.ensure()?;
    Kit::find()
}

impl Kit {
    /// Returns the kit if its packages are there. Makes the file system of the guest again if its list has changed.
    pub fn find() -> Result<Kit> {
        let (dir, root) = (directory(), PACKAGES.find()?);
        let release = only_entry(&root.join("usr/lib/modules"))?;
        let kit =
            Kit { kernel: root.join("boot").join(format!("vmlinuz-{release}")), archive: dir.join("guest.cpio"), root };
        // The archive depends on the packages and on this code alone.
        let stamp = format!("{}{INIT}{}{}", PACKAGES.stamp(), include_str!("kit.rs"), include_str!("archive.rs"));
        let stamp_file = dir.join("guest.stamp");
        if fs::read_to_string(&stamp_file).ok().as_deref() != Some(&stamp) || !kit.archive.exists() {
            let archive = kit.file_system(&release)?;
            write_and_rename(&kit.archive, &archive)?;
            write_and_rename(&stamp_file, stamp.as_bytes())?;
        }
        Ok(kit)
    }

    /// Returns a command that runs a program of the kit.
    pub fn command(&self, name: &str) -> Result<Command> {
        self.root.command(name)
    }

    /// Returns QEMU, started by a program that kills it when the calling thread ends, so that a test that is killed
    /// leaves no guest behind.
    pub(crate) fn qemu(&self) -> Result<Command> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(self.root.program("qemu-system-x86_64")?);
        // QEMU searches beside its own program, and takes the dynamic linker for that.
        command.env("QEMU_MODULE_DIR", self.root.join(LIBRARIES[0]).join("qemu"));
        for dir in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(self.root.join(dir));
        }
        Ok(command)
    }

    /// Returns the archive with the programs, their libraries and the modules of the kernel.
    fn file_system(&self, release: &str) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        archive.file("init", 0o755, INIT.as_bytes());
        archive.file("bin/busybox", 0o755, &fs::read(self.root.path_of("busybox")?)?);
        archive.link("lib", "usr/lib");
        archive.link("lib64", "usr/lib64");
        archive.link("sbin", "usr/bin"); // the kernel itself starts /sbin/modprobe
        archive.file(LINKER, 0o755, &fs::read(self.root.join(LINKER))?);
        let mut libraries = BTreeMap::new();
        for program in PROGRAMS {
            archive.file(&format!("usr/bin/{program}"), 0o755, &fs::read(self.root.path_of(program)?)?);
            libraries.extend(self.libraries(program)?);
        }
        for (path, library) in libraries {
            archive.file(&path, 0o755, &fs::read(library)?);
        }
        run(self.root.command("depmod")?.arg("-b").arg(self.root.join("")).arg(release))?;
        self.modules(&mut archive, &format!("usr/lib/modules/{release}"))?;
        Ok(archive.finish())
    }

    /// Returns the libraries of a program: paths in the guest with the files here.
    fn libraries(&self, program: &str) -> Result<Vec<(String, PathBuf)>> {
        let mut command = self.root.command(program)?;
        let words: Vec<_> = command.get_args().map(OsStr::to_owned).collect();
        command = Command::new(command.get_program());
        command.arg("--list").args(words);
        let output =
            command.stdin(Stdio::null()).output().with_context(|| format!("listing libraries of {program}"))?;
        ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        let mut found = Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            // The line `libc.so.6 => /path/libc.so.6 (0x7f00)`. Others name the linker and the page of the kernel.
            let path = line.split_once(" => ").and_then(|(_, rest)| rest.split(' ').next()).map(Path::new);
            if let Some(path) = path
                && let Ok(inside) = path.strip_prefix(self.root.join(""))
                && !inside.starts_with(LINKER)
            {
                found.push((inside.display().to_string(), path.to_owned()));
            }
        }
        Ok(found)
    }

    /// Adds the files below a directory of the packages.
    fn modules(&self, archive: &mut Archive, dir: &str) -> Result<()> {
        let mut entries = fs::read_dir(self.root.join(dir))?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = format!("{dir}/{}", entry.file_name().display());
            if entry.file_type()?.is_dir() {
                self.modules(archive, &path)?;
            } else if entry.file_type()?.is_file() {
                archive.file(&path, 0o644, &fs::read(entry.path())?);
            }
        }
        Ok(())
    }
}

fn only_entry(dir: &Path) -> Result<String> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().display().to_string()));
    let names = names.collect::<Result<Vec<_>>>()?;
    match &names[..] {
        [name] => Ok(name.clone()),
        _ => bail!("{} must have one entry, and has {names:?}", dir.display()),
    }
}

fn write_and_rename(path: &Path, bytes: &[u8]) -> Result<()> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    fs::write(&new, bytes)?;
    Ok(fs::rename(&new, path)?)
}
