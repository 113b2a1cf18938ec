//! Sockets of exports: whose rights bind them, and when their paths go.

use std::os::unix::net::{UnixListener, UnixStream};

use super::*;

const OTHER: Rights = Rights::Of { uid: 4242 };

fn add(path: &Path) -> t::AddExport {
    let vhost_user = Some(path.display().to_string());
    t::AddExport { name: "x".into(), vhost_user, ..t::AddExport::default() }
}

/// A listening socket at `path`, as a command binds it.
fn bound(path: &Path) -> OwnedFd {
    UnixListener::bind(path).expect("it listens").into()
}

#[test]
fn the_socket_of_a_call_is_its_last_descriptor() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").expect("there"));
    for files in [0, 2] {
        let mut fds: Vec<OwnedFd> = (0..files).map(|_| file()).collect();
        fds.push(bound(&path));
        let plan = VhostUserPlan::of_call(&add(&path), &mut fds, OTHER).expect("taken").expect("a device");
        assert_eq!((plan.passed.is_some(), fds.len()), (true, files));
        plan.bind().expect("it listens");
        std::fs::remove_file(&path).expect("it stays, for it is another user's");
    }
    let mut files = vec![file(), file()];
    let plan = VhostUserPlan::of_call(&add(&path), &mut files, Rights::Own).expect("read").expect("a device");
    assert_eq!((plan.passed, files.len()), (None, 2));
}

#[test]
fn the_daemon_binds_no_path_that_another_user_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let refused = VhostUserPlan::of_call(&add(&path), &mut Vec::new(), OTHER).expect_err("refused");
    assert!(refused.cause().contains("user 4242") && refused.how_to_mend().is_some(), "{refused}");
    assert!(VhostUserPlan::of_call(&add(&path), &mut Vec::new(), Rights::Own).expect("read").is_some());
    // A file or a connection is no listening socket, and a socket elsewhere is not the one that the call names.
    let file = OwnedFd::from(std::fs::File::open("/dev/null").expect("there"));
    let (near, _far) = UnixStream::pair().expect("a pair");
    for fd in [file, near.into(), bound(&dir.path().join("other"))] {
        assert!(VhostUserPlan::of_call(&add(&path), &mut vec![fd], OTHER).is_err());
    }
}

#[test]
fn a_call_with_a_wrong_device_is_refused() {
    let own = |add: t::AddExport| VhostUserPlan::of_call(&add, &mut Vec::new(), Rights::Own).map(|plan| plan.is_some());
    let path = || add(Path::new("/run/s"));
    assert_eq!(own(t::AddExport::default()).ok(), Some(false));
    assert_eq!(own(t::AddExport { vhost_queues: Some(64), ..path() }).ok(), Some(true));
    for wrong in [
        t::AddExport { vhost_queues: Some(0), ..path() },
        t::AddExport { vhost_queues: Some(65), ..path() },
        t::AddExport { vhost_queues: Some(1 << 40), ..path() },
        t::AddExport { vhost_queues: Some(1), ..t::AddExport::default() },
        t::AddExport { vhost_in_order: Some(true), ..t::AddExport::default() },
        add(Path::new("relative")),
        add(Path::new("tcp:127.0.0.1:1")),
        add(Path::new("")),
        add(&Path::new("/").join("x".repeat(107))),
    ] {
        let words = format!("{wrong:?}");
        assert!(own(wrong).is_err(), "{words}");
    }
}

#[test]
fn a_passed_socket_outlives_its_export_and_its_path_goes_with_the_last_of_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let plan = VhostUserPlan::of_call(&add(&path), &mut vec![bound(&path)], Rights::Own);
    let plan = plan.expect("taken").expect("a device");
    // The export ends, for example while its volume is rolled back, and begins again.
    drop(plan.bind().expect("it listens"));
    UnixStream::connect(&path).expect("it still listens");
    let again = plan.clone();
    drop(plan);
    assert_eq!(again.bind().expect("it listens").listener.address(), &again.address());
    drop(again);
    assert!(!path.exists());
}

#[test]
fn a_path_that_has_another_socket_by_then_is_not_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let passed = PassedSocket::new(bound(&path), &path, Rights::Own).expect("taken");
    std::fs::rename(&path, dir.path().join("moved")).expect("moved");
    let _other = bound(&path);
    drop(passed);
    assert!(path.exists());
}

#[test]
fn a_socket_that_cannot_be_bound_names_the_cause_and_a_fix() {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = |path: PathBuf| VhostUserPlan { path, access: None, queues: None, in_order: false, passed: None };
    let _other = bound(&dir.path().join("live"));
    std::fs::write(dir.path().join("file"), "data").expect("written");
    for (name, cause) in [("live", "in use"), ("file", "no socket"), ("gone/s", "cannot listen")] {
        let refused = plan(dir.path().join(name)).bind().expect_err(name);
        assert!(refused.cause().contains(cause) && refused.how_to_mend().is_some(), "{refused}");
        assert!(!refused.is_busy(), "its health is critical");
    }
}

#[test]
fn a_device_that_is_not_served_is_reported_without_a_client() {
    let plan = VhostUserPlan { path: "/s".into(), access: None, queues: None, in_order: false, passed: None };
    let row = plan.row(None, 3);
    assert_eq!((row.socket.as_str(), row.queues, row.client, row.running.len()), ("/s", 3, None, 0));
    let queue = |index, in_flight| sheave_serve::VhostQueueStatus { index, reactor: 1, size: 256, in_flight };
    let running = vec![queue(0, 3), queue(2, 4)];
    let status = VhostUserStatus { address: Address::Unix("/t".into()), queues: 4, client: Some(7), running };
    let row = plan.row(Some(&status), 3);
    assert_eq!((row.socket.as_str(), row.queues, row.client, row.in_flight()), ("/t", 4, Some(7), 7));
    assert_eq!(row.running[1], t::VhostQueue { queue: 2, reactor: 1, size: 256, in_flight: 4 });
}
