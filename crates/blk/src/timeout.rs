//! Request timeouts, found by walking the tags: no timer per request, and nothing stored when an I/O starts.
//!
//! Owns the walk, which looks at every request in use. The first walk that finds a request (a tag and its generation)
//! stores the time. A walk that finds the same request at least `timeout` later reports it as overdue, and again after
//! every `timeout`. A request is therefore overdue between one and one and a quarter timeouts after its start, never
//! earlier. A walk that runs late makes that later: a ring that sleeps wakes up for it, and one that only polls checks
//! every [`LOOKS`]th of the time between two walks ([`NextLook`]).
//!
//! Invariants:
//! - I1: deadlines compare `PreciseTs` that were read in the walk itself; no cached time is involved.
//! - I2: the walk runs on the ring's thread, as every completion does, so a request either completes or is overdue.
//! - I3: the driver is called only for requests that it has: not for those that are gathered or that it refused.

use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs, PreciseTs};

use crate::request::Request;

/// Number of times per walk period that a polling ring checks the precise clock.
const LOOKS: u32 = 16;

/// Returns the time between two walks.
fn period(timeout: Duration) -> Duration {
    (timeout / 4).max(Duration::from_millis(1))
}

/// Time at which a ring that polls and never waits next checks with the precise clock if a walk is due. A poll that
/// ended requests compares their stamp, any other the cycle counter, so neither reads a clock for this. Both are hints;
/// I1 holds for the walk.
#[derive(Debug)]
pub(crate) struct NextLook {
    at: CoarseTs,
    /// Value of the cycle counter at the last check.
    cycles: u64,
    every: Duration,
    every_cycles: u64,
}

impl NextLook {
    /// Makes the value for a ring without devices.
    pub(crate) fn never() -> NextLook {
        NextLook { at: CoarseTs(u64::MAX), cycles: 0, every: Duration::MAX, every_cycles: u64::MAX }
    }

    /// Adds a device with this timeout.
    pub(crate) fn add(&mut self, clock: &Clock, timeout: Duration) {
        self.every = self.every.min(period(timeout) / LOOKS);
        self.restart(clock);
    }

    /// Called after each check: computes the time of the next.
    pub(crate) fn restart(&mut self, clock: &Clock) {
        let every_ns = u64::try_from(self.every.as_nanos()).unwrap_or(u64::MAX);
        let (now, cycles) = clock.coarse_with_cycles();
        (self.at, self.cycles) = (CoarseTs(now.0.saturating_add(every_ns)), cycles);
        self.every_cycles = clock.ns_to_cycles(every_ns);
    }

    /// Returns true if a check is due. `stamp` is that of the requests that the poll has ended. Without any, `cycles`
    /// is the cycle counter at the poll.
    #[inline(always)]
    pub(crate) fn is_due(&self, stamp: Option<CoarseTs>, cycles: u64) -> bool {
        match stamp {
            Some(stamp) => stamp >= self.at,
            None => cycles.wrapping_sub(self.cycles) >= self.every_cycles,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    generation: u32,
    at: PreciseTs,
    live: bool,
}

/// Walk over the tags of one hardware context.
#[derive(Debug)]
pub(crate) struct TimeoutWalk {
    timeout: Duration,
    period: Duration,
    next: PreciseTs,
    seen: Box<[Seen]>,
    overdue: Vec<u16>,
}

impl TimeoutWalk {
    pub(crate) fn new(timeout: Duration, depth: u16) -> TimeoutWalk {
        let slots = usize::from(depth) + 1;
        TimeoutWalk {
            timeout,
            period: period(timeout),
            next: PreciseTs::default(),
            seen: vec![Seen::default(); slots].into(),
            overdue: Vec::with_capacity(slots),
        }
    }

    pub(crate) fn is_due(&self, now: PreciseTs) -> bool {
        now >= self.next
    }

    pub(crate) fn next_walk(&self) -> PreciseTs {
        self.next
    }

    /// Runs one walk. Returns the tags of overdue requests.
    pub(crate) fn walk(&mut self, now: PreciseTs, rqs: &[Request], flush_running: bool) -> Vec<u16> {
        self.next = now.after(self.period);
        self.overdue.clear();
        let flush_tag = rqs.len() - 1;
        for (tag, rq) in rqs.iter().enumerate() {
            let seen = &mut self.seen[tag];
            let live = if tag == flush_tag { flush_running } else { rq.bio_head.is_some() };
            if !live {
                seen.live = false;
            } else if !seen.live || seen.generation != rq.generation {
                *seen = Seen { generation: rq.generation, at: now, live: true };
            } else if u128::from(now.ns_since(seen.at)) >= self.timeout.as_nanos() {
                seen.at = now;
                self.overdue.push(tag as u16);
            }
        }
        self.overdue.clone()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::bio::BioId;

    const TIMEOUT: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> PreciseTs {
        PreciseTs(ms * 1_000_000)
    }

    /// Makes three requests and the flush request; those named in `live` have bios.
    fn requests(live: &[usize]) -> Vec<Request> {
        let mut rqs: Vec<Request> = (0..4).map(|_| Request::unused()).collect();
        live.iter().for_each(|&tag| rqs[tag].bio_head = BioId(7));
        rqs
    }

    #[test]
    fn is_due_four_times_a_timeout() {
        let mut walk = TimeoutWalk::new(TIMEOUT, 3);
        assert!(walk.is_due(at(0)), "the first walk notes what is there");
        walk.walk(at(0), &requests(&[]), false);
        assert!(!walk.is_due(at(24)) && walk.is_due(at(25)));
        assert_eq!(walk.next_walk(), at(25));
        // A tiny timeout does not make the ring walk all the time.
        let mut walk = TimeoutWalk::new(Duration::from_nanos(1), 3);
        walk.walk(at(0), &requests(&[]), false);
        assert_eq!(walk.next_walk(), at(1));
    }

    #[test]
    fn the_first_walk_notes_and_a_later_one_reports() {
        let mut walk = TimeoutWalk::new(TIMEOUT, 3);
        let rqs = requests(&[0, 2]);
        assert!(walk.walk(at(10), &rqs, false).is_empty());
        assert!(walk.walk(at(109), &rqs, false).is_empty());
        assert_eq!(walk.walk(at(110), &rqs, false), [0, 2]);
        assert!(walk.walk(at(209), &rqs, false).is_empty(), "again only after another timeout");
        assert_eq!(walk.walk(at(210), &rqs, false), [0, 2]);
    }

    #[test]
    fn a_new_use_of_the_tag_is_another_request() {
        let mut walk = TimeoutWalk::new(TIMEOUT, 3);
        let mut rqs = requests(&[0, 1]);
        walk.walk(at(0), &rqs, false);
        rqs[0].generation += 1;
        assert_eq!(walk.walk(at(100), &rqs, false), [1]);
        assert_eq!(walk.walk(at(200), &rqs, false), [0, 1]);
        // Gone and back with the same generation (it wraps): noted anew, because a walk saw that it was gone.
        rqs[0].bio_head = BioId::NONE;
        walk.walk(at(250), &rqs, false);
        rqs[0].bio_head = BioId(1);
        walk.walk(at(280), &rqs, false);
        assert_eq!(walk.walk(at(300), &rqs, false), [1]);
    }

    #[test]
    fn the_flush_request_counts_while_it_runs() {
        let mut walk = TimeoutWalk::new(TIMEOUT, 3);
        let rqs = requests(&[]);
        walk.walk(at(0), &rqs, true);
        assert!(walk.walk(at(100), &rqs, false).is_empty());
        walk.walk(at(200), &rqs, true);
        assert_eq!(walk.walk(at(300), &rqs, true), [3]);
    }

    #[test]
    fn time_that_goes_back_or_to_its_end_is_harmless() {
        let mut walk = TimeoutWalk::new(Duration::MAX, 3);
        let rqs = requests(&[1]);
        walk.walk(at(1000), &rqs, false);
        assert!(walk.walk(at(10), &rqs, false).is_empty());
        assert!(walk.walk(PreciseTs(u64::MAX), &rqs, false).is_empty());
        assert_eq!(walk.next_walk(), PreciseTs(u64::MAX));
    }
}
