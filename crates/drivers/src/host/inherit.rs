//! Open files that a process inherits from the one that it replaces (an upgrade), so that its locks never lapse.
//!
//! Owns the list of the files that this process has open, and the table of those that it has inherited. `open` and
//! `claim` add to the list and take from the table. Does not own the way of the descriptors from one process to the
//! next, which is the caller's.
//!
//! The old process calls [`open_now`] and passes the files on. The new one calls [`inherit`] before it opens its
//! devices, and [`end_inheritance`] after it. The old process must have no I/O in flight while the new one opens, since
//! both share the flags of a file (O_DIRECT).
//!
//! Invariants:
//! - I1: the list keeps nothing open.
//! - I2: a duplicate shares the open file description, which owns the locks: flock, the locks of bytes, O_EXCL. So a
//!   lock lasts until the last duplicate is closed, in whichever process, and nobody ever takes it anew.
//! - I3: an inherited file is taken at most once. Whatever is opened more often than before is opened by its path.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::OFlags;

use super::open::HostOpts;
use super::overlap::Node;

/// Purpose of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InheritedKind {
    /// Reads and writes of a device.
    File,
    /// A claim's lock.
    Lock,
    /// A claim's exclusive use of a block device, which was opened with O_EXCL.
    Exclusive,
}

/// An open file that a process passes to the one that replaces it.
#[derive(Debug)]
pub struct Inherited {
    pub kind: InheritedKind,
    /// Path by which it was opened. An absolute path, if the current directory was known.
    pub path: PathBuf,
    /// Duplicate of the descriptor.
    pub file: File,
}

struct Listed {
    kind: InheritedKind,
    path: PathBuf,
    file: Weak<File>,
}

/// Files that this process has open, and some that it has closed.
static OPEN: Mutex<Vec<Listed>> = Mutex::new(Vec::new());
/// Inherited files that nobody has taken yet.
static INHERITED: Mutex<Vec<Inherited>> = Mutex::new(Vec::new());

/// Returns duplicates of all files that the devices and claims of this process have open, in the order of opening. The
/// duplicates keep the locks of the claims.
///
/// # Errors
///
/// The system's error, such as EMFILE.
pub fn open_now() -> io::Result<Vec<Inherited>> {
    duplicates(|_| true)
}

/// Makes `all` the files that this process opens and locks its devices with from now on, in place of opening them by
/// their paths. A file is used for a device that is opened by the same path, even if the path leads to another file by
/// now, or to none; else for one whose path leads to this file. A lock is used for a claim of the same file or block
/// device.
pub fn inherit(all: Vec<Inherited>) {
    let absolute = all.into_iter().map(|one| Inherited { path: absolute(&one.path), ..one });
    guard(&INHERITED).extend(absolute);
}

/// Returns true if an inherited file would be used for a device that is opened by this path.
pub fn is_inherited(path: &Path) -> bool {
    let (name, table) = (absolute(path), guard(&INHERITED));
    table.iter().any(|one| one.kind == InheritedKind::File && one.path == name)
}

/// Closes the inherited files that nobody has taken, and returns their number.
pub fn end_inheritance() -> usize {
    std::mem::take(&mut *guard(&INHERITED)).len()
}

/// Duplicates the open files with these paths.
pub(super) fn duplicates(wanted: impl Fn(&Path) -> bool) -> io::Result<Vec<Inherited>> {
    let open = guard(&OPEN);
    let alive = open.iter().filter(|one| wanted(&one.path)).filter_map(|one| Some((one, one.file.upgrade()?)));
    alive.map(|(one, file)| Ok(Inherited { kind: one.kind, path: one.path.clone(), file: file.try_clone()? })).collect()
}

/// Adds an open file to the list, until its last `Arc` is dropped (I1).
pub(super) fn list(kind: InheritedKind, path: &Path, file: &Arc<File>) {
    let mut open = guard(&OPEN);
    open.retain(|one| one.file.strong_count() > 0);
    open.push(Listed { kind, path: absolute(path), file: Arc::downgrade(file) });
}

/// Takes the inherited file that fits an opening of `path` best.
pub(super) fn take_file(path: &Path, opts: &HostOpts) -> Option<File> {
    let mut table = guard(&INHERITED);
    if table.is_empty() {
        return None;
    }
    let name = absolute(path);
    let there = fs::metadata(path).ok().as_ref().map(Node::of);
    let rank = |one: &Inherited| {
        let has_name = one.path == name;
        let is_meant = one.kind == InheritedKind::File && (has_name || there.is_some() && node(one) == there);
        Some((!has_name, is_meant.then(|| misfit(&one.file, opts))??))
    };
    let ranked = table.iter().enumerate().filter_map(|(at, one)| Some((rank(one)?, at)));
    let (_, at) = ranked.min()?;
    Some(table.remove(at).file)
}

/// Takes an inherited lock of a file or block device.
pub(super) fn take_lock(kind: InheritedKind, of: Node) -> Option<File> {
    let mut table = guard(&INHERITED);
    let at = table.iter().position(|one| one.kind == kind && node(one) == Some(of))?;
    Some(table.remove(at).file)
}

/// Returns `None` if a device with these options cannot use the file. Else returns whether it permits writes that are
/// not needed, and whether it makes them durable without need.
fn misfit(file: &File, opts: &HostOpts) -> Option<(bool, bool)> {
    let flags = rustix::fs::fcntl_getfl(file).ok()?;
    let mode = flags & OFlags::RWMODE;
    let (can_write, is_synced) = (mode == OFlags::RDWR, flags.contains(OFlags::DSYNC));
    let fits = (can_write || opts.readonly && mode == OFlags::RDONLY)
        && (is_synced || !opts.sync)
        && !flags.intersects(OFlags::APPEND | OFlags::PATH);
    fits.then_some((can_write && opts.readonly, is_synced && !opts.sync))
}

fn node(one: &Inherited) -> Option<Node> {
    one.file.metadata().ok().as_ref().map(Node::of)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
