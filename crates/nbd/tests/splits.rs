//! However the bytes of a client are split, the server processes them identically (N1). No bytes make it panic.

use proptest::prelude::*;
use sheave_nbd::handshake::{self, Handshake, Tls};
use sheave_nbd::session::{self, Command, Session};
use sheave_nbd::wire::{cflag, cmd, opt};
use sheave_nbd::{Catalog, ExportInfo, Extent};

struct One;

impl Catalog for One {
    fn find(&self, name: &[u8]) -> Option<ExportInfo> {
        (name.is_empty() || name == b"x").then(|| ExportInfo {
            id: 0,
            name: "x".into(),
            description: "d".into(),
            size: 1 << 16,
            read_only: false,
            fast_zero: true,
            min_block: 512,
            preferred_block: 4096,
        })
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each("x", "d");
    }

    fn exports(&self) -> usize {
        1
    }

    fn contexts(&self, _: u32, each: &mut dyn FnMut(&str)) {
        each("base:allocation");
    }

    fn context(&self, _: u32, name: &[u8]) -> Option<u64> {
        (name == b"base:allocation").then_some(7)
    }
}

enum State {
    Handshake(Handshake),
    Session(Session),
    Over,
}

/// A server in memory. Like a connection, it keeps the bytes that were not consumed.
struct Server {
    state: State,
    unread: Vec<u8>,
    out: Vec<u8>,
    /// Payloads of writes, concatenated.
    payload: Vec<u8>,
}

impl Server {
    fn new() -> Server {
        let mut out = Vec::new();
        let state = State::Handshake(Handshake::new(Tls::Off, &mut out));
        Server { state, unread: Vec::new(), out, payload: Vec::new() }
    }

    fn feed(&mut self, piece: &[u8]) {
        self.unread.extend_from_slice(piece);
        while self.step() {}
    }

    fn step(&mut self) -> bool {
        match &mut self.state {
            State::Over => false,
            State::Handshake(handshake) => {
                let (used, step) = handshake.step(&self.unread, &One, &mut self.out);
                self.unread.drain(..used);
                match step {
                    handshake::Step::More => return false,
                    handshake::Step::Done | handshake::Step::Searched => {}
                    handshake::Step::Negotiated(chosen) => self.state = State::Session(Session::new(&chosen)),
                    handshake::Step::StartTls | handshake::Step::Close => self.state = State::Over,
                }
                true
            }
            State::Session(session) => {
                let (used, step) = session.next(&self.unread);
                let bytes: Vec<u8> = self.unread.drain(..used).collect();
                match step {
                    session::Step::More => return false,
                    session::Step::Skipped => {}
                    session::Step::Payload => self.payload.extend(bytes),
                    session::Step::Refused(refused) => session.refused(&refused, &mut self.out),
                    session::Step::Disconnect | session::Step::Broken(_) => self.state = State::Over,
                    session::Step::Request(request) => {
                        assert!(request.offset + request.len <= 1 << 16, "N3");
                        match request.command {
                            Command::Read => {
                                let mut header = [0; 40];
                                let len = session.read_header(&request, &mut header);
                                self.out.extend_from_slice(&header[40 - len..]);
                                self.out.resize(self.out.len() + request.len as usize, 7);
                            }
                            Command::BlockStatus => {
                                let extents = [Extent { len: 512, status: 3 }, Extent { len: u64::MAX, status: 0 }];
                                session.status(&request, 0, &extents, true, &mut self.out);
                            }
                            _ => session.done(&request, &mut self.out),
                        }
                    }
                }
                true
            }
        }
    }
}

fn option(number: u32, data: Vec<u8>) -> Vec<u8> {
    [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), &data].concat()
}

fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        Just(Vec::new()),
        Just(b"\0\0\0\x01x\0\x01\0\x03".to_vec()),
        Just(b"\0\0\0\x01x\0\0\0\x01\0\0\0\x0fbase:allocation".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    let number = prop_oneof![Just(opt::LIST), Just(opt::INFO), Just(opt::SET_META_CONTEXT), 2..13u32];
    (number, data)
        .prop_filter("ends the handshake", |(number, _)| ![opt::GO, opt::ABORT].contains(number))
        .prop_map(|(number, data)| option(number, data))
}

fn any_request(wide: bool) -> impl Strategy<Value = Vec<u8>> {
    let command = prop_oneof![3 => Just(cmd::WRITE), 3 => Just(cmd::READ), 2 => 3..9u16];
    let flags = prop_oneof![4 => Just(0), 1 => any::<u16>().prop_map(|flags| flags & 0x3f)];
    let place = (0..140u64, 0..8u64, any::<u64>());
    (command, flags, place).prop_map(move |(command, flags, (block, blocks, cookie))| {
        let len = blocks * 512;
        let magic: u32 = if wide { 0x21e4_1c71 } else { 0x2560_9513 };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(&(block * 512).to_be_bytes());
        if wide {
            bytes.extend_from_slice(&len.to_be_bytes());
        } else {
            bytes.extend_from_slice(&(len as u32).to_be_bytes());
        }
        if command == cmd::WRITE || wide && flags & cflag::PAYLOAD_LEN != 0 {
            bytes.resize(bytes.len() + len as usize, cookie as u8);
        }
        bytes
    })
}

/// Generates all bytes of a client.
fn client() -> impl Strategy<Value = Vec<u8>> {
    (proptest::collection::vec(any_option(), 0..6), 0..3usize).prop_flat_map(|(options, mode)| {
        let mut bytes = vec![0, 0, 0, 3];
        match mode {
            0 => {}
            1 => bytes.extend(option(opt::STRUCTURED_REPLY, vec![])),
            _ => bytes.extend(option(opt::EXTENDED_HEADERS, vec![])),
        }
        // Generated options can negotiate extended headers as well.
        let wide = mode == 2 || options.iter().any(|bytes| bytes.starts_with(b"IHAVEOPT\0\0\0\x0b\0\0\0\0"));
        bytes.extend(options.concat());
        bytes.extend(option(opt::GO, b"\0\0\0\x01x\0\0".to_vec()));
        proptest::collection::vec(any_request(wide), 0..12)
            .prop_map(move |requests| [bytes.clone(), requests.concat()].concat())
    })
}

proptest! {
    #[test]
    fn any_split_gives_the_same(bytes in client(), cuts in proptest::collection::vec(1..600usize, 1..40)) {
        let mut whole = Server::new();
        whole.feed(&bytes);
        let mut cut = Server::new();
        let (mut rest, mut sizes) = (bytes.as_slice(), cuts.iter().cycle());
        while !rest.is_empty() {
            let size = (*sizes.next().unwrap_or(&1)).min(rest.len());
            let (piece, after) = rest.split_at(size);
            cut.feed(piece);
            rest = after;
        }
        prop_assert_eq!(&whole.out, &cut.out);
        prop_assert_eq!(&whole.payload, &cut.payload);
        let mut single = Server::new();
        bytes.iter().for_each(|byte| single.feed(&[*byte]));
        prop_assert_eq!(&whole.out, &single.out);
    }

    #[test]
    fn any_bytes_parse_without_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        at in 0..300usize,
        client in client(),
    ) {
        let mut server = Server::new();
        let at = at.min(client.len());
        server.feed(&client[..at]);
        server.feed(&bytes);
        server.feed(&client[at..]);
        // Bounded by the largest requests: 64 KiB for a read, and a few bytes for others.
        prop_assert!(server.out.len() <= (bytes.len() + client.len()) / 28 * ((1 << 16) + 64) + 100_000);
    }
}

#[test]
fn the_requests_of_the_test_are_understood() {
    let mut server = Server::new();
    let mut bytes = [vec![0, 0, 0, 3], option(opt::GO, b"\0\0\0\x01x\0\0".to_vec())].concat();
    bytes.extend_from_slice(b"\x25\x60\x95\x13\0\0\0\x01cookie!!\0\0\0\0\0\0\0\0\0\0\x02\0");
    bytes.resize(bytes.len() + 512, 9);
    server.feed(&bytes);
    assert_eq!(server.payload, [9; 512]);
    assert!(server.out.ends_with(b"\x67\x44\x66\x98\0\0\0\0cookie!!"));
}
