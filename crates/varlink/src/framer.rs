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
    /// A framer for messages of at most `most` bytes, without the NUL.
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
    /// The message is too long, whether it is complete or not.
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
mod tests;
