//! The options that sockets get.

use rustix::net::sockopt;

use super::*;

#[test]
fn the_kernel_sizes_the_buffers_of_tcp_itself() {
    let place = Place::Tcp(([127, 0, 0, 1], 1).into());
    let ours = new(&place, Duration::from_secs(30)).expect("a socket");
    let untouched = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let untouched = untouched.expect("a socket");
    let size = |fd: &OwnedFd| (sockopt::socket_send_buffer_size(fd), sockopt::socket_recv_buffer_size(fd));
    assert_eq!(size(&ours), size(&untouched));
    assert!(sockopt::socket_keepalive(&ours).expect("asked"));
}
