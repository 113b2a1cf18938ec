//! Locking, replacement and removal of output files.

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
    assert_eq!((fs::read(&path).expect("read"), names(dir.path())), (b"another".to_vec(), vec!["image".to_owned()]));
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
