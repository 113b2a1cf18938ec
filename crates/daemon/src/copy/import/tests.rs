//! Splitting into runs of zeroes and of data.

use super::*;

#[test]
fn runs_of_zeroes_and_of_data() {
    let grain = GRAIN as usize;
    let mut bytes = vec![0; 8 * grain];
    assert_eq!(split(&bytes), [Run { start: 0, len: 8 * grain, zero: true }]);
    // Also a block whose only nonzero byte is its last counts as data.
    bytes[2 * grain - 1] = 1;
    bytes[2 * grain] = 1;
    bytes[7 * grain + 1000] = 1;
    let run = |start: usize, len: usize, zero| Run { start: start * grain, len: len * grain, zero };
    assert_eq!(split(&bytes), [run(0, 1, true), run(1, 2, false), run(3, 4, true), run(7, 1, false)]);
    assert_eq!(split(&[]), []);
}
