//! Activities that ran during an I/O.

use std::time::Duration;

use super::*;

#[test]
fn what_ran_since_a_moment_is_told_of_and_nothing_else() {
    let (clock, time) = Clock::virtual_clock();
    time.advance(Duration::from_micros(1));
    let activities = Activities::new(clock.clone());
    let start = clock.coarse();
    assert_eq!(activities.since(start), Beside::default());
    let commit = activities.begin(Activity::Commit);
    let copies = [activities.begin(Activity::Copy), activities.begin(Activity::Copy)];
    let both: Beside = [Activity::Commit, Activity::Copy].into_iter().collect();
    assert_eq!(activities.since(start), both);
    time.advance(Duration::from_micros(5));
    drop(copies);
    let later = CoarseTs(clock.coarse().0 + 1);
    assert_eq!(activities.since(start), both, "over, but since then");
    assert_eq!(activities.since(later).activities().collect::<Vec<_>>(), [Activity::Commit], "still under way");
    time.advance(Duration::from_micros(5));
    drop(commit);
    assert!(activities.since(later).has(Activity::Commit));
    assert_eq!(activities.since(CoarseTs(u64::MAX)), Beside::default());
    assert_eq!(Beside::from_bits(both.bits()), both);
    assert_eq!(both.and([Activity::Scrub].into_iter().collect()).activities().count(), 3);
}
