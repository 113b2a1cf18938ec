//! Over TCP: the host of a server disappears silently, like when its cable is pulled.
#![allow(unsafe_code)] // Attaches a filter to a socket.

mod rig;

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rig::{MIB, Server, filled, registry, results, ring};
use sheave::op;
use sheave_nbd::handshake::Mode;

/// Makes the kernel drop all packets for this socket, and acknowledge none.
fn vanish(stream: &TcpStream) {
    let mut nothing = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 }; // Return 0 bytes.
    let filter = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    let (at, len) = ((&raw const filter).cast(), size_of::<libc::sock_fprog>() as libc::socklen_t);
    // SAFETY: the filter is read during the call alone.
    let set = unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, len) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_host_that_is_gone_costs_the_connection_and_no_request() {
    for was_received in [false, true] {
        let server = Server::start(MIB, Mode::Structured);
        let (port, accepted) = server.front();
        let device = registry().open(&format!("nbd:127.0.0.1:{port}/disk,timeout=9s")).expect("opened");
        let Some((mut ring, fd)) = ring(&device) else { return };
        ring.push(op::write(fd, filled(4096, 7))).expect("room");
        ring.push(op::fsync(fd).drain()).expect("room");
        assert_eq!(results(&mut ring, 2), [(0, 0), (0, 4096)]);
        let from = Instant::now();
        let vanish_now = || accepted.lock().expect("nobody panics with it").iter().for_each(vanish);
        if was_received {
            server.state().silent = true;
        } else {
            vanish_now();
        }
        ring.push(op::read(fd, filled(4096, 0xee))).expect("room");
        ring.submit().expect("submitted");
        if was_received {
            let _ = ring.wait(1, Some(Duration::from_millis(300)));
            vanish_now();
            server.state().silent = false;
        }
        assert_eq!(results(&mut ring, 1), [(0, 4096)], "{was_received}: {:?}", device.notices());
        assert!(from.elapsed() < Duration::from_secs(8), "{was_received}: {:?}", from.elapsed());
        ring.push(op::fsync(fd)).expect("room");
        assert_eq!(results(&mut ring, 1), [(0, 0)], "nothing can be lost: {:?}", device.notices());
        assert_eq!(server.state().connections, 2);
    }
}
