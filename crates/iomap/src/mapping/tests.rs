//! The list of pieces, which has its first in another place than the rest.

use super::*;

fn piece(n: u64) -> Mapping {
    Mapping::new(MappingKind::Mapped, n, 1, n)
}

#[test]
fn pieces_keep_their_order_however_many_there_are() {
    let mut pieces = Pieces::default();
    for round in 0..3 {
        for count in 0..6 {
            let wanted: Vec<Mapping> = (0..count).map(|n| piece(n + round)).collect();
            pieces.copy_from(&wanted);
            assert_eq!(pieces.as_slice(), wanted);
            for keep in (0..=count as usize).rev() {
                pieces.truncate(keep);
                assert_eq!(pieces.as_slice(), &wanted[..keep]);
            }
        }
    }
}
