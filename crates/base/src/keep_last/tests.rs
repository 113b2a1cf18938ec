//! Entries that are kept, and entries that were overwritten.

use super::KeepLast;

#[test]
fn the_last_entries_are_kept_by_number() {
    let kept = KeepLast::<3>::new(4);
    assert_eq!((kept.written(), kept.read(0)), (0, None));
    (0..10).for_each(|n| kept.push(&[n, n * n, 1]));
    assert_eq!((kept.written(), kept.oldest(kept.written())), (10, 6));
    for n in 0..12 {
        let want = (6..10).contains(&n).then_some([n, n * n, 1]);
        assert_eq!(kept.read(n), want, "entry {n}");
    }
}
