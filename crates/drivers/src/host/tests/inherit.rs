//! Files and locks that a process inherits. One process plays both: it drops its devices between the two roles.

use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::inherit::duplicates;
use super::*;
use crate::open_device;
use sheave_blk::claim::Sharing::{self, Alone, WithReaders};

/// Keeps the tests apart that end the inheritance of this process.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns what `open_now` returns, without the files of tests that run at the same time: duplicates would keep their
/// locks.
fn open_below(path: &Path) -> Vec<Inherited> {
    duplicates(|open| open.starts_with(path)).expect("duplicated")
}

fn kinds(all: &[Inherited]) -> Vec<InheritedKind> {
    all.iter().map(|one| one.kind).collect()
}

fn claimed(spec: &str, sharing: Sharing) -> (Device, Claim) {
    let device = open_device(spec).expect("a device");
    let claim = device.claim(sharing).expect("free");
    (device, claim)
}

#[track_caller]
fn refused(spec: &str, sharing: Sharing) {
    match open_device(spec).expect("a device").claim(sharing) {
        Err(DeviceError::Claimed { .. }) => {}
        other => panic!("{other:?}"),
    }
}

fn first_byte(file: &HostFile) -> u8 {
    let mut byte = [0];
    file.file().read_exact_at(&mut byte, 0).expect("read");
    byte[0]
}

#[test]
fn an_inherited_lock_is_held_all_the_time() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let spec = format!("file:{},size=1M", dir.path().join("disk").display());
    let old = claimed(&spec, Alone);
    let passed = open_below(dir.path());
    let watch = open_below(dir.path());
    assert_eq!(kinds(&passed), [InheritedKind::File, InheritedKind::Lock]);
    drop(old);
    refused(&spec, Alone);
    inherit(passed);
    let new = claimed(&spec, Alone);
    assert_eq!(end_inheritance(), 0);
    // The old process ends.
    drop(watch);
    refused(&spec, WithReaders);
    assert_eq!(kinds(&open_below(dir.path())), [InheritedKind::File, InheritedKind::Lock], "it can be replaced, too");
    drop(new);
    drop(claimed(&spec, Alone));
    assert!(open_below(dir.path()).is_empty());
}

#[test]
fn what_nobody_takes_is_closed_at_the_end() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let spec = format!("file:{},size=1M", dir.path().join("disk").display());
    let old = claimed(&spec, Alone);
    inherit(open_below(dir.path()));
    drop(old);
    // Takes the file, and not the lock.
    drop(open_device(&spec).expect("a device"));
    assert_eq!(end_inheritance(), 1);
    drop(claimed(&spec, Alone));
}

#[test]
fn all_readers_are_inherited() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let spec = format!("file:{},size=1M", dir.path().join("disk").display());
    let old = [claimed(&spec, WithReaders), claimed(&spec, WithReaders)];
    inherit(open_below(dir.path()));
    drop(old);
    let new = [claimed(&spec, WithReaders), claimed(&spec, WithReaders)];
    assert_eq!(end_inheritance(), 0);
    refused(&spec, Alone);
    drop(new);
    drop(claimed(&spec, Alone));
}

#[test]
fn an_owner_may_become_a_reader_and_a_sole_reader_an_owner() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let spec = format!("file:{},size=1M", dir.path().join("disk").display());
    let old = claimed(&spec, Alone);
    inherit(open_below(dir.path()));
    drop(old);
    let reader = claimed(&spec, WithReaders);
    // Also without the locks for QEMU that only an owner has.
    let another = claimed(&spec, WithReaders);
    assert_eq!(end_inheritance(), 0);
    // While there is another reader, it cannot become an owner, and stays a reader in the process that is replaced.
    let kept = open_below(dir.path());
    inherit(open_below(dir.path()));
    drop((reader, another));
    refused(&spec, Alone);
    end_inheritance();
    let mut locks = kept.into_iter().filter(|one| one.kind == InheritedKind::Lock);
    let first = locks.next().expect("the one that was taken");
    drop(locks);
    refused(&spec, Alone);
    inherit(vec![first]);
    let owner = claimed(&spec, Alone);
    assert_eq!(end_inheritance(), 0);
    refused(&spec, WithReaders);
    drop(owner);
    drop(claimed(&spec, Alone));
}

#[test]
fn the_inherited_file_is_used_though_another_has_its_name() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; MIB as usize]).expect("written");
    let spec = format!("file:{}", path.display());
    let old = claimed(&spec, Alone);
    inherit(open_below(dir.path()));
    drop(old);
    fs::rename(&path, dir.path().join("moved")).expect("renamed");
    fs::write(&path, vec![9; 2 * MIB as usize]).expect("written");
    // The file was switched to direct I/O, which would refuse a read of one byte.
    let buffered = HostOpts { direct: Direct::Off, ..HostOpts::default() };
    let new = HostFile::open(&path, buffered).expect("opened");
    assert_eq!((first_byte(&new), new.size_bytes()), (7, MIB));
    assert_eq!(first_byte(&HostFile::open(&path, buffered).expect("opened")), 9, "it is taken once");
    let shared = HostShared::new(new);
    let held = super::super::claim::claim(&shared, Alone).expect("its own lock");
    assert_eq!(end_inheritance(), 0);
    refused(&format!("file:{}", dir.path().join("moved").display()), Alone);
    drop(held);
}

#[test]
fn an_inherited_file_is_used_without_its_path_and_none_is_made() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let old = HostFile::open(&path, sized(MIB)).expect("made");
    inherit(open_below(dir.path()));
    drop(old);
    fs::remove_file(&path).expect("removed");
    let new = HostFile::open(&path, sized(2 * MIB)).expect("opened");
    assert_eq!(new.current_size().expect("a size"), 2 * MIB);
    assert!(!path.exists());
    assert_eq!(end_inheritance(), 0);
}

#[test]
fn an_inherited_file_is_found_by_another_name_of_it() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let (path, link, other) = (dir.path().join("disk"), dir.path().join("link"), dir.path().join("other"));
    let old = HostFile::open(&path, sized(MIB)).expect("made");
    fs::write(&other, vec![9; MIB as usize]).expect("written");
    inherit(open_below(dir.path()));
    std::os::unix::fs::symlink(&other, &link).expect("linked");
    let by_link = HostFile::open(&link, HostOpts::default()).expect("opened");
    assert_ne!(by_link.identity(), old.identity(), "the link leads to another file");
    fs::remove_file(&link).and_then(|()| std::os::unix::fs::symlink("disk", &link)).expect("linked");
    let by_link = HostFile::open(&link, HostOpts::default()).expect("opened");
    assert_eq!(by_link.identity(), old.identity());
    assert_eq!(end_inheritance(), 0, "it was taken");
}

#[test]
fn an_inherited_file_must_permit_what_is_wanted() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; MIB as usize]).expect("written");
    let readonly = HostOpts { readonly: true, ..HostOpts::default() };
    let durable = HostOpts { sync: true, ..HostOpts::default() };
    let _old = [HostOpts::default(), readonly, durable].map(|opts| HostFile::open(&path, opts).expect("opened"));
    let flags = |file: &HostFile| rustix::fs::fcntl_getfl(file.file()).expect("flags");
    // The number of the inherited one, the options of the opening, and whether it is taken.
    for (inherited, wanted, is_taken) in [
        (1, HostOpts::default(), false),
        (1, durable, false),
        (1, readonly, true),
        (0, durable, false),
        (0, readonly, true),
        (2, readonly, true),
        (2, HostOpts::default(), true),
    ] {
        inherit(vec![open_below(dir.path()).swap_remove(inherited)]);
        let new = HostFile::open(&path, wanted).expect("opened");
        assert_eq!(end_inheritance(), usize::from(!is_taken), "{inherited} for {wanted:?}");
        assert!(wanted.readonly || flags(&new).contains(rustix::fs::OFlags::RDWR), "{inherited} for {wanted:?}");
    }
    // The one that fits best is taken.
    for opts in [readonly, durable, HostOpts::default()] {
        inherit(open_below(dir.path()));
        let new = HostFile::open(&path, opts).expect("opened");
        let has = (flags(&new) & rustix::fs::OFlags::RWMODE, flags(&new).contains(rustix::fs::OFlags::DSYNC));
        let mode = if opts.readonly { rustix::fs::OFlags::RDONLY } else { rustix::fs::OFlags::RDWR };
        assert_eq!(has, (mode, opts.sync));
        assert_eq!(end_inheritance(), 2);
    }
}

#[test]
fn a_block_device_stays_exclusive() {
    let _one = one_at_a_time();
    let dir = tempfile::tempdir().expect("a directory");
    let backing = dir.path().join("backing");
    File::create(&backing).expect("made").set_len(4 * MIB).expect("grown");
    let Some(node) = Loop::over(&backing) else { return };
    let open = |flags| File::options().read(true).write(true).custom_flags(flags).open(&node.0).expect("opened");
    let spec = format!("file:{}", node.0);
    let below = || [open_below(Path::new(&node.0)), open_below(dir.path())].into_iter().flatten().collect::<Vec<_>>();
    let is_exclusive = || File::options().read(true).custom_flags(libc::O_EXCL).open(&node.0).is_err();
    let passed = || {
        let device = open_passed(&spec, Passed { file: open(0), lock: open(libc::O_EXCL) }).expect("a device");
        let claim = device.claim(Alone).expect("free");
        (device, claim)
    };
    for old in [&|| claimed(&spec, Alone) as (Device, Claim), &passed as &dyn Fn() -> (Device, Claim)] {
        let old = old();
        let all = below();
        let number = |kind| all.iter().filter(|one| one.kind == kind).count();
        assert_eq!((number(InheritedKind::File), number(InheritedKind::Lock)), (1, 2), "{all:?}");
        assert_eq!(number(InheritedKind::Exclusive), 1, "{all:?}");
        inherit(all);
        drop(old);
        assert!(is_exclusive());
        let new = claimed(&spec, Alone);
        assert_eq!(end_inheritance(), 0);
        assert!(is_exclusive());
        // The device of the first round was passed to its process, or not; that of this one was inherited.
        inherit(below());
        drop(new);
        let newest = claimed(&spec, Alone);
        assert_eq!(end_inheritance(), 0);
        assert!(is_exclusive());
        drop(newest);
        assert!(!is_exclusive() && below().is_empty());
    }
}
