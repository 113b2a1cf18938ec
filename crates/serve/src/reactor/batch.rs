//! Replies that are sent together.

use crate::payload::Payload;

#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) small: Vec<u8>,
    pub(super) pieces: Vec<Piece>,
}

#[derive(Debug)]
pub(super) enum Piece {
    /// Bytes `start..end` of `small`.
    Small { start: usize, end: usize },
    /// Header and data of a read.
    Data { payload: Payload, start: usize, len: usize },
}

impl Batch {
    /// Appends what `small` has from `start` on as a piece, or extends the last piece if that ends at `start`.
    pub(super) fn close(&mut self, start: usize) {
        let end = self.small.len();
        match self.pieces.last_mut() {
            Some(Piece::Small { end: last, .. }) if *last == start => *last = end,
            _ => self.pieces.push(Piece::Small { start, end }),
        }
    }
}

impl Batch {
    /// Removes the first `bytes` bytes, which have been sent. The payloads of reads that are sent in full go to
    /// `spent`.
    pub(super) fn sent(&mut self, mut bytes: usize, mut spent: impl FnMut(Payload)) {
        let mut whole = 0;
        for piece in &mut self.pieces {
            let len = match piece {
                Piece::Small { start, end } => *end - *start,
                Piece::Data { len, .. } => *len,
            };
            if len > bytes {
                match piece {
                    Piece::Small { start, .. } => *start += bytes,
                    Piece::Data { start, len, .. } => (*start, *len) = (*start + bytes, *len - bytes),
                }
                break;
            }
            bytes -= len;
            whole += 1;
            piece.take_payload().into_iter().for_each(&mut spent);
        }
        self.pieces.drain(..whole);
    }
}

impl Piece {
    /// Takes the payload out of a piece, which is empty afterwards. `None` for a piece without a payload.
    pub(super) fn take_payload(&mut self) -> Option<Payload> {
        match std::mem::replace(self, Piece::Small { start: 0, end: 0 }) {
            Piece::Small { .. } => None,
            Piece::Data { payload, .. } => Some(payload),
        }
    }
}
