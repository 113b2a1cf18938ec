//! Search for members of pools on this host, in directories and among the block devices.
//!
//! Reads the first 8 KiB of regular files and block devices, within the limits below, and writes nothing. The choice
//! among the candidates is made by [`sheave_vol::members`].
//!
//! - K1: only regular files and block devices are opened, since opening a pipe, socket or terminal may block.
//! - K2: a search ends after [`LONGEST`], whatever a disk or file server does. Places that have not responded are
//!   reported, and their threads end when the kernel returns from the call.
//! - K3: at most [`MOST_ENTRIES`] names of a directory are examined and [`MOST_FILES`] of its files read;
//!   subdirectories are not entered. A directory that was not examined completely is reported.

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

/// Time limit of a search: enough for a sleeping disk to spin up.
const LONGEST: Duration = Duration::from_secs(10);
/// Maximum number of names that are examined in a directory.
const MOST_ENTRIES: usize = 200_000;
/// Maximum number of files that are read in a directory.
const MOST_FILES: usize = 20_000;
/// Maximum number of block devices that are examined.
const MOST_DEVICES: usize = 4096;
/// Number of threads of a search: fewer disks than this can hang without holding up the others.
const THREADS: usize = 8;
/// Major numbers of block devices that never hold a pool: RAM disks, floppies and CD-ROMs, whose drives take seconds to
/// report that they are empty.
const NEVER: [u32; 3] = [1, 2, 11];

/// A member that was found.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: PathBuf,
    /// Its label.
    pub tag: MemberTag,
    /// Size of the file or device.
    pub size_bytes: u64,
    /// Identity: device and inode of a file; device number and 0 of a block device.
    pub node: (u64, u64),
    /// Identity of the file under a loop device.
    backing: Option<(u64, u64)>,
}

/// A place to search.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The files in a directory.
    Directory(PathBuf),
    /// A file or block device.
    File(PathBuf),
    /// All block devices.
    Devices,
}

/// Result of a search.
#[derive(Debug, Default)]
pub struct Sight {
    /// Members of pools, without duplicates.
    pub seen: Vec<Seen>,
    /// Places that were searched, for messages.
    pub looked: Vec<String>,
    /// Places that could not be searched, for messages.
    pub failed: Vec<String>,
}

impl Sight {
    /// Adds the members of another result.
    pub fn add(&mut self, other: Sight) {
        self.seen.extend(other.seen);
        self.seen = each_once(std::mem::take(&mut self.seen));
    }

    /// Reads the members of a pool again, in quick succession. A pool in use writes checkpoints, so labels that were
    /// read at different moments may look like copies of different age.
    pub fn refresh(&mut self, pool: &[u8; 16]) {
        let (own, rest) = std::mem::take(&mut self.seen).into_iter().partition(|seen| seen.tag.pool() == *pool);
        let own: Vec<Seen> = own;
        self.seen = rest;
        self.add(search(&own.into_iter().map(|seen| Source::File(seen.path)).collect()));
    }

    /// Describes where the search looked and what failed, in a line.
    pub fn in_words(&self) -> String {
        let looked = if self.looked.is_empty() { "nowhere".into() } else { self.looked.join(", ") };
        let failed = if self.failed.is_empty() { String::new() } else { format!("; {}", self.failed.join("; ")) };
        format!("looked at {looked}{failed}")
    }
}

/// Returns the identity of a file or block device.
pub fn node_of(meta: &Metadata) -> (u64, u64) {
    if meta.file_type().is_block_device() { (meta.rdev(), 0) } else { (meta.dev(), meta.ino()) }
}

/// Reads the label of a file or block device; `None` if it has none.
///
/// # Errors
///
/// The file cannot be read.
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
    // Only its owner and root may open a file with `O_NOATIME`.
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

/// Returns the identity of the file under a loop device, or of the loop device over a file: a second way to the same
/// data, if there is one.
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

/// Reads an attribute of a block device from sysfs.
fn sysfs(number: u64, attribute: &str) -> Option<String> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{attribute}")).ok()?;
    Some(text.trim().to_owned())
}

/// Result of searching one place.
struct Done {
    source: Source,
    seen: Vec<Seen>,
    failed: Option<String>,
    /// True if this user may not read the file or device.
    is_denied: bool,
}

/// Searches one place; returns early when `over` is set.
fn look(source: Source, over: &AtomicBool) -> Done {
    let mut is_denied = false;
    let (seen, failed) = match &source {
        Source::Directory(path) => directory(path, over),
        Source::File(path) => match seen_at(path) {
            Ok(seen) => (seen.into_iter().collect(), None),
            // A file that does not exist is no error.
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
        // Entries of other types, as far as the directory tells, are skipped without `stat` (K1).
        if entry.file_type().is_ok_and(|kind| !kind.is_file() && !kind.is_symlink() && !kind.is_block_device()) {
            continue;
        }
        read += 1;
        match seen_at(&entry.path()) {
            Ok(found) => seen.extend(found),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => unread += 1,
            // The file was removed meanwhile, or is a dangling link.
            Err(_) => {}
        }
    }
    let failed = (unread > 0).then(|| format!("{unread} files in {} cannot be read by this user", path.display()));
    (seen, failed)
}

/// Block devices that may be a member themselves: without those that are part of another device.
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

/// Searches all of these places, for [`LONGEST`] at most (K2).
pub fn search(sources: &BTreeSet<Source>) -> Sight {
    search_by(sources, LONGEST, look)
}

/// [`search`] with its time limit and the function for one place as parameters, for tests.
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
        // With fewer threads the search takes longer; with none every place is reported as not responding.
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
            // Fails after the search has ended.
            let _ = told.send(look(source, &over));
        }
    }
}

/// Removes duplicates. Of a loop device and its file, if both were found, the file stays.
fn each_once(mut seen: Vec<Seen>) -> Vec<Seen> {
    seen.sort_by(|a, b| a.path.cmp(&b.path));
    let nodes: BTreeSet<(u64, u64)> = seen.iter().map(|seen| seen.node).collect();
    let mut known = BTreeSet::new();
    seen.retain(|seen| !seen.backing.is_some_and(|file| nodes.contains(&file)) && known.insert(seen.node));
    seen
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use sheave_vol::{CreateOptions, Pool};

    use super::*;

    fn pool(path: &Path) {
        let device = sheave::open_device(&format!("file:{},size=16M", path.display())).expect("a device");
        Pool::create(&device, &CreateOptions::default()).expect("a pool");
    }

    fn within(directory: &Path) -> Sight {
        search(&BTreeSet::from([Source::Directory(directory.to_owned())]))
    }

    #[test]
    fn nothing_but_files_is_opened_and_each_is_seen_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        pool(&at("pool.img"));
        std::os::unix::fs::symlink(at("pool.img"), at("a-link")).expect("a link");
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).expect("a link");
        std::os::unix::fs::symlink(at("loop"), at("loop")).expect("a link");
        // Opening a FIFO would block until it gets a writer.
        assert!(Command::new("mkfifo").arg(at("fifo")).status().expect("it runs").success());
        std::os::unix::fs::symlink(at("fifo"), at("link-to-fifo")).expect("a link");
        std::os::unix::fs::symlink("/dev/zero", at("link-to-zero")).expect("a link");
        let _socket = UnixListener::bind(at("socket")).expect("a socket");
        std::fs::create_dir(at("deeper")).expect("a directory");
        pool(&at("deeper/other.img"));
        std::fs::write(at("short"), b"SHVE").expect("written");
        std::fs::write(at("blank"), vec![0; 1 << 20]).expect("written");
        let sight = within(dir.path());
        assert_eq!(sight.seen.len(), 1, "{sight:?}");
        assert!(sight.seen[0].size_bytes == 16 << 20 && sight.seen[0].tag.number() == 0, "{sight:?}");
        assert!(sight.failed.is_empty(), "{sight:?}");
        let missing = within(&at("nowhere"));
        assert!(missing.seen.is_empty() && missing.failed[0].contains("cannot be read"), "{missing:?}");
    }

    /// The limit on a directory is reported, so that nobody takes a part of it for the whole.
    #[test]
    fn a_directory_of_more_files_than_are_read_is_told() {
        let dir = tempfile::tempdir().expect("a directory");
        for number in 0..MOST_FILES + 10 {
            File::create(dir.path().join(number.to_string())).expect("made");
        }
        let sight = within(dir.path());
        assert!(sight.failed.iter().any(|why| why.contains("has more files than were looked at")), "{sight:?}");
    }

    #[test]
    fn a_loop_device_over_a_file_that_is_seen_is_not_another_candidate() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool.img");
        pool(&path);
        let seen = seen_at(&path).expect("read").expect("a member");
        let over = |backing| Seen { path: "/dev/loop9".into(), node: (7 << 8 | 9, 0), backing, ..seen.clone() };
        let both = each_once(vec![over(Some(seen.node)), seen.clone()]);
        assert!(both.len() == 1 && both[0].path == path, "{both:?}");
        // The file under the loop device was not found (it may have been unlinked), so the device stays.
        assert_eq!(each_once(vec![over(Some((1, 1))), seen.clone()]).len(), 2);
        assert_eq!(each_once(vec![seen.clone(), Seen { path: "/other/name".into(), ..seen }]).len(), 1);
    }

    /// A disk that does not respond delays neither the search of other places nor its end.
    #[test]
    fn unresponsive_places_are_reported_without_waiting() {
        fn hang(source: Source, over: &AtomicBool) -> Done {
            match &source {
                Source::File(path) if path.starts_with("/hangs") => loop {
                    std::thread::park();
                },
                _ => look(source, over),
            }
        }
        let dir = tempfile::tempdir().expect("a directory");
        pool(&dir.path().join("pool.img"));
        // All threads but one hang; the last one does the rest.
        let mut sources: BTreeSet<Source> =
            (1..THREADS).map(|number| Source::File(format!("/hangs/{number}").into())).collect();
        sources.insert(Source::Directory(dir.path().into()));
        // On a busy machine the threads may begin so late that even the place that answers is not seen in time.
        let search = |longest: Duration| {
            let begun = Instant::now();
            let sight = search_by(&sources, longest, hang);
            assert!(begun.elapsed() < Duration::from_secs(60));
            (sight.seen.len() == 1).then_some(sight)
        };
        let sight = [2, 20].into_iter().find_map(|seconds| search(Duration::from_secs(seconds)));
        let sight = sight.expect("the pool is seen");
        assert!(sight.failed.contains(&"/hangs/1 has not answered".to_owned()), "{sight:?}");
        assert_eq!(sight.failed.len(), THREADS - 1, "{sight:?}");
    }

    /// Members of a pool that was in use while they were read are read again.
    #[test]
    fn members_are_read_once_more() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool.img");
        pool(&path);
        let mut sight = within(dir.path());
        let before = sight.seen[0].tag.checkpoint();
        let device = sheave::open_device(&format!("file:{}", path.display())).expect("a device");
        Pool::open(&device, &sheave_vol::OpenOptions::default()).expect("opens").close().expect("closes");
        let id = sight.seen[0].tag.pool();
        sight.refresh(&[1; 16]);
        assert_eq!(sight.seen[0].tag.checkpoint(), before, "another pool is left alone");
        sight.refresh(&id);
        assert!(sight.seen.len() == 1 && sight.seen[0].tag.checkpoint() > before, "{sight:?}");
    }
}
