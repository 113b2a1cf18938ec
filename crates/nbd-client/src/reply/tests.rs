//! Every form of a reply, in pieces; and random bytes, which neither panic nor ask for more than the limit.

use proptest::prelude::*;
use sheave_nbd::Errno;
use sheave_nbd::handshake::{Mode, Negotiated};
use sheave_nbd::session::{Command, Request, Session};
use sheave_nbd::{ExportInfo, wire};

use super::{Item, MAX_ITEM, What, head_bytes, next};

fn session(mode: Mode) -> Session {
    let export = ExportInfo {
        id: 0,
        name: String::new(),
        description: String::new(),
        size: 1 << 30,
        read_only: false,
        fast_zero: false,
        min_block: 1,
        preferred_block: 4096,
    };
    Session::new(&Negotiated { export, mode, contexts: Vec::new(), keeps_to_blocks: true })
}

fn request(command: Command) -> Request {
    Request { command, flags: 0, cookie: 77, offset: 8192, len: 4096, contexts: 0 }
}

#[test]
fn replies_of_our_server_decode_only_once_they_are_whole() {
    for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
        let session = session(mode);
        let mut place = [0; sheave_nbd::reply::MAX_READ_HEADER];
        let len = session.read_header(&request(Command::Read), &mut place);
        let read = place[place.len() - len..].to_vec();
        assert_eq!(read.len(), head_bytes(mode));
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        session.done(&request(Command::Write), &mut done);
        session.failed(&request(Command::Write), Errno::NoSpc, "the pool is full", &mut failed);
        let data = if mode == Mode::Simple { What::Simple } else { What::Data(8192, 4096) };
        let nothing = if mode == Mode::Extended { What::Nothing } else { What::Simple };
        for (bytes, what) in [(read, data), (done, nothing), (failed, What::Failed(28))] {
            for cut in 0..bytes.len() {
                assert_eq!(next(mode, &bytes[..cut]), Ok(None), "{mode:?} {what:?} {cut}");
            }
            let item = Item { cookie: 77, done: true, what };
            let more = [bytes.clone(), vec![0xff; 9]].concat();
            assert_eq!(next(mode, &more), Ok(Some((bytes.len(), item))), "{mode:?}");
        }
    }
}

fn chunk(flags: u16, kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(5u64.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn holes_and_errors_with_offsets_are_understood() {
    let hole = [4096u64.to_be_bytes().as_slice(), &512u32.to_be_bytes()].concat();
    let bytes = chunk(0, 2, &hole);
    let item = Item { cookie: 5, done: false, what: What::Zeroes(4096, 512) };
    assert_eq!(next(Mode::Structured, &bytes), Ok(Some((bytes.len(), item))));
    let error = [5u32.to_be_bytes().as_slice(), &3u16.to_be_bytes(), b"bad", &9u64.to_be_bytes()].concat();
    let bytes = chunk(1, (1 << 15) + 2, &error);
    let item = Item { cookie: 5, done: true, what: What::Failed(5) };
    assert_eq!(next(Mode::Structured, &bytes), Ok(Some((bytes.len(), item))));
}

#[test]
fn a_malformed_reply_is_refused() {
    let zero_hole = [0u8; 12];
    let wrong = [
        chunk(1, 1, &[0; 8]),                                                     // data of no bytes
        chunk(1, 2, &zero_hole),                                                  // a hole of no bytes
        chunk(1, 5, &[0; 12]),                                                    // a status that nobody asked for
        chunk(1, 0, &[1]),                                                        // nothing, with something in it
        chunk(0, 0, &[]),                                                         // nothing, and not the end
        chunk(1, (1 << 15) + 1, &[0, 0, 0, 0, 0, 0]),                             // an error that is none
        chunk(1, (1 << 15) + 1, &[0, 0, 0, 5, 0, 9]),                             // a text longer than its chunk
        chunk(1, (1 << 15) + 1, &[0; 3]),                                         // too short for an errno
        [wire::EXTENDED_REPLY_MAGIC.to_be_bytes().as_slice(), &[0; 28]].concat(), // of another mode
        b"HTTP/1.1 400 Bad Request".to_vec(),
    ];
    for bytes in wrong {
        assert!(next(Mode::Structured, &bytes).is_err(), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic_it_nor_make_it_wait_for_more_than_an_item(
        mode in prop::sample::select(vec![Mode::Simple, Mode::Structured, Mode::Extended]),
        known in any::<bool>(),
        kind in any::<u16>(),
        len in any::<u32>(),
        mut bytes in prop::collection::vec(any::<u8>(), MAX_ITEM..MAX_ITEM + 64),
    ) {
        if known {
            let magic = match mode {
                Mode::Simple => wire::SIMPLE_REPLY_MAGIC,
                Mode::Structured => wire::STRUCTURED_REPLY_MAGIC,
                Mode::Extended => wire::EXTENDED_REPLY_MAGIC,
            };
            bytes[..4].copy_from_slice(&magic.to_be_bytes());
            let kind = if kind & 1 == 0 { kind % 8 } else { kind | 1 << 15 };
            bytes[6..8].copy_from_slice(&kind.to_be_bytes());
            let at = if mode == Mode::Extended { 28 } else { 16 };
            bytes[at..at + 4].copy_from_slice(&(len % 5000).to_be_bytes());
        }
        match next(mode, &bytes) {
            Ok(Some((used, _))) => prop_assert!(used <= MAX_ITEM && used > 0),
            Ok(None) => prop_assert!(false, "R1"),
            Err(_) => {}
        }
    }
}
