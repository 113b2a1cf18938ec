//! The usual latency follows the last ten seconds.

use sheave_blk::stats::Split;

use super::*;

const SECOND: u64 = 1_000_000_000;
const LIMIT: u64 = 10 * SECOND;

fn reads(cell: &IoCell, ios: u64, ns: u64) {
    (0..ios).for_each(|_| {
        cell.note(IoKind::Read, &Split { driver_ns: ns, ..Split::default() }, 512);
    });
}

/// Counts an I/O of this latency. Returns true if it was slow.
fn is_slow(cell: &IoCell, ns: u64) -> bool {
    cell.note(IoKind::Read, &Split { driver_ns: ns, ..Split::default() }, 512)
}

#[test]
fn slow_is_what_takes_four_times_as_long_as_usual_or_longer_than_the_limit() {
    let (cell, mut usual) = (IoCell::alone(), Usual::default());
    let mut look = |cell: &IoCell, second: u64| {
        usual.look(cell, LIMIT, CoarseTs(second * SECOND));
        usual.p999_ns(IoKind::Read)
    };
    assert!(is_slow(&cell, LIMIT + 1) || look(&cell, 0) == 0);
    // With the one above 99: 100 are enough.
    reads(&cell, 98, 1024);
    assert_eq!(look(&cell, 0), 0, "too few to tell");
    assert!(!is_slow(&cell, LIMIT) && is_slow(&cell, LIMIT + 1), "the limit holds from the start");
    reads(&cell, 10_000, 1024);
    assert_eq!(look(&cell, 1), 1024);
    assert!(!is_slow(&cell, 4096) && is_slow(&cell, 4097));
    // Writes are measured separately.
    assert!(!cell.note(IoKind::Write, &Split { driver_ns: 1 << 20, ..Split::default() }, 512));
    for second in 2..=20 {
        reads(&cell, 1000, 8192);
        look(&cell, second);
    }
    assert_eq!(look(&cell, 21), 8192, "what was ten seconds ago is forgotten");
    assert!(!is_slow(&cell, 32_768) && is_slow(&cell, 32_769));
    for second in 22..100 {
        look(&cell, second);
    }
    assert_eq!(look(&cell, 100), 8192, "without I/O it stays what it was");
    for second in 101..=120 {
        reads(&cell, 1000, 2048);
        look(&cell, second);
    }
    assert_eq!(look(&cell, 121), 2048, "and what was slower is forgotten, too");
}

#[test]
fn counts_may_wrap() {
    let mut window = Window::default();
    let at = |counts: u64| (0..LATENCY_CELLS as u64).map(move |cell| if cell == 100 { counts } else { 0 });
    for (n, counts) in [(1 << 32) - 50, (1 << 32) + 60, (1 << 32) + 1000].into_iter().enumerate() {
        window.look(at(counts), CoarseTs(n as u64 * 3 * SECOND));
    }
    assert_ne!(window.p999_ns, 0);
}
