//! Rare events: the kernel sends a part of a batch, and the server refuses an additional connection.

use sheave::{Fd, Ring, op};
use sheave_nbd::handshake::Mode;

use super::ANOTHER_PAUSE;
use crate::conn::MOST_PIECES;
use crate::rig::{MIB, Server, filled, results, ring};

#[test]
fn a_batch_that_is_sent_in_parts_goes_on_when_some_of_it_was_answered() {
    for pieces in [1, 2, 3, 8, 50] {
        MOST_PIECES.set(pieces);
        let server = Server::start(16 * MIB, Mode::Structured);
        let device = server.open(",connections=1").expect("opened");
        let Some((mut ring, fd)) = ring(&device) else { return };
        for round in 1..=4u8 {
            // Two adjacent writes merge into a request of two pieces.
            for number in 0..64 {
                let at = number / 2 * 262_144 + number % 2 * 65_536;
                ring.push(op::write(fd, filled(65_536, round)).offset(at)).expect("room");
            }
            assert!(results(&mut ring, 64).iter().all(|&(_, res)| res == 65_536), "{pieces}");
        }
        ring.push(op::fsync(fd)).expect("room");
        assert_eq!(results(&mut ring, 1), [(0, 0)], "{pieces}: {:?}", device.notices());
        assert_eq!((server.state().connections, device.notices().len()), (1, 0), "{pieces}: {:?}", device.notices());
        let state = server.state();
        assert!((0..32).all(|pair| state.stable[pair * 262_144..][..131_072].iter().all(|byte| *byte == 4)));
    }
}

/// Sends enough to keep several connections busy. Returns the number of connections that the server accepted meanwhile.
fn load(server: &Server, ring: &mut Ring, fd: Fd) -> u64 {
    let before = server.state().connections;
    for number in 0..16 {
        ring.push(op::write(fd, filled(MIB, 1)).offset(number * MIB as u64)).expect("room");
    }
    assert!(results(ring, 16).iter().all(|&(_, res)| res == MIB as i32));
    server.state().connections - before
}

#[test]
fn a_connection_that_could_not_be_made_is_tried_again() {
    let server = Server::start(16 * MIB, Mode::Structured);
    let device = server.open("").expect("opened");
    let Some((mut ring, fd)) = ring(&device) else { return };
    for lost in [false, true] {
        server.state().hang_up();
        server.state().away = false;
        ring.push(op::read(fd, filled(4096, 0xee))).expect("room");
        assert_eq!(results(&mut ring, 1), [(0, 4096)], "by the first connection");
        server.state().away = true;
        assert!(load(&server, &mut ring, fd) >= 1, "the second is refused");
        assert!(device.notices().iter().any(|text| text.contains("goes with 1 connections")));
        server.state().away = false;
        if lost {
            server.state().hang_up();
            assert!(load(&server, &mut ring, fd) >= 2, "when the first is made again");
        } else {
            assert_eq!(load(&server, &mut ring, fd), 0, "not at once");
            std::thread::sleep(ANOTHER_PAUSE);
            assert!(load(&server, &mut ring, fd) >= 1, "after a while");
        }
    }
}
