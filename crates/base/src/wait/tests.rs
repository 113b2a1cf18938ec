//! Waits with a stepper and without one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::grace::Grace;
use crate::sync::{Arc, Condvar, Mutex};

/// Returns a stepper that counts, and answers `TimeUp` from the third time on.
fn counting() -> Rc<Cell<u32>> {
    let steps = Rc::new(Cell::new(0));
    let count = Rc::clone(&steps);
    set_stepper(Some(Rc::new(move || {
        count.set(count.get() + 1);
        if count.get() < 3 { Step::Again } else { Step::TimeUp }
    })));
    steps
}

#[test]
fn a_thread_without_a_stepper_sleeps() {
    set_stepper(None);
    assert_eq!(step(), None);
    let (mutex, changed) = (Mutex::new(5), Condvar::new());
    assert_eq!(*lock(&mutex), 5);
    assert_eq!(*wait_on(&changed, &mutex, lock(&mutex), Some(Duration::from_micros(1))), 5);
}

#[test]
fn a_stepped_thread_hands_over_wherever_it_waits() {
    let steps = counting();
    let (mutex, changed) = (Mutex::new(5), Condvar::new());
    // Without a notification and a timeout a wait without a stepper would sleep for ever.
    assert_eq!(*wait_on(&changed, &mutex, lock(&mutex), None), 5);
    assert_eq!(steps.get(), 1, "a free lock is no wait");
    assert_eq!((step(), step()), (Some(Step::Again), Some(Step::TimeUp)));
    set_stepper(None);
    assert_eq!(steps.get(), 3);
}

#[test]
fn the_lock_of_a_wait_is_free_while_the_stepper_runs() {
    let mutex = Rc::new(Mutex::new(5));
    let other = Rc::clone(&mutex);
    set_stepper(Some(Rc::new(move || {
        *other.try_lock().expect("I2") += 1;
        Step::Again
    })));
    let guard = wait_on(&Condvar::new(), &mutex, lock(&mutex), None);
    assert_eq!(*guard, 6);
    drop(guard);
    set_stepper(None);
}

#[test]
fn a_held_lock_is_tried_again_after_each_step() {
    static HELD: Mutex<u32> = Mutex::new(7);
    let guard = Rc::new(RefCell::new(Some(lock(&HELD))));
    let release = Rc::clone(&guard);
    let steps = Rc::new(Cell::new(0));
    let count = Rc::clone(&steps);
    set_stepper(Some(Rc::new(move || {
        count.set(count.get() + 1);
        if count.get() == 4 {
            release.borrow_mut().take();
        }
        Step::Again
    })));
    assert_eq!(*lock(&HELD), 7);
    assert_eq!(steps.get(), 4);
    set_stepper(None);
}

#[test]
fn a_grace_waits_step_by_step_and_ends_with_its_time() {
    let grace = Arc::new(Grace::new());
    let seat = Grace::seat(&grace);
    seat.enter();
    let phase = seat.count();
    seat.leave();
    let steps = counting();
    assert!(!grace.wait(grace.start(), Duration::MAX), "the stepper says when the time is up");
    assert_eq!(steps.get(), 3);
    seat.uncount(phase);
    assert!(grace.wait(grace.start(), Duration::MAX));
    set_stepper(None);
}
