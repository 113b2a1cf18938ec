//! The flush that serves each bio. The steps of sequences are tested in `hctx::sequence`.

use super::*;

#[test]
fn a_flush_that_was_not_issued_comes_again_before_later_ones() {
    let mut bios = BioSet::new(8, 8);
    let ids: Vec<BioId> = (0..5).map(|_| bios.take().unwrap()).collect();
    let mut flush = FlushQueue::default();
    ids[..2].iter().for_each(|&id| flush.join(&mut bios, id));
    assert!(flush.issue());
    ids[2..].iter().for_each(|&id| flush.join(&mut bios, id));
    assert!(!flush.issue(), "one is in flight");
    flush.unissue(&mut bios);
    assert!(!flush.is_running() && flush.has_pending());
    assert!(flush.issue());
    let mut served = flush.end();
    let order: Vec<BioId> = std::iter::from_fn(|| served.pop(&mut bios)).collect();
    assert_eq!(order, ids);
}
