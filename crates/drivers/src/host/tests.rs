//! Opening and probing real files, a loop device where one can be had, and the text of each error.

mod claim;
mod data;
mod ending;
mod engines;
mod inherit;
mod rig;
mod trouble;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use sheave_base::status::Errno;

use super::*;

const MIB: u64 = 1 << 20;

fn sized(size: u64) -> HostOpts {
    HostOpts { size: Some(size), ..HostOpts::default() }
}

fn error_of(path: impl AsRef<Path>, opts: HostOpts) -> (HostErrorKind, String) {
    let error = HostFile::open(path, opts).expect_err("an error");
    (error.kind(), error.to_string())
}

#[track_caller]
fn expect_error(path: impl AsRef<Path>, opts: HostOpts, kind: HostErrorKind, words: &str) {
    let path = path.as_ref();
    let (got, text) = error_of(path, opts);
    assert_eq!(got, kind, "{text}");
    assert!(text.contains(words), "no \"{words}\" in: {text}");
    assert!(text.starts_with(&path.display().to_string()) && text.contains("; "), "path: cause; fix in: {text}");
}

#[test]
fn a_missing_file_is_made_sparse_and_of_the_size() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let host = HostFile::open(&path, sized(64 * MIB)).expect("opened");
    assert_eq!((host.size_bytes(), host.current_size().expect("a size")), (64 * MIB, 64 * MIB));
    assert_eq!((host.path(), host.is_readonly(), host.caps().kind), (path.as_path(), false, FileKind::Regular));
    let on_disk = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).expect("metadata"));
    assert!(on_disk < 64, "{on_disk} blocks");
}

#[test]
fn what_is_there_stays_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; MIB as usize]).expect("written");
    let host = HostFile::open(&path, HostOpts::default()).expect("opened");
    assert_eq!(host.size_bytes(), MIB);
    let host = HostFile::open(&path, sized(MIB / 2)).expect("opened");
    assert_eq!((host.size_bytes(), host.current_size().expect("a size")), (MIB / 2, MIB));
    assert!(host.notices()[0].contains("only the first 524288 of its 1048576 bytes"), "{:?}", host.notices());
    let host = HostFile::open(&path, sized(2 * MIB)).expect("opened");
    assert_eq!((host.size_bytes(), host.current_size().expect("a size")), (2 * MIB, 2 * MIB));
    let bytes = fs::read(&path).expect("read");
    assert!(bytes[..MIB as usize].iter().all(|b| *b == 7) && bytes[MIB as usize..].iter().all(|b| *b == 0));
}

#[test]
fn the_size_now_shows_a_file_that_was_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let host = HostFile::open(&path, sized(MIB)).expect("opened");
    File::options().write(true).open(&path).expect("opened").set_len(4096).expect("cut");
    assert_eq!((host.size_bytes(), host.current_size().expect("a size")), (MIB, 4096));
}

#[test]
fn capabilities_are_sane_whatever_the_file_system() {
    let mut dirs = vec![tempfile::tempdir().expect("a directory")];
    dirs.extend(tempfile::tempdir_in("/dev/shm").ok());
    dirs.extend(tempfile::tempdir_in("/var/tmp").ok());
    for dir in dirs {
        for direct in [Direct::Auto, Direct::Off] {
            let host = HostFile::open(dir.path().join("disk"), HostOpts { direct, ..sized(MIB) }).expect("opened");
            let caps = *host.caps();
            assert!(caps.logical_block.is_power_of_two() && (512..=4096).contains(&caps.logical_block), "{caps:?}");
            assert!(caps.physical_block.is_power_of_two() && caps.physical_block >= caps.logical_block, "{caps:?}");
            assert!(caps.dma_alignment.is_power_of_two() && caps.dma_alignment <= 4096, "{caps:?}");
            assert!(caps.volatile_cache, "a file is durable after an fsync only: {caps:?}");
            assert!(
                host.is_direct() || (!caps.iopoll && caps.dma_alignment == 1 && caps.atomic_write == 0),
                "{caps:?}"
            );
            assert_eq!(host.notices().len(), usize::from(direct == Direct::Auto && !host.is_direct()));
            // I/O with the reported alignment must work: one block is written and read back.
            let block = caps.logical_block as usize;
            let mut memory = vec![0u8; 2 * block + 8192];
            let start = memory.as_ptr().align_offset(caps.dma_alignment.max(1) as usize);
            let memory = &mut memory[start..start + block];
            memory.fill(0x5a);
            let file = File::from(rustix::io::dup(&host).expect("a descriptor"));
            file.write_all_at(memory, block as u64).expect("written");
            memory.fill(0);
            file.read_exact_at(memory, block as u64).expect("read");
            assert!(memory.iter().all(|b| *b == 0x5a));
        }
    }
}

#[test]
fn probing_leaves_data_and_size_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    fs::write(&path, vec![3; 8192]).expect("written");
    for readonly in [false, true] {
        let host = HostFile::open(&path, HostOpts { readonly, ..HostOpts::default() }).expect("opened");
        assert!(!(readonly && (host.caps().discard || host.caps().zero_range)));
        assert_eq!(fs::read(&path).expect("read"), vec![3; 8192]);
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "no probe file is left over");
}

#[test]
fn sync_writes_need_no_flush() {
    let dir = tempfile::tempdir().expect("a directory");
    let host = HostFile::open(dir.path().join("disk"), HostOpts { sync: true, ..sized(MIB) }).expect("opened");
    assert!(!host.caps().volatile_cache);
    let flags = rustix::fs::fcntl_getfl(&host).expect("flags").bits().cast_signed();
    assert!(flags & libc::O_DSYNC != 0 && (flags & libc::O_DIRECT != 0) == host.is_direct(), "{flags:o}");
}

#[test]
fn direct_io_that_was_demanded_is_had_or_refused() {
    // Some kernels have direct I/O on tmpfs, others do not.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let opts = HostOpts { direct: Direct::On, ..sized(MIB) };
    match HostFile::open(dir.path().join("disk"), opts) {
        Ok(host) => assert!(host.is_direct() && host.notices().is_empty()),
        Err(error) => {
            assert_eq!(error.kind(), HostErrorKind::NoDirect, "{error}");
            assert!(error.to_string().contains("direct=off"), "{error}");
            assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0, "what was made is removed again");
        }
    }
}

#[test]
fn without_direct_io_a_wish_becomes_one_notice_and_a_demand_an_error() {
    // A file that has a size of whole blocks, on a file system that never has direct I/O.
    let path = "/sys/devices/system/cpu/online";
    if !fs::metadata(path).is_ok_and(|meta| meta.len() == 4096) {
        eprintln!("SKIPPED: no {path} of 4096 bytes");
        return;
    }
    let readonly = HostOpts { readonly: true, ..HostOpts::default() };
    let host = HostFile::open(path, readonly).expect("opened");
    assert!(!host.is_direct() && host.notices().len() == 1, "{:?}", host.notices());
    assert!(host.notices()[0].contains("page cache") && host.notices()[0].contains("O_DIRECT"));
    expect_error(path, HostOpts { direct: Direct::On, ..readonly }, HostErrorKind::NoDirect, "direct=off");
    let host = HostFile::open(path, HostOpts { direct: Direct::Off, ..readonly }).expect("opened");
    assert!(!host.is_direct() && host.notices().is_empty());
}

#[test]
fn each_wrong_path_says_what_is_wrong_and_what_to_do() {
    use HostErrorKind as K;
    let dir = tempfile::tempdir().expect("a directory");
    let (plain, readonly) = (HostOpts::default(), HostOpts { readonly: true, ..HostOpts::default() });
    let missing = dir.path().join("missing");
    expect_error(&missing, plain, K::NotFound, "give a size (size=1G)");
    expect_error(&missing, HostOpts { readonly: true, ..sized(MIB) }, K::NotFound, "No such file");
    expect_error(missing.join("disk"), sized(MIB), K::NotFound, "directory it shall be made in");
    expect_error("", plain, K::NotFound, "check the path");
    expect_error(dir.path(), plain, K::WrongType, "a directory");
    expect_error("/dev/null", plain, K::WrongType, "a character device");
    expect_error("/proc/self/mem", readonly, K::BadSize, "is empty");
    expect_error(missing.with_file_name("n".repeat(300)), sized(MIB), K::NotFound, "too long");
    let empty = dir.path().join("empty");
    File::create(&empty).expect("made");
    expect_error(&empty, plain, K::BadSize, "give a size");
    expect_error(&empty, sized(0), K::BadSize, "size=0");
    expect_error(&empty, sized(1000), K::BadSize, "not a multiple of 512");
    expect_error(&empty, sized(u64::MAX - 511), K::Other, "grow");
    expect_error(&empty, sized(1 << 62), K::BadSize, "no files that large");
    expect_error(empty.join("disk"), sized(MIB), K::NotFound, "not a directory");
    assert_eq!(fs::metadata(&empty).expect("metadata").len(), 0);
    let odd = dir.path().join("odd");
    File::create(&odd).expect("made").write_all(&[1; 1000]).expect("written");
    expect_error(&odd, plain, K::BadSize, "1000 bytes are not a multiple of 512");
    expect_error(&odd, HostOpts { size: Some(MIB), ..readonly }, K::BadSize, "opened read-only");
    let circle = dir.path().join("circle");
    std::os::unix::fs::symlink(&circle, &circle).expect("linked");
    expect_error(&circle, plain, K::NotFound, "circle");
    let dangling = dir.path().join("dangling");
    std::os::unix::fs::symlink("nowhere", &dangling).expect("linked");
    expect_error(&dangling, sized(MIB), K::NotFound, "symbolic link to something that is not there");
    expect_error(&dangling, plain, K::NotFound, "remove the link");
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|s| s.success()));
    expect_error(&pipe, plain, K::WrongType, "a named pipe");
}

#[test]
fn a_file_one_may_not_write_names_the_permission() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    fs::write(&path, vec![0; 4096]).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("changed");
    if rustix::process::geteuid().is_root() {
        assert!(HostFile::open(&path, HostOpts::default()).is_ok(), "root may");
    } else {
        expect_error(&path, HostOpts::default(), HostErrorKind::Permission, "open it read-only");
    }
    let host = HostFile::open(&path, HostOpts { readonly: true, ..HostOpts::default() }).expect("opened");
    assert!(host.is_readonly());
}

#[test]
fn what_the_system_says_becomes_words() {
    use HostErrorKind as K;
    let cases = [
        (libc::EACCES, K::Permission, "owner or mode"),
        (libc::EPERM, K::Permission, "lsattr"),
        (libc::EROFS, K::ReadOnly, "remount"),
        (libc::EBUSY, K::Busy, "lsblk"),
        (libc::ETXTBSY, K::Busy, "running"),
        (libc::ENOSPC, K::NoSpace, "full"),
        (libc::EDQUOT, K::NoSpace, "quota"),
        (libc::EFBIG, K::BadSize, "XFS"),
        (libc::ENXIO, K::NotFound, "gone"),
        (libc::EMFILE, K::Other, "ulimit -n"),
        (libc::EIO, K::Other, "dmesg"),
        (12345, K::Other, "dmesg"),
    ];
    for (errno, kind, words) in cases {
        let error = HostError::from_io(Path::new("/p"), "open", &std::io::Error::from_raw_os_error(errno));
        assert_eq!((error.kind(), error.errno(), error.path()), (kind, Some(Errno(errno)), Path::new("/p")));
        let text = error.to_string();
        assert!(text.starts_with("/p: cannot open it: ") && text.contains(words), "{text}");
    }
}

#[test]
fn a_file_promised_more_than_there_is_free_gets_a_notice() {
    let dir = tempfile::tempdir().expect("a directory");
    // 8 TiB: sparse, below the limit of ext4 (16 TiB), above what a test machine has free.
    match HostFile::open(dir.path().join("disk"), sized(8 << 40)) {
        Ok(host) => assert!(host.notices().iter().any(|n| n.contains("bytes free")), "{:?}", host.notices()),
        Err(error) => assert_eq!(error.kind(), HostErrorKind::BadSize, "{error}"),
    }
}

/// A loop device over a file, detached when dropped.
struct Loop(String);

impl Loop {
    fn over(path: &Path) -> Option<Loop> {
        Loop::with_blocks(path, 512)
    }

    /// Makes a loop device with logical blocks of this many bytes.
    fn with_blocks(path: &Path, block: u32) -> Option<Loop> {
        Loop::with(path, &["--sector-size", &block.to_string()])
    }

    fn with(path: &Path, options: &[&str]) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show"]).args(options).arg(path).output().ok()?;
        if !output.status.success() {
            eprintln!("SKIPPED: no loop device: {}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Some(Loop(String::from_utf8(output.stdout).ok()?.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_tells_its_size_and_shrinks_under_us() {
    let dir = tempfile::tempdir().expect("a directory");
    let backing = dir.path().join("backing");
    File::create(&backing).expect("made").set_len(8 * MIB).expect("grown");
    let Some(device) = Loop::over(&backing) else { return };
    let host = HostFile::open(&device.0, HostOpts::default()).expect("opened");
    assert_eq!((host.caps().kind, host.size_bytes()), (FileKind::Block, 8 * MIB));
    assert!(host.is_direct(), "{:?}", host.notices());
    expect_error(&device.0, sized(16 * MIB), HostErrorKind::BadSize, "more than the 8388608 bytes");
    let part = HostFile::open(&device.0, sized(4 * MIB)).expect("opened");
    assert_eq!((part.size_bytes(), part.notices().len()), (4 * MIB, 1));
    File::options().write(true).open(&backing).expect("opened").set_len(2 * MIB).expect("cut");
    let told = Command::new("losetup").args(["--set-capacity", &device.0]).status();
    assert!(told.is_ok_and(|s| s.success()));
    assert_eq!((host.size_bytes(), host.current_size().expect("a size")), (8 * MIB, 2 * MIB));
}

#[test]
fn the_end_of_a_block_device_that_is_no_whole_block_is_left_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let backing = dir.path().join("backing");
    File::create(&backing).expect("made").set_len(8 * MIB + 1536).expect("grown");
    let Some(device) = Loop::with_blocks(&backing, 4096) else { return };
    let host = HostFile::open(&device.0, HostOpts::default()).expect("opened");
    if host.current_size().expect("a size") == 8 * MIB {
        sheave_testkit::skip("this kernel cuts the end off itself");
        return;
    }
    assert_eq!((host.size_bytes(), host.is_direct()), (8 * MIB, true), "{:?}", host.notices());
    assert!(matches!(host.notices(), [one] if one.contains("last 1536 bytes")), "{:?}", host.notices());
    crate::open_device(&format!("file:{}", device.0)).expect("nobody gave a size that could be wrong");
}

#[test]
fn a_mounted_device_is_refused_for_writing() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let device = mounts.lines().filter_map(|line| line.split(' ').next()).find(|d| d.starts_with("/dev/"));
    let Some(device) = device.filter(|d| File::open(d).is_ok()) else {
        eprintln!("SKIPPED: no mounted block device that may be opened");
        return;
    };
    expect_error(device, HostOpts::default(), HostErrorKind::Busy, "unmount");
    let host = HostFile::open(device, HostOpts { readonly: true, ..HostOpts::default() }).expect("opened");
    assert!(host.size_bytes() > 0 && host.caps().kind == FileKind::Block);
}
