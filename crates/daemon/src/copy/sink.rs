//! The output of an export: a new or replaced sparse file, a block device, a device of a server, or a stream.
//!
//! Decides how a hole is written: not at all in a file that begins empty, as zeroes elsewhere. A file that was created
//! here is removed again unless the export finishes.
//!
//! - S0: a file with content is replaced by one rename when all of the new file is durable. Until then, or if the
//!   export fails, the old file is unchanged. The new file is written beside it without a name (`O_TMPFILE`) if the
//!   file system supports that, so that nothing is left however the process ends; otherwise as `.sheave-export-PID-N`.
//!   It gets the mode of the old file, and its owner if this process may set it. An empty file is written in place.
//! - S1: a file or block device opened here by its path stays locked until it is dropped, so that no other copy writes
//!   to it. A file is removed only if it is still the one that was created here under that name.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use sheave::Device;
use sheave_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheave_base::units::fmt_bytes;
use sheave_blk::claim::{Claim, Sharing};

use super::{Ask, source};
use crate::devices;
use crate::failure::{self, Failure};
use crate::place::leads_to;

/// A pipe that polls as writable takes this many bytes without blocking (pipe(7)).
const PIPE_BUF: usize = 4096;

/// An output.
pub struct Sink {
    name: String,
    to: To,
    /// Cleanup if the export does not finish.
    made: Made,
    /// When set, a write to a stream that nobody reads is given up.
    stop: Option<Arc<AtomicBool>>,
}

/// Effect of finishing or not finishing on the file.
enum Made {
    /// No effect.
    Nothing,
    /// The file was created under this name; it is removed unless the export finishes.
    New(PathBuf),
    /// The file existed and was empty; it is truncated again unless the export finishes.
    Emptied,
    /// The file replaces another when the export finishes (S0).
    Beside(Beside),
}

/// A new file that is to replace another.
struct Beside {
    /// The file to be replaced, open and locked.
    old: File,
    /// Path of the old file, with symbolic links resolved.
    path: PathBuf,
    /// Temporary name of the new file; `None` while it has no name (`O_TMPFILE`).
    name: Option<PathBuf>,
}

enum To {
    File(File),
    Block(File),
    Stream(File),
    /// A device that is written through the ring of the volume ([`Sink::device`]).
    Device {
        device: Device,
        /// Keeps other users in this process away from the device.
        _claim: Claim,
    },
}

impl Sink {
    /// Opens or creates the output for an image of `len` bytes; `-` is stdout.
    pub fn open(path: &Path, len: u64, ask: Ask<'_>) -> Result<Self, Failure> {
        if path == Path::new("-") {
            let stream = io::stdout().as_fd().try_clone_to_owned().map_err(|err| failed("stdout", &err))?;
            return Ok(Self::stream(stream.into(), "stdout".into()));
        }
        let name = path.display().to_string();
        if devices::is_served(path) {
            return Self::on_device(name, len, ask);
        }
        let fail = |err: io::Error| failed(&name, &err).fix("check the path, its permissions, and free space");
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => {
                // Another process may open and lock the new file before this one does; it then belongs to that process
                // and is not removed.
                lock(&file, &name)?;
                return Ok(Self { name, to: To::File(file), made: Made::New(path.to_owned()), stop: None });
            }
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            Err(err) => return Err(fail(err)),
        }
        let file = OpenOptions::new().write(true).open(path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        let block = meta.file_type().is_block_device();
        if !block && !meta.is_file() {
            return Err(Failure::usage(format!("{name} is neither a file nor a block device"))
                .fix("name one of these, or - for stdout"));
        }
        lock(&file, &name)?;
        if block || meta.len() > 0 {
            ask(&format!("{name} exists; the export replaces what is in it"))?;
        }
        // The file may have been removed before it was locked here (by the export that created it), or while the user
        // considered the question.
        if !leads_to(path, &file) {
            return Err(Failure::run(format!("{name} is in use: a process has just removed or replaced it"))
                .fix("try again, or choose another file"));
        }
        if !block {
            if meta.len() == 0 {
                return Ok(Self { name, to: To::File(file), made: Made::Emptied, stop: None });
            }
            let (new, beside) = Beside::new(path, file, &name)?;
            return Ok(Self { name, to: To::File(new), made: Made::Beside(beside), stop: None });
        }
        expect_room(&file, &name, len)?;
        Ok(Self { name, to: To::Block(file), made: Made::Nothing, stop: None })
    }

    /// Wraps a file that is written sequentially from its current position, whatever its type.
    pub fn stream(file: File, name: String) -> Self {
        Self { name, to: To::Stream(file), made: Made::Nothing, stop: None }
    }

    /// Wraps an open empty file, block device or pipe, for an image of `len` bytes.
    pub fn of(file: File, name: String, len: u64) -> Result<Self, Failure> {
        let meta = file.metadata().map_err(|err| failed(&name, &err))?;
        if meta.is_file() && meta.len() > 0 {
            return Err(Failure::usage(format!("{name} is not empty")).fix("cut it to nothing first"));
        }
        // With `O_APPEND` the kernel appends every write, whatever its offset.
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|err| failed(&name, &err.into()))?;
        if flags.contains(OFlags::APPEND) && meta.is_file() {
            return Err(Failure::usage(format!("{name} was opened to append to"))
                .fix("open it without O_APPEND, or pass it with `stream`; use the same version of sheave for both"));
        }
        if meta.is_file() {
            return Ok(Self { name, to: To::File(file), made: Made::Nothing, stop: None });
        }
        if meta.file_type().is_block_device() {
            expect_room(&file, &name, len)?;
            return Ok(Self { name, to: To::Block(file), made: Made::Nothing, stop: None });
        }
        Ok(Self::stream(file, name))
    }

    /// Name of the output in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens a device of a server as the output.
    fn on_device(name: String, len: u64, ask: Ask<'_>) -> Result<Self, Failure> {
        let device = devices::open_device(&name).map_err(failure::device)?;
        if device.capabilities().read_only {
            return Err(Failure::run(format!("{name} is read-only")).fix("let its server take writes"));
        }
        let has = device.size_bytes();
        if has < len {
            return Err(Failure::run(format!("{name} has {}, the volume {}", fmt_bytes(has), fmt_bytes(len)))
                .fix("export to a larger one"));
        }
        let block = u64::from(device.limits().logical_block);
        if !len.is_multiple_of(block) {
            return Err(Failure::run(format!(
                "{name} takes blocks of {}, and the volume's {} are no whole number of them",
                fmt_bytes(block),
                fmt_bytes(len)
            ))
            .fix("resize the volume, or let the server take smaller blocks"));
        }
        ask(&format!("{name} exists; the export replaces what is in it"))?;
        // Excludes other users in this process. Other clients of the same server are not known here.
        let claim = device.claim(Sharing::Alone).map_err(failure::device)?;
        Ok(Self { name, to: To::Device { device, _claim: claim }, made: Made::Nothing, stop: None })
    }

    /// Returns the device, if the output is one.
    pub fn device(&self) -> Option<&Device> {
        match &self.to {
            To::Device { device, .. } => Some(device),
            To::File(_) | To::Block(_) | To::Stream(_) => None,
        }
    }

    /// Returns the file to pass to the process that holds the pool.
    ///
    /// # Errors
    ///
    /// A device of a server cannot be passed.
    pub fn file(&self) -> Result<&File, Failure> {
        match &self.to {
            To::File(file) | To::Block(file) | To::Stream(file) => Ok(file),
            To::Device { .. } => Err(source::not_passed(&self.name)),
        }
    }

    /// Value of `stream` in the request to the process that holds the pool.
    pub fn told_as_stream(&self) -> Option<bool> {
        match &self.to {
            To::Stream(stream) => source::told_as_stream(stream),
            To::File(_) | To::Block(_) | To::Device { .. } => None,
        }
    }

    /// Called after another process has written the whole image and made it durable.
    ///
    /// # Errors
    ///
    /// The old file could not be replaced.
    pub fn was_finished(mut self) -> Result<(), Failure> {
        self.publish()
    }

    /// Replaces the old file by the new one, if the output is to replace one.
    fn publish(&mut self) -> Result<(), Failure> {
        match (std::mem::replace(&mut self.made, Made::Nothing), &self.to) {
            (Made::Beside(beside), To::File(new)) => beside.publish(new, &self.name),
            _ => Ok(()),
        }
    }

    /// Gives up writing to a stream that nobody reads when `stop` is set.
    #[must_use]
    pub fn stopped_by(mut self, stop: &Arc<AtomicBool>) -> Self {
        // Writes to a file or block device do not wait for a reader.
        if self.told_as_stream().is_none() {
            self.stop = Some(stop.clone());
        }
        self
    }

    /// Writes data at `pos`. Pieces must come in ascending order.
    pub fn data(&mut self, pos: u64, bytes: &[u8]) -> Result<(), Failure> {
        let done = match &mut self.to {
            To::File(file) | To::Block(file) => file.write_all_at(bytes, pos),
            To::Stream(stream) => write_stream(stream, bytes, self.stop.as_deref()),
            To::Device { .. } => {
                return Err(Failure::usage(format!("{}: a rescue writes to a file, a block device or -", self.name))
                    .fix("name one of these"));
            }
        };
        done.map_err(|err| failed(&self.name, &err))
    }

    /// Writes zeroes at `pos`, or leaves a hole in a file.
    pub fn hole(&mut self, pos: u64, len: u64) -> Result<(), Failure> {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        if matches!(self.to, To::File(_)) {
            return Ok(());
        }
        let mut at = pos;
        while at < pos + len {
            let piece = (pos + len - at).min(ZEROES.len() as u64);
            self.data(at, &ZEROES[..piece as usize])?;
            at += piece;
        }
        Ok(())
    }

    /// Sets the length of a file, and makes all of it durable.
    pub fn finish(mut self, len: u64) -> Result<(), Failure> {
        let done = match &mut self.to {
            To::File(file) => file.set_len(len).and_then(|()| file.sync_all()),
            To::Block(file) => file.sync_all(),
            To::Stream(stream) => stream.flush(),
            To::Device { .. } => Ok(()), // Its ring has flushed it.
        };
        done.map_err(|err| failed(&self.name, &err))?;
        self.publish()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let To::File(file) = &self.to else { return };
        // Ignored, since the caller already returns the error that led here.
        let _ = match &self.made {
            Made::New(path) if leads_to(path, file) => std::fs::remove_file(path),
            Made::Emptied => file.set_len(0),
            Made::New(_) | Made::Beside(_) | Made::Nothing => Ok(()),
        };
    }
}

impl Beside {
    /// Creates a new file beside the open file `old`.
    fn new(path: &Path, old: File, name: &str) -> Result<(File, Beside), Failure> {
        let fail = |err: io::Error| {
            failed(name, &err).fix(format!(
                "the export is written beside it first, and then takes its place: let this process write to its \
                 directory, or empty the file before, and it is written in place: truncate -s 0 '{name}'"
            ))
        };
        let path = path.canonicalize().map_err(fail)?;
        let meta = old.metadata().map_err(fail)?;
        let (new, named) = Self::file_beside(&path).map_err(fail)?;
        let beside = Beside { old, path, name: named };
        let give = |uid: u32, gid: u32| {
            rustix::fs::fchown(&new, Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)))
        };
        // Only root may change the owner. The mode is set after it, since a change of owner clears the set-user-ID
        // bits.
        let _ = give(meta.uid(), meta.gid());
        rustix::fs::fchmod(&new, Mode::from_raw_mode(meta.mode() & 0o777)).map_err(|err| fail(err.into()))?;
        Ok((new, beside))
    }

    /// Creates a file in the directory of `path`. Returns its name if it needed one.
    fn file_beside(path: &Path) -> io::Result<(File, Option<PathBuf>)> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        // An unnamed file is linked through /proc when it is finished.
        if Path::new("/proc/self/fd").exists()
            && let Ok(file) = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)
        {
            return Ok((file.into(), None));
        }
        Self::named_file_beside(path).map(|(file, name)| (file, Some(name)))
    }

    fn named_file_beside(path: &Path) -> io::Result<(File, PathBuf)> {
        let name = free_name(path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&name)?;
        Ok((file, name))
    }

    /// Replaces the old file by the new one.
    fn publish(mut self, new: &File, name: &str) -> Result<(), Failure> {
        let fail = |err: io::Error| failed(name, &err).fix("what was there before is as it was; try again");
        if !leads_to(&self.path, &self.old) {
            return Err(Failure::run(format!("{name} was removed or replaced by a process meanwhile"))
                .fix("try again, or choose another file"));
        }
        let from = match &self.name {
            Some(name) => name.clone(),
            None => {
                let free = free_name(&self.path);
                let file = format!("/proc/self/fd/{}", new.as_raw_fd());
                rustix::fs::linkat(CWD, file, CWD, &free, AtFlags::SYMLINK_FOLLOW).map_err(|err| fail(err.into()))?;
                self.name.insert(free).clone()
            }
        };
        std::fs::rename(&from, &self.path).map_err(fail)?;
        self.name = None;
        let dir = File::open(self.path.parent().unwrap_or(Path::new("/"))).map_err(fail)?;
        dir.sync_all().map_err(fail)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Ignored, as in the drop of `Sink`.
            let _ = std::fs::remove_file(name);
        }
    }
}

/// Returns an unused name in the directory of `path`: unique among the exports of this process by number, and among
/// others by PID.
fn free_name(path: &Path) -> PathBuf {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only the number counts.
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".sheave-export-{}-{number}", std::process::id()))
}

/// Writes all of `bytes` to a pipe or socket, however long its reader takes, until `stop` is set.
fn write_stream(stream: &mut File, mut bytes: &[u8], stop: Option<&AtomicBool>) -> io::Result<()> {
    let Some(stop) = stop else { return stream.write_all(bytes) };
    while !bytes.is_empty() {
        // Relaxed: the flag carries nothing but itself.
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("it was not read to its end, and the copy was stopped"));
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match rustix::event::poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&tick)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(err) => return Err(err.into()),
        }
        // A writable pipe takes this much without blocking, so `stop` is checked again soon.
        match stream.write(&bytes[..bytes.len().min(PIPE_BUF)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Takes an exclusive lock on the file. Fails if another process writes to it or has it open as a pool.
fn lock(file: &File, name: &str) -> Result<(), Failure> {
    // Open pools (also the exported one) and other exports hold such a lock.
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(Failure::run(format!("{name} is in use: a process holds a lock on it"))
            .fix("choose another file; it may be that of a pool, even of this one, or another export writes it")),
        // On a file system without `flock` nobody can hold a lock.
        _ => Ok(()),
    }
}

/// Checks that a block device has room for `len` bytes.
fn expect_room(file: &File, name: &str, len: u64) -> Result<(), Failure> {
    let room = io::Seek::seek(&mut &*file, io::SeekFrom::End(0)).map_err(|err| failed(name, &err))?;
    if room < len {
        return Err(Failure::run(format!("{name} has {}, the volume {}", fmt_bytes(room), fmt_bytes(len)))
            .fix("choose a larger device"));
    }
    Ok(())
}

fn failed(name: &str, err: &io::Error) -> Failure {
    let failure = Failure::run(format!("cannot write {name}: {err}"));
    match err.kind() {
        io::ErrorKind::StorageFull => failure.fix("free some space there, or export to another file system"),
        io::ErrorKind::BrokenPipe => failure.fix("the program that reads it has ended"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn open(path: &Path) -> Result<Sink, Failure> {
        Sink::open(path, 4096, &mut |_| Ok(()))
    }

    #[test]
    fn a_file_that_a_copy_writes_is_refused_to_another_whether_it_was_made_or_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        for found in [false, true] {
            let mut sink = open(&path).expect("it is free");
            sink.data(0, &[1; 4096]).expect("written");
            let refused = open(&path).map(|_| ()).expect_err("it is in use").to_string();
            assert!(refused.contains("is in use: a process holds a lock on it"), "{found}: {refused}");
            sink.finish(4096).expect("finished");
            assert!(fs::read(&path).expect("read") == [1; 4096], "{found}: the other one has left it alone");
        }
    }

    #[test]
    fn what_was_not_finished_is_removed_but_no_other_file_of_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        drop(open(&path).expect("made"));
        assert!(!path.exists());
        let sink = open(&path).expect("made");
        fs::write(dir.path().join("new"), b"new").expect("written");
        fs::rename(dir.path().join("new"), &path).expect("renamed");
        drop(sink);
        assert_eq!(fs::read(&path).expect("it is there"), b"new");
        // A file that existed before is not removed either.
        drop(open(&path).expect("opened"));
        assert!(path.exists());
    }

    /// Data written to such a file would be lost.
    #[test]
    fn a_file_that_has_lost_its_name_since_it_was_opened_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        for another in [false, true] {
            fs::write(&path, b"old").expect("written");
            let mut ask = |_: &str| {
                fs::remove_file(&path).expect("removed");
                if another {
                    fs::write(&path, b"another").expect("written");
                }
                Ok(())
            };
            let refused = Sink::open(&path, 4096, &mut ask).map(|_| ()).expect_err("it is gone").to_string();
            assert!(refused.contains("has just removed or replaced it"), "{refused}");
            assert_eq!(fs::read(&path).ok(), another.then(|| b"another".to_vec()));
        }
    }

    /// Names in a directory, sorted.
    fn names(dir: &Path) -> Vec<String> {
        let of = |entry: io::Result<fs::DirEntry>| entry.expect("read").file_name().into_string().expect("UTF-8");
        let mut names: Vec<String> = fs::read_dir(dir).expect("a directory").map(of).collect();
        names.sort_unstable();
        names
    }

    /// S0, also through a symbolic link.
    #[test]
    fn what_was_there_is_whole_until_the_new_one_is_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, link) = (dir.path().join("image"), dir.path().join("link"));
        std::os::unix::fs::symlink("image", &link).expect("a link");
        for given in [&path, &link] {
            fs::write(&path, b"the old one").expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
            let mut sink = open(given).expect("opened");
            sink.data(0, &[7; 4096]).expect("written");
            assert_eq!(fs::read(&path).expect("read"), b"the old one");
            drop(sink);
            assert_eq!(fs::read(&path).expect("read"), b"the old one", "the copy failed");
            assert_eq!(names(dir.path()), ["image", "link"]);
            let mut sink = open(given).expect("opened");
            sink.data(0, &[7; 4096]).expect("written");
            sink.finish(8192).expect("finished");
            assert_eq!(fs::read(&path).expect("read"), [vec![7; 4096], vec![0; 4096]].concat());
            assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o640);
            assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
            assert_eq!(names(dir.path()), ["image", "link"]);
        }
        // Another process writes to the file that was opened here, and finishes.
        let sink = open(&path).expect("opened");
        sink.file().expect("a file").write_all_at(b"new", 0).expect("written");
        sink.was_finished().expect("finished");
        assert_eq!(fs::read(&path).expect("read"), b"new");
    }

    #[test]
    fn another_file_that_has_come_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        fs::write(&path, b"old").expect("written");
        let sink = open(&path).expect("opened");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, b"another").expect("written");
        let refused = sink.finish(0).expect_err("refused").to_string();
        assert!(refused.contains("removed or replaced"), "{refused}");
        assert_eq!(
            (fs::read(&path).expect("read"), names(dir.path())),
            (b"another".to_vec(), vec!["image".to_owned()])
        );
    }

    /// The fallback for file systems without `O_TMPFILE`.
    #[test]
    fn a_new_file_with_a_name_is_removed_or_takes_the_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        for finishes in [false, true] {
            fs::write(&path, b"old").expect("written");
            let (new, name) = Beside::named_file_beside(&path).expect("made");
            assert_eq!(new.metadata().expect("there").mode() & 0o777, 0o600, "nobody else reads it before it is there");
            let old = File::open(&path).expect("opened");
            let beside = Beside { old, path: path.clone(), name: Some(name) };
            new.write_all_at(b"new", 0).expect("written");
            match finishes {
                true => beside.publish(&new, "image").expect("finished"),
                false => drop(beside),
            }
            assert_eq!(fs::read(&path).expect("read"), if finishes { b"new" } else { b"old" });
            assert_eq!(names(dir.path()), ["image"]);
        }
    }

    #[test]
    fn an_empty_file_is_written_in_place_and_emptied_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        fs::write(&path, b"").expect("written");
        let before = fs::metadata(&path).expect("there").ino();
        for finishes in [false, true] {
            let mut sink = open(&path).expect("opened");
            sink.data(0, &[7; 4096]).expect("written");
            match finishes {
                true => sink.finish(4096).expect("finished"),
                false => drop(sink),
            }
            assert_eq!(fs::read(&path).expect("read").len(), if finishes { 4096 } else { 0 });
            assert_eq!(fs::metadata(&path).expect("there").ino(), before);
        }
    }
}
