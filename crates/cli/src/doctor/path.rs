//! Checks of a file, directory or block device: direct I/O, its alignment, polling.

use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use sheave_base::units::fmt_bytes;

use super::check::{Check, Verdict};

/// Runs the checks of a path.
pub fn checks(path: &Path) -> Vec<Check> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(err) => return vec![missing(path, &err)],
    };
    let mut checks = vec![kind(path, &meta)];
    if checks[0].status == Verdict::Fail {
        return checks;
    }
    checks.push(direct(path, &meta));
    checks.extend(alignment(path));
    checks.push(iopoll(&meta));
    checks
}

fn missing(path: &Path, err: &std::io::Error) -> Check {
    const NAME: &str = "path";
    let path = path.display();
    match err.kind() {
        std::io::ErrorKind::NotFound => Check::fail(
            NAME,
            format!("{path} does not exist"),
            format!("check the spelling, probe its directory, or make it: sheave bench file:{path},size=1G --rw write"),
        ),
        std::io::ErrorKind::PermissionDenied => Check::fail(
            NAME,
            format!("{path}: {err}"),
            "change the permissions of its directories, or run as another user",
        ),
        _ => Check::fail(NAME, format!("{path}: {err}"), "check the path and the file system under it"),
    }
}

fn kind(path: &Path, meta: &Metadata) -> Check {
    const NAME: &str = "path";
    let file_type = meta.file_type();
    let what = match () {
        () if file_type.is_file() => "file",
        () if file_type.is_block_device() => "block device",
        () if file_type.is_dir() => {
            return Check::ok(NAME, format!("{}: directory, probed with a file without a name", path.display()));
        }
        () => {
            return Check::fail(
                NAME,
                format!("{} is no file, directory or block device", path.display()),
                "give a regular file or a block device",
            );
        }
    };
    let open = |write: bool| OpenOptions::new().read(true).write(write).open(path);
    let size = |file: &File| {
        use std::io::{Seek, SeekFrom};
        let mut file = file;
        file.seek(SeekFrom::End(0)).unwrap_or(0)
    };
    match (open(true), open(false)) {
        (Ok(file), _) => Check::ok(NAME, format!("{}: {what} of {}", path.display(), fmt_bytes(size(&file)))),
        (Err(err), Ok(file)) => Check::warn(
            NAME,
            format!("{}: {what} of {}, read-only for us ({err})", path.display(), fmt_bytes(size(&file))),
            "for writes: chmod u+w, or run as its owner",
        ),
        (Err(_), Err(err)) => Check::fail(
            NAME,
            format!("{}: {what} that cannot be opened ({err})", path.display()),
            "chmod u+rw, join the group that owns it, or run as its owner",
        ),
    }
}

fn direct(path: &Path, meta: &Metadata) -> Check {
    const NAME: &str = "O_DIRECT";
    let mut options = OpenOptions::new();
    options.read(true);
    let opened = if meta.is_dir() {
        options.write(true).custom_flags(libc::O_TMPFILE | libc::O_DIRECT).open(path)
    } else {
        options.custom_flags(libc::O_DIRECT).open(path)
    };
    match opened {
        Ok(_) => Check::ok(NAME, "works"),
        Err(err) if err.raw_os_error() == Some(libc::EINVAL) => Check::warn(
            NAME,
            "not on this file system: I/O goes through the page cache",
            "use ext4, xfs, btrfs or a block device; or say direct=off, which asks for the page cache",
        ),
        Err(err) if meta.is_dir() => Check::warn(
            NAME,
            format!("cannot be probed in this directory ({err})"),
            "probe a file in it, or a directory that we may write to",
        ),
        Err(err) => Check::fail(NAME, format!("cannot be opened ({err})"), "change the permissions of the file"),
    }
}

fn alignment(path: &Path) -> Option<Check> {
    const NAME: &str = "alignment";
    let wanted = StatxFlags::DIOALIGN;
    let found = statx(CWD, path, AtFlags::empty(), wanted | StatxFlags::BASIC_STATS).ok()?;
    if found.stx_mask & wanted.bits() == 0 || found.stx_dio_offset_align == 0 {
        return Some(Check::ok(NAME, "not told by this kernel for this path; Sheave finds it out by trying"));
    }
    let (memory, offset) = (found.stx_dio_mem_align, found.stx_dio_offset_align);
    let found = format!("memory to {memory}, offset and length to {offset} bytes");
    if offset <= 4096 {
        return Some(Check::ok(NAME, found));
    }
    Some(Check::warn(NAME, found, format!("use blocks of at least {offset} bytes (--bs {offset}), or direct=off")))
}

fn iopoll(meta: &Metadata) -> Check {
    const NAME: &str = "IOPOLL";
    let device = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Some(queue) = queue_dir(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))) else {
        return Check::ok(
            NAME,
            format!("no block device of this machine under it ({major}:{minor}); --poll waits as without"),
        );
    };
    let polls = fs::read_to_string(queue.join("io_poll")).is_ok_and(|text| text.trim() == "1");
    if polls {
        return Check::ok(NAME, format!("{} polls", queue.display()));
    }
    Check::ok(
        NAME,
        format!("{} does not poll; --poll waits as without (NVMe: boot with nvme.poll_queues=N)", queue.display()),
    )
}

/// Returns the queue directory of a disk. For a partition it is that of the whole disk.
fn queue_dir(device: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(device).ok()?;
    [Some(real.as_path()), real.parent()].into_iter().flatten().map(|dir| dir.join("queue")).find(|dir| dir.is_dir())
}
