//! What was seen, and pieces.

use super::*;

#[test]
fn a_block_is_seen_once() {
    let mut seen = Seen::new(1 << 30);
    assert!(!seen.mark(0, 65536));
    assert!(seen.mark(0, 65536) && seen.mark(4096, 4096));
    assert!(!seen.mark(61440, 8192), "half of it is new");
    assert!(seen.mark(65536, 4096));
    assert!(!seen.mark(1 << 40, 4096), "beyond the pool: read, and let the volume say what is wrong");
}

#[test]
fn extents_are_read_in_pieces() {
    let extent = Extent { pos: 4096, len: PIECE + 8192, kind: ExtentKind::Data, addr: 0, shared: false };
    assert_eq!(pieces(&extent).collect::<Vec<_>>(), [(4096, PIECE), (4096 + PIECE, 8192)]);
}
