//! Replies, byte by byte.

use super::*;
use crate::session::Command;
use crate::session::tests::session;

fn request(command: Command, len: u64) -> Request {
    Request { command, flags: 0, cookie: u64::from_be_bytes(*b"cookie!!"), offset: 0x1000, len, contexts: 3 }
}

fn header(mode: Mode, len: u64) -> Vec<u8> {
    let mut place = [0xaa; 64];
    let many = session(mode, false, vec![]).read_header(&request(Command::Read, len), &mut place);
    assert!(place[..64 - many].iter().all(|&byte| byte == 0xaa));
    place[64 - many..].to_vec()
}

fn written(mode: Mode, write: impl FnOnce(&Session, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&session(mode, false, vec![0]), &mut out);
    out
}

#[test]
fn what_stands_before_the_data_of_a_read() {
    assert_eq!(header(Mode::Simple, 512), b"\x67\x44\x66\x98\0\0\0\0cookie!!");
    assert_eq!(header(Mode::Structured, 512), b"\x66\x8e\x33\xef\0\x01\0\x01cookie!!\0\0\x02\x08\0\0\0\0\0\0\x10\0");
    assert_eq!(
        header(Mode::Extended, 512),
        b"\x6e\x8a\x27\x8c\0\x01\0\x01cookie!!\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x02\x08\0\0\0\0\0\0\x10\0"
    );
}

#[test]
fn a_read_of_nothing_has_no_chunk_of_data() {
    assert_eq!(header(Mode::Structured, 0), b"\x66\x8e\x33\xef\0\x01\0\0cookie!!\0\0\0\0");
    assert_eq!(header(Mode::Extended, 0).len(), 32);
}

#[test]
fn success_without_data() {
    let done = |session: &Session, out: &mut Vec<u8>| session.done(&request(Command::Write, 512), out);
    for mode in [Mode::Simple, Mode::Structured] {
        assert_eq!(written(mode, done), b"\x67\x44\x66\x98\0\0\0\0cookie!!");
    }
    assert_eq!(written(Mode::Extended, done), b"\x6e\x8a\x27\x8c\0\x01\0\0cookie!!\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0");
}

#[test]
fn errors_have_words_where_there_is_a_place_for_them() {
    let failed =
        |session: &Session, out: &mut Vec<u8>| session.failed(&request(Command::Write, 512), Errno::NoSpc, "full", out);
    assert_eq!(written(Mode::Simple, failed), b"\x67\x44\x66\x98\0\0\0\x1ccookie!!");
    assert_eq!(
        written(Mode::Structured, failed),
        b"\x66\x8e\x33\xef\0\x01\x80\x01cookie!!\0\0\0\x0a\0\0\0\x1c\0\x04full"
    );
    let wide = written(Mode::Extended, failed);
    assert_eq!(&wide[24..], b"\0\0\0\0\0\0\0\x0a\0\0\0\x1c\0\x04full");
}

#[test]
fn extents_never_go_beyond_the_question() {
    // CVE-2025-47711 of nbdkit: an extent whose length exceeds 32 bits.
    let long = [Extent { len: 512, status: 3 }, Extent { len: 1 << 33, status: 0 }];
    let status = |session: &Session, out: &mut Vec<u8>| {
        session.status(&request(Command::BlockStatus, 0xffff_fe00), 0, &long, true, out)
    };
    assert_eq!(
        written(Mode::Structured, status),
        b"\x66\x8e\x33\xef\0\x01\0\x05cookie!!\0\0\0\x14\0\0\0\0\0\0\x02\0\0\0\0\x03\xff\xff\xfc\0\0\0\0\0"
    );
    let wide = written(Mode::Extended, status);
    assert_eq!(wide.len(), 32 + 8 + 2 * 16);
    assert_eq!(&wide[32..40], b"\0\0\0\0\0\0\0\x02");
}

#[test]
fn one_extent_where_one_is_asked_for() {
    let two = [Extent { len: 512, status: 3 }, Extent { len: 512, status: 0 }];
    let one = Request { flags: crate::wire::cflag::REQ_ONE, ..request(Command::BlockStatus, 1024) };
    let out = written(Mode::Structured, |session, out| session.status(&one, 0, &two, false, out));
    assert_eq!(out, b"\x66\x8e\x33\xef\0\0\0\x05cookie!!\0\0\0\x0c\0\0\0\0\0\0\x02\0\0\0\0\x03");
}

#[test]
fn a_reply_has_a_bounded_number_of_extents() {
    let many = vec![Extent { len: 1, status: 0 }; MAX_EXTENTS + 5];
    let ask = request(Command::BlockStatus, 1 << 20);
    let out = written(Mode::Structured, |session, out| session.status(&ask, 0, &many, true, out));
    assert_eq!(out.len(), 20 + 4 + 8 * MAX_EXTENTS);
}
