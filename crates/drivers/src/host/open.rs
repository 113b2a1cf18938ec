//! Opening a path of the host as a device: a regular file (created and enlarged on request) or a block device.
//!
//! Owns the rules. Opening never truncates or overwrites anything. If a property is not available, the result is an
//! error with its fix if the property was demanded, and one notice if it was only preferred. The abilities of the file
//! or device come from `probe`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;

use super::error::{HostError, HostErrorKind as Kind};
use super::inherit::{self, InheritedKind};
use super::overlap::Node;
use super::probe::{self, Alignment, Caps, FileKind, MIN_BLOCK};

/// Choice between direct I/O and the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// Past the page cache; opening fails if that is impossible.
    On,
    /// Through the page cache.
    Off,
    /// Past the page cache if the file system can; else through it, with a notice.
    #[default]
    Auto,
}

/// Options of opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostOpts {
    /// Size of the device in bytes. A missing file is created, a shorter one enlarged (sparse); of a longer file or
    /// block device the first `size` bytes are used. `None` takes all bytes of the file or device.
    pub size: Option<u64>,
    /// Choice about O_DIRECT.
    pub direct: Direct,
    /// True to refuse writes.
    pub readonly: bool,
    /// True to make every write durable before it completes (O_DSYNC).
    pub sync: bool,
}

/// A file or block device that another process has opened, with its own rights, and passed to this one.
#[derive(Debug)]
pub struct Passed {
    /// Descriptor for reads and writes.
    pub file: File,
    /// The same file, opened a second time for the lock, because a process without access to the path cannot open it
    /// itself. A block device for writing was opened with `O_EXCL`.
    pub lock: File,
}

/// An opened and probed file or block device.
#[derive(Debug)]
pub struct HostFile {
    file: Arc<File>,
    /// Descriptor that the first claim locks, if the file was passed to this process.
    lock: Mutex<Option<Arc<File>>>,
    path: PathBuf,
    size_bytes: u64,
    direct: bool,
    synced: bool,
    readonly: bool,
    caps: Caps,
    notices: Vec<String>,
    /// True for a test's pipe, which has no offsets.
    #[cfg(test)]
    pub(super) pretended: bool,
}

impl HostFile {
    /// Opens `path`, or uses the file of that name that this process has inherited (see
    /// [`inherit`](super::inherit())). A file that was created is removed again if a later step fails.
    ///
    /// # Errors
    ///
    /// An error with its cause and fix.
    pub fn open(path: impl AsRef<Path>, opts: HostOpts) -> Result<Self, HostError> {
        let path = path.as_ref();
        match opts.size {
            Some(0) => {
                return Err(HostError::new(Kind::BadSize, path, "size=0 was asked for", "give a size as size=1G"));
            }
            Some(size) => check_size(path, size)?,
            None => {}
        }
        if let Some(file) = inherit::take_file(path, &opts) {
            return Self::set_up(path, file, &opts);
        }
        let found = look(path, &opts)?;
        let file = open_file(path, found, &opts)?;
        let mut this = Self::set_up(path, file, &opts);
        if found.is_none() {
            this = this.and_then(Self::with_durable_name);
        }
        if this.is_err() && found.is_none() {
            // The error above is the one to report.
            let _ = fs::remove_file(path);
        }
        this
    }

    /// Uses a file that was passed to this process, without opening it again; `path` is its name for messages. The file
    /// is enlarged if `opts` say so, and never created.
    ///
    /// # Errors
    ///
    /// Like [`HostFile::open`]; also if the two descriptors are of different files, or do not permit what `opts` ask
    /// for.
    pub fn passed(path: &Path, passed: Passed, opts: HostOpts) -> Result<Self, HostError> {
        let io_error = |error: io::Error| HostError::from_io(path, "look at", &error);
        let wrong = |what: &'static str, fix: &'static str| HostError::new(Kind::WrongType, path, what, fix);
        let identity = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino(), meta.rdev()));
        if identity(&passed.file).map_err(io_error)? != identity(&passed.lock).map_err(io_error)? {
            return Err(wrong("its two descriptors are of two files", "open one file twice"));
        }
        let flags = rustix::fs::fcntl_getfl(&passed.file).map_err(|errno| io_error(errno.into()))?;
        let mode = flags & OFlags::RWMODE;
        if flags.intersects(OFlags::APPEND | OFlags::PATH) || mode == OFlags::WRONLY {
            return Err(wrong("its descriptor cannot read and write anywhere", "open it without O_APPEND and O_PATH"));
        }
        if mode == OFlags::RDONLY && !opts.readonly {
            return Err(wrong("it was opened for reading only", "open it for writing, or add readonly=on"));
        }
        if opts.sync && !flags.contains(OFlags::DSYNC) {
            return Err(wrong("sync=on, and it was opened without O_DSYNC", "leave sync away"));
        }
        let this = Self::set_up(path, passed.file, &opts)?;
        let lock = Arc::new(passed.lock);
        if this.caps.kind == FileKind::Block {
            inherit::list(InheritedKind::Exclusive, path, &lock);
        }
        *this.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
        Ok(this)
    }

    /// Takes the descriptor that the first claim locks instead of opening the file again.
    pub(super) fn take_lock(&self) -> Option<Arc<File>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set_up(path: &Path, file: File, opts: &HostOpts) -> Result<Self, HostError> {
        let meta = file.metadata().map_err(|e| HostError::from_io(path, "look at", &e))?;
        let kind = kind_or_error(path, &meta)?;
        let mut notices = Vec::new();
        let (size_bytes, missing) = settle_size(path, &file, kind, opts, &mut notices)?;
        let alignment = go_direct(path, &file, (kind, &meta), size_bytes, opts, &mut notices)?;
        // The last step, so that an existing file is unchanged if another step fails.
        if missing > 0 {
            grow(path, &file, size_bytes, missing, &mut notices)?;
        }
        let caps = capabilities(&file, kind, alignment, opts, &meta);
        let file = Arc::new(file);
        inherit::list(InheritedKind::File, path, &file);
        Ok(Self {
            file,
            lock: Mutex::new(None),
            path: path.to_owned(),
            size_bytes,
            direct: alignment.is_some(),
            synced: opts.sync,
            readonly: opts.readonly,
            caps,
            notices,
            #[cfg(test)]
            pretended: false,
        })
    }

    /// Makes the name of a new file durable; a flush makes only its data durable.
    fn with_durable_name(self) -> Result<Self, HostError> {
        match make_name_durable(&self.path, &self.file) {
            Ok(()) => Ok(self),
            Err(e) => Err(HostError::from_io(&self.path, "make durable", &e)),
        }
    }

    /// Returns the kind and the abilities of the file or device.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Returns the size of the device when it was opened.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the current size: a file or device can shrink or grow at any time.
    ///
    /// # Errors
    ///
    /// The system's error; a removed device returns ENXIO or ENODEV.
    pub fn current_size(&self) -> io::Result<u64> {
        probe::size_of(&self.file, self.caps.kind)
    }

    /// Returns the device and the inode of a file, or the number of a block device, which tell it from any other of
    /// this host.
    pub fn identity(&self) -> Option<[u64; 2]> {
        Some(match Node::of(&self.file.metadata().ok()?) {
            Node::File(device, inode) => [device, inode],
            Node::Block(number) => [number, u64::MAX],
        })
    }

    /// Returns true if I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns true if each write is durable when it ends (O_DSYNC).
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    pub fn is_readonly(&self) -> bool {
        self.readonly
    }

    /// Returns the path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a file of this size from anything that can be read, for tests that need one that does not answer.
    #[cfg(test)]
    pub(super) fn pretend(file: File, path: &Path, size_bytes: u64) -> Self {
        let caps = Caps {
            kind: FileKind::Regular,
            logical_block: 512,
            physical_block: 512,
            dma_alignment: 1,
            atomic_write: 0,
            discard: false,
            zero_range: false,
            iopoll: false,
            volatile_cache: true,
            fua_native: false,
        };
        let path = path.to_owned();
        Self {
            file: Arc::new(file),
            lock: Mutex::new(None),
            path,
            size_bytes,
            direct: false,
            synced: false,
            readonly: false,
            caps,
            notices: Vec::new(),
            pretended: true,
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns messages for the user about preferences that could not be met.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }
}

impl AsFd for HostFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for HostFile {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Checks the path before it is opened, because opening a pipe would wait for its other end. Returns `None` if nothing
/// is there yet and a file may be created.
fn look(path: &Path, opts: &HostOpts) -> Result<Option<FileKind>, HostError> {
    match fs::metadata(path) {
        Ok(meta) => kind_or_error(path, &meta).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_ok() => {
            let fix = "make the file that it leads to, name that file, or remove the link";
            Err(HostError::new(Kind::NotFound, path, "it is a symbolic link to something that is not there", fix))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound && opts.size.is_some() && !opts.readonly => Ok(None),
        Err(e) => Err(HostError::from_io(path, "open", &e)),
    }
}

fn kind_or_error(path: &Path, meta: &fs::Metadata) -> Result<FileKind, HostError> {
    probe::kind_of(meta).map_err(|what| {
        HostError::new(Kind::WrongType, path, format!("it is {what}"), "name a regular file or a block device")
    })
}

/// Makes the name of a new file durable, and its content.
///
/// # Errors
///
/// Errors of the system calls.
pub fn make_name_durable(path: &Path, file: &File) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    file.sync_all()?;
    match File::open(directory)?.sync_all() {
        // Some file systems cannot sync a directory, and need not.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        synced => synced,
    }
}

fn open_file(path: &Path, found: Option<FileKind>, opts: &HostOpts) -> Result<File, HostError> {
    let io_error = |e: io::Error| match (e.raw_os_error(), found) {
        // ENOENT while creating means that the directory is missing.
        (Some(libc::ENOENT), None) => {
            HostError::new(Kind::NotFound, path, "the directory it shall be made in does not exist", "make it first")
        }
        _ => HostError::from_io(path, if found.is_some() { "open" } else { super::error::CREATE }, &e),
    };
    let mut how = OpenOptions::new();
    how.read(true).write(!opts.readonly).create_new(found.is_none());
    if found == Some(FileKind::Block) && !opts.readonly {
        // O_EXCL on a block device fails if it is mounted or claimed. It is not kept, so that others may open the
        // device.
        how.clone().custom_flags(libc::O_EXCL).open(path).map_err(|error| {
            match error.raw_os_error().filter(|errno| *errno == libc::EBUSY).and_then(|_| super::holder::who_has(path))
            {
                Some(who) => HostError::new(Kind::Busy, path, format!("{who} has it open"), "stop that process first"),
                None => io_error(error),
            }
        })?;
    }
    how.custom_flags(if opts.sync { libc::O_DSYNC } else { 0 }).open(path).map_err(io_error)
}

/// Returns the size of the device, and the number of bytes by which the file must grow.
fn settle_size(
    path: &Path,
    file: &File,
    kind: FileKind,
    opts: &HostOpts,
    notices: &mut Vec<String>,
) -> Result<(u64, u64), HostError> {
    let there = probe::size_of(file, kind).map_err(|e| HostError::from_io(path, "read the size of", &e))?;
    if there == 0 && kind == FileKind::Block {
        let fix = "insert a medium or configure the device (as with `losetup`)";
        return Err(HostError::new(Kind::BadSize, path, "the device has a size of 0", fix));
    }
    // The last incomplete block of a disk cannot be read or written.
    let tail = if kind == FileKind::Block { there % u64::from(probe::block_of_disk(file)) } else { 0 };
    if opts.size.is_none() && tail > 0 {
        notices.push(format!("{}: its last {tail} bytes are not used, for they are no whole block", path.display()));
    }
    let wanted = opts.size.unwrap_or(there - tail);
    check_size(path, wanted)?;
    let missing = wanted.saturating_sub(there);
    if opts.size.is_some() && wanted < there {
        notices.push(format!("{}: only the first {wanted} of its {there} bytes are used", path.display()));
    }
    if missing > 0 && kind == FileKind::Block {
        let cause = format!("size={wanted} is more than the {there} bytes that the device has");
        return Err(HostError::new(Kind::BadSize, path, cause, "leave size away, or give a smaller one"));
    }
    if missing > 0 && opts.readonly {
        let cause = format!("size={wanted} is more than its {there} bytes, and it is opened read-only");
        return Err(HostError::new(Kind::BadSize, path, cause, "leave size away, or open it for writing"));
    }
    Ok((wanted, missing))
}

fn grow(path: &Path, file: &File, size: u64, missing: u64, notices: &mut Vec<String>) -> Result<(), HostError> {
    file.set_len(size).map_err(|e| HostError::from_io(path, "grow", &e))?;
    if let Some(free) = probe::free_bytes(file).filter(|free| *free < missing) {
        notices.push(format!(
            "{}: its file system has {free} bytes free, and may come to need {missing}: writes fail once it is full",
            path.display(),
        ));
    }
    Ok(())
}

fn check_size(path: &Path, size: u64) -> Result<(), HostError> {
    if size == 0 {
        let fix = "give a size (size=1G) to have it grown";
        return Err(HostError::new(Kind::BadSize, path, "it is empty", fix));
    }
    if !size.is_multiple_of(u64::from(MIN_BLOCK)) {
        let cause = format!("{size} bytes are not a multiple of {MIN_BLOCK}");
        let fix = "give a size= that is: a smaller one uses the front of a file, a larger one makes the file grow";
        return Err(HostError::new(Kind::BadSize, path, cause, fix));
    }
    Ok(())
}

/// Switches to direct I/O if that is wanted and possible. Returns its alignment then.
fn go_direct(
    path: &Path,
    file: &File,
    (kind, meta): (FileKind, &fs::Metadata),
    size: u64,
    opts: &HostOpts,
    notices: &mut Vec<String>,
) -> Result<Option<Alignment>, HostError> {
    let back = || {
        let failed = |error| HostError::from_io(path, "switch back to buffered I/O on", &error);
        probe::set_direct(file, false).map_err(failed)
    };
    if opts.direct == Direct::Off {
        // A file that another process opened may be switched to direct I/O.
        return back().map(|()| None);
    }
    let why = match probe::set_direct(file, true) {
        Ok(()) => match probe::direct_alignment(file, kind, meta) {
            Some(alignment) if size.is_multiple_of(u64::from(alignment.offset)) => return Ok(Some(alignment)),
            Some(alignment) => format!("its size is not a multiple of {} bytes", alignment.offset),
            None => "its file system does not support O_DIRECT on it".to_owned(),
        },
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => "its file system does not support O_DIRECT".to_owned(),
        Err(e) => return Err(HostError::from_io(path, "switch to direct I/O on", &e)),
    };
    if opts.direct == Direct::On {
        let fix = "use direct=auto or direct=off, or a file on ext4 or XFS";
        return Err(HostError::new(Kind::NoDirect, path, format!("direct=on, but {why}"), fix));
    }
    back()?;
    notices.push(format!("{}: I/O goes through the page cache, as {why}", path.display()));
    Ok(None)
}

fn capabilities(
    file: &File,
    kind: FileKind,
    alignment: Option<Alignment>,
    opts: &HostOpts,
    meta: &fs::Metadata,
) -> Caps {
    // Buffered I/O may begin at any byte, but zeroing and discarding on a disk use its blocks.
    let of_disk = if kind == FileKind::Block { probe::block_of_disk(file) } else { MIN_BLOCK };
    let logical_block = alignment.map_or(of_disk, |a| a.offset.max(of_disk));
    let (discard, zero_range) = if opts.readonly { (false, false) } else { probe::space_ops(file, kind, meta) };
    let through = opts.sync || (kind == FileKind::Block && alignment.is_some() && probe::writes_through(meta));
    Caps {
        kind,
        logical_block,
        physical_block: probe::physical_block(file, kind, meta).max(logical_block),
        dma_alignment: alignment.map_or(1, |a| a.memory),
        atomic_write: if alignment.is_some() && !opts.readonly { probe::atomic_write(file) } else { 0 },
        discard,
        zero_range,
        iopoll: alignment.is_some() && probe::has_poll_queues(meta, kind),
        volatile_cache: !through,
        fua_native: alignment.is_some() && probe::has_fua(meta, kind),
    }
}
