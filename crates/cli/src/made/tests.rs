//! Files that are removed, and files of others that are not.

use super::*;

fn place(dir: &Path) -> PoolPlace {
    dir.join("p.img").to_str().expect("a path").parse().expect("a place")
}

fn begin(place: &PoolPlace, sized: bool) -> Made {
    Made::begin(place, sized).expect("its name is durable")
}

#[test]
fn only_a_file_that_was_made_here_and_that_nobody_has_goes_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (place, path) = (place(dir.path()), dir.path().join("p.img"));
    drop(begin(&place, false));
    assert!(!path.exists(), "without a size none is made");
    drop(begin(&place, true));
    assert!(!path.exists(), "what it was for did not come to be");
    begin(&place, true).keep();
    assert!(path.exists());
    drop(begin(&place, true));
    assert!(path.exists(), "it was there before");

    // Another process locked it, replaced it, or made a pool of it.
    fs::remove_file(&path).expect("removed");
    let made = begin(&place, true);
    let other = File::open(&path).expect("opened");
    flock(&other, FlockOperation::NonBlockingLockExclusive).expect("locked");
    drop((made, other));
    assert!(path.exists());
    fs::remove_file(&path).expect("removed");
    let made = begin(&place, true);
    fs::write(dir.path().join("new"), b"new").expect("written");
    fs::rename(dir.path().join("new"), &path).expect("renamed");
    drop(made);
    assert_eq!(fs::read(&path).expect("read"), b"new");
    fs::remove_file(&path).expect("removed");
    let made = begin(&place, true);
    let device = sheave::open_device(&format!("file:{},size=16M", path.display())).expect("a device");
    sheave_vol::Pool::create(&device, &Default::default()).expect("a pool");
    drop((made, device));
    assert!(path.exists());
}
