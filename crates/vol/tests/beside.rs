//! Activities of a pool that may delay I/O, as the flight recorder reports them for I/O that waits meanwhile.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::support::{User, format, open, pattern};
use sheave_base::beside::Activity;
use sheave_base::clock::{Clock, CoarseTs};
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_vol::{OpenOptions, Pool, ScrubOptions, WhenFull};

const UNIT: u64 = 65536;

/// Returns the activities of a volume's pool during `act`.
fn during(user: &User, act: impl FnOnce()) -> Vec<Activity> {
    let activities = user.volume.beside().expect("volumes tell");
    // Waits for the next tick of the coarse clock, so that activities which ended before are not included.
    let since = CoarseTs(Clock::real().coarse().0 + 1);
    while Clock::real().coarse() <= since {
        std::hint::spin_loop();
    }
    act();
    activities.since(since).activities().collect()
}

#[test]
fn a_pool_tells_each_thing_that_it_does_beside_io() {
    let device = open_device("ram:size=16M").expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    user.write(0, &pattern(1, 4096)).expect("writes");
    assert_eq!(during(&user, || user.write(0, &pattern(2, 4096)).expect("overwrites")), []);
    assert_eq!(during(&user, || user.sync().expect("syncs")), [Activity::Commit]);
    let scrub = || {
        let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).expect("scrubs");
        assert!(report.is_clean());
    };
    assert!(during(&user, scrub).contains(&Activity::Scrub));
    pool.snapshot("v", "s").expect("a snapshot takes no data");
    assert_eq!(during(&user, || user.write(0, &pattern(3, 4096)).expect("copies")), [Activity::Copy]);
    // Commits until the journal is so full that a checkpoint writes the maps.
    let mut commits = 0;
    while !during(&user, || user.sync().expect("syncs")).contains(&Activity::Checkpoint) {
        user.punch(0, UNIT).expect("punches");
        user.write(0, &pattern(commits, 4096)).expect("writes");
        commits += 1;
        assert!(commits < 10_000, "no checkpoint");
    }
    assert!(commits > 1, "most commits need none");
}

#[test]
fn a_pool_tells_that_a_write_waits_for_space() {
    let device = open_device("ram:size=16M").expect("opens");
    format(&device, UNIT);
    let options = OpenOptions::default().when_full(WhenFull::Pause(Duration::from_millis(50)));
    let pool = Pool::open(&device, &options).expect("opens");
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    let fill = || {
        let data = pattern(3, UNIT as usize);
        let _full = (0..).try_for_each(|at| user.write(at * UNIT, &data));
    };
    assert!(during(&user, fill).contains(&Activity::FullPool));
    assert_eq!(during(&user, || user.write(0, &pattern(4, 4096)).expect("overwrites")), []);
}
