//! A stream of bytes cut into messages: each ends with a NUL. Without I/O, so that any cut of the stream can be tested.

use thiserror::Error;

/// A message is longer than one may be.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a message has more than {most} bytes")]
pub struct TooLong {
    /// How many there may be.
    pub most: usize,
}

/// Bytes that have come, and are no whole message yet.
#[derive(Debug)]
pub struct Framer {
    bytes: Vec<u8>,
    /// So many of them are known to have no NUL.
    looked_at: usize,
    most: usize,
}

impl Framer {
    /// For messages of up to so many bytes, the NUL not among them.
    #[must_use]
    pub fn new(most: usize) -> Framer {
        Framer { bytes: Vec::new(), looked_at: 0, most }
    }

    /// Adds bytes that have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message, without its NUL.
    ///
    /// # Errors
    ///
    /// When what has come is longer than a message may be, whether its end has come or not.
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

    /// Whether a message has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        !self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests;
