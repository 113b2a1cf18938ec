//! The parts of a guest: QEMU, a kernel, and the programs inside. They come from Debian packages that are downloaded
//! by apt and unpacked below `target/guest`.
//!
//! Owns the lists of packages and programs, and the file system of the guest without the files of a test.
//!
//! Nothing is installed, for three reasons: a kernel must not be installed to be booted; QEMU's packages would remove
//! the tools of a QEMU of another version; and a guest is the same on each machine. The packages are unpacked with all
//! libraries that they need. Their programs run with the C library and the dynamic linker among them.
//!
//! Invariants:
//! - K1: only [`ensure()`] downloads. [`Kit::find`] works without a network.
//! - K2: a directory or file of the kit is renamed into place when it is complete.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::archive::Archive;

/// Release of Debian that the packages come from. Its kernel is 6.12, which has `ublk_drv`.
const SUITE: &str = "trixie";
const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "linux-image-cloud-amd64",
    "busybox-static",
    "kmod",
    "util-linux",
    "e2fsprogs",
    "xfsprogs",
    "fio",
    "nbd-client",
];
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
/// Environment variable with the address of a Debian mirror, for machines whose own apt does not name one.
const MIRROR_ENV: &str = "SHEAVE_DEBIAN_MIRROR";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Directories of the libraries. Those of Ceph are used by fio.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"];
const LINKER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// The unpacked packages, and what was made of them.
#[derive(Debug, Clone)]
pub struct Kit {
    /// Root of the unpacked packages.
    root: PathBuf,
    pub kernel: PathBuf,
    /// File system of the guest, without the script and the files of a test.
    pub archive: PathBuf,
}

/// Returns the directory with everything that guests need.
pub fn directory() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    root.join("target/guest")
}

/// Returns the kit. Downloads and unpacks the packages first if that was not done yet, which takes half a minute.
pub fn ensure() -> Result<Kit> {
    let dir = directory();
    fs::create_dir_all(&dir)?;
    let lock = fs::File::create(dir.join("kit.lock"))?;
    lock.lock()?;
    if !is_stamped(&dir.join("root"), &packages_stamp()) {
        download(&dir.join("apt"))?;
        unpack(&dir)?;
    }
    Kit::find()
}

impl Kit {
    /// Returns the kit if its packages are there. Makes the file system of the guest again if its list has changed.
    pub fn find() -> Result<Kit> {
        let dir = directory();
        let root = dir.join("root");
        ensure!(is_stamped(&root, &packages_stamp()), "the packages of the guest are missing: {}", crate::CURE);
        let release = only_entry(&root.join("usr/lib/modules"))?;
        let kit =
            Kit { kernel: root.join("boot").join(format!("vmlinuz-{release}")), archive: dir.join("guest.cpio"), root };
        // The archive depends on the packages and on this code alone.
        let stamp = format!("{}{INIT}{}{}", packages_stamp(), include_str!("kit.rs"), include_str!("archive.rs"));
        let stamp_file = dir.join("guest.stamp");
        if fs::read_to_string(&stamp_file).ok().as_deref() != Some(&stamp) || !kit.archive.exists() {
            let archive = kit.file_system(&release)?;
            write_and_rename(&kit.archive, &archive)?;
            write_and_rename(&stamp_file, stamp.as_bytes())?;
        }
        Ok(kit)
    }

    /// Returns the words that start a program of the kit. Arguments follow them.
    pub fn program(&self, name: &str) -> Result<Vec<PathBuf>> {
        let program = self.path_of(name)?;
        let path = LIBRARIES.map(|dir| self.root.join(dir).display().to_string()).join(":");
        Ok(vec![self.root.join(LINKER), "--library-path".into(), path.into(), "--argv0".into(), name.into(), program])
    }

    /// Returns a command that runs a program of the kit.
    pub fn command(&self, name: &str) -> Result<Command> {
        let words = self.program(name)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }

    /// Returns QEMU, started by a program that kills it when the calling thread ends, so that a test that is killed
    /// leaves no guest behind.
    pub(crate) fn qemu(&self) -> Result<Command> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(self.program("qemu-system-x86_64")?);
        // QEMU searches beside its own program, and takes the dynamic linker for that.
        command.env("QEMU_MODULE_DIR", self.root.join(LIBRARIES[0]).join("qemu"));
        for dir in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(self.root.join(dir));
        }
        Ok(command)
    }

    fn path_of(&self, name: &str) -> Result<PathBuf> {
        let paths = ["usr/bin", "usr/sbin"].map(|dir| self.root.join(dir).join(name));
        let found = paths.into_iter().find(|path| path.exists());
        let found = found.with_context(|| format!("no package of the guest has the program {name}"))?;
        Ok(found.canonicalize()?)
    }

    /// Returns the archive with the programs, their libraries and the modules of the kernel.
    fn file_system(&self, release: &str) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        archive.file("init", 0o755, INIT.as_bytes());
        archive.file("bin/busybox", 0o755, &fs::read(self.path_of("busybox")?)?);
        archive.link("lib", "usr/lib");
        archive.link("lib64", "usr/lib64");
        archive.link("sbin", "usr/bin"); // the kernel itself starts /sbin/modprobe
        archive.file(LINKER, 0o755, &fs::read(self.root.join(LINKER))?);
        let mut libraries = BTreeMap::new();
        for program in PROGRAMS {
            archive.file(&format!("usr/bin/{program}"), 0o755, &fs::read(self.path_of(program)?)?);
            libraries.extend(self.libraries(program)?);
        }
        for (path, library) in libraries {
            archive.file(&path, 0o755, &fs::read(library)?);
        }
        run(self.command("depmod")?.arg("-b").arg(&self.root).arg(release))?;
        self.modules(&mut archive, &format!("usr/lib/modules/{release}"))?;
        Ok(archive.finish())
    }

    /// Returns the libraries of a program: paths in the guest with the files here.
    fn libraries(&self, program: &str) -> Result<Vec<(String, PathBuf)>> {
        let mut command = self.command(program)?;
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
                && let Ok(inside) = path.strip_prefix(&self.root)
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

fn packages_stamp() -> String {
    format!("{SUITE} {PACKAGES:?}\n")
}

fn is_stamped(dir: &Path, stamp: &str) -> bool {
    fs::read_to_string(dir.join("stamp")).is_ok_and(|found| found == stamp)
}

/// Downloads the packages and all that they depend on. This apt uses lists and a state of its own, in which nothing is
/// installed.
fn download(dir: &Path) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "guests need a host with x86-64");
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(dir.join(part))?;
    }
    fs::write(dir.join("status"), "")?;
    let sources = dir.join("sources.list");
    fs::write(&sources, format!("deb [signed-by={KEYS}] {} {SUITE} main\n", mirror()?))?;
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        let at = |name: &str| dir.join(name).display().to_string();
        for option in [
            format!("Dir::Etc::SourceList={}", sources.display()),
            "Dir::Etc::SourceParts=/dev/null".into(),
            "Dir::Etc::Preferences=/dev/null".into(),
            "Dir::Etc::PreferencesParts=/dev/null".into(),
            format!("Dir::State={}", at("")),
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::State::Status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Architecture=amd64".into(),
            "APT::Architectures=amd64".into(),
            "APT::Install-Recommends=false".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            // A user may use these directories without the locks of the system, and root's apt may write to them.
            "Debug::NoLocking=true".into(),
            "APT::Sandbox::User=root".into(),
            "Acquire::http::Timeout=30".into(),
            "Acquire::Retries=3".into(),
        ] {
            command.args(["-o", &option]);
        }
        run(command.arg("-qq").args(words))
    };
    apt(&["update"])?;
    apt(&[&["install", "--assume-yes", "--download-only"], PACKAGES].concat())
}

/// Returns the mirror from which this machine gets Debian's packages.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var(MIRROR_ENV) {
        return Ok(mirror);
    }
    ensure!(
        Path::new(KEYS).exists(),
        "a guest is made of Debian packages, whose keys are missing: install with `apt-get install \
         debian-archive-keyring`"
    );
    let mut command = Command::new("apt-get");
    let output = command.args(["update", "--print-uris"]).stdin(Stdio::null()).output();
    let output = output.context("a guest is made of packages, for which this system has no apt-get")?;
    let found = mirror_in(&String::from_utf8_lossy(&output.stdout)).map(str::to_owned);
    found.with_context(|| {
        format!("the sources of apt here name no mirror of Debian: set {MIRROR_ENV} to the address of one")
    })
}

/// Returns the address of the first mirror of Debian in the list of files that apt would download for its sources.
fn mirror_in(files: &str) -> Option<&str> {
    let mirrors = files.lines().filter_map(|line| Some(line.strip_prefix('\'')?.split_once("/dists/")?.0));
    mirrors.into_iter().find(|mirror| mirror.ends_with("/debian"))
}

/// Unpacks the downloaded packages, and removes them.
fn unpack(dir: &Path) -> Result<()> {
    let (new, root) = (dir.join("root.new"), dir.join("root"));
    for old in [&new, &root] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    // The packages expect that these links of a merged `/usr` are there.
    for name in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(new.join("usr").join(name))?;
        std::os::unix::fs::symlink(format!("usr/{name}"), new.join(name))?;
    }
    for entry in fs::read_dir(dir.join("apt/cache/archives"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(&new))?;
        }
    }
    fs::write(new.join("stamp"), packages_stamp())?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    fs::rename(&new, &root)?;
    fs::remove_dir_all(dir.join("apt"))?;
    Ok(())
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

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_debian_itself() {
        let files = "'http://one.example/debian-security/dists/x/InRelease' one 0 \n\
                     'http://two.example/debian/dists/x/InRelease' two 0 \n\
                     'http://three.example/debian/dists/y/InRelease' three 0 \n";
        assert_eq!(mirror_in(files), Some("http://two.example/debian"));
        assert_eq!(mirror_in("'http://one.example/ubuntu/dists/x/InRelease' one 0\n"), None);
    }
}
