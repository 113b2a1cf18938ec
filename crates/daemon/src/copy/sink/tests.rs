//! Files that two copies want, and which of them removes one.

use std::fs;

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
    // One that was there before stays, too.
    drop(open(&path).expect("opened"));
    assert!(path.exists());
}

/// Nobody would find what is written to it.
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
