//! Block status: the answers that a server may give, and those that are refused (B1, B2); and the choice of an address.

use std::os::unix::net::UnixStream;

use sheave_nbd::wire;

use super::*;

use crate::rig::Server;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_first_connection_goes_to_the_address_that_has_the_server() {
    let server = Server::start(1 << 20, Mode::Structured);
    let (port, accepted) = server.front();
    // An address where nobody listens, and one that accepts connections and sends nothing.
    let mute = std::net::TcpListener::bind(("127.0.0.3", port)).expect("listening");
    let mut target = Target {
        spec: "nbd:host/disk".into(),
        place: Place::Tcp(([127, 0, 0, 2], port).into()),
        others: vec![mute.local_addr().expect("an address"), ([127, 0, 0, 1], port).into()],
        export: "disk".into(),
        connections: 1,
        timeout: SECOND,
        connect: SECOND / 4,
        read_only: false,
        assume_multi: false,
        block_status: true,
        tls: None,
    };
    let (_, export) = Control::first(&mut target).expect("connected");
    assert_eq!((export.size, accepted.lock().expect("nobody panics with it").len()), (1 << 20, 1));
    assert!(target.words().contains(&format!("127.0.0.1:{port}")), "later ones go there: {}", target.words());
    target.place = Place::Tcp(([127, 0, 0, 2], port).into());
    let error = Control::first(&mut target).expect_err("it has no other address").to_string();
    assert!(error.contains("127.0.0.2"), "{error}");
}

/// Queries a server that sends one of `answers` for each query.
fn asked(mode: Mode, end: u64, answers: Vec<Vec<u8>>) -> (Vec<Extent>, Result<(), Fault>, Vec<u64>) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    let server = std::thread::spawn(move || {
        let mut offsets = Vec::new();
        for answer in answers {
            let mut request = vec![0; if mode == Mode::Extended { 32 } else { 28 }];
            if theirs.read_exact(&mut request).is_err() {
                break;
            }
            assert_eq!(request[6..8], cmd::BLOCK_STATUS.to_be_bytes());
            assert_eq!(request[8..16], (offsets.len() as u64 + 1).to_be_bytes(), "the cookie");
            offsets.push(u64::from_be_bytes(request[16..24].try_into().expect("eight bytes")));
            // The client closes the connection once it has refused an answer.
            let _ = theirs.write_all(&answer);
        }
        offsets
    });
    let stream = Stream::Unix(ours);
    let mut control = Control { stream, secure: None, input: Vec::new(), mode, allocation: Some(7), cookie: 0 };
    let mut extents = Vec::new();
    let result = control.extents((0, end), SECOND, &mut extents);
    drop(control);
    (extents, result, server.join().expect("the server did not panic"))
}

fn chunk_of(mode: Mode, cookie: u64, done: bool, kind: u16, body: &[u8]) -> Vec<u8> {
    let head = (u16::from(done), kind, cookie);
    let mut bytes = Vec::new();
    let magic = if mode == Mode::Extended { wire::EXTENDED_REPLY_MAGIC } else { wire::STRUCTURED_REPLY_MAGIC };
    bytes.extend(magic.to_be_bytes());
    bytes.extend(head.0.to_be_bytes());
    bytes.extend(head.1.to_be_bytes());
    bytes.extend(head.2.to_be_bytes());
    if mode == Mode::Extended {
        bytes.extend(0u64.to_be_bytes());
        bytes.extend((body.len() as u64).to_be_bytes());
    } else {
        bytes.extend((body.len() as u32).to_be_bytes());
    }
    bytes.extend(body);
    bytes
}

fn list(context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let mut body = context.to_be_bytes().to_vec();
    extents.iter().for_each(|(len, flags)| body.extend([len.to_be_bytes(), flags.to_be_bytes()].concat()));
    body
}

/// Returns an answer in one chunk.
fn status(cookie: u64, context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    chunk_of(Mode::Structured, cookie, true, chunk::BLOCK_STATUS, &list(context, extents))
}

fn shown(extents: &[Extent]) -> Vec<(u64, bool)> {
    extents.iter().map(|extent| (extent.len, extent.zero)).collect()
}

#[test]
fn neighbours_become_one_and_what_is_missing_is_asked_for() {
    let answers = vec![
        // A hole without the zero flag may hold any data.
        status(1, 7, &[(4096, 3), (4096, 2), (8192, 1), (512, 0)]),
        status(2, 7, &[(100_000, 3)]),
    ];
    let (extents, result, offsets) = asked(Mode::Structured, 65_536, answers);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(shown(&extents), [(8192, true), (8704, false), (65_536 - 16_896, true)], "cut at the end");
    assert_eq!(offsets, [0, 16_896]);
}

#[test]
fn extended_replies_are_understood() {
    let mut body = [7u32.to_be_bytes(), 2u32.to_be_bytes()].concat();
    for number in [4096u64, 3, 1 << 40, 0] {
        body.extend(number.to_be_bytes());
    }
    let answer = chunk_of(Mode::Extended, 1, true, chunk::BLOCK_STATUS_EXT, &body);
    let (extents, result, _) = asked(Mode::Extended, 1 << 30, vec![answer]);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(shown(&extents), [(4096, true), ((1 << 30) - 4096, false)]);
}

#[test]
fn more_extents_than_are_kept_are_asked_for_again_and_none_is_missing() {
    let many = (MAX_EXTENTS + 10) as u32;
    let all: Vec<(u32, u32)> = (0..many).map(|number| (512, 2 * (number % 2))).collect();
    let (extents, result, offsets) = asked(Mode::Structured, u64::from(many) * 512, vec![status(1, 7, &all)]);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!((extents.len(), offsets.len()), (MAX_EXTENTS, 1));
    assert!(extents.iter().enumerate().all(|(at, extent)| extent.len == 512 && extent.zero == (at % 2 == 1)));
}

#[test]
fn a_violation_of_the_protocol_is_named() {
    let of = |cookie, done, kind, body: &[u8]| chunk_of(Mode::Structured, cookie, done, kind, body);
    let good = list(7, &[(4096, 0)]);
    for (answer, says) in [
        (status(1, 8, &[(4096, 0)]), "metadata context that it was not asked for"),
        (status(1, 7, &[]), "impossible length"),
        (status(1, 7, &[(4096, 0), (0, 3)]), "extent of no bytes"),
        (status(1, 7, &[(65_536, 0), (4096, 3)]), "behind those that it was asked for"),
        (status(2, 7, &[(4096, 0)]), "what it was not asked"),
        (of(1, true, chunk::BLOCK_STATUS, &good[..10]), "impossible length"),
        (of(1, true, chunk::BLOCK_STATUS_EXT, &[good.as_slice(), &[0; 12]].concat()), "impossible length"),
        (of(1, true, chunk::OFFSET_DATA, &[0; 12]), "nobody asked for"),
        (of(1, true, chunk::NONE, &[]), "without an extent"),
        ([of(1, false, chunk::BLOCK_STATUS, &good), of(1, true, chunk::BLOCK_STATUS, &good)].concat(), "twice"),
        (of(1, false, chunk::NONE, &[]).repeat(20), "come to an end"),
        (of(1, true, chunk::ERROR, &[0; 3]), "wrong length"),
        (vec![0x55; 64], "no reply"),
    ] {
        match asked(Mode::Structured, 65_536, vec![answer]).1 {
            Err(Fault::Lie(why)) => assert!(why.contains(says), "{why}, not: {says}"),
            other => panic!("{says}: {other:?}"),
        }
    }
}

#[test]
fn a_server_that_cannot_tell_says_so() {
    let simple = [wire::SIMPLE_REPLY_MAGIC.to_be_bytes(), 95u32.to_be_bytes(), [0; 4], 1u32.to_be_bytes()].concat();
    let text = [22u32.to_be_bytes().as_slice(), &3u16.to_be_bytes(), b"no!"].concat();
    let chunk = chunk_of(Mode::Structured, 1, true, chunk::ERROR, &text);
    for (answer, errno) in [(simple, 95), (chunk, 22)] {
        let (extents, result, _) = asked(Mode::Structured, 65_536, vec![answer]);
        assert!(extents.is_empty() && matches!(result, Err(Fault::Refused(found)) if found == errno), "{result:?}");
    }
    assert!(matches!(asked(Mode::Structured, 65_536, Vec::new()).1, Err(Fault::Lost(_))));
}

#[test]
fn a_connection_with_bytes_that_nobody_asked_for_goes_to_no_ring() {
    for input in [Vec::new(), vec![0x44]] {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let (stream, wanted) = (Stream::Unix(ours), input.is_empty());
        let control = Control { stream, secure: None, input, mode: Mode::Simple, allocation: None, cookie: 0 };
        assert_eq!(control.into_first().is_ok(), wanted);
    }
}
