//! Our server decodes the headers that are sent; data outside of a read is detected.
//!
//! An [`Entry`] has the id of a request, which only a ring gives out; so the headers are tested by their parts here,
//! and as a whole against servers.

use sheave_nbd::ExportInfo;
use sheave_nbd::handshake::{Mode, Negotiated};
use sheave_nbd::session::{Command, Session, Step};
use sheave_nbd::wire::{cflag, cmd};

use super::{goodbye, head};

fn session(mode: Mode) -> Session {
    let export = ExportInfo {
        id: 0,
        name: String::new(),
        description: String::new(),
        size: 1 << 40,
        read_only: false,
        fast_zero: false,
        min_block: 512,
        preferred_block: 4096,
    };
    Session::new(&Negotiated { export, mode, contexts: Vec::new(), keeps_to_blocks: true })
}

#[test]
fn our_server_understands_what_is_sent() {
    for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
        let payload = if mode == Mode::Extended { cflag::PAYLOAD_LEN } else { 0 };
        for (number, flags, command) in [
            (cmd::READ, 0, Command::Read),
            (cmd::WRITE, cflag::FUA | payload, Command::Write),
            (cmd::TRIM, 0, Command::Trim),
            (cmd::WRITE_ZEROES, cflag::FUA, Command::WriteZeroes),
        ] {
            let (bytes, len) = head(mode, (number, flags), 0x1234_5678_9abc_0007, 5 << 33, 4096);
            let (used, step) = session(mode).next(&bytes[..len]);
            let Step::Request(request) = step else { panic!("{mode:?} {number}: {step:?}") };
            assert_eq!((used, request.command, request.flags), (len, command, flags));
            assert_eq!((request.cookie, request.offset, request.len), (0x1234_5678_9abc_0007, 5 << 33, 4096));
        }
        let (bytes, len) = goodbye(mode);
        assert_eq!(session(mode).next(&bytes[..len]), (len, Step::Disconnect));
    }
}
