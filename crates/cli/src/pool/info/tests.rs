//! The chart of a pool's use.

use super::*;

#[test]
fn cells_add_up_and_nothing_is_invisible() {
    for parts in [
        [1, 0, 0, 0, 1_000_000],
        [1 << 40, 1, 1, 1, 1],
        [5, 5, 5, 5, 5],
        [0, 0, 8192, 0, 1 << 50],
        [u64::MAX / 8, u64::MAX / 8, 1, 0, u64::MAX / 8],
    ] {
        let cells = cells(&parts, parts.iter().sum());
        assert_eq!(cells.iter().sum::<usize>(), CELLS, "{parts:?}");
        for (bytes, cells) in parts.iter().zip(cells) {
            assert_eq!(*bytes > 0, cells > 0, "{parts:?}");
        }
    }
}

#[test]
fn a_bar_with_its_legend() {
    let used = Use { data: 32 << 20, shared: 16 << 20, metadata: 1 << 20, reserve: 1 << 20, free: 14 << 20 };
    let text = picture(&used);
    let bar = format!("[{}{}mr{}]", "#".repeat(32), "S".repeat(16), ".".repeat(14));
    assert!(text.contains(&bar), "{text}");
    assert!(text.contains("S shared") && text.contains("16 MiB   25 %"), "{text}");
    assert_eq!(text.lines().count(), 6);
}
