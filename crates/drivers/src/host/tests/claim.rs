//! The lock on real files and a loop device, held by this process and by another.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use super::super::holder::look_for_holder;
use super::*;
use crate::open_device;
use sheave_blk::claim::Sharing;

fn open(spec: &str) -> Device {
    open_device(spec).expect("a device")
}

fn refusal(device: &Device, sharing: Sharing) -> (String, String, String) {
    match device.claim(sharing) {
        Err(DeviceError::Claimed { what, who, fix }) => (what, who, fix),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_opened_twice_has_one_owner() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = format!("file:{},size=1M", dir.path().join("a.img").display());
    let (first, second) = (open(&spec), open(&spec));
    let held = first.claim(Sharing::Alone).expect("free");
    let (what, who, _) = refusal(&second, Sharing::WithReaders);
    assert!(what.ends_with("a.img") && who.contains("this process"), "{what}: {who}");
    // The device, and with it its file, stays open; the claim ends.
    drop(held);
    let reader = second.claim(Sharing::WithReaders).expect("free");
    first.claim(Sharing::WithReaders).expect("readers share");
    refusal(&first, Sharing::Alone);
    drop(reader);
    first.claim(Sharing::Alone).expect("free");
}

/// A pool holds its claim to its end; what it opened the device for may be gone by then.
#[test]
fn a_claim_lasts_though_its_device_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = format!("file:{},size=1M", dir.path().join("a.img").display());
    let held = open(&spec).claim(Sharing::Alone).expect("free");
    let again = open(&spec);
    refusal(&again, Sharing::WithReaders);
    drop(held);
    again.claim(Sharing::Alone).expect("free");
}

#[test]
fn another_process_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.img");
    let device = open(&format!("file:{},size=1M", path.display()));
    // `exec` so that the process that has the lock is the one we started.
    let script = "exec 9<\"$0\" && flock -x 9 && echo locked && exec sleep 60 9<&9";
    let mut child = Command::new("sh").args(["-c", script]).arg(&path).stdout(Stdio::piped()).spawn().expect("sh");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("its word");
    let locked = line.trim() == "locked";
    let refused = locked.then(|| refusal(&device, Sharing::Alone));
    let _ = child.kill();
    child.wait().expect("it ended");
    let Some((_, who, fix)) = refused else {
        eprintln!("SKIPPED: no flock program here: install util-linux");
        return;
    };
    // The lock was taken by a child of the shell; what counts is that a process is named, or told to be out of sight.
    assert!(who.starts_with("process ") && who.ends_with("has it open"), "{who}");
    assert!(!fix.is_empty());
    device.claim(Sharing::Alone).expect("the lock went with its process");
}

#[test]
fn a_block_device_cannot_be_mounted_meanwhile() {
    let dir = tempfile::tempdir().expect("a directory");
    let backing = dir.path().join("backing");
    File::create(&backing).expect("made").set_len(4 * MIB).expect("grown");
    let Some(node) = Loop::over(&backing) else { return };
    let device = open(&format!("file:{}", node.0));
    let held = device.claim(Sharing::Alone).expect("free");
    let exclusive = || File::options().read(true).custom_flags(libc::O_EXCL).open(&node.0);
    assert_eq!(exclusive().expect_err("claimed").raw_os_error(), Some(libc::EBUSY));
    let error = HostFile::open(&node.0, HostOpts::default()).expect_err("claimed").to_string();
    assert!(error.contains(&format!("process {} (", std::process::id())), "{error}");
    drop(held);
    let mounted = exclusive().expect("free");
    let (_, who, fix) = refusal(&device, Sharing::Alone);
    assert!(who.contains("mounted") && fix.contains("lsblk"), "{who} {fix}");
    drop((mounted, device));
}

#[test]
fn the_list_of_locks_is_read() {
    let list = "1: POSIX  ADVISORY  WRITE 7 fe:00:11 0 EOF\n\
                2: FLOCK  ADVISORY  WRITE 8 00:2a:11 0 EOF\n\
                3: FLOCK  ADVISORY  WRITE 9 fe:00:11 0 EOF\n\
                3: -> FLOCK  ADVISORY  WRITE 10 fe:00:11 0 EOF\n\
                4: FLOCK  ADVISORY  WRITE 0 fe:00:12 0 EOF\ngarbage\n5: FLOCK\n";
    let find_holder = |dev, inode| look_for_holder(|| Some(list.to_owned()), dev, inode);
    assert_eq!(find_holder((0xfe, 0), 11), Some(9));
    assert_eq!(find_holder((1, 1), 11), Some(8), "the inode alone");
    assert_eq!(find_holder((0xfe, 0), 12), None, "no process");
    assert_eq!(find_holder((0xfe, 0), 13), None);
}

#[test]
fn a_lock_that_one_reading_of_the_list_lacks_is_found_by_the_next() {
    let mut readings = ["", "1: FLOCK ADVISORY WRITE 9 fe:00:17 0 EOF"].into_iter();
    assert_eq!(look_for_holder(|| readings.next().map(str::to_owned), (0xfe, 0), 17), Some(9));
    let mut looks = 0;
    assert_eq!(look_for_holder(|| Some(String::new()).inspect(|_| looks += 1), (0xfe, 0), 17), None);
    assert!((2..100).contains(&looks), "{looks}");
}
