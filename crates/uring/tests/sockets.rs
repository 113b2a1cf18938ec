//! A ring as the engine of a server: sockets and devices in one wait.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_drivers::open_device;
use sheave_uring::{Ring, prep};

fn ring() -> Option<Ring> {
    let mut ring = Ring::builder().entries(16).build().expect("a ring");
    let registered = ring.sockets(|mut sockets| sockets.register_recv_buffers(4, 4096));
    matches!(registered, Ok(Ok(()))).then_some(ring)
}

#[test]
fn a_wait_ends_for_a_socket_for_io_and_for_another_thread() {
    let Some(mut ring) = ring() else { return sheave_testkit::skip("no io_uring here, or too old a kernel") };
    let (mut near, far) = UnixStream::pair().expect("a pair");
    ring.sockets(|mut sockets| sockets.recv(far.as_raw_fd(), 0xabcd_1234)).expect("it is there").expect("room");
    let from = Instant::now();
    ring.wait_any(1, Some(Duration::from_millis(20)));
    assert!(from.elapsed() >= Duration::from_millis(15), "nothing has ended");
    // I/O ends the wait, beside the waiting receive.
    ring.push(prep::nop().user_data(7)).expect("room");
    assert_eq!(ring.issue().expect("not busy"), 1);
    let mut ended = Vec::new();
    assert_eq!(ring.for_each_ready(|cqe| ended.push(cqe.user_data)), 1);
    assert_eq!(ended, [7]);
    // Another thread ends it.
    let handle = ring.handle();
    let waker = std::thread::spawn(move || handle.wake());
    ring.wait_any(1, Some(Duration::from_secs(20)));
    waker.join().expect("it wakes");
    assert!(from.elapsed() < Duration::from_secs(15));
    // The socket ends it.
    near.write_all(b"hello").expect("sent");
    let mut events = Vec::new();
    while events.is_empty() {
        ring.wait_any(1, Some(Duration::from_secs(20)));
        ring.take_socket_events(&mut events);
    }
    assert_eq!((events.len(), events[0].token, events[0].res), (1, 0xabcd_1234, 5));
}

#[test]
fn a_chain_goes_on_as_soon_as_a_member_has_ended_whatever_else_the_wait_is_for() {
    const READS: u64 = 200;
    /// Longest time that a wait gathers completions, while one or more operations are in flight.
    const GATHER: Duration = Duration::from_millis(10);
    let dir = tempfile::tempdir().expect("a directory");
    let device = open_device(&format!("file:{}/disk,size=1M", dir.path().display())).expect("a file");
    let mut ring = Ring::builder().entries(256).build().expect("a ring");
    let (_near, far) = UnixStream::pair().expect("a pair");
    let ready = ring.sockets(|mut sockets| {
        sockets.register_recv_buffers(4, 4096).is_ok() && sockets.recv(far.as_raw_fd(), 1).is_ok()
    });
    let Ok(true) = ready else { return sheave_testkit::skip("no io_uring here, or too old a kernel") };
    let fd = ring.attach(&device).expect("attached");
    let mut chain = || {
        for at in 0..READS {
            let read = prep::read(fd, Buf::zeroed(4096, 4096).expect("memory")).offset(at % 256 * 4096);
            ring.push(if at + 1 < READS { read.link() } else { read }).expect("room");
        }
        let from = Instant::now();
        ring.submit_and_wait(READS as u32).expect("submitted");
        assert_eq!(ring.completions().filter(|cqe| cqe.res == 4096).count() as u64, READS);
        from.elapsed()
    };
    // On a busy machine a chain may take as long as if it had waited. Such a chain is repeated.
    let mut took = Vec::new();
    while took.last().is_none_or(|last| *last >= GATHER * READS as u32 / 4) {
        assert!(took.len() < 10, "{took:?} for {READS} reads");
        took.push(chain());
    }
}

#[test]
fn a_ring_goes_while_a_socket_waits() {
    let Some(mut ring) = ring() else { return sheave_testkit::skip("no io_uring here, or too old a kernel") };
    let (near, far) = UnixStream::pair().expect("a pair");
    ring.sockets(|mut sockets| sockets.recv(far.as_raw_fd(), 1)).expect("it is there").expect("room");
    ring.wait_any(1, Some(Duration::from_millis(1)));
    let from = Instant::now();
    drop(ring);
    assert!(from.elapsed() < Duration::from_secs(10));
    drop(near);
}
