//! The heap and the lists against a model that is sorted anew each time.

use std::time::Duration;

use sheave_base::clock::{Clock, Timeline};
use sheave_base::rng::Rng;

use super::*;

const SLOTS: u32 = 64;

#[derive(Clone, Copy, Debug)]
struct Armed {
    slot: u32,
    kind: Kind,
    at: u64,
    timeline: Timeline,
    target: Option<u64>,
}

/// Lists in the order of I2 for each kind; `by_deadline` in the order of the heap.
#[derive(Default)]
struct Model {
    list: Vec<Armed>,
    by_deadline: Vec<Armed>,
}

impl Model {
    fn add(&mut self, armed: Armed) {
        let later = |other: &Armed| match (armed.target, other.target) {
            (Some(mine), Some(theirs)) => theirs > mine,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let place = self.list.iter().position(|other| other.kind == armed.kind && later(other));
        self.list.insert(place.unwrap_or(self.list.len()), armed);
        self.enter(armed);
    }

    fn enter(&mut self, armed: Armed) {
        let place = self.by_deadline.iter().position(|other| other.at > armed.at);
        self.by_deadline.insert(place.unwrap_or(self.by_deadline.len()), armed);
    }

    fn remove(&mut self, slot: u32) -> Armed {
        self.by_deadline.retain(|armed| armed.slot != slot);
        let at = self.list.iter().position(|armed| armed.slot == slot).expect("armed");
        self.list.remove(at)
    }

    fn slots(&self, kind: Kind) -> Vec<u32> {
        self.list.iter().filter(|armed| armed.kind == kind).map(|armed| armed.slot).collect()
    }
}

fn listed(timers: &Timers, kind: Kind) -> Vec<u32> {
    let mut slots = Vec::new();
    let mut slot = timers.first(kind);
    while slot != NO_SLOT {
        slots.push(slot);
        slot = timers.after(slot);
    }
    slots
}

/// Makes one random step on both.
fn step(rng: &mut Rng, timers: &mut Timers, model: &mut Model, tail: &mut u32) {
    let slot = rng.below(SLOTS.into()) as u32;
    let (at, timeline) = (rng.below(40), TIMELINES[rng.below(3) as usize]);
    let armed = timers.armed_as(slot);
    assert_eq!(armed.is_some(), model.list.iter().any(|other| other.slot == slot));
    match (armed, rng.below(6)) {
        (None, 0..3) => {
            let kind = if rng.below(2) == 0 { Kind::Timeout } else { Kind::Guard };
            timers.arm(slot, kind, timeline, at);
            model.add(Armed { slot, kind, at, timeline, target: None });
        }
        (None, _) => {
            let count = rng.below(20) as u32 + 1;
            timers.arm_counted(slot, timeline, at, *tail, count);
            let target = Some(timers.seen + u64::from(count));
            model.add(Armed { slot, kind: Kind::Timeout, at, timeline, target });
        }
        (Some(_), 0..2) => {
            assert!(timers.disarm(slot));
            model.remove(slot);
        }
        (Some(Kind::Timeout), _) => {
            timers.rearm(slot, timeline, at);
            model.remove(slot);
            model.add(Armed { slot, kind: Kind::Timeout, at, timeline, target: None });
        }
        (Some(Kind::Guard), _) => {
            timers.rearm(slot, timeline, at);
            model.by_deadline.retain(|armed| armed.slot != slot);
            let armed = model.list.iter_mut().find(|armed| armed.slot == slot).expect("armed");
            (armed.at, armed.timeline) = (at, timeline);
            let armed = *armed;
            model.enter(armed);
        }
    }
    if rng.below(4) == 0 {
        *tail = tail.wrapping_add(rng.below(4) as u32);
        timers.look_at(*tail);
        while let Some(slot) = timers.pop_reached() {
            let armed = model.remove(slot);
            assert!(armed.target.is_some_and(|target| target <= timers.seen));
        }
        assert!(!model.list.iter().any(|armed| armed.target.is_some_and(|target| target <= timers.seen)));
    }
}

#[test]
fn random_steps_agree_with_the_model() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut timers, mut model) = (Timers::new(SLOTS), Model::default());
        let (clock, time) = Clock::virtual_clock();
        let mut tail = u32::MAX - 50; // Wraps during the test.
        for _ in 0..400 {
            step(&mut rng, &mut timers, &mut model, &mut tail);
            assert_eq!(listed(&timers, Kind::Timeout), model.slots(Kind::Timeout));
            assert_eq!(listed(&timers, Kind::Guard), model.slots(Kind::Guard));
            assert_eq!(timers.is_armed(), !model.list.is_empty());
            assert_eq!(timers.is_counting(), model.list.iter().any(|armed| armed.target.is_some()));
        }
        // The remaining timeouts come out by deadline, clock by clock.
        let now = rng.below(40);
        time.set(now);
        let mut due: Vec<Armed> = model.by_deadline.iter().copied().filter(|armed| armed.at <= now).collect();
        due.sort_by_key(|armed| armed.timeline as u8);
        let popped: Vec<u32> = std::iter::from_fn(|| timers.pop_due(&clock)).collect();
        assert_eq!(popped, due.iter().map(|armed| armed.slot).collect::<Vec<_>>(), "seed {seed}");
        time.set(u64::MAX);
        while timers.pop_due(&clock).is_some() {}
        assert!(!timers.is_armed());
        assert_eq!(listed(&timers, Kind::Guard), []);
    }
}

#[test]
fn a_wait_is_limited_by_deadlines_and_by_clocks_that_can_be_set() {
    let mut timers = Timers::new(4);
    let (clock, time) = Clock::virtual_clock();
    assert_eq!(timers.wait_limit(&clock), None);
    timers.arm(0, Kind::Timeout, Timeline::Monotonic, 10_000_000_000);
    assert_eq!(timers.wait_limit(&clock), Some(Duration::from_secs(10)));
    timers.arm(1, Kind::Guard, Timeline::Realtime, 5_000_000_000);
    assert_eq!(timers.wait_limit(&clock), Some(JUMPY_ROUND));
    time.set(4_500_000_000);
    assert_eq!(timers.wait_limit(&clock), Some(Duration::from_millis(500)));
    time.set(6_000_000_000);
    assert_eq!(timers.wait_limit(&clock), Some(Duration::ZERO));
    assert_eq!(timers.pop_due(&clock), Some(1));
    assert_eq!(timers.pop_due(&clock), None);
    assert_eq!(timers.wait_limit(&clock), Some(Duration::from_secs(4)));
}

#[test]
fn a_count_survives_a_look_that_finds_less() {
    let mut timers = Timers::new(4);
    timers.arm_counted(0, Timeline::Monotonic, u64::MAX, 7, 2);
    timers.look_at(8);
    timers.uncount();
    timers.look_at(8); // The CQE of the timeout waits behind a full CQ.
    assert_eq!(timers.pop_reached(), None);
    timers.look_at(9);
    assert_eq!(timers.pop_reached(), None);
    timers.look_at(10);
    assert_eq!(timers.pop_reached(), Some(0));
}
