//! A panic among short items: which resources are released, and in which order.

use std::sync::Mutex;

use super::*;

/// Events, in order.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn log(what: impl Into<String>) {
    LOG.lock().unwrap().push(what.into());
}

/// Worker context whose drop makes devices release the items' memory.
#[derive(Default)]
struct Devices;

impl Drop for Devices {
    fn drop(&mut self) {
        log("devices have let go");
    }
}

/// Source that panics after the first of its items.
struct Fragile(std::sync::mpsc::Sender<(u32, WorkDone)>);

impl Source for Fragile {
    type Context = Devices;

    fn run(&self, _: &mut Devices, _: u32, _: &Section<'_>) -> WorkDone {
        unreachable!("all items are short")
    }

    fn run_short(&self, _: &mut Devices, _: &[u32], ends: &mut impl Ends) {
        ends.end(0, WorkDone::Result(7));
        panic!("on purpose");
    }

    fn finish(&self, done: &[(u32, WorkDone)]) {
        for &end in done {
            log(format!("{} is told", end.0));
            self.0.send(end).expect("the test listens");
        }
    }

    fn not_run(&self, slot: u32) {
        log(format!("the memory of {slot} is free"));
    }
}

#[test]
fn a_panic_among_short_items_waits_for_devices_before_it_frees_what_the_others_have() {
    let pool = Pool::new(options(1, 1));
    let (send, ends) = std::sync::mpsc::channel();
    let mut submitter = pool.submitter(Fragile(send), 3).expect("a place");
    for slot in 0..3 {
        assert!(submitter.queue(slot, WorkFlags::SHORT));
    }
    submitter.commit();
    let mut seen: Vec<_> = (0..3).map(|_| ends.recv_timeout(PATIENCE).expect("each item ends")).collect();
    let log = LOG.lock().unwrap().clone();
    let at = |what: &str| log.iter().position(|line| line == what).unwrap_or_else(|| panic!("no {what}: {log:?}"));
    assert!(at("devices have let go") < at("the memory of 1 is free"), "{log:?}");
    assert!(at("the memory of 1 is free") < at("1 is told") && at("the memory of 2 is free") < at("2 is told"));
    seen.sort_unstable_by_key(|end| end.0);
    assert!(matches!(seen[..], [(0, WorkDone::Result(7)), (1, WorkDone::Result(-5)), (2, WorkDone::Result(-5))]));
}
