//! The parker with its real eventfd.
use super::*;
#[test]
fn an_unpark_before_the_park_is_kept() {
    let mut parker = Parker::new().expect("eventfd");
    parker.unparker().unpark();
    assert_eq!(parker.park(None), Wake::Notified);
    assert_eq!(parker.park(Some(Duration::from_millis(1))), Wake::TimedOut);
}
#[test]
fn a_sleeper_is_woken() {
    let mut parker = Parker::new().expect("eventfd");
    let unparker = parker.unparker();
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        unparker.unpark();
    });
    assert_eq!(parker.park(None), Wake::Notified);
    waker.join().expect("waker");
}
