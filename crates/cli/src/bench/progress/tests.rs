//! Parts of the progress display that do not need a terminal.

use super::*;

#[test]
fn eta_follows_the_pace() {
    let since = Instant::now() - Duration::from_secs(10);
    let stage = Stage { phase: Phase::Run, goal: Goal::Time(Duration::from_secs(40)), since, number: 1 };
    let sample = Sample { stage, counts: Counts::default(), counted: Duration::from_secs(10) };
    let eta = sample.eta(250).expect("some of it is done").as_secs_f64();
    assert!((29.9..31.0).contains(&eta), "{eta}");
    assert_eq!(sample.eta(0), None);
}

#[test]
fn the_speed_of_a_comparison_is_that_of_our_turns_without_failed_ios() {
    let board = Board::new(1);
    let began = Instant::now();
    board.enter(Phase::Compare, Goal::Ios(5));
    let lane = board.lane(0);
    let before = Sample::take(&board);
    board.turn_begins();
    std::thread::sleep(Duration::from_millis(50));
    lane.counters.publish(&Counts { ios: 1_500, errors: 500, ..Counts::default() });
    board.turn_ends();
    let after_ours = Sample::take(&board);
    std::thread::sleep(Duration::from_millis(50));
    let after_theirs = Sample::take(&board);
    let counted = after_theirs.counted;
    assert!(counted >= Duration::from_millis(50) && counted + Duration::from_millis(50) <= began.elapsed());
    let speed = after_theirs.since(&before).expect("a turn of ours");
    assert!((speed.iops * counted.as_secs_f64() - 1_000.0).abs() < 1e-6, "{speed:?}");
    assert!(after_theirs.since(&after_ours).is_none(), "nothing was counted in theirs");
}
