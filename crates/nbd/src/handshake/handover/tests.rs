//! Tests that a handshake goes on in another process, and that no state makes the other process panic.

use proptest::prelude::*;

use super::super::Step;
use super::super::tests::{Two, begun, go, option, queries};
use super::*;
use crate::wire::opt;

/// Passes the state through its text.
fn handed_over(handshake: &Handshake) -> Option<Handshake> {
    let text = serde_json::to_string(&handshake.state()?).expect("a state has a text");
    Handshake::restored(&serde_json::from_str(&text).expect("the text of a state"), handshake.tls)
}

/// Options that select something, that are refused, and one whose data is skipped.
fn options() -> Vec<Vec<u8>> {
    let long = [b"IHAVEOPT".as_slice(), &opt::INFO.to_be_bytes(), &40_000u32.to_be_bytes(), &[0; 40_000]].concat();
    vec![
        option(opt::LIST, &[]),
        option(opt::STRUCTURED_REPLY, &[]),
        option(opt::EXTENDED_HEADERS, &[]),
        option(opt::SET_META_CONTEXT, &queries("two", &["base:allocation", "n:5"])),
        option(opt::SET_META_CONTEXT, &queries("two", &[])),
        option(opt::INFO, &go("one", &[3])),
        option(opt::INFO, &go("two", &[3])),
        option(99, &[1, 2, 3]),
        long,
        option(opt::GO, &go("two", &[])),
        option(opt::ABORT, &[]),
    ]
}

fn selected() -> HandshakeState {
    HandshakeState {
        stage: Stage::Option,
        client_flags: FLAG_FIXED_NEWSTYLE,
        mode: Mode::Structured,
        contexts: Some((1, vec![1000, 5])),
        block_sizes: Some(2),
        options: 3,
    }
}

#[test]
fn ids_and_numbers_become_those_of_the_new_catalog() {
    let moved = selected().map_exports(|id| Some(id + 10)).map_contexts(|export, number| {
        assert_eq!(export, 11);
        Some(number + 1)
    });
    assert_eq!(moved, HandshakeState { contexts: Some((11, vec![1001, 6])), block_sizes: Some(12), ..selected() });
    let gone = selected().map_exports(|id| (id == 2).then_some(0));
    assert_eq!(gone, HandshakeState { contexts: None, block_sizes: Some(0), ..selected() });
    let gone = selected().map_exports(|id| (id == 1).then_some(0));
    assert_eq!(gone, HandshakeState { contexts: Some((0, vec![1000, 5])), block_sizes: None, ..selected() });
    let gone = selected().map_contexts(|_, number| (number != 5).then_some(number));
    assert_eq!(gone, HandshakeState { contexts: None, ..selected() });
}

#[test]
fn tls_stays_where_it_is() {
    let mut handshake = Handshake::new(Tls::Allowed, &mut Vec::new());
    let mut out = Vec::new();
    handshake.step(&u32::from(FLAG_FIXED_NEWSTYLE).to_be_bytes(), &Two, &mut out);
    assert!(handshake.state().is_some());
    assert_eq!(handshake.step(&option(opt::STARTTLS, &[]), &Two, &mut out).1, Step::StartTls);
    assert_eq!(handshake.state(), None);
    handshake.tls_started();
    assert_eq!(handshake.state(), None);
    assert_eq!(Handshake::restored(&selected(), Tls::Started), None);
}

#[test]
fn the_requirement_for_tls_is_that_of_the_new_process() {
    let mut handshake = Handshake::restored(&selected(), Tls::Required).expect("a state");
    let mut out = Vec::new();
    let (_, step) = handshake.step(&option(opt::EXPORT_NAME, b"two"), &Two, &mut out);
    assert_eq!((step, out.len()), (Step::Close, 0));
}

#[test]
fn impossible_states_are_refused() {
    assert!(Handshake::restored(&selected(), Tls::Off).is_some());
    let fresh = HandshakeState {
        stage: Stage::Flags,
        client_flags: 0,
        mode: Mode::Simple,
        contexts: None,
        block_sizes: None,
        options: 0,
    };
    assert!(Handshake::restored(&fresh, Tls::Off).is_some());
    let skip = |left| HandshakeState { stage: Stage::Skip { left }, ..selected() };
    for left in [1, MAX_SKIPPED_BYTES] {
        assert!(Handshake::restored(&skip(left), Tls::Off).is_some());
    }
    let impossible = [
        skip(0),
        skip(MAX_SKIPPED_BYTES + 1),
        HandshakeState { client_flags: 4, ..selected() },
        HandshakeState { client_flags: 0, ..selected() },
        HandshakeState { mode: Mode::Simple, ..selected() },
        HandshakeState { options: 0, ..selected() },
        HandshakeState { stage: Stage::Ended, options: 0, ..selected() },
        HandshakeState { contexts: Some((1, vec![0; MAX_CONTEXTS + 1])), ..selected() },
        HandshakeState { client_flags: 1, ..fresh.clone() },
        HandshakeState { options: 1, ..fresh.clone() },
        HandshakeState { mode: Mode::Extended, ..fresh.clone() },
        HandshakeState { block_sizes: Some(0), ..fresh },
    ];
    for state in impossible {
        assert_eq!(Handshake::restored(&state, Tls::Off), None, "{state:?}");
    }
}

fn any_state() -> impl Strategy<Value = HandshakeState> {
    let stage = prop_oneof![
        Just(Stage::Flags),
        Just(Stage::Option),
        prop_oneof![0..3u32, any::<u32>()].prop_map(|left| Stage::Skip { left }),
        Just(Stage::Ended),
    ];
    let mode = prop_oneof![Just(Mode::Simple), Just(Mode::Structured), Just(Mode::Extended)];
    let contexts = prop::option::of((0..3u32, prop::collection::vec(any::<u64>(), 0..40)));
    let options = prop_oneof![0..3u32, Just(u32::MAX), any::<u32>()];
    (stage, 0..5u16, mode, contexts, prop::option::of(0..3u32), options).prop_map(
        |(stage, client_flags, mode, contexts, block_sizes, options)| HandshakeState {
            stage,
            client_flags,
            mode,
            contexts,
            block_sizes,
            options,
        },
    )
}

proptest! {
    #[test]
    fn a_handshake_goes_on_after_any_message(
        flags in 0..4u32,
        chosen in prop::collection::vec((0..11usize, 1..50_000usize), 0..12),
    ) {
        let options = options();
        let mut stays = Handshake::new(Tls::Off, &mut Vec::new());
        prop_assert_eq!(handed_over(&stays), Some(stays.clone()));
        stays.step(&flags.to_be_bytes(), &Two, &mut Vec::new());
        let mut moves = handed_over(&stays).expect("a state");
        for (chosen, piece) in chosen {
            // The data of the long option comes in pieces, so that a handover finds it half skipped.
            let mut left = &options[chosen][..];
            loop {
                let (mut out, mut other) = (Vec::new(), Vec::new());
                let skips = matches!(stays.state, State::Skip { .. });
                let input = if skips { &left[..piece.min(left.len())] } else { left };
                let expected = stays.step(input, &Two, &mut out);
                prop_assert_eq!(moves.step(input, &Two, &mut other), (expected.0, expected.1));
                prop_assert_eq!(out, other);
                moves = handed_over(&stays).expect("a state");
                prop_assert_eq!(&moves, &stays);
                left = &left[expected.0..];
                if left.is_empty() || expected.0 == 0 {
                    break;
                }
            }
        }
    }

    #[test]
    fn no_state_makes_a_handshake_panic(state in any_state(), chosen in prop::collection::vec(0..11usize, 0..4)) {
        if let Some(mut handshake) = Handshake::restored(&state, Tls::Off) {
            prop_assert_eq!(handshake.state(), Some(state));
            for chosen in chosen {
                handshake.step(&options()[chosen], &Two, &mut Vec::new());
                prop_assert_eq!(handed_over(&handshake), Some(handshake.clone()));
            }
        }
    }
}

#[test]
fn texts_that_were_cut_off_are_no_states() {
    let text = serde_json::to_string(&begun(1).state()).expect("a state has a text");
    for end in 0..text.len() {
        assert!(serde_json::from_str::<HandshakeState>(&text[..end]).is_err());
    }
}
