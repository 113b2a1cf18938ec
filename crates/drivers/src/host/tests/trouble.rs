//! Files that misbehave: full, truncated, read-only, silent, short; and specs that are wrong.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::rig::{Rig, memory, vec_of};
use super::*;
use crate::open_device;
use crate::support::vec_at;
use sheave_base::status::Status;
use sheave_blk::bio::Op;
use sheave_blk::device::Device;

/// Makes a device of a pipe, whose reads wait until something is written. The second value is the writer's end.
pub(super) fn silent(dir: &Path, timeout: Duration, depth: u16) -> (Device, File) {
    silent_by(None, dir, timeout, depth)
}

/// Like [`silent`], with a given engine.
pub(super) fn silent_by(
    engine: impl Into<Option<Engine>>,
    dir: &Path,
    timeout: Duration,
    depth: u16,
) -> (Device, File) {
    let path = dir.join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().is_ok_and(|s| s.success()));
    // Both ends are opened without waiting for each other.
    let open = |flags| File::from(rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty()).expect("opened"));
    let (reader, writer) = (open(OFlags::RDONLY | OFlags::NONBLOCK), open(OFlags::WRONLY));
    let flags = rustix::fs::fcntl_getfl(&reader).expect("flags");
    rustix::fs::fcntl_setfl(&reader, flags - OFlags::NONBLOCK).expect("set");
    let host = Host { engine: engine.into(), ..Host::new(HostFile::pretend(reader, &path, MIB), depth) };
    (Device::with_timeout("pipe", Box::new(host), timeout), writer)
}

#[test]
fn a_full_file_system_is_no_space_and_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = dir.path().to_str().expect("a path");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none", target]).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: a small tmpfs cannot be mounted here (root can)");
        return;
    }
    for direct in ["on", "off"] {
        let spec = format!("file:{target}/disk-{direct},size=8M,direct={direct}");
        let Ok(device) = open_device(&spec) else { continue };
        let Some((mut rig, bdev)) = Rig::over(&device) else { break };
        let mut data = memory(2 << 20, 1);
        assert_eq!(rig.run(bdev, Op::Write, 0, 0, &mut data), Status::NoSpc);
        assert!(
            device.notices().iter().any(|n| n.contains("full") && n.contains("free some")),
            "{:?}",
            device.notices()
        );
        // Blocks that have space can still be written, and the file is as large as before.
        assert_eq!(rig.run(bdev, Op::Write, 0, 0, &mut data[..4096]), Status::Ok);
        assert_eq!(device.size_bytes(), 8 << 20);
        fs::remove_file(format!("{target}/disk-{direct}")).expect("removed");
    }
    assert!(Command::new("umount").arg(target).status().is_ok_and(|s| s.success()));
}

#[test]
fn a_file_cut_under_us_ends_reads_beyond_it_and_tells_the_size() {
    for (base, direct) in [("/var/tmp", "auto"), ("/dev/shm", "auto"), ("/var/tmp", "off")] {
        let Ok(dir) = tempfile::tempdir_in(base) else { continue };
        let path = dir.path().join("disk");
        let device = open_device(&format!("file:{},size=1M,direct={direct}", path.display())).expect("a device");
        let Some((mut rig, bdev)) = Rig::over(&device) else { return };
        let mut data = memory(16384, 9);
        assert_eq!(rig.run(bdev, Op::Write, 0, 64 << 10, &mut data), Status::Ok);
        File::options().write(true).open(&path).expect("opened").set_len(72 << 10).expect("cut");
        // Half of the range exists. The driver reads the rest again, and finds the end of the file.
        let before = device.notices().len();
        assert_eq!(rig.run(bdev, Op::Read, 0, 64 << 10, &mut data), Status::IoErr);
        assert_eq!(device.size_bytes(), 72 << 10);
        let notices = device.notices();
        assert!(notices.len() == before + 1 && notices[before].contains("shrank to 73728"), "{notices:?}");
        assert_eq!(rig.run(bdev, Op::Read, 0, 64 << 10, &mut data[..8192]), Status::Ok);
        // Later I/O beyond the end is refused by the queue.
        assert_eq!(rig.run(bdev, Op::Read, 0, 72 << 10, &mut data[..4096]), Status::IoErr);
        assert_eq!(device.notices().len(), before + 1);
    }
}

#[test]
fn no_flush_of_a_file_that_was_cut_ends_well_any_more() {
    for (base, direct) in [("/var/tmp", "auto"), ("/dev/shm", "auto"), ("/var/tmp", "off")] {
        let Ok(dir) = tempfile::tempdir_in(base) else { continue };
        let path = dir.path().join("disk");
        let device = open_device(&format!("file:{},size=1M,direct={direct}", path.display())).expect("a device");
        let Some((mut rig, bdev)) = Rig::over(&device) else { return };
        let mut data = memory(16384, 9);
        assert_eq!(rig.run(bdev, Op::Write, 0, 64 << 10, &mut data), Status::Ok);
        assert_eq!(rig.run(bdev, Op::Flush, 0, 0, &mut []), Status::Ok);
        let file = File::options().write(true).open(&path).expect("opened");
        file.set_len(72 << 10).expect("cut");
        assert_eq!(rig.run(bdev, Op::Flush, 0, 0, &mut []), Status::IoErr, "nobody has read there");
        assert!(device.notices().iter().any(|notice| notice.contains("shrank to 73728")), "{:?}", device.notices());
        assert_eq!(rig.run(bdev, Op::Flush, 0, 0, &mut []), Status::IoErr);
        // Truncated data does not come back when the file grows again.
        file.set_len(1 << 20).expect("grown");
        assert_eq!(rig.run(bdev, Op::Flush, 0, 0, &mut []), Status::IoErr);
    }
}

#[test]
fn a_block_device_cut_under_us_tells_its_size() {
    let dir = tempfile::tempdir().expect("a directory");
    let backing = dir.path().join("backing");
    File::create(&backing).expect("made").set_len(8 * MIB).expect("grown");
    let Some(disk) = Loop::over(&backing) else { return };
    let device = open_device(&format!("file:{}", disk.0)).expect("a device");
    let Some((mut rig, bdev)) = Rig::over(&device) else { return };
    File::options().write(true).open(&backing).expect("opened").set_len(2 * MIB).expect("cut");
    assert!(Command::new("losetup").args(["--set-capacity", &disk.0]).status().is_ok_and(|s| s.success()));
    let mut data = memory(4096, 9);
    assert_eq!(rig.run(bdev, Op::Write, 0, 4 * MIB, &mut data), Status::NoSpc);
    assert_eq!(device.size_bytes(), 2 * MIB);
    assert!(device.notices().iter().any(|n| n.contains("shrank to 2097152")), "{:?}", device.notices());
}

#[test]
fn a_disk_of_large_blocks_has_them_through_the_page_cache_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let backing = dir.path().join("backing");
    fs::write(&backing, vec![7u8; 1 << 20]).expect("written");
    let Some(disk) = Loop::with_blocks(&backing, 4096) else { return };
    for direct in ["auto", "off"] {
        let device = open_device(&format!("file:{},direct={direct}", disk.0)).expect("a device");
        let block = device.limits().logical_block;
        assert_eq!(block, 4096, "direct={direct}");
        let Some((mut rig, bdev)) = Rig::over(&device) else { return };
        // The kernel refuses to zero a part of a block.
        if device.capabilities().write_zeroes {
            assert_eq!(rig.run_range(bdev, Op::WriteZeroes, 0, u64::from(block), block), Status::Ok);
            let mut data = memory(block as usize, 1);
            assert_eq!(rig.run(bdev, Op::Read, 0, u64::from(block), &mut data), Status::Ok);
            assert!(data.iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_read_only_file_is_read_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    fs::write(&path, vec![5u8; 8192]).expect("written");
    let device = open_device(&format!("file:{},readonly=on", path.display())).expect("a device");
    assert!(device.capabilities().read_only && !device.capabilities().discard);
    let Some((mut rig, bdev)) = Rig::over(&device) else { return };
    let mut data = memory(4096, 9);
    assert_eq!(rig.run(bdev, Op::Write, 0, 0, &mut data), Status::ReadOnly);
    assert_eq!(rig.run(bdev, Op::Flush, 0, 0, &mut []), Status::Ok);
    assert_eq!(rig.run_range(bdev, Op::WriteZeroes, 0, 0, 4096), Status::NotSupp);
    assert_eq!(rig.run(bdev, Op::Read, 0, 4096, &mut data), Status::Ok);
    assert!(data.iter().all(|byte| *byte == 5));
}

#[test]
fn each_wrong_spec_says_what_would_be_right() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let path = path.display();
    for (spec, words) in [
        ("file:".to_owned(), "no path"),
        (format!("file:{path}"), "give a size (size=1G)"),
        (format!("file:{path},size=1X"), "size=1X"),
        (format!("file:{path},size=1M,direct=maybe"), "on, off, auto"),
        (format!("file:{path},size=1M,readonly=yes"), "on, off"),
        (format!("file:{path},size=1M,depth=0"), "1 to 4096"),
        (format!("file:{path},size=1M,bs=1000"), "power of two"),
        (format!("file:{path},size=68k,bs=64k"), "multiple of the block size"),
        (format!("file:{path},size=1M,fast=on"), "key 'fast' is unknown"),
        (format!("file:{path}/deeper,size=1M"), "make it first"),
    ] {
        let error = open_device(&spec).expect_err(&spec).to_string();
        assert!(error.contains(words), "no \"{words}\" in: {error}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0, "nothing was made");
}

#[test]
fn a_block_size_larger_than_the_files_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let device = open_device(&format!("file:{},size=1M,bs=8k,depth=7", path.display())).expect("a device");
    let limits = device.limits();
    assert_eq!((limits.logical_block, limits.queue_depth), (8192, 7));
    assert!(limits.physical_block >= 8192);
}

#[test]
fn a_read_that_nobody_answers_times_out_once() {
    let dir = tempfile::tempdir().expect("a directory");
    // Long enough for the last read, which is answered, on a busy machine.
    let timeout = Duration::from_secs(2);
    let (device, writer) = silent(dir.path(), timeout, 8);
    let Some((mut rig, bdev)) = Rig::over(&device) else { return };
    let mut data = memory(3 * 4096, 0);
    let start = Instant::now();
    for block in data.chunks_mut(4096) {
        rig.submit(bdev, Op::Read, 0, 0, 4096, &[vec_of(block)]);
    }
    rig.drain();
    assert!(rig.ended.iter().all(|(_, status)| *status == Status::Timeout), "{:?}", rig.ended);
    assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
    // Later I/O works, and the cancelled reads have taken no bytes from the pipe.
    let mut writer = writer;
    writer.write_all(&[8; 4096]).expect("written");
    assert_eq!(rig.run(bdev, Op::Read, 0, 0, &mut data[..4096]), Status::Ok);
    assert!(data[..4096].iter().all(|byte| *byte == 8));
}

#[test]
fn short_reads_go_on_and_the_end_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let (device, mut writer) = silent(dir.path(), Duration::from_secs(20), 8);
    let Some((mut rig, bdev)) = Rig::over(&device) else { return };
    let mut data = memory(8 * 4096, 0);
    let feeder = thread::spawn(move || {
        for n in 0..16u8 {
            writer.write_all(&[n; 1024]).expect("written");
            thread::sleep(Duration::from_millis(2));
        }
        writer
    });
    // The pieces of memory do not end where the parts that the feeder writes do.
    let (a, b) = data.split_at_mut(5 * 512);
    let vecs = [vec_of(a), vec_of(&mut b[..16384 - 5 * 512])];
    let owner = rig.submit(bdev, Op::Read, 0, 0, 16384, &vecs);
    rig.drain();
    assert_eq!(rig.status_of(owner), Status::Ok);
    assert!(data[..16384].chunks(1024).enumerate().all(|(n, part)| part.iter().all(|byte| usize::from(*byte) == n)));
    drop(feeder.join().expect("fed"));
    assert_eq!(rig.run(bdev, Op::Read, 0, 0, &mut data[..4096]), Status::IoErr);
}

#[test]
fn a_flush_that_the_file_cannot_do_is_an_error_not_a_lie() {
    let dir = tempfile::tempdir().expect("a directory");
    let (device, _writer) = silent(dir.path(), Duration::from_secs(20), 8);
    let Some((mut rig, bdev)) = Rig::over(&device) else { return };
    assert_eq!(rig.run(bdev, Op::Flush, 0, 0, &mut []), Status::Invalid);
    let nowhere = vec_at(4096, 4096);
    let owner = rig.submit(bdev, Op::Read, 0, 0, 4096, &[nowhere]);
    // Written later, so that there is nothing to read when the read is sent.
    thread::scope(|scope| {
        let write = |writer: &File| {
            thread::sleep(Duration::from_millis(5));
            rustix::io::write(writer.as_fd(), &[1; 4096]).map(drop).expect("written");
        };
        scope.spawn(move || write(&_writer));
        rig.drain();
    });
    assert_eq!(rig.status_of(owner), Status::Invalid);
}
