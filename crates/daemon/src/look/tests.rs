//! A search reads only regular files and block devices, each once, and terminates.

use std::os::unix::net::UnixListener;
use std::process::Command;

use sheave_vol::{CreateOptions, Pool};

use super::*;

fn pool(path: &Path) {
    let device = sheave::open_device(&format!("file:{},size=16M", path.display())).expect("a device");
    Pool::create(&device, &CreateOptions::default()).expect("a pool");
}

fn within(directory: &Path) -> Sight {
    search(&BTreeSet::from([Source::Directory(directory.to_owned())]))
}

#[test]
fn nothing_but_files_is_opened_and_each_is_seen_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    pool(&at("pool.img"));
    std::os::unix::fs::symlink(at("pool.img"), at("a-link")).expect("a link");
    std::os::unix::fs::symlink(at("nowhere"), at("dangling")).expect("a link");
    std::os::unix::fs::symlink(at("loop"), at("loop")).expect("a link");
    // Opening a FIFO would block until it gets a writer.
    assert!(Command::new("mkfifo").arg(at("fifo")).status().expect("it runs").success());
    std::os::unix::fs::symlink(at("fifo"), at("link-to-fifo")).expect("a link");
    std::os::unix::fs::symlink("/dev/zero", at("link-to-zero")).expect("a link");
    let _socket = UnixListener::bind(at("socket")).expect("a socket");
    std::fs::create_dir(at("deeper")).expect("a directory");
    pool(&at("deeper/other.img"));
    std::fs::write(at("short"), b"SHVE").expect("written");
    std::fs::write(at("blank"), vec![0; 1 << 20]).expect("written");
    let sight = within(dir.path());
    assert_eq!(sight.seen.len(), 1, "{sight:?}");
    assert!(sight.seen[0].size_bytes == 16 << 20 && sight.seen[0].tag.number() == 0, "{sight:?}");
    assert!(sight.failed.is_empty(), "{sight:?}");
    let missing = within(&at("nowhere"));
    assert!(missing.seen.is_empty() && missing.failed[0].contains("cannot be read"), "{missing:?}");
}

/// The limit on a directory is reported, so that nobody takes a part of it for the whole.
#[test]
fn a_directory_of_more_files_than_are_read_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    for number in 0..MOST_FILES + 10 {
        File::create(dir.path().join(number.to_string())).expect("made");
    }
    let sight = within(dir.path());
    assert!(sight.failed.iter().any(|why| why.contains("has more files than were looked at")), "{sight:?}");
}

#[test]
fn a_loop_device_over_a_file_that_is_seen_is_not_another_candidate() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pool.img");
    pool(&path);
    let seen = seen_at(&path).expect("read").expect("a member");
    let over = |backing| Seen { path: "/dev/loop9".into(), node: (7 << 8 | 9, 0), backing, ..seen.clone() };
    let both = each_once(vec![over(Some(seen.node)), seen.clone()]);
    assert!(both.len() == 1 && both[0].path == path, "{both:?}");
    // The file under the loop device was not found (it may have been unlinked), so the device stays.
    assert_eq!(each_once(vec![over(Some((1, 1))), seen.clone()]).len(), 2);
    assert_eq!(each_once(vec![seen.clone(), Seen { path: "/other/name".into(), ..seen }]).len(), 1);
}

/// A disk that does not respond delays neither the search of other places nor its end.
#[test]
fn what_hangs_is_told_and_not_waited_for() {
    fn hang(source: Source, over: &AtomicBool) -> Done {
        match &source {
            Source::File(path) if path.starts_with("/hangs") => loop {
                std::thread::park();
            },
            _ => look(source, over),
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    pool(&dir.path().join("pool.img"));
    // All threads but one hang; the last one does the rest.
    let mut sources: BTreeSet<Source> =
        (1..THREADS).map(|number| Source::File(format!("/hangs/{number}").into())).collect();
    sources.insert(Source::Directory(dir.path().into()));
    let begun = Instant::now();
    let sight = search_by(&sources, Duration::from_secs(2), hang);
    assert!(sight.seen.len() == 1, "{sight:?}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(sight.failed.contains(&"/hangs/1 has not answered".to_owned()), "{sight:?}");
    assert_eq!(sight.failed.len(), THREADS - 1, "{sight:?}");
}

/// Members of a pool that was in use while they were read are read again.
#[test]
fn members_are_read_once_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pool.img");
    pool(&path);
    let mut sight = within(dir.path());
    let before = sight.seen[0].tag.checkpoint();
    let device = sheave::open_device(&format!("file:{}", path.display())).expect("a device");
    Pool::open(&device, &sheave_vol::OpenOptions::default()).expect("opens").close().expect("closes");
    let id = sight.seen[0].tag.pool();
    sight.refresh(&[1; 16]);
    assert_eq!(sight.seen[0].tag.checkpoint(), before, "another pool is left alone");
    sight.refresh(&id);
    assert!(sight.seen.len() == 1 && sight.seen[0].tag.checkpoint() > before, "{sight:?}");
}
