//! Replies that are sent together.

use crate::payload::Payload;

/// Bytes to be sent in one call.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) small: Vec<u8>,
    pub(super) pieces: Vec<Piece>,
}

#[derive(Debug)]
pub(super) enum Piece {
    /// Of `small`, up to here from where the piece before ended.
    Small { start: usize, end: usize },
    /// Header and data of a read.
    Data { payload: Payload, start: usize, len: usize },
}

impl Batch {
    /// What was written to `small` from here on is the next piece, or more of the last.
    pub(super) fn close(&mut self, start: usize) {
        let end = self.small.len();
        match self.pieces.last_mut() {
            Some(Piece::Small { end: last, .. }) if *last == start => *last = end,
            _ => self.pieces.push(Piece::Small { start, end }),
        }
    }
}

impl Batch {
    /// The first bytes have been sent: what is left are the pieces. The memory of reads that are sent goes to `spent`.
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
    /// The memory of a read, which is then no piece of the batch any more.
    pub(super) fn take_payload(&mut self) -> Option<Payload> {
        match std::mem::replace(self, Piece::Small { start: 0, end: 0 }) {
            Piece::Small { .. } => None,
            Piece::Data { payload, .. } => Some(payload),
        }
    }
}
