//! Busy times of devices as counters that only grow, so that a client of the control socket or of `/metrics` gets
//! `%util` from the difference of two numbers.
//!
//! Owns the earlier reading that each difference needs ([`BusyCounter`]). It is here, once for each device, and not
//! with the clients: they take numbers, and several of them at intervals of their own. Readings come from the clients'
//! calls, and from the thread that checks the health, every few seconds, so that a counter is exact without clients.
//!
//! * B1. A counter belongs to a queue that is open. It keeps no device open, and a device that is opened anew under an
//!   old name starts at zero.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use sheave_blk::Device;
use sheave_blk::queue::Queue;
use sheave_blk::stats::{BusyCounter, Stats};

#[derive(Debug)]
struct Kept {
    /// A weak reference keeps the address of a closed queue, which is its key, from being given to another one (B1).
    queue: Weak<Queue>,
    counter: BusyCounter,
}

/// Busy times of all devices, by the address of the queue and the pool or export that stands on it.
#[derive(Debug, Default)]
pub(crate) struct BusyTimes(HashMap<(usize, String), Kept>);

impl BusyTimes {
    /// Returns the busy time in ns of a device of one queue, on which `owner` stands, up to the reading `now`.
    pub(crate) fn advance(&mut self, device: &Device, owner: &str, now: &Stats) -> u64 {
        let Some(leg) = device.legs().first() else { return 0 };
        let key = (Arc::as_ptr(&leg.queue).addr(), owner.to_owned());
        let new = || Kept { queue: Arc::downgrade(&leg.queue), counter: BusyCounter::default() };
        self.0.entry(key).or_insert_with(new).counter.advance(now)
    }

    /// Drops the counters of devices that are closed.
    pub(crate) fn forget_closed(&mut self) {
        self.0.retain(|_, kept| kept.queue.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use sheave::{Ring, op};
    use sheave_iomap::RawFile;

    use super::*;

    #[test]
    fn a_device_that_is_opened_anew_starts_at_zero_and_a_closed_one_is_forgotten() {
        let mut times = BusyTimes::default();
        for _ in 0..2 {
            let device = sheave::open_device("ram:size=1M").expect("a device");
            assert_eq!(times.advance(&device, "export x", &device.stats()), 0);
            let mut ring = Ring::builder().entries(8).build().expect("a ring");
            let fd = ring.attach_file(Arc::new(RawFile::new(device.clone()))).expect("attached");
            for _ in 0..100 {
                ring.push(op::write(fd, vec![1; 4096])).expect("pushed");
                ring.submit_and_wait(1).expect("waited");
                assert_eq!(ring.completions().next().expect("it ended").result(), Ok(4096));
            }
            let busy = times.advance(&device, "export x", &device.stats());
            assert!(busy > 0 && times.advance(&device, "export x", &device.stats()) >= busy);
            drop((ring, device));
        }
        assert_eq!(times.0.len(), 2);
        times.forget_closed();
        assert!(times.0.is_empty());
    }
}
