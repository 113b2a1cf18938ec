//! Packing of a block into runs and literals.
//!
//! A packed block is a sequence of pieces. If the first byte of a piece is below 128, it is the length of a literal
//! minus one, and the bytes follow; from 128 on it is the length of a run plus 125, and the repeated byte follows. A
//! block that would become longer is kept unpacked, which its length shows.

/// Shortest run that becomes a piece.
const MIN_RUN: usize = 3;
const MAX_RUN: usize = 130;
const MAX_LITERAL: usize = 128;

/// Packs bytes. The result is never longer than the input.
#[must_use]
pub fn pack(bytes: &[u8]) -> Box<[u8]> {
    let mut packed = Vec::with_capacity(bytes.len());
    let (mut at, mut literal) = (0, 0);
    while at < bytes.len() {
        let run = bytes[at..].iter().take(MAX_RUN).take_while(|&&byte| byte == bytes[at]).count();
        if run < MIN_RUN {
            at += run;
            continue;
        }
        put_literals(&mut packed, &bytes[literal..at]);
        packed.extend([(run - MIN_RUN + MAX_LITERAL) as u8, bytes[at]]);
        at += run;
        literal = at;
    }
    put_literals(&mut packed, &bytes[literal..]);
    if packed.len() < bytes.len() { packed.into() } else { bytes.into() }
}

fn put_literals(packed: &mut Vec<u8>, bytes: &[u8]) {
    for piece in bytes.chunks(MAX_LITERAL) {
        packed.push((piece.len() - 1) as u8);
        packed.extend_from_slice(piece);
    }
}

/// Unpacks the output of [`pack`] into as many bytes as were packed. Returns false if it is malformed.
#[must_use]
pub fn unpack(packed: &[u8], bytes: &mut [u8]) -> bool {
    if packed.len() == bytes.len() {
        bytes.copy_from_slice(packed);
        return true;
    }
    let (mut from, mut to) = (packed, bytes);
    while let [first, rest @ ..] = from {
        let len = usize::from(*first);
        let run = len >= MAX_LITERAL;
        let many = if run { len - MAX_LITERAL + MIN_RUN } else { len + 1 };
        let Some((here, behind)) = std::mem::take(&mut to).split_at_mut_checked(many) else { return false };
        let Some((piece, left)) = rest.split_at_checked(if run { 1 } else { many }) else { return false };
        if run {
            here.fill(piece[0])
        } else {
            here.copy_from_slice(piece)
        }
        (from, to) = (left, behind);
    }
    to.is_empty()
}
