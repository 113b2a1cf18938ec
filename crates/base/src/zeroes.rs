//! Search for bytes that are not zero, as copies and checks of used space do it over whole images.
//!
//! Owns nothing. The functions are here, and not in the crates that call them, because the release profile optimizes
//! this crate and leaves the crates of the command line and of the daemon unoptimized.

/// Length of the pieces that [`is_zero`] looks at before it may stop.
const PIECE: usize = 128;

/// Returns true if all of `bytes` are zero.
#[inline(never)] // A copy in the caller's crate would be unoptimized.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Most blocks of data differ from zero in the first byte already.
    bytes.first().is_none_or(|first| *first == 0)
        && bytes.chunks(PIECE).all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Returns the index of the first byte that is not zero, or `None` if all of `bytes` are zero.
#[inline(never)] // As above.
pub fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    let piece = bytes.chunks(PIECE).position(|piece| !is_zero(piece))? * PIECE;
    bytes[piece..].iter().position(|byte| *byte != 0).map(|at| piece + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_of_a_single_byte_is_found() {
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes));
            assert_eq!(first_nonzero(&bytes), None);
            for at in 0..len {
                bytes[at] = 0x80;
                assert!(!is_zero(&bytes), "byte {at} of {len}");
                assert_eq!(first_nonzero(&bytes), Some(at), "of {len}");
                bytes[len - 1] = 1;
                assert_eq!(first_nonzero(&bytes), Some(at), "of {len}, with a second one behind it");
                (bytes[at], bytes[len - 1]) = (0, 0);
            }
        }
    }
}
