//! Tests of requests, byte by byte: requests that are valid, that are refused, and that end the connection.

use super::*;
use crate::catalog::ExportInfo;

const SIZE: u64 = 1 << 20;

pub(crate) fn session(mode: Mode, read_only: bool, contexts: Vec<u32>) -> Session {
    let export = ExportInfo {
        id: 0,
        name: String::new(),
        description: String::new(),
        size: SIZE,
        read_only,
        fast_zero: true,
        min_block: 512,
        preferred_block: 4096,
    };
    let bits = contexts.iter().fold(0, |bits, number| bits | 1 << number);
    let contexts = Vec::new();
    Session { contexts: bits, ..Session::new(&Negotiated { export, mode, contexts, keeps_to_blocks: true }) }
}

fn compact(command: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let head = [REQUEST_MAGIC.to_be_bytes().as_slice(), &flags.to_be_bytes(), &command.to_be_bytes()].concat();
    [&head, b"cookie!!".as_slice(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

fn extended(command: u16, flags: u16, offset: u64, len: u64) -> Vec<u8> {
    let head = [EXTENDED_REQUEST_MAGIC.to_be_bytes().as_slice(), &flags.to_be_bytes(), &command.to_be_bytes()].concat();
    [&head, b"cookie!!".as_slice(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

const COOKIE: u64 = u64::from_be_bytes(*b"cookie!!");

/// Returns the final step for a complete request.
fn step(session: &Session, bytes: &[u8]) -> Step {
    let mut session = session.clone();
    let (mut used, mut step) = session.next(bytes);
    while step == Step::Skipped {
        let (more, next) = session.next(&bytes[used..]);
        (used, step) = (used + more, next);
    }
    step
}

fn errno(session: &Session, bytes: &[u8]) -> Errno {
    match step(session, bytes) {
        Step::Refused(Refused { errno, cookie: COOKIE, .. }) => errno,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_is_read_field_by_field() {
    let simple = session(Mode::Simple, false, vec![]);
    let Step::Request(read) = step(&simple, &compact(cmd::READ, 1, 512, 1024)) else { panic!() };
    let expected = Request { command: Command::Read, flags: 1, cookie: COOKIE, offset: 512, len: 1024, contexts: 0 };
    assert_eq!(read, expected);
    let wide = session(Mode::Extended, false, vec![1]);
    let Step::Request(trim) = step(&wide, &extended(cmd::TRIM, 0, 512, SIZE - 512)) else { panic!() };
    assert_eq!((trim.command, trim.offset, trim.len, trim.contexts), (Command::Trim, 512, SIZE - 512, 2));
}

#[test]
fn any_bytes_are_for_who_did_not_ask_for_block_sizes() {
    let keeps = session(Mode::Simple, false, vec![]);
    let any = Session { keeps_to_blocks: false, ..keeps.clone() };
    for command in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
        for (offset, len) in [(1, 512), (512, 7), (SIZE - 1, 1)] {
            let bytes = [compact(command, 0, offset, len), vec![0; len as usize]].concat();
            assert_eq!(errno(&keeps, &bytes), Errno::Inval, "{command} {offset}");
            let Step::Request(request) = step(&any, &bytes) else { panic!("{command} {offset}") };
            assert_eq!((request.offset, request.len), (offset, u64::from(len)));
        }
        let beyond = [compact(command, 0, SIZE - 1, 2), vec![0; 2]].concat();
        assert!(matches!(step(&any, &beyond), Step::Refused(_)), "{command}");
    }
}

#[test]
fn ranges_beyond_the_end_are_refused_without_an_overflow() {
    let simple = session(Mode::Simple, false, vec![]);
    let beyond = [(SIZE, 512), (SIZE - 512, 1024), (u64::MAX - 511, 512), (u64::MAX - 1023, 1024), (1 << 63, 512)];
    for (offset, len) in beyond {
        for command in [cmd::READ, cmd::TRIM, cmd::CACHE] {
            assert_eq!(errno(&simple, &compact(command, 0, offset, len)), Errno::Inval, "{command} {offset}");
        }
        assert_eq!(errno(&simple, &compact(cmd::WRITE_ZEROES, 0, offset, len)), Errno::NoSpc);
        let write = [compact(cmd::WRITE, 0, offset, len), vec![0; len as usize]].concat();
        assert_eq!(errno(&simple, &write), Errno::NoSpc);
    }
    // CVE-2025-47712 of nbdkit: lengths that overflow when rounded up.
    let wide = session(Mode::Extended, false, vec![0]);
    for command in [cmd::TRIM, cmd::CACHE, cmd::BLOCK_STATUS, cmd::READ] {
        assert_eq!(errno(&wide, &extended(command, 0, 512, u64::MAX - 511)), Errno::Inval);
        assert_eq!(errno(&wide, &extended(command, 0, 0, u64::MAX)), Errno::Inval);
    }
    assert!(matches!(step(&simple, &compact(cmd::READ, 0, SIZE - 512, 512)), Step::Request(_)));
}

#[test]
fn parts_of_blocks_are_refused_where_data_moves() {
    let simple = session(Mode::Simple, false, vec![]);
    for (offset, len) in [(1, 512), (0, 1), (256, 256)] {
        for command in [cmd::READ, cmd::TRIM, cmd::WRITE_ZEROES] {
            assert_eq!(errno(&simple, &compact(command, 0, offset, len)), Errno::Inval);
        }
        assert!(matches!(step(&simple, &compact(cmd::CACHE, 0, offset, len)), Step::Request(_)));
    }
}

#[test]
fn a_read_only_export_is_not_changed() {
    let locked = session(Mode::Simple, true, vec![]);
    assert_eq!(errno(&locked, &[compact(cmd::WRITE, 0, 0, 512), vec![0; 512]].concat()), Errno::Perm);
    for command in [cmd::TRIM, cmd::WRITE_ZEROES] {
        assert_eq!(errno(&locked, &compact(command, 0, 0, 512)), Errno::Perm);
    }
    for command in [cmd::READ, cmd::CACHE] {
        assert!(matches!(step(&locked, &compact(command, 0, 0, 512)), Step::Request(_)));
    }
    assert!(matches!(step(&locked, &compact(cmd::FLUSH, 0, 0, 0)), Step::Request(_)));
}

#[test]
fn each_command_has_its_flags_and_no_others() {
    let rights = [
        (cmd::READ, cflag::FUA | cflag::DF),
        (cmd::TRIM, cflag::FUA),
        (cmd::CACHE, cflag::FUA),
        (cmd::WRITE_ZEROES, cflag::FUA | cflag::NO_HOLE | cflag::FAST_ZERO),
        (cmd::BLOCK_STATUS, cflag::FUA | cflag::REQ_ONE),
    ];
    let structured = session(Mode::Structured, false, vec![0]);
    for (command, right) in rights {
        for bit in 0..16 {
            let flag = 1 << bit;
            let outcome = step(&structured, &compact(command, flag, 0, 512));
            match right & flag {
                0 => assert!(matches!(outcome, Step::Refused(Refused { errno: Errno::Inval, .. })), "{command} {bit}"),
                _ => assert!(matches!(outcome, Step::Request(_)), "{command} {bit}"),
            }
        }
    }
    assert_eq!(errno(&session(Mode::Simple, false, vec![]), &compact(cmd::READ, cflag::DF, 0, 512)), Errno::Inval);
}

#[test]
fn unknown_commands_and_flushes_with_ranges_are_refused() {
    let simple = session(Mode::Simple, false, vec![]);
    for command in [8, 9, 255, u16::MAX] {
        assert_eq!(errno(&simple, &compact(command, 0, 0, 512)), Errno::Inval);
    }
    assert_eq!(errno(&simple, &compact(cmd::FLUSH, 0, 0, 512)), Errno::Inval);
    assert_eq!(errno(&simple, &compact(cmd::FLUSH, 0, 512, 0)), Errno::Inval);
}

#[test]
fn data_of_a_refused_write_is_skipped() {
    let mut simple = session(Mode::Simple, false, vec![]);
    let bytes = [compact(cmd::WRITE, 0, 1, 512), vec![0x25; 512], compact(cmd::READ, 0, 0, 512)].concat();
    assert_eq!(simple.next(&bytes), (28, Step::Skipped));
    assert_eq!(simple.next(&bytes[28..100]), (72, Step::Skipped));
    assert!(matches!(simple.next(&bytes[100..]), (440, Step::Refused(_))));
    assert!(matches!(simple.next(&bytes[540..]), (28, Step::Request(_))));
}

#[test]
fn a_payload_comes_in_pieces_or_is_received_elsewhere() {
    let mut simple = session(Mode::Simple, false, vec![]);
    assert!(matches!(simple.next(&compact(cmd::WRITE, 0, 0, 1024)), (28, Step::Request(_))));
    assert_eq!(simple.payload_left(), 1024);
    assert_eq!(simple.next(&[]), (0, Step::More));
    assert_eq!(simple.next(&[0; 24]), (24, Step::Payload));
    simple.received(600);
    assert_eq!(simple.next(&[0; 1000]), (400, Step::Payload));
    assert_eq!(simple.next(&[0; 27]), (0, Step::More));
}

#[test]
fn what_is_no_request_ends_the_connection() {
    let mut simple = session(Mode::Simple, false, vec![]);
    let mut wrong = compact(cmd::READ, 0, 0, 512);
    wrong[0] ^= 1;
    assert!(matches!(simple.next(&wrong), (0, Step::Broken(_))));
    assert_eq!(simple.next(&compact(cmd::READ, 0, 0, 512)), (0, Step::Disconnect), "and it stays so");
    // A header in the format that was not negotiated.
    let mut wide = session(Mode::Extended, false, vec![]);
    assert!(matches!(wide.next(&[compact(cmd::READ, 0, 0, 512), vec![0; 4]].concat()), (0, Step::Broken(_))));
}

#[test]
fn payloads_are_bounded() {
    let most = MAX_PAYLOAD;
    let simple = session(Mode::Simple, false, vec![]);
    assert!(matches!(step(&simple, &compact(cmd::WRITE, 0, 0, most + 1)), Step::Broken(_)));
    assert!(matches!(step(&simple, &compact(cmd::WRITE, 0, 0, u32::MAX)), Step::Broken(_)));
    assert_eq!(simple.clone().next(&compact(cmd::WRITE, 0, 0, most)).1, Step::Skipped, "too long for this export only");
    let wide = session(Mode::Extended, false, vec![]);
    assert!(matches!(step(&wide, &extended(cmd::CACHE, cflag::PAYLOAD_LEN, 0, 1 << 40)), Step::Broken(_)));
    let mut large = session(Mode::Structured, false, vec![]);
    large.size = 1 << 40;
    assert_eq!(errno(&large, &compact(cmd::READ, cflag::DF, 0, most + 512)), Errno::Overflow);
    large.mode = Mode::Simple;
    assert_eq!(errno(&large, &compact(cmd::READ, 0, 0, most + 512)), Errno::Inval);
}

#[test]
fn extended_writes_have_data_also_without_their_flag() {
    let wide = session(Mode::Extended, false, vec![]);
    for flags in [cflag::PAYLOAD_LEN, 0] {
        let mut wide = wide.clone();
        assert!(matches!(wide.next(&extended(cmd::WRITE, flags, 0, 512)), (32, Step::Request(_))));
        assert_eq!(wide.payload_left(), 512);
    }
    // An unexpected payload is skipped, and the request refused.
    let read = [extended(cmd::READ, cflag::PAYLOAD_LEN, 0, 512), vec![0; 512]].concat();
    assert_eq!(errno(&wide, &read), Errno::Inval);
}

#[test]
fn status_needs_a_context_and_may_name_some() {
    let none = session(Mode::Structured, false, vec![]);
    assert_eq!(errno(&none, &compact(cmd::BLOCK_STATUS, 0, 0, 512)), Errno::Inval);
    let wide = session(Mode::Extended, false, vec![0, 1]);
    let ask = |len: u64, ids: &[u32]| {
        let payload: Vec<u8> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
        let head = extended(cmd::BLOCK_STATUS, cflag::PAYLOAD_LEN, 512, 8 + payload.len() as u64);
        [&head, len.to_be_bytes().as_slice(), &payload].concat()
    };
    let Step::Request(status) = step(&wide, &ask(1024, &[1])) else { panic!() };
    assert_eq!((status.offset, status.len, status.contexts), (512, 1024, 2));
    for wrong in [ask(1024, &[]), ask(1024, &[2]), ask(1024, &[1, 1]), ask(1024, &[u32::MAX]), ask(u64::MAX, &[0])] {
        assert_eq!(errno(&wide, &wrong), Errno::Inval);
    }
    let all: Vec<u32> = (0..40).collect();
    assert_eq!(errno(&wide, &ask(512, &all)), Errno::Inval);
}

#[test]
fn goodbye_is_goodbye_whatever_stands_in_it() {
    for (flags, offset) in [(0, 0), (u16::MAX, u64::MAX)] {
        let mut simple = session(Mode::Simple, false, vec![]);
        assert_eq!(simple.next(&compact(cmd::DISC, flags, offset, 7)), (28, Step::Disconnect));
    }
}

#[test]
fn contexts_have_the_numbers_of_their_places() {
    for many in [0u64, 1, 3, 32] {
        let export = crate::handshake::Negotiated {
            export: ExportInfo {
                id: 0,
                name: String::new(),
                description: String::new(),
                size: SIZE,
                read_only: false,
                fast_zero: true,
                min_block: 512,
                preferred_block: 4096,
            },
            mode: Mode::Extended,
            contexts: (500..500 + many).collect(),
            keeps_to_blocks: true,
        };
        assert_eq!(u64::from(Session::new(&export).contexts), (1 << many) - 1);
    }
}
