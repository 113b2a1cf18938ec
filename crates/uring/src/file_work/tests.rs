//! Batches: one at a time, in order, and no slot joins one that has begun.

use super::*;

#[test]
fn who_comes_while_a_batch_runs_is_in_the_next() {
    let mut batch = Batch::default();
    assert_eq!(batch.start(), None, "nobody waits");
    batch.push(3);
    batch.push(1);
    assert_eq!(batch.start(), Some(&[3, 1][..]));
    batch.push(2);
    assert_eq!(batch.start(), None, "one runs");
    let ended = batch.end();
    assert_eq!(ended, [3, 1]);
    batch.put_room(ended);
    assert_eq!(batch.start(), Some(&[2][..]));
    batch.push(4);
    assert_eq!(batch.end(), [2]);
    assert_eq!(batch.start(), Some(&[4][..]));
}
