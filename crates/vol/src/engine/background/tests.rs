//! Wake-ups of a background thread of the pool.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Signal;

/// Under load, regions are opened all the time. If each `notify` ended the pause, the looks would follow each other
/// without a break.
#[test]
fn what_there_is_to_do_ends_no_pause_and_the_end_of_the_thread_does() {
    let signal = Arc::new(Signal::default());
    let pauses = |time| {
        let signal = Arc::clone(&signal);
        thread::spawn(move || {
            let begun = Instant::now();
            (signal.pause(time), begun.elapsed())
        })
    };
    let time = Duration::from_millis(100);
    let paused = pauses(time);
    while !paused.is_finished() {
        signal.clear();
        signal.notify();
        thread::sleep(Duration::from_millis(1));
    }
    let (goes_on, took) = paused.join().expect("no panic");
    assert!(goes_on && took >= time, "{took:?}");
    assert!(signal.wait(None), "what was told in the pause is there after it");
    let paused = pauses(Duration::from_secs(3600));
    signal.flags().stop = true;
    signal.changed.notify_one();
    assert!(!paused.join().expect("no panic").0);
}
