//! The lock on real files and a loop device, held by this process and by another.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use super::super::claim::lock_one;
use super::super::holder::look_for_holder;
use super::super::overlap::{Found, Node, Way};
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
    // The claim ends while the device and its file stay open.
    drop(held);
    let reader = second.claim(Sharing::WithReaders).expect("free");
    first.claim(Sharing::WithReaders).expect("readers share");
    refusal(&first, Sharing::Alone);
    drop(reader);
    first.claim(Sharing::Alone).expect("free");
}

/// A pool holds its claim to its end, even after the device that it was opened with was dropped.
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
    // The lock was taken by a child of the shell, so the error may name any process, or report that it cannot be seen.
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

/// An owner of each of two overlapping devices excludes owners and readers of the other one.
#[track_caller]
fn exclude_each_other(one: &Device, other: &Device) {
    for (first, second) in [(one, other), (other, one)] {
        let held = first.claim(Sharing::Alone).expect("free");
        for sharing in [Sharing::Alone, Sharing::WithReaders] {
            let (_, who, _) = refusal(second, sharing);
            assert!(who.contains(&std::process::id().to_string()), "{who}");
        }
        drop(held);
        let reader = first.claim(Sharing::WithReaders).expect("free");
        second.claim(Sharing::WithReaders).expect("readers share");
        refusal(second, Sharing::Alone);
        drop(reader);
    }
    one.claim(Sharing::Alone).expect("all is let go");
}

/// V20, also through another way to the same bytes.
#[test]
fn a_loop_device_and_its_backing_file_have_one_owner() {
    let dir = tempfile::tempdir().expect("a directory");
    let backing = dir.path().join("backing");
    File::create(&backing).expect("made").set_len(4 * MIB).expect("grown");
    let Some(node) = Loop::over(&backing) else { return };
    let Some(second) = Loop::over(&backing) else { return };
    let Some(nested) = Loop::over(Path::new(&node.0)) else { return };
    let link = dir.path().join("link");
    fs::hard_link(&backing, &link).expect("linked");
    let paths = [backing.as_path(), Path::new(&node.0), Path::new(&second.0), Path::new(&nested.0), &link];
    let devices = paths.map(|path| open(&format!("file:{}", path.display())));
    let [file, on_loop, on_second, on_nested, by_link] = &devices;
    for (one, other) in [
        (file, on_loop),
        (on_loop, on_second),
        (file, on_nested),
        (on_loop, on_nested),
        (on_second, on_nested),
        (by_link, on_second),
    ] {
        exclude_each_other(one, other);
    }
    // A loop device that is mounted, or held like one.
    let exclusive = File::options().read(true).custom_flags(libc::O_EXCL).open(&second.0).expect("free");
    let (_, who, _) = refusal(file, Sharing::Alone);
    assert!(who.contains(&second.0) && who.contains("mounted"), "{who}");
    refusal(on_loop, Sharing::Alone);
    file.claim(Sharing::WithReaders).expect("a reader does not mind");
    drop(exclusive);
    // A loop device that is set up while the file is open.
    let held = file.claim(Sharing::Alone).expect("free");
    let late = Loop::over(&backing).expect("one more");
    refusal(&open(&format!("file:{}", late.0)), Sharing::Alone);
    drop((held, devices));
}

#[test]
fn each_kind_of_overlap_is_locked_as_strictly_as_it_must() {
    let dir = tempfile::tempdir().expect("a directory");
    let shared = HostShared::new(HostFile::open(dir.path().join("own"), sized(MIB)).expect("opened"));
    let path = dir.path().join("other");
    File::create(&path).expect("made");
    let node = Node::of(&fs::metadata(&path).expect("there"));
    let found = |way| Found { node, way, path: path.clone(), is_needed: true, can_be_exclusive: false };
    let lock = |way, sharing| lock_one(&shared, sharing, &found(way));
    let part = lock(Way::Below, Sharing::Alone).expect("free");
    let neighbour = lock(Way::Below, Sharing::Alone).expect("another part has another owner");
    for whole in [Way::Same, Way::Above] {
        let (who, error) = match lock(whole, Sharing::Alone) {
            Err(DeviceError::Claimed { what, who, .. }) => (who, what),
            other => panic!("{other:?}"),
        };
        assert!(who.contains("other") && error.contains("own"), "{who} {error}");
    }
    drop((part, neighbour));
    let whole = lock(Way::Same, Sharing::WithReaders).expect("free");
    lock(Way::Above, Sharing::WithReaders).expect("readers share");
    lock(Way::Above, Sharing::Alone).expect_err("it is read");
    drop(whole);
    let whole = lock(Way::Above, Sharing::Alone).expect("free");
    lock(Way::Below, Sharing::WithReaders).expect_err("it is written");
    drop(whole);
    // Another file takes the name.
    File::create(dir.path().join("new")).and_then(|_| fs::rename(dir.path().join("new"), &path)).expect("renamed");
    let error = lock(Way::Same, Sharing::Alone).expect_err("nobody can tell who uses the first").to_string();
    assert!(error.contains("cannot be opened") && error.contains("by now"), "{error}");
    lock(Way::Same, Sharing::WithReaders).expect("it changes nothing");
    assert!(shared.notices().iter().any(|notice| notice.contains("cannot be locked")), "{:?}", shared.notices());
    let unneeded = Found { is_needed: false, ..found(Way::Below) };
    assert!(lock_one(&shared, Sharing::Alone, &unneeded).expect("the kernel keeps them apart").is_empty());
}

/// QEMU and this process each refuse an image that the other one has, in both orders; readers share it.
#[test]
fn qemu_and_an_owner_keep_each_other_away() {
    let Some(qemu) = sheave_testkit::require("qemu-io") else { return };
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = dir.path().join("image");
    let device = open(&format!("file:{},size=1M", path.display()));
    let run = |readonly: bool| {
        let mut command = Command::new(&qemu);
        command.args(["-f", "raw"]).args(readonly.then_some("-r")).args(["-c", "read 0 512"]).arg(&path);
        command.output().expect("it runs").status.success()
    };
    assert!(run(false), "free");
    let held = device.claim(Sharing::Alone).expect("free");
    assert!(!run(false) && !run(true), "QEMU opens what has an owner");
    drop(held);
    let held = device.claim(Sharing::WithReaders).expect("free");
    assert!(run(true) && !run(false), "QEMU may read beside a reader, and not write");
    drop(held);
    assert!(run(false), "let go");
    // QEMU reads a block, which shows that it has the image open, and keeps it open until its input ends.
    let mut command = Command::new(&qemu);
    command.args(["-f", "raw"]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = command.spawn().expect("it runs");
    running.stdin.as_mut().expect("piped").write_all(b"read 0 512\n").expect("written");
    let mut line = String::new();
    BufReader::new(running.stdout.take().expect("piped")).read_line(&mut line).expect("it has it open");
    let refused = [Sharing::Alone, Sharing::WithReaders].map(|sharing| device.claim(sharing).err());
    drop(running.stdin.take());
    running.wait().expect("it ended");
    for error in refused {
        let error = error.expect("QEMU has it open").to_string();
        assert!(error.contains("QEMU"), "{error}");
    }
    device.claim(Sharing::Alone).expect("QEMU has ended");
}

#[test]
fn partitions_have_owners_each_and_the_disk_under_them_has_none_beside() {
    let dir = tempfile::tempdir().expect("a directory");
    let backing = dir.path().join("backing");
    let file = File::create(&backing).expect("made");
    file.set_len(4 * MIB).expect("grown");
    // A table of two partitions of a MiB each.
    for (at, start) in [(446, 2048u32), (462, 4096)] {
        let mut entry = [0; 16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&2048u32.to_le_bytes());
        file.write_all_at(&entry, at).expect("written");
    }
    file.write_all_at(&[0x55, 0xaa], 510).expect("written");
    let Some(node) = Loop::with(&backing, &["--partscan"]) else { return };
    let parts = [1, 2].map(|number| format!("{}p{number}", node.0));
    if !parts.iter().all(|part| fs::metadata(part).is_ok()) {
        sheave_testkit::skip(&format!("no nodes of partitions in /dev: {parts:?}"));
        return;
    }
    let [first, second] = parts.map(|part| open(&format!("file:{part}")));
    let [disk, file] = [Path::new(&node.0), &backing].map(|path| open(&format!("file:{}", path.display())));
    exclude_each_other(&file, &first);
    let held = (first.claim(Sharing::Alone).expect("free"), second.claim(Sharing::Alone).expect("beside it"));
    refusal(&disk, Sharing::WithReaders);
    refusal(&file, Sharing::WithReaders);
    drop(held);
    let held = disk.claim(Sharing::Alone).expect("free");
    refusal(&second, Sharing::WithReaders);
    drop((held, file));
}

#[test]
fn the_backing_file_that_nobody_can_name_keeps_owners_away_and_is_told_to_readers() {
    let dir = tempfile::tempdir().expect("a directory");
    let (backing, hidden) = (dir.path().join("backing"), dir.path().join("hidden"));
    File::create(&backing).expect("made").set_len(4 * MIB).expect("grown");
    let Some(node) = Loop::over(&backing) else { return };
    // Makes the path of the loop device lead to another file. By a mount, because the kernel follows a renamed file.
    File::create(&hidden).expect("made").set_len(4 * MIB).expect("grown");
    let mounted = Command::new("mount").arg("--bind").arg(&hidden).arg(&backing).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no mount here");
        return;
    }
    let device = open(&format!("file:{}", node.0));
    let (owner, reader) = (device.claim(Sharing::Alone), device.claim(Sharing::WithReaders));
    let _ = Command::new("umount").arg(&backing).status();
    let owner = owner.expect_err("nobody can tell").to_string();
    assert!(owner.contains(&*backing.to_string_lossy()) && owner.contains("Detach"), "{owner}");
    reader.expect("it changes nothing");
    let notices = device.notices();
    assert!(notices.iter().any(|notice| notice.contains("cannot be locked")), "{notices:?}");
    device.claim(Sharing::Alone).expect("it can be seen again");
}
