//! Splits a stream of bytes into messages, each terminated by a NUL. Does no I/O, so that any split of the stream can
//! be tested.

use thiserror::Error;

/// The error for a message that exceeds the maximum length.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a message has more than {most} bytes")]
pub struct TooLong {
    /// Maximum length.
    pub most: usize,
}

/// Received bytes that do not form a complete message yet.
#[derive(Debug)]
pub struct Framer {
    bytes: Vec<u8>,
    /// Length of the prefix that is known to contain no NUL.
    looked_at: usize,
    most: usize,
}

impl Framer {
    /// Makes a framer for messages of at most `most` bytes, without the NUL.
    #[must_use]
    pub fn new(most: usize) -> Framer {
        Framer { bytes: Vec::new(), looked_at: 0, most }
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete message, without its NUL.
    ///
    /// # Errors
    ///
    /// Returns an error if the message is too long, whether it is complete or not.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        let too_long = TooLong { most: self.most };
        let Some(at) = self.bytes[self.looked_at..].iter().position(|byte| *byte == 0) else {
            self.looked_at = self.bytes.len();
            return if self.bytes.len() > self.most { Err(too_long) } else { Ok(None) };
        };
        let end = self.looked_at + at;
        if end > self.most {
            return Err(too_long);
        }
        let rest = self.bytes.split_off(end + 1);
        let mut message = std::mem::replace(&mut self.bytes, rest);
        message.pop();
        self.looked_at = 0;
        Ok(Some(message))
    }

    /// Returns true if there are bytes of an incomplete message, or of one that was not taken yet.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        !self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
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
}
