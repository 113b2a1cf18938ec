//! What the kernel does seldom: it sends a part of a batch.

use sheave::op;
use sheave_nbd::handshake::Mode;

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
            // Two neighbours make a request of two pieces.
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
