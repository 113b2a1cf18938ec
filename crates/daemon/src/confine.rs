//! Confinement of the daemon with Landlock: after its start the kernel limits it to the files that its configuration
//! names, whatever a client makes it do.
//!
//! | access | to |
//! |---|---|
//! | read and write | files and devices of pools, named or found by their labels, and of exports |
//! | read and write | directories of such files that do not exist yet; `reach` |
//! | lock | other paths to the same data: loop devices, backing files, disks and partitions |
//! | read | directories of the configuration, of certificates, of `search`; block devices in `/sys` |
//! | read | names of users; locks in `/proc` |
//! | read, for devices of servers | files that their specs name (`conf=`, `keyring=`, `ca=` ...); `REMOTE` |
//! | create and remove | sockets, in the directories of those of its configuration; traces, in their directory |
//! | remove | the directory of traces, while it is empty |
//!
//! * C1. The daemon is confined before it starts any thread, because a thread inherits the restrictions of its creator.
//!   The threads of the search for members have ended; one that is blocked on a disk ends after its read.
//! * C2. Open descriptors stay usable: sockets, and files that are passed over the control socket, need no rule.
//! * C3. If the kernel does not support Landlock, one warning is logged and the daemon serves unconfined.
//!
//! Not used with `--run`, since the user's command would inherit the restrictions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetError, RulesetStatus,
};
use sheave_drivers::Reach;
use sheave_drivers::host::paths_to_the_same_bytes;
use sheave_serve::Address;
use tracing::{info, warn};

use crate::config::{self, Plan, PoolPlan, What};
use crate::devices;
use crate::failure::Failure;
use crate::paths;
use crate::place::PoolPlace;
use crate::trace;

/// Newest version of Landlock that is used; an older kernel ignores rights it does not know.
const RIGHTS: ABI = ABI::V5;

/// Files and directories that may be read and written; set once the process is confined.
static REACH: OnceLock<BTreeSet<PathBuf>> = OnceLock::new();

/// Directories in which sockets may be made; set once the process is confined.
static SOCKETS: OnceLock<BTreeSet<PathBuf>> = OnceLock::new();

/// Failures of the search for members before the confinement. A search after it sees less, so its message would be
/// misleading.
static UNFOUND: Mutex<BTreeMap<String, Failure>> = Mutex::new(BTreeMap::new());

fn unfound() -> MutexGuard<'static, BTreeMap<String, Failure>> {
    UNFOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the pool with all its members. If some are missing, the first call returns the failure of the search before
/// the confinement, and a later one adds that the daemon searches everywhere only at its start.
pub(crate) fn whole(place: &PoolPlace) -> Result<PoolPlace, Failure> {
    place.whole().map_err(|why| match unfound().remove(&place.to_string()) {
        Some(before) => before,
        None if REACH.get().is_some() => why.fix(
            "restart the daemon: it looks for members everywhere before it locks itself in at its start; or name all \
             of them, or their directories in `search`",
        ),
        None => why,
    })
}

/// Confines the process (C1).
pub(crate) fn start(plan: &Plan, configuration: Option<&Path>) {
    if !plan.confine {
        return warn!(event = "not_confined", "the daemon may reach all that its user may: confine = false");
    }
    // Members that are not named are searched for now, while everything is readable. Missing members are reported when
    // the pool is opened.
    let whole = |pool: &PoolPlan| {
        pool.place.whole().unwrap_or_else(|why| {
            unfound().insert(pool.place.to_string(), why);
            pool.place.clone()
        })
    };
    // A failure is told by each pool.
    paths::recent_directory().iter().for_each(|recent| _ = std::fs::create_dir_all(recent));
    let wholes: Vec<PoolPlace> = plan.pools.iter().map(whole).collect();
    let reaches = reaches(plan, &wholes);
    // Opening a member probes its file system with an unnamed file, which cannot be created later. Pools on servers
    // have no such probe; opening them here would wait for each server in turn, and start threads (C1).
    let is_local = |reach: &Reach| matches!(reach, Reach::Data(_));
    let is_probed = |pool: &PoolPlan, whole: &PoolPlace| {
        !pool.read_only && whole.reaches().iter().all(is_local) && whole.expect_pool().is_ok()
    };
    for (_, whole) in plan.pools.iter().zip(&wholes).filter(|(pool, whole)| is_probed(pool, whole)) {
        // Failures are reported when the pool is opened.
        drop(whole.open_members(""));
    }
    if specs(plan).any(|spec| spec.contains("rbd:")) {
        // A missing library is reported when the pool is opened. Loading it starts no thread (C1).
        _ = sheave_rbd::load();
    }
    let files = reaches.iter().filter_map(|reach| match reach {
        Reach::Data(path) => Some(path),
        _ => None,
    });
    let hinted: Vec<PathBuf> = plan.pools.iter().flat_map(|pool| pool.place.hinted()).collect();
    let reach: BTreeSet<PathBuf> = files.chain(&hinted).chain(&plan.reach).map(|path| reachable(path)).collect();
    match restrict(plan, &reach, &reaches, configuration) {
        Ok(RulesetStatus::NotEnforced) => {
            warn!(
                event = "not_confined",
                "the daemon is not locked in: this kernel has no Landlock (CONFIG_SECURITY_LANDLOCK)"
            );
        }
        Ok(_) => {
            if configuration.is_some() {
                info!(event = "confined", "locked in: the daemon reaches the files of its configuration alone");
            }
            // Fails only on a second call in the process.
            let _ = REACH.set(reach);
            // A directory that is missing has no rule, and stays closed if it is made later.
            let directories = sockets(plan).map(directory).filter(|directory| directory.is_dir()).map(real);
            let _ = SOCKETS.set(directories.collect());
        }
        Err(error) => warn!(event = "not_confined", "the daemon is not locked in: {error}"),
    }
}

/// Returns a failure if the confinement makes a file that the spec needs inaccessible.
pub(crate) fn refusal(reaches: &[Reach]) -> Option<Failure> {
    let reach = REACH.get()?;
    // A file that was open in the process before this one is not opened again.
    let is_beyond = |path: &Path| {
        !real(path).ancestors().any(|above| reach.contains(above)) && !sheave_drivers::host::is_inherited(path)
    };
    let beyond = |found: &Reach| match found {
        Reach::Data(path) if is_beyond(path) => Some(path.clone()),
        _ => None,
    };
    let path = reaches.iter().find_map(beyond)?;
    Some(
        Failure::run(format!(
            "{} is beyond what the daemon may reach: it has locked itself in at its start",
            path.display()
        ))
        .fix("add it to the configuration and restart the daemon; or name its directory in `reach` beforehand"),
    )
}

/// Returns a failure if the confinement prevents a socket at `path`.
pub(crate) fn socket_refusal(path: &Path) -> Option<Failure> {
    let sockets = SOCKETS.get()?;
    let directory = real(directory(path));
    if directory.ancestors().any(|above| sockets.contains(above)) {
        return None;
    }
    if !directory.is_dir() {
        let what = "the directory of this socket did not exist at the start of the daemon, which has locked itself in";
        return Some(
            Failure::run(format!("{}: {what}", path.display()))
                .fix(format!("make {} and restart the daemon", directory.display())),
        );
    }
    let what = "the daemon may make no socket there, for it has locked itself in at its start";
    Some(
        Failure::run(format!("{}: {what}", path.display()))
            .fix("choose a path beside its other sockets; or put the export into its configuration and restart it"),
    )
}

/// Sockets of the configuration: of NBD, of vhost-user, and the control socket.
fn sockets(plan: &Plan) -> impl Iterator<Item = &Path> {
    let nbd = plan.listen.iter().filter_map(|address| match address {
        Address::Unix(path) => Some(path.as_path()),
        Address::Tcp(_) => None,
    });
    let vhost_user = plan.exports.iter().filter_map(|export| Some(export.vhost_user.as_ref()?.path.as_path()));
    nbd.chain(vhost_user).chain(plan.control.iter().map(|control| control.path.as_path()))
}

/// Returns the path without links, or the path as it is if it does not exist.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Everything that the specs of pools (including members that were found) and exports access. An invalid spec is
/// skipped, since it does not open.
fn reaches(plan: &Plan, wholes: &[PoolPlace]) -> Vec<Reach> {
    let named = plan.pools.iter().map(|pool| &pool.place);
    let pools = named.chain(wholes).flat_map(PoolPlace::reaches);
    let exports = plan.exports.iter().filter_map(|export| match &export.what {
        What::Device { spec } => devices::reaches(spec).ok(),
        What::Volume { .. } => None,
    });
    pools.chain(exports.flatten()).collect()
}

/// Returns the file or, if it does not exist yet, the directory that it will be in.
fn reachable(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).or_else(|_| std::fs::canonicalize(directory(path))).unwrap_or_else(|_| path.to_owned())
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn restrict(
    plan: &Plan,
    reach: &BTreeSet<PathBuf>,
    reaches: &[Reach],
    configuration: Option<&Path>,
) -> Result<RulesetStatus, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let change = AccessFs::from_file(RIGHTS) & !BitFlags::from(AccessFs::Execute);
    let sockets = AccessFs::ReadDir | AccessFs::MakeSock | AccessFs::RemoveFile;
    let mut rules = Ruleset::default().handle_access(AccessFs::from_all(RIGHTS))?.create()?;
    let lock = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    for path in reach {
        for other in paths_to_the_same_bytes(path) {
            rules = allow(rules, &other, lock)?;
        }
        rules = allow(rules, path, change)?;
    }
    for path in ["/proc/self", "/sys/dev/block", "/sys/devices", "/sys/block"] {
        rules = allow(rules, Path::new(path), read)?;
    }
    // Changes that must survive the daemon, and the number of the boot that they belong to.
    if let Some(recent) = paths::recent_directory() {
        rules = allow(rules, &recent, change | AccessFs::ReadDir | AccessFs::MakeReg | AccessFs::RemoveFile)?;
    }
    for path in ["/proc/locks", "/proc/sys/kernel/random/boot_id"].into_iter().chain(config::allow::DIRECTORIES) {
        rules = allow(rules, Path::new(path), AccessFs::ReadFile.into())?;
    }
    if let Some(path) = configuration {
        rules = allow(rules, directory(path), read)?;
    }
    for path in plan.pools.iter().flat_map(|pool| pool.place.search()) {
        rules = allow(rules, path, read)?;
    }
    // The directories and not the files: a renewed certificate is a new file, and a link to it may point elsewhere.
    let secrets =
        plan.tls.iter().filter_map(|tls| tls.files.as_ref()).flat_map(|files| {
            [Some(&files.certificate), Some(&files.key), files.client_ca.as_ref()].into_iter().flatten()
        });
    let named = reaches.iter().filter_map(|reach| match reach {
        Reach::Reads(path) => Some(path),
        _ => None,
    });
    for path in secrets.chain(named) {
        rules = allow(rules, directory(path), read)?;
        if let Ok(real) = std::fs::canonicalize(path) {
            rules = allow(rules, directory(&real), read)?;
        }
    }
    if reaches.iter().any(|reach| matches!(reach, Reach::Network(_))) {
        for path in REMOTE {
            let path = Path::new(path);
            let rights = if path.is_dir() { read } else { AccessFs::ReadFile.into() };
            rules = allow(rules, path, rights)?;
        }
    }
    for path in self::sockets(plan) {
        rules = allow(rules, directory(path), sockets)?;
    }
    if let Some(control) = &plan.control {
        // The daemon removes its directory of traces at the end if it is empty.
        rules = allow(rules, directory(&control.path), AccessFs::RemoveDir.into())?;
        rules = allow(
            rules,
            &trace::directory(&control.path),
            change | AccessFs::ReadDir | AccessFs::MakeReg | AccessFs::RemoveFile,
        )?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// Files that the libraries of network devices read: Ceph's configuration, and the resolution of host names.
const REMOTE: [&str; 7] = [
    "/etc/ceph",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/gai.conf",
    "/dev/urandom",
];

/// Specs of all pools and exports.
fn specs(plan: &Plan) -> impl Iterator<Item = String> {
    let pools = plan.pools.iter().map(|pool| pool.place.to_string());
    let exports = plan.exports.iter().filter_map(|export| match &export.what {
        What::Device { spec } => Some(spec.clone()),
        What::Volume { .. } => None,
    });
    pools.chain(exports)
}

/// Adds a rule for everything below `path`, or for a file with the rights that apply to files. A path that does not
/// exist is skipped.
fn allow(rules: RulesetCreated, path: &Path, rights: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    let Ok(there) = PathFd::new(path) else { return Ok(rules) };
    rules.add_rule(PathBeneath::new(there, rights))
}
