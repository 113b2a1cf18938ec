//! Cells, groups, and the counts of dropped cells.

use super::*;
use sheave_blk::stats::{LATENCY_CELLS, STAGE_CELLS, Stage};

fn split(plugged_ns: u64, driver_ns: u64) -> Split {
    Split { plugged_ns, driver_ns, ..Split::default() }
}

#[test]
fn what_a_cell_counts_is_in_the_readings_of_its_groups() {
    let (file, ring) = (Arc::new(IoGroup::default()), Arc::new(IoGroup::default()));
    let seat = IoSeat::new(None, None, [file.clone(), ring.clone()]);
    let other = IoSeat::new(None, None, [ring.clone()]);
    (0..4).for_each(|_| assert!(!seat.cell().note(IoKind::Read, &split(10, 90), 512)));
    seat.cell().note(IoKind::Write, &split(0, 70), 4096);
    seat.cell().note_error();
    other.cell().note(IoKind::Read, &split(0, 50), 512);
    let reads = file.counts().kind(IoKind::Read).clone();
    assert_eq!((reads.ios, reads.bytes, reads.split.time_ns), (4, 2048, 400));
    assert_eq!((reads.split.ns(Stage::Plugged), reads.split.ns(Stage::Driver)), (40, 360));
    let writes = file.counts().kind(IoKind::Write).clone();
    assert_eq!((writes.ios, writes.bytes, writes.split.time_ns), (1, 4096, 70));
    assert_eq!(ring.counts().kind(IoKind::Read).ios, 5, "of both files");
    assert_eq!((ring.counts().ios(), file.counts().errors()), (6, 1));
}

#[test]
fn a_cell_that_goes_leaves_its_counts() {
    let group = Arc::new(IoGroup::default());
    for round in 1..=3 {
        let seat = IoSeat::new(None, None, [group.clone()]);
        (0..2).for_each(|_| assert!(!seat.cell().note(IoKind::Other, &split(1, 2), 0)));
        assert_eq!(group.counts().kind(IoKind::Other).ios, 2 * round, "while it is there");
        drop(seat);
        assert_eq!(group.counts().kind(IoKind::Other).ios, 2 * round, "and when it has gone");
    }
    assert_eq!(group.counts().kind(IoKind::Other).split.time_ns, 18);
    assert!(group.members().cells.is_empty());
}

#[test]
fn a_cell_takes_no_more_than_its_pages_say() {
    // docs/operate/observe.md states this cost, per open file and ring.
    let readings = NR_IO_KINDS * 4 * LATENCY_CELLS * 4;
    let histograms = (NR_IO_KINDS + 2) * (LATENCY_CELLS + 5 * STAGE_CELLS) * 8;
    let all = readings + histograms + size_of::<IoCell>() + size_of::<RecordStats>();
    assert!(all <= 39 << 10, "{all} bytes");
}
