//! The daemon locks itself in: from its start on, the kernel (Landlock) lets it reach what its configuration names, and
//! nothing else, whatever a client makes of it.
//!
//! | may be | what |
//! |---|---|
//! | read and written | files and devices of pools, found by their labels or named, and of exports |
//! | the same | directories of such files that are missing; `reach` |
//! | locked | other ways to the bytes of these: loop devices, backing files, disks and partitions |
//! | read | the directories of the configuration, of certificates, of `search`; block devices in `/sys` |
//! | read | names of users; locks in `/proc` |
//! | read, for devices on other machines | what their specs name (`conf=`, `keyring=`, `ca=` ...); `REMOTE` |
//! | made and removed | sockets, in the directories of those that it listens on; traces, in their directory |
//! | removed | the directory of traces, while it is empty |
//!
//! * C1. It happens before any thread is started, for threads have the bounds of who starts them. Threads that looked
//!   for members have ended; one that a disk holds up ends with its read.
//! * C2. What is open stays open: sockets and descriptors that come over the control socket need no right here.
//! * C3. A kernel that cannot is told of, once, and the daemon serves all the same.
//!
//! Not for `--run`: a command of the user would have the bounds, too.

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
use crate::place::PoolPlace;
use crate::trace;

/// The newest set of rights that this knows. Of these the kernel takes what it has.
const RIGHTS: ABI = ABI::V5;

/// What may be read and written, once that is bounded.
static REACH: OnceLock<BTreeSet<PathBuf>> = OnceLock::new();

/// Why members of pools were not found before it was bounded: what a search tells later is less.
static UNFOUND: Mutex<BTreeMap<String, Failure>> = Mutex::new(BTreeMap::new());

fn unfound() -> MutexGuard<'static, BTreeMap<String, Failure>> {
    UNFOUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The whole pool. Where members are missing it tells what was found when all could still be read; when it is asked for
/// again, that they are looked for at the start.
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

/// Does it (C1).
pub(crate) fn start(plan: &Plan, configuration: Option<&Path>) {
    if !plan.confine {
        return warn!(event = "not_confined", "the daemon may reach all that its user may: confine = false");
    }
    // Members that are not named are looked for now, while all can be read. That one is missing is told when the pool
    // is opened.
    let whole = |pool: &PoolPlan| {
        pool.place.whole().unwrap_or_else(|why| {
            unfound().insert(pool.place.to_string(), why);
            pool.place.clone()
        })
    };
    let wholes: Vec<PoolPlace> = plan.pools.iter().map(whole).collect();
    let reaches = reaches(plan, &wholes);
    // What their file systems can do shows on nameless files beside them, which cannot be made later. Pools on other
    // machines have none, and to open them here would wait for each of those machines in turn, and start threads (C1).
    let is_local = |reach: &Reach| matches!(reach, Reach::Data(_));
    let is_probed = |pool: &PoolPlan, whole: &PoolPlace| {
        !pool.read_only && whole.reaches().iter().all(is_local) && whole.expect_pool().is_ok()
    };
    for (_, whole) in plan.pools.iter().zip(&wholes).filter(|(pool, whole)| is_probed(pool, whole)) {
        // What is wrong with one is told when it is opened.
        drop(whole.open_members(""));
    }
    if specs(plan).any(|spec| spec.contains("rbd:")) {
        // That a library is missing is told when the pool is opened. It starts no thread (C1).
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
            // It is done once a process.
            let _ = REACH.set(reach);
        }
        Err(error) => warn!(event = "not_confined", "the daemon is not locked in: {error}"),
    }
}

/// Why what a spec reaches cannot be opened any more, if it cannot.
pub(crate) fn refusal(reaches: &[Reach]) -> Option<Failure> {
    let reach = REACH.get()?;
    let is_beyond = |path: &Path| {
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        !real.ancestors().any(|above| reach.contains(above))
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

/// All that the specs of pools, with members that were found, and of exports reach. One that cannot be read adds
/// nothing, for it does not open.
fn reaches(plan: &Plan, wholes: &[PoolPlace]) -> Vec<Reach> {
    let named = plan.pools.iter().map(|pool| &pool.place);
    let pools = named.chain(wholes).flat_map(PoolPlace::reaches);
    let exports = plan.exports.iter().filter_map(|export| match &export.what {
        What::Device { spec } => devices::reaches(spec).ok(),
        What::Volume { .. } => None,
    });
    pools.chain(exports.flatten()).collect()
}

/// The file itself, or the directory in which it will be when somebody has put it there.
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
    for path in ["/proc/locks"].into_iter().chain(config::allow::DIRECTORIES) {
        rules = allow(rules, Path::new(path), AccessFs::ReadFile.into())?;
    }
    if let Some(path) = configuration {
        rules = allow(rules, directory(path), read)?;
    }
    for path in plan.pools.iter().flat_map(|pool| pool.place.search()) {
        rules = allow(rules, path, read)?;
    }
    // Certificates that were renewed are other files, and links to them may lead elsewhere.
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
    let listens = plan.listen.iter().filter_map(|address| match address {
        Address::Unix(path) => Some(path),
        Address::Tcp(_) => None,
    });
    for path in listens {
        rules = allow(rules, directory(path), sockets)?;
    }
    if let Some(control) = &plan.control {
        // The directory of traces goes with the daemon while it is empty.
        rules = allow(rules, directory(&control.path), sockets | AccessFs::RemoveDir)?;
        rules = allow(
            rules,
            &trace::directory(&control.path),
            change | AccessFs::ReadDir | AccessFs::MakeReg | AccessFs::RemoveFile,
        )?;
    }
    Ok(rules.restrict_self()?.ruleset)
}

/// What the libraries of devices on other machines read: Ceph's configuration, and how names of hosts become addresses.
const REMOTE: [&str; 7] = [
    "/etc/ceph",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/gai.conf",
    "/dev/urandom",
];

/// The specs of pools and exports.
fn specs(plan: &Plan) -> impl Iterator<Item = String> {
    let pools = plan.pools.iter().map(|pool| pool.place.to_string());
    let exports = plan.exports.iter().filter_map(|export| match &export.what {
        What::Device { spec } => Some(spec.clone()),
        What::Volume { .. } => None,
    });
    pools.chain(exports)
}

/// Rights below a path; on a file those that a file can have. What is not there needs none.
fn allow(rules: RulesetCreated, path: &Path, rights: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    let Ok(there) = PathFd::new(path) else { return Ok(rules) };
    rules.add_rule(PathBeneath::new(there, rights))
}
