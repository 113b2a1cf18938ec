//! Debian packages of one release, downloaded by apt and unpacked below the target directory.
//!
//! Owns the download, the unpacked files ([`Root`]), and the way in which a program among them is started. Does not own
//! the lists of packages.
//!
//! Nothing is installed, for three reasons: a kernel must not be installed to be booted; a program of the release may
//! replace one of the host's; and tests find the same programs on each machine. The packages are unpacked with all
//! libraries that they need. Their programs run with the C library and the dynamic linker among them.
//!
//! Invariants:
//! - K1: only [`Packages::ensure`] downloads. [`Packages::find`] works without a network.
//! - K2: a directory is renamed into place when it is complete.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Release of Debian that the packages come from. Its kernel is 6.12, which has `ublk_drv`.
const SUITE: &str = "trixie";
/// Environment variable with the address of a Debian mirror, for machines whose own apt does not name one.
const MIRROR_ENV: &str = "SHEAVE_DEBIAN_MIRROR";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Directories of the libraries. Those of Ceph are used by fio.
pub(crate) const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"];
pub(crate) const LINKER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// A list of packages.
#[derive(Debug, Clone, Copy)]
pub struct Packages {
    /// Directory below the target directory.
    pub dir: &'static str,
    /// Packages that are unpacked, with all that they depend on.
    pub packages: &'static [&'static str],
    /// Packages whose original sources are unpacked, each below `usr/src/NAME`, with the directories in them that are
    /// wanted; all, if none is named.
    pub sources: &'static [(&'static str, &'static [&'static str])],
    /// The command that downloads them.
    pub cure: &'static str,
}

impl Packages {
    /// Returns the directory of these packages.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
        root.join("target").join(self.dir)
    }

    /// Returns the unpacked packages.
    ///
    /// # Errors
    ///
    /// Fails if they are missing.
    pub fn find(&self) -> Result<Root> {
        let root = self.directory().join("root");
        let stamp = fs::read_to_string(root.join("stamp"));
        let is_there = stamp.is_ok_and(|found| found == self.stamp());
        ensure!(is_there, "the packages of {} are missing: {}", self.dir, self.cure);
        Ok(Root(root))
    }

    /// Returns the unpacked packages. Downloads and unpacks them first if that was not done yet, which takes half a
    /// minute.
    ///
    /// # Errors
    ///
    /// Fails if this machine has no apt-get, or finds no mirror of Debian.
    pub fn ensure(&self) -> Result<Root> {
        let dir = self.directory();
        fs::create_dir_all(&dir)?;
        let lock = fs::File::create(dir.join("kit.lock"))?;
        lock.lock()?;
        if self.find().is_err() {
            self.download(&dir.join("apt"))?;
            self.unpack(&dir)?;
        }
        self.find()
    }

    /// Returns the text in the file `stamp` of the unpacked packages.
    pub(crate) fn stamp(&self) -> String {
        format!("{SUITE} {:?} {:?}\n", self.packages, self.sources)
    }

    /// Downloads the packages and all that they depend on. This apt uses lists and a state of its own, in which nothing
    /// is installed.
    fn download(&self, dir: &Path) -> Result<()> {
        ensure!(cfg!(target_arch = "x86_64"), "the packages are for hosts with x86-64");
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(part))?;
        }
        fs::write(dir.join("status"), "")?;
        let sources = dir.join("sources.list");
        let mirror = mirror()?;
        let kinds: &[&str] = if self.sources.is_empty() { &["deb"] } else { &["deb", "deb-src"] };
        let lines = kinds.iter().map(|kind| format!("{kind} [signed-by={KEYS}] {mirror} {SUITE} main\n"));
        fs::write(&sources, lines.collect::<String>())?;
        let apt = |words: &[&str]| {
            let mut command = Command::new("apt-get");
            command.current_dir(dir);
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
        if !self.sources.is_empty() {
            let names = self.sources.iter().map(|(name, _)| *name).collect::<Vec<_>>();
            apt(&[&["source", "--download-only"], &names[..]].concat())?;
        }
        apt(&[&["install", "--assume-yes", "--download-only"], self.packages].concat())
    }

    /// Unpacks the downloaded packages, and removes them.
    fn unpack(&self, dir: &Path) -> Result<()> {
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
        for (name, dirs) in self.sources {
            let to = new.join("usr/src").join(name);
            fs::create_dir_all(&to)?;
            let mut tar = Command::new("tar");
            tar.args(["--strip-components=1", "--wildcards", "-xf"]).arg(tarball(&dir.join("apt"), name)?);
            run(tar.arg("-C").arg(to).args(dirs.iter().map(|dir| format!("*/{dir}"))))?;
        }
        fs::write(new.join("stamp"), self.stamp())?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        fs::rename(&new, &root)?;
        fs::remove_dir_all(dir.join("apt"))?;
        Ok(())
    }
}

/// Unpacked packages: the root of a file system.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    /// Returns the path of a file or directory among the packages, which need not be there.
    #[must_use]
    pub fn join(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the words that start a program of the packages. Arguments follow them.
    ///
    /// # Errors
    ///
    /// Fails if no package has the program.
    pub fn program(&self, name: &str) -> Result<Vec<PathBuf>> {
        Ok(self.start(name, self.path_of(name)?))
    }

    /// Returns the words that start the program at `path`, which uses libraries of the packages, under a name.
    #[must_use]
    pub fn start(&self, name: &str, path: PathBuf) -> Vec<PathBuf> {
        let libraries = LIBRARIES.map(|dir| self.join(dir).display().to_string()).join(":");
        vec![self.join(LINKER), "--library-path".into(), libraries.into(), "--argv0".into(), name.into(), path]
    }

    /// Returns a command that runs a program of the packages.
    ///
    /// # Errors
    ///
    /// Fails if no package has the program.
    pub fn command(&self, name: &str) -> Result<Command> {
        let words = self.program(name)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Ok(command)
    }

    pub(crate) fn path_of(&self, name: &str) -> Result<PathBuf> {
        let paths = ["usr/bin", "usr/sbin"].map(|dir| self.join(dir).join(name));
        let found = paths.into_iter().find(|path| path.exists());
        let found = found.with_context(|| format!("no package has the program {name}"))?;
        Ok(found.canonicalize()?)
    }
}

/// Returns the mirror from which this machine gets Debian's packages.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var(MIRROR_ENV) {
        return Ok(mirror);
    }
    ensure!(
        Path::new(KEYS).exists(),
        "Debian packages are wanted, whose keys are missing: install with `apt-get install \
         debian-archive-keyring`"
    );
    let mut command = Command::new("apt-get");
    let output = command.args(["update", "--print-uris"]).stdin(Stdio::null()).output();
    let output = output.context("Debian packages are wanted, for which this system has no apt-get")?;
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

/// Returns the archive with the original source of a package.
fn tarball(dir: &Path, source: &str) -> Result<PathBuf> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.path()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    let is_it = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(&format!("{source}_")) && name.contains(".orig.tar.") && !name.ends_with(".asc")
    };
    names.iter().find(is_it).cloned().with_context(|| format!("apt-get has not downloaded the source of {source}"))
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
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
