//! Tests of addresses, and of listening on one path.

use super::*;

#[test]
fn addresses_are_read_and_wrong_ones_named() {
    assert_eq!("unix:/a b".parse::<Address>().ok(), Some(Address::Unix("/a b".into())));
    assert_eq!("tcp:[::1]:10809".parse::<Address>().ok(), Some(Address::Tcp("[::1]:10809".into())));
    for wrong in ["", "unix:", "tcp:", "tcp:host", "tcp::1", "tcp:h:70000", "tcp:h:x", "/path", "udp:h:1"] {
        assert!(wrong.parse::<Address>().is_err(), "{wrong}");
    }
}

#[test]
fn uris_are_what_clients_take() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a b");
    let listener = Listener::bind(&Address::Unix(path.clone())).expect("it listens");
    assert_eq!(listener.uri("x#y"), format!("nbd+unix:///x%23y?socket={}/a%20b", dir.path().display()));
    let tcp = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).expect("it listens");
    let Address::Tcp(place) = tcp.address() else { panic!("{tcp:?}") };
    assert!(!place.ends_with(":0"));
    assert_eq!(tcp.uri(""), format!("nbd://{place}/"));
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let address = Address::Unix(path.clone());
    // Left behind: bound, and closed without removing the path.
    drop(UnixListener::bind(&path).expect("it listens"));
    let first = Listener::bind(&address).expect("a stale socket is replaced");
    assert!(matches!(Listener::bind(&address), Err(ServeError::InUse { .. })));
    assert!(path.exists(), "a live socket stays");
    drop(first);
    assert!(!path.exists(), "the socket is removed with its listener");
    std::fs::write(&path, "data").expect("a file");
    assert!(matches!(Listener::bind(&address), Err(ServeError::NotASocket { .. })));
    assert_eq!(std::fs::read(&path).expect("it stays"), b"data");
}

#[test]
fn a_socket_that_another_server_has_put_there_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let first = Listener::bind(&Address::Unix(path.clone())).expect("it listens");
    std::fs::remove_file(&path).expect("it is there");
    let second = Listener::bind(&Address::Unix(path.clone())).expect("the path is free");
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

#[test]
fn of_servers_that_want_one_path_at_a_time_one_gets_it() {
    let dir = tempfile::tempdir().expect("a directory");
    for round in 0..100 {
        let path = dir.path().join(format!("s{round}"));
        drop(UnixListener::bind(&path).expect("a stale socket"));
        let address = Address::Unix(path.clone());
        let start = std::sync::Barrier::new(4);
        let bind = || {
            start.wait();
            Listener::bind(&address).ok()
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
            threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(all.len(), 1, "round {round}");
        assert_eq!(inode(&path), all[0].inode, "round {round}: the path is that of the one that listens");
    }
}

#[test]
fn a_socket_is_made_when_nobody_else_is_at_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let lock = lock_directory(&path).expect("nobody has it");
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| Listener::bind(&Address::Unix(path.clone())).is_ok());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!bound.is_finished(), "another server is at it");
        drop(lock);
        assert!(bound.join().expect("no panic"));
    });
}

/// A killed server: a ring of a process that no longer exists still listens on its socket.
#[test]
fn a_socket_whose_process_is_gone_is_replaced_though_it_answers() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    // The child listens and exits; this process keeps the socket alive by its own descriptor. A shell cannot send
    // descriptors, so it goes the other way: the socket is made here, and the child inherits it and listens.
    let fd = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::empty(),
        None,
    )
    .expect("a socket");
    rustix::net::bind(&fd, &rustix::net::SocketAddrUnix::new(&path).expect("short")).expect("bound");
    let script = format!("import socket; socket.socket(fileno={}).listen(5)", fd.as_raw_fd());
    let Ok(status) = std::process::Command::new("python3").args(["-c", &script]).status() else {
        return sheave_testkit::skip("python3 is missing, which listens in another process");
    };
    assert!(status.success());
    drop(UnixStream::connect(&path).expect("somebody listens"));
    let listener = Listener::bind(&Address::Unix(path.clone())).expect("its process is gone");
    drop(UnixStream::connect(&path).expect("the new one listens"));
    let again = Listener::bind(&Address::Unix(path));
    assert!(matches!(again, Err(ServeError::InUse { .. })), "this process lives");
    drop(listener);
}

/// No client can connect before the socket has its owner and mode: until then it does not listen.
#[test]
fn a_socket_has_its_mode_and_group_whatever_the_umask_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let address = Address::Unix(path.clone());
    let group = rustix::process::getegid().as_raw();
    for mode in [0o600, 0o660, 0o606, 0o777] {
        let access = SocketAccess { mode, owner: None, group: Some(group) };
        let listener = Listener::bind_for(&address, &access).expect("it listens");
        let found = std::fs::symlink_metadata(&path).expect("it is there");
        assert_eq!((found.mode() & 0o777, found.gid()), (mode, group));
        UnixStream::connect(&path).expect("it listens");
        drop(listener);
        assert!(!path.exists());
    }
    // A socket that cannot be given to its group is removed.
    if !rustix::process::geteuid().is_root() {
        let access = SocketAccess { mode: 0o660, owner: Some(0), group: None };
        assert!(Listener::bind_for(&address, &access).is_err() && !path.exists());
    }
}

/// While owner and mode of the path are being changed, the socket does not listen, and only its owner has access.
#[test]
fn a_path_that_was_replaced_meanwhile_is_not_given_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, target) = (dir.path().join("s"), dir.path().join("target"));
    let access = SocketAccess { mode: 0o666, owner: None, group: None };
    // A link to a socket of another server, and a file.
    let _other = Listener::bind_private(&Address::Unix(target.clone())).expect("it listens");
    std::os::unix::fs::symlink(&target, &path).expect("a link");
    assert!(give(&path, &access).is_err());
    assert_eq!(std::fs::metadata(&target).expect("it is there").mode() & 0o777, 0o600);
    let file = dir.path().join("file");
    std::fs::write(&file, "data").expect("a file");
    let before = std::fs::metadata(&file).expect("it is there").mode();
    assert!(give(&file, &access).is_err());
    assert_eq!(std::fs::metadata(&file).expect("it is there").mode(), before);
}
