//! Looking for members of pools on this host: in directories, and among the block devices.
//!
//! Owns what is opened for that, and the bounds. Reads the first 8 KiB of regular files and block devices, and writes
//! nothing. Which candidate is taken is [`sheave_vol::members`]' matter.
//!
//! - K1: nothing but regular files and block devices is opened, so that no pipe, socket or terminal is waited for.
//! - K2: a search ends after [`LONGEST`], whatever a disk or file server does: what has not answered by then is told,
//!   and its thread ends when the kernel lets it go.
//! - K3: of a directory at most [`MOST_ENTRIES`] names are looked at and [`MOST_FILES`] files read; directories in it
//!   are not entered. Where that is not all of it, that is told.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_vol::members::{LEAST_MEMBER_BYTES, MemberTag, TAG_BYTES};

/// How long a search takes at most: a disk that was asleep has begun to turn by then.
const LONGEST: Duration = Duration::from_secs(10);
/// Names of a directory that are looked at, at most.
const MOST_ENTRIES: usize = 200_000;
/// Files of a directory that are read, at most.
const MOST_FILES: usize = 20_000;
/// Block devices that are looked at, at most.
const MOST_DEVICES: usize = 4096;
/// Threads of a search: so many disks may hang without holding up the others.
const THREADS: usize = 8;
/// Block devices that never hold a pool, by their major number: memory disks, floppies and CD-ROMs, whose drives take
/// seconds to say that they are empty.
const NEVER: [u32; 3] = [1, 2, 11];

/// A member that was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Where.
    pub path: PathBuf,
    /// What it says.
    pub tag: MemberTag,
    /// How long the file or device is.
    pub size_bytes: u64,
    /// By which it is told from others: of a file device and inode, of a block device its number and 0.
    pub node: (u64, u64),
    /// The file of a loop device.
    backing: Option<(u64, u64)>,
}

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The files of a directory.
    Directory(PathBuf),
    /// A file or block device.
    File(PathBuf),
    /// All block devices.
    Devices,
}

/// What a search has seen.
#[derive(Debug, Default)]
pub struct Sight {
    /// Members of pools, each file and device once.
    pub seen: Vec<Seen>,
    /// Where it looked, in words.
    pub looked: Vec<String>,
    /// What it could not look at, in words.
    pub failed: Vec<String>,
}

impl Sight {
    /// What another has seen, too.
    pub fn add(&mut self, other: Sight) {
        self.seen.extend(other.seen);
        self.seen = each_once(std::mem::take(&mut self.seen));
    }

    /// Reads the members of a pool once more, one right after the other. A pool that is in use writes checkpoints, so
    /// what was read of its members at different moments may look like copies of different age.
    pub fn refresh(&mut self, pool: &[u8; 16]) {
        let (own, rest) = std::mem::take(&mut self.seen).into_iter().partition(|seen| seen.tag.pool() == *pool);
        let own: Vec<Seen> = own;
        self.seen = rest;
        self.add(search(&own.into_iter().map(|seen| Source::File(seen.path)).collect()));
    }

    /// Where it looked and where it could not, in a line.
    pub fn in_words(&self) -> String {
        let looked = if self.looked.is_empty() { "nowhere".into() } else { self.looked.join(", ") };
        let failed = if self.failed.is_empty() { String::new() } else { format!("; {}", self.failed.join("; ")) };
        format!("looked at {looked}{failed}")
    }
}

/// By which a file or block device is told from others.
pub fn node_of(meta: &Metadata) -> (u64, u64) {
    if meta.file_type().is_block_device() { (meta.rdev(), 0) } else { (meta.dev(), meta.ino()) }
}

/// Which member of a pool a file or block device is; `None` for what is none.
///
/// # Errors
///
/// It cannot be read.
pub fn seen_at(path: &Path) -> io::Result<Option<Seen>> {
    let is_looked_at = |meta: &Metadata| meta.is_file() || meta.file_type().is_block_device();
    let meta = fs::metadata(path)?;
    if !is_looked_at(&meta) || meta.is_file() && meta.len() < LEAST_MEMBER_BYTES {
        return Ok(None);
    }
    let open = |flags: OFlags| {
        let flags = (flags | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
        File::options().read(true).custom_flags(flags.cast_signed()).open(path)
    };
    // Only its owner and root may leave the time of access alone.
    let file = open(OFlags::NOATIME).or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => open(OFlags::empty()),
        _ => Err(error),
    })?;
    let meta = file.metadata()?;
    if !is_looked_at(&meta) {
        return Ok(None); // Another was put there meanwhile (K1).
    }
    let mut bytes = Box::new([0; TAG_BYTES]);
    if let Err(error) = file.read_exact_at(&mut bytes[..], 0) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let Some(tag) = MemberTag::read(&bytes) else { return Ok(None) };
    let size_bytes = match meta.is_file() {
        true => meta.len(),
        false => sysfs(meta.rdev(), "size").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) << 9,
    };
    let backing = sysfs(meta.rdev(), "loop/backing_file").filter(|_| !meta.is_file());
    let backing = backing.and_then(|path| fs::metadata(path).ok()).map(|meta| node_of(&meta));
    Ok(Some(Seen { path: path.to_owned(), tag, size_bytes, node: node_of(&meta), backing }))
}

/// The file of a loop device, or the loop device over a file: another way to all of its bytes, if there is one.
pub fn other_node(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::metadata(path).ok()?;
    if meta.file_type().is_block_device() {
        return Some(node_of(&fs::metadata(sysfs(meta.rdev(), "loop/backing_file")?).ok()?));
    }
    let number = |dir: &Path| {
        let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let backing = fs::metadata(read("loop/backing_file")?.trim()).ok()?;
        let is_whole = read("loop/offset")?.trim() == "0";
        let number = read("dev")?;
        let (major, minor) = number.trim().split_once(':')?;
        let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        (is_whole && node_of(&backing) == node_of(&meta)).then_some((number, 0))
    };
    let entries = fs::read_dir("/sys/block").ok()?.flatten().take(MOST_DEVICES);
    entries.filter(|entry| entry.file_name().as_bytes().starts_with(b"loop")).find_map(|entry| number(&entry.path()))
}

/// What sysfs says of a block device.
fn sysfs(number: u64, attribute: &str) -> Option<String> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{attribute}")).ok()?;
    Some(text.trim().to_owned())
}

/// What has come of a look at one place.
struct Done {
    source: Source,
    seen: Vec<Seen>,
    failed: Option<String>,
    /// A file or device that this user may not read.
    is_denied: bool,
}

/// Looks at one place; ends early when the search is over.
fn look(source: Source, over: &AtomicBool) -> Done {
    let mut is_denied = false;
    let (seen, failed) = match &source {
        Source::Directory(path) => directory(path, over),
        Source::File(path) => match seen_at(path) {
            Ok(seen) => (seen.into_iter().collect(), None),
            // What is not there holds no pool.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), None),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                is_denied = true;
                (Vec::new(), None)
            }
            Err(error) => (Vec::new(), Some(format!("{}: {error}", path.display()))),
        },
        Source::Devices => (Vec::new(), None),
    };
    Done { source, seen, failed, is_denied }
}

fn directory(path: &Path, over: &AtomicBool) -> (Vec<Seen>, Option<String>) {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => return (Vec::new(), Some(format!("{} cannot be read: {error}", path.display()))),
    };
    let (mut seen, mut read, mut unread) = (Vec::new(), 0, 0);
    for (count, entry) in entries.flatten().enumerate() {
        // Relaxed: the flag carries nothing but itself.
        if count >= MOST_ENTRIES || read >= MOST_FILES || over.load(Ordering::Relaxed) {
            return (seen, Some(format!("{} has more files than were looked at", path.display())));
        }
        // What the directory itself calls something else is not even asked for its size (K1).
        if entry.file_type().is_ok_and(|kind| !kind.is_file() && !kind.is_symlink() && !kind.is_block_device()) {
            continue;
        }
        read += 1;
        match seen_at(&entry.path()) {
            Ok(found) => seen.extend(found),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => unread += 1,
            // It has gone meanwhile, or leads nowhere.
            Err(_) => {}
        }
    }
    let failed = (unread > 0).then(|| format!("{unread} files in {} cannot be read by this user", path.display()));
    (seen, failed)
}

/// The block devices that may hold a member by themselves: not those that others are made of.
fn devices() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/sys/dev/block") else { return Vec::new() };
    let may_hold = |dir: &Path| {
        let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let major = dir.file_name()?.to_str()?.split_once(':')?.0.parse().ok()?;
        let is_empty = read("size")?.trim() == "0";
        let is_held = fs::read_dir(dir.join("holders")).is_ok_and(|mut holders| holders.next().is_some());
        let name = read("uevent")?.lines().find_map(|line| line.strip_prefix("DEVNAME=")).map(str::to_owned)?;
        (!NEVER.contains(&major) && !is_empty && !is_held).then(|| Path::new("/dev").join(name))
    };
    entries.flatten().take(MOST_DEVICES).filter_map(|entry| may_hold(&entry.path())).collect()
}

/// Looks at all of these places, for [`LONGEST`] at most (K2).
pub fn search(sources: &BTreeSet<Source>) -> Sight {
    search_by(sources, LONGEST, look)
}

/// As [`search`], for so long at most, by this look at one place.
fn search_by(sources: &BTreeSet<Source>, longest: Duration, look: fn(Source, &AtomicBool) -> Done) -> Sight {
    let over = Arc::new(AtomicBool::new(false));
    let mut sight = Sight::default();
    let mut jobs = VecDeque::new();
    for source in sources {
        match source {
            Source::Devices => {
                let devices = devices();
                sight.looked.push(format!("{} block devices", devices.len()));
                jobs.extend(devices.into_iter().map(Source::File));
            }
            Source::Directory(path) => {
                sight.looked.push(format!("the directory {}", path.display()));
                jobs.push_back(source.clone());
            }
            Source::File(path) => {
                sight.looked.push(path.display().to_string());
                jobs.push_back(source.clone());
            }
        }
    }
    let mut waiting: BTreeSet<Source> = jobs.iter().cloned().collect();
    let (jobs, until) = (Arc::new(Mutex::new(jobs)), Instant::now() + longest);
    let (told, hear) = channel();
    for _ in 0..THREADS.min(waiting.len()) {
        let worker = worker(look, Arc::clone(&jobs), Arc::clone(&over), told.clone());
        // With fewer threads it takes longer; with none the rest is said not to have answered.
        let _ = std::thread::Builder::new().name("sheave-look".into()).spawn(worker);
    }
    drop(told);
    let mut denied = 0;
    while !waiting.is_empty() {
        let Ok(Done { source, seen, failed, is_denied }) =
            hear.recv_timeout(until.saturating_duration_since(Instant::now()))
        else {
            break;
        };
        waiting.remove(&source);
        sight.seen.extend(seen);
        sight.failed.extend(failed);
        denied += u32::from(is_denied);
    }
    if denied > 0 {
        sight.failed.push(format!("{denied} devices or files cannot be read by this user"));
    }
    // Relaxed: the flag carries nothing but itself.
    over.store(true, Ordering::Relaxed);
    let name = |source: &Source| match source {
        Source::Directory(path) | Source::File(path) => path.display().to_string(),
        Source::Devices => "the block devices".into(),
    };
    sight.failed.extend(waiting.iter().map(|source| format!("{} has not answered", name(source))));
    sight.seen = each_once(sight.seen);
    sight
}

fn worker(
    look: fn(Source, &AtomicBool) -> Done,
    jobs: Arc<Mutex<VecDeque<Source>>>,
    over: Arc<AtomicBool>,
    told: Sender<Done>,
) -> impl FnOnce() + Send {
    move || {
        // Relaxed: the flag carries nothing but itself.
        while !over.load(Ordering::Relaxed) {
            let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(source) = next else { return };
            // Nobody hears it when the search is over.
            let _ = told.send(look(source, &over));
        }
    }
}

/// Each file and device once, and of a loop device and its file, if both were seen, the file.
fn each_once(mut seen: Vec<Seen>) -> Vec<Seen> {
    seen.sort_by(|a, b| a.path.cmp(&b.path));
    let nodes: BTreeSet<(u64, u64)> = seen.iter().map(|seen| seen.node).collect();
    let mut known = BTreeSet::new();
    seen.retain(|seen| !seen.backing.is_some_and(|file| nodes.contains(&file)) && known.insert(seen.node));
    seen
}

#[cfg(test)]
mod tests;
