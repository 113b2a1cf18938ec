//! Messages are returned complete however the stream was split, and those that are too long are refused.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn any_cut_of_the_stream_gives_the_same_messages(
        messages in prop::collection::vec(prop::collection::vec(1u8..=255, 0..40), 0..8),
        cuts in prop::collection::vec(1usize..30, 1..40),
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(|message| message.iter().copied().chain([0])).collect();
        let (mut framer, mut found, mut rest) = (Framer::new(40), Vec::new(), stream.as_slice());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, later) = rest.split_at((*cut).min(rest.len()));
            framer.push(piece);
            rest = later;
            while let Some(message) = framer.take().expect("none is too long") {
                found.push(message);
            }
        }
        prop_assert_eq!(found, messages);
        prop_assert!(!framer.has_begun());
    }
}

#[test]
fn a_message_that_is_too_long_is_refused_before_its_end_has_come() {
    let mut framer = Framer::new(4);
    framer.push(b"1234");
    assert_eq!(framer.take(), Ok(None));
    framer.push(b"\0");
    assert_eq!(framer.take(), Ok(Some(b"1234".to_vec())));
    framer.push(b"12345");
    assert_eq!(framer.take(), Err(TooLong { most: 4 }));
    let mut whole = Framer::new(4);
    whole.push(b"12345\0");
    assert_eq!(whole.take(), Err(TooLong { most: 4 }));
}
