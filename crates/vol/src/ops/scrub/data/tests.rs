//! Bitmap of the blocks that were read.

use super::*;

fn piece(pos: u64, addr: u64, blocks: u64) -> Piece {
    Piece { pos: pos << 12, addr: addr << 12, len: blocks << 12 }
}

fn take(seen: &mut Seen, piece: Piece) -> Vec<Piece> {
    let mut out = Vec::new();
    seen.take(piece, &mut out);
    out
}

#[test]
fn a_block_is_read_once_whoever_has_it() {
    let mut seen = Seen::default();
    assert_eq!(take(&mut seen, piece(0, 100, 16)), [piece(0, 100, 16)]);
    assert_eq!(take(&mut seen, piece(0, 100, 16)), []);
    // Over the border of a chunk, with a block in the middle that was read before.
    let border = 1 << CHUNK_SHIFT;
    assert_eq!(take(&mut seen, piece(7, border - 1, 2)), [piece(7, border - 1, 2)]);
    assert_eq!(take(&mut seen, piece(5, border - 3, 6)), [piece(5, border - 3, 2), piece(9, border + 1, 2)]);
}

#[test]
fn a_bad_block_is_read_again_for_each_who_has_it() {
    let mut seen = Seen::default();
    take(&mut seen, piece(0, 100, 16));
    seen.bad.insert(103);
    assert_eq!(take(&mut seen, piece(50, 100, 16)), [piece(53, 103, 1)]);
    assert_eq!(take(&mut seen, piece(90, 100, 16)), [piece(93, 103, 1)]);
}
