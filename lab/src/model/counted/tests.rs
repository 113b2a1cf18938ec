//! Tests of the text format of counts.

use super::*;

#[test]
fn counts_come_back_as_they_went() {
    let counted = Counted {
        experiment: "in-flight".into(),
        arm: "4 per node".into(),
        machine: "power".into(),
        threads: 80,
        ios: 5120,
        transfers: 1,
        upgrades: 2,
        invalidations: 3,
        lock_waits: 4,
        hops: [5, 6, 7],
        busiest: [8, 9, 10],
    };
    let line = counted.line();
    assert_eq!(Counted::parse(line.trim_end()), Some(counted.clone()));
    assert_eq!(counted.per_io(10_240), 2.0);
}

#[test]
fn what_is_no_line_of_counts_is_refused() {
    let line = Counted::default().line();
    for wrong in ["", "a\tb", line.trim_end().trim_end_matches("\t0"), &format!("{}\t0", line.trim_end())] {
        assert_eq!(Counted::parse(wrong), None, "{wrong}");
    }
    assert_eq!(Counted::parse(&line.replace('0', "x")), None);
}
