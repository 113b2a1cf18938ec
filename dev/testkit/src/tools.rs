//! The table of outside tools that tests use, and the search for them.
//!
//! Owns [`TOOLS`]. A tool that is not in the table cannot be used, so that `cargo xtask test` knows what to install
//! before any test runs. Does not install tools ([`crate::install`] does).

use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::skip;

/// One outside program, and the Debian packages that have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tool {
    /// Name of the program in `PATH`.
    pub name: &'static str,
    /// The packages to install; the first one contains the program.
    pub packages: &'static [&'static str],
    /// The purpose that the tests use it for.
    pub why: &'static str,
}

impl Tool {
    /// Returns the command with which a user installs the tool.
    pub fn cure(&self) -> String {
        format!("install with `apt-get install {}`", self.packages.join(" "))
    }
}

/// Every outside tool that some test uses.
pub const TOOLS: &[Tool] = &[
    Tool { name: "blkparse", packages: &["blktrace"], why: "reads the traces that we export" },
    Tool { name: "btt", packages: &["blktrace"], why: "takes their times apart" },
    Tool { name: "c++", packages: &["g++"], why: "builds libFuzzer, without which no fuzzer runs" },
    Tool { name: "ceph", packages: &["ceph-common"], why: "makes pools in a cluster of one node" },
    Tool { name: "ceph-authtool", packages: &["ceph-common"], why: "makes the keys of that cluster" },
    Tool { name: "ceph-mon", packages: &["ceph-mon"], why: "is the monitor of that cluster" },
    Tool { name: "ceph-osd", packages: &["ceph-osd"], why: "keeps the data of that cluster" },
    Tool { name: "chromium", packages: &["chromium"], why: "shows the status page, where nobody sees it" },
    Tool { name: "fio", packages: &["fio"], why: "verifies what a ring copied, by checksums of its own" },
    Tool {
        name: "man",
        packages: &["man-db", "groff-base"],
        why: "renders the manual pages, and warns of what is wrong",
    },
    Tool { name: "mkfs.ext4", packages: &["e2fsprogs"], why: "makes a file system whose image goes through a volume" },
    Tool { name: "monmaptool", packages: &["ceph-base"], why: "makes the map of that cluster's monitors" },
    Tool { name: "nbd-server", packages: &["nbd-server"], why: "serves a file to the driver `nbd:`" },
    Tool { name: "nbdkit", packages: &["nbdkit"], why: "serves memory and files to the driver `nbd:`, with faults" },
    Tool { name: "nbdcopy", packages: &["libnbd-bin"], why: "copies to and from a server" },
    Tool { name: "nbdinfo", packages: &["libnbd-bin"], why: "asks a server what it can" },
    Tool { name: "nbdsh", packages: &["python3-libnbd"], why: "gives a server odd orders, by libnbd's Python" },
    Tool { name: "node", packages: &["nodejs"], why: "runs the script of the lab's page" },
    Tool { name: "nsenter", packages: &["util-linux"], why: "runs commands in a machine made of namespaces" },
    Tool { name: "pip3", packages: &["python3-pip"], why: "installs modules of Python that tests use" },
    Tool { name: "promtool", packages: &["prometheus"], why: "checks the page of metrics" },
    Tool { name: "qemu-img", packages: &["qemu-utils"], why: "makes images, and compares them with what came back" },
    Tool { name: "qemu-io", packages: &["qemu-utils"], why: "writes into such an image" },
    Tool { name: "qemu-nbd", packages: &["qemu-utils"], why: "serves a file to the driver `nbd:`" },
    Tool {
        name: "qemu-storage-daemon",
        packages: &["qemu-utils", "qemu-system-common"], // older releases of Debian have it in the second one
        why: "is a vhost-user back-end that we did not write",
    },
    Tool {
        name: "rbd",
        packages: &["ceph-common"],
        why: "makes images, and merges diffs that we wrote, for which it needs no cluster",
    },
    Tool { name: "sfdisk", packages: &["fdisk"], why: "makes partition tables of both kinds" },
    Tool { name: "sgdisk", packages: &["gdisk"], why: "makes partition tables with names" },
    Tool { name: "strace", packages: &["strace"], why: "counts system calls an I/O: `null:` makes none" },
    Tool { name: "systemd", packages: &["systemd"], why: "starts the unit, as PID 1 of namespaces" },
    Tool { name: "unshare", packages: &["util-linux"], why: "makes those namespaces" },
    Tool { name: "valgrind", packages: &["valgrind", "libc6-dbg"], why: "counts instructions an I/O" },
];

/// Returns the row of the table for `name`.
pub fn lookup(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

/// Returns the path of `name`, if it is an executable file in `PATH` or in the sbin directories, which are not in the
/// `PATH` of users.
pub fn find(name: &str) -> Option<PathBuf> {
    find_in(name, &env::var_os("PATH").unwrap_or_default())
}

pub(crate) fn find_in(name: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|program| is_executable(program))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns the path of a tool that the calling test needs, or `None` after a loud skip: then return from the test.
///
/// ```
/// # fn scenario() {
/// let Some(strace) = sheave_testkit::require("strace") else { return };
/// # let _ = strace; }
/// ```
///
/// # Panics
///
/// Panics in CI if the tool is missing (I3), and always if `name` is not in [`TOOLS`].
pub fn require(name: &str) -> Option<PathBuf> {
    let tool = lookup(name).unwrap_or_else(|| panic!("`{name}` is not in sheave_testkit::tools::TOOLS: add a row"));
    match verdict(tool, find(name), skip::in_ci()) {
        Verdict::Use(path) => Some(path),
        Verdict::Skip(reason) => {
            skip::skip(&reason);
            None
        }
        Verdict::Fail(reason) => panic!("in CI a missing tool is a failure: {reason}"),
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Use(PathBuf),
    /// The test cannot run, which is fine on a laptop.
    Skip(String),
    /// The test cannot run, and CI should have installed the tool (I3).
    Fail(String),
}

pub(crate) fn verdict(tool: &Tool, found: Option<PathBuf>, in_ci: bool) -> Verdict {
    let reason = || format!("`{}` is missing ({}): {}", tool.name, tool.why, tool.cure());
    match found {
        Some(path) => Verdict::Use(path),
        None if in_ci => Verdict::Fail(reason()),
        None => Verdict::Skip(reason()),
    }
}
