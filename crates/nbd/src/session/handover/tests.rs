//! Tests that a session goes on in another process, and that requests parse again to what they were.

use proptest::prelude::*;

use super::super::Step;
use super::super::tests::session;
use super::*;
use crate::catalog::ExportInfo;

const SIZE: u64 = 1 << 40;

fn negotiated(mode: Mode, contexts: usize, keeps_to_blocks: bool) -> Negotiated {
    let export = ExportInfo {
        id: 0,
        name: String::new(),
        description: String::new(),
        size: SIZE,
        read_only: false,
        fast_zero: true,
        min_block: 512,
        preferred_block: 4096,
    };
    Negotiated { export, mode, contexts: (0..contexts as u64).collect(), keeps_to_blocks }
}

/// Passes the state through its text.
fn handed_over(session: &Session, negotiated: &Negotiated) -> Session {
    let text = serde_json::to_string(&session.state()).expect("a state has a text");
    Session::restored(negotiated, &serde_json::from_str(&text).expect("the text of a state"))
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Simple), Just(Mode::Structured), Just(Mode::Extended)]
}

/// A negotiation, and a request that is valid for it.
fn valid() -> impl Strategy<Value = (Negotiated, Request)> {
    let range = (any::<bool>(), any::<u64>(), any::<u64>());
    let rest = (0..7usize, any::<u16>(), any::<u64>(), any::<u32>());
    (any_mode(), any::<bool>(), 1..=MAX_CONTEXTS, range, rest).prop_map(
        |(mode, keeps, contexts, (short, offset, len), (command, flags, cookie, named))| {
            use Command::{BlockStatus, Cache, Flush, Read, Trim, Write, WriteZeroes};
            let contexts = if mode == Mode::Simple { 0 } else { contexts };
            let negotiated = negotiated(mode, contexts, keeps);
            let all = Session::new(&negotiated).contexts;
            let mut command = [Read, Write, Flush, Trim, Cache, WriteZeroes, BlockStatus][command];
            if mode == Mode::Simple && command == BlockStatus {
                command = Flush;
            }
            let right = match command {
                Read if mode != Mode::Simple => cflag::DF,
                Write if mode == Mode::Extended => cflag::PAYLOAD_LEN,
                WriteZeroes => cflag::NO_HOLE | cflag::FAST_ZERO,
                BlockStatus => cflag::REQ_ONE,
                _ => 0,
            };
            let most = match (command, mode) {
                (Read | Write, _) => u64::from(MAX_PAYLOAD),
                (_, Mode::Extended) => SIZE,
                _ => u64::from(u32::MAX) & !511,
            };
            let len = len % (if short { 10_000 } else { most } + 1);
            let len = if keeps { len & !511 } else { len };
            let len = if command == BlockStatus { len.max(1) } else { len };
            let offset = offset % (SIZE - len + 1);
            let offset = if keeps { offset & !511 } else { offset };
            let (offset, len) = if command == Flush { (0, 0) } else { (offset, len) };
            let some = if named & all == 0 { all } else { named & all };
            let contexts = if command == BlockStatus && mode == Mode::Extended { some } else { all };
            let flags = flags & (right | cflag::FUA);
            (negotiated, Request { command, flags, cookie, offset, len, contexts })
        },
    )
}

proptest! {
    #[test]
    fn a_request_parses_again_to_what_it_was((negotiated, request) in valid()) {
        let mut session = Session::new(&negotiated);
        let bytes = session.encode(&request);
        let end = session.clone().next(&[&bytes[..], &[0x55; 100]].concat());
        prop_assert_eq!(end, (bytes.len(), Step::Request(request)));
        prop_assert_eq!(session.next(&bytes[..bytes.len() - 1]), (0, Step::More));
        prop_assert_eq!(session.next(&bytes), (bytes.len(), Step::Request(request)));
        let payload = if request.command == Command::Write { request.len } else { 0 };
        prop_assert_eq!(session.payload_left(), payload);
        if payload != 0 {
            prop_assert_eq!(session.next(&[1]), (1, Step::Payload));
            prop_assert_eq!(handed_over(&session, &negotiated), Session::new(&negotiated), "before the request");
            session.received(payload - 1);
        }
        prop_assert_eq!(session, Session::new(&negotiated));
    }

    #[test]
    fn a_session_goes_on_after_any_request(
        (negotiated, request) in valid(),
        (command, flags, offset, len) in (0..10u16, 0..64u16, 0..5000u64, 0..5000u64),
        cut in 1..6000usize,
    ) {
        let mut stays = Session::new(&negotiated);
        let mut bytes = stays.encode(&Request { offset, len, ..request });
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&command.to_be_bytes());
        bytes.resize(bytes.len() + 5000, 0);
        let (used, step) = stays.next(&bytes);
        if matches!(step, Step::Request(Request { command: Command::Write, len: 1.., .. })) {
            return Ok(());
        }
        let mut moves = handed_over(&stays, &negotiated);
        let rest = &bytes[used..];
        let (cut, left) = (cut.min(rest.len()), rest.len());
        for piece in [&rest[..cut], &rest[cut..left]] {
            let (expected, found) = (stays.next(piece), moves.next(piece));
            match (expected.1, found.1) {
                (Step::Refused(before), Step::Refused(after)) => {
                    let refused = Refused { why: after.why, ..before };
                    prop_assert_eq!((expected.0, refused), (found.0, after));
                }
                _ => prop_assert_eq!(expected, found),
            }
            if expected.0 != piece.len() {
                break;
            }
        }
    }

    #[test]
    fn no_state_makes_a_session_panic(
        mode in any_mode(),
        contexts in 0..40usize,
        skip in prop::option::of((prop_oneof![0..3u64, any::<u64>()], any::<u64>(), 0..120u32)),
        ended in any::<bool>(),
        bytes in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let negotiated = negotiated(mode, contexts, true);
        let skip = skip.map(|(left, offset, errno)| Skip { left, cookie: 1, offset, errno });
        let state = SessionState { skip, ended };
        let mut session = Session::restored(&negotiated, &state);
        let ended = SessionState { skip: None, ended: true };
        prop_assert!([state, ended].contains(&session.state()));
        session.next(&bytes);
        prop_assert_eq!(handed_over(&session, &negotiated).state(), session.state());
    }
}

#[test]
fn requests_are_encoded_byte_for_byte() {
    let bytes = [
        &EXTENDED_REQUEST_MAGIC.to_be_bytes()[..],
        &[0, 0x28, 0, 7],
        b"cookie!!",
        &512u64.to_be_bytes(),
        &12u64.to_be_bytes(),
        &1024u64.to_be_bytes(),
        &1u32.to_be_bytes(),
    ]
    .concat();
    let wide = session(Mode::Extended, false, vec![0, 1]);
    let (44, Step::Request(status)) = wide.clone().next(&bytes) else { panic!() };
    assert_eq!(wide.encode(&status), bytes);
    for (mode, magic) in [(Mode::Simple, REQUEST_MAGIC), (Mode::Structured, REQUEST_MAGIC)] {
        let compact = session(mode, false, vec![]);
        let bytes =
            [&magic.to_be_bytes()[..], &[0, 1, 0, 1], b"cookie!!", &512u64.to_be_bytes(), &[0, 0, 2, 0]].concat();
        let (28, Step::Request(write)) = compact.clone().next(&bytes) else { panic!() };
        assert_eq!(compact.encode(&write), bytes);
    }
}

#[test]
fn impossible_states_end_the_session() {
    let fine = Skip { left: 7, cookie: 1, offset: 2, errno: 22 };
    let negotiated_simple = negotiated(Mode::Simple, 0, true);
    let restored = |skip| Session::restored(&negotiated_simple, &SessionState { skip: Some(skip), ended: false });
    let mut session = restored(fine);
    assert_eq!(session.next(&[0; 5]), (5, Step::Skipped));
    let refused = Refused { cookie: 1, offset: 2, errno: Errno::Inval, why: REFUSED_BEFORE };
    assert_eq!(session.next(&[0; 5]), (2, Step::Refused(refused)));
    assert!(session.keeps_to_blocks());
    assert_ne!(restored(Skip { left: u64::from(MAX_PAYLOAD), ..fine }).incoming, Incoming::Ended);
    for wrong in [
        Skip { left: 0, ..fine },
        Skip { left: u64::from(MAX_PAYLOAD) + 1, ..fine },
        Skip { left: u64::MAX, ..fine },
        Skip { errno: 0, ..fine },
        Skip { errno: 23, ..fine },
    ] {
        assert_eq!(restored(wrong).next(&[0; 100]), (0, Step::Disconnect), "{wrong:?}");
    }
    for (mode, contexts) in [(Mode::Simple, 1), (Mode::Extended, MAX_CONTEXTS + 1)] {
        let mut session = Session::restored(&negotiated(mode, contexts, true), &SessionState::default());
        assert_eq!(session.next(&[0; 100]), (0, Step::Disconnect));
    }
}

#[test]
fn every_error_has_one_number() {
    let known = (0..200).filter_map(Errno::of_number).map(|errno| errno as u32);
    assert_eq!(known.collect::<Vec<_>>(), [1, 5, 12, 22, 28, 75, 95, 108]);
}
