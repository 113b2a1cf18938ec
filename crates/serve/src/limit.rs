//! Rate limits: requests and bytes per second of an export, for all its clients together.
//!
//! A token bucket, kept as the time at which it would be full again (the generic cell rate algorithm). A request moves
//! that time on by its cost, and begins when the time is at most [`Limit::burst`] ahead. A request that arrives too
//! early is charged at once and begins later. While clients wait, each further request waits behind theirs, so that
//! they take turns, request by request.
//!
//! Invariants:
//! - B1. Over any time `t` of load an export starts at most `rate * (t + burst)`, plus one request.
//! - B2. A client has at most one request that was charged and has not begun: no more is read from it meanwhile. If the
//!   client ends before that, the cost of the request is given back, and those behind it move up ([`Waits`]). Thus no
//!   client can use up the time of the others in advance.
//! - B3. All times come from the clock, none from a cache.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard};
use sheave_base::units;

/// Burst if a limit names none.
const BURST: Duration = Duration::from_millis(100);
/// Least rate in bytes per second: the longest request takes 512 s then, so that every request ends.
const MIN_BPS: u64 = 64 << 10;
/// Least time that a reactor sleeps for held-back requests. A timer for each would cost more than the requests do.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Shortest and longest burst. The shortest is several ticks, so that the time for which a reactor sleeps is always
/// made up for. The longest is what a person may wait for.
const BURSTS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

/// Rate limit of an export. Written `iops=1000,bps=100M,burst=200ms`, with counts, sizes and times in the usual
/// notation ([`units`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests per second; `None`: unlimited.
    pub iops: Option<u64>,
    /// Bytes per second, read and written; `None`: unlimited.
    pub bps: Option<u64>,
    /// Length of idle time that is made up for at full speed.
    pub burst: Duration,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        let mut limit = Limit { iops: None, bps: None, burst: BURST };
        for part in text.split(',') {
            let wrong =
                || format!("'{part}' is no limit. Write iops=1000, bps=100M or burst=200ms, with commas between");
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            match key {
                "iops" => match units::parse_count(value) {
                    Ok(0) => return Err(wrong()),
                    parsed => limit.iops = Some(parsed.map_err(|why| why.to_string())?),
                },
                "bps" => {
                    let bps = units::parse_size(value).map_err(|why| why.to_string())?;
                    if bps < MIN_BPS {
                        return Err(format!("bps={value} is too little: at least 64K, or long requests never end"));
                    }
                    limit.bps = Some(bps);
                }
                "burst" => {
                    let burst = units::parse_duration(value).map_err(|why| why.to_string())?;
                    if !(BURSTS.0..=BURSTS.1).contains(&burst) {
                        return Err(format!("burst={value}: a burst is 10ms to 60s"));
                    }
                    // Rounded to what `Display` writes.
                    limit.burst = Duration::from_millis(burst.as_millis() as u64);
                }
                _ => return Err(wrong()),
            }
        }
        if limit.iops.is_none() && limit.bps.is_none() {
            return Err("a limit has iops, bps or both".into());
        }
        Ok(limit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iops.map_or(Ok(()), |iops| write!(f, "iops={iops},"))?;
        self.bps.map_or(Ok(()), |bps| write!(f, "bps={bps},"))?;
        write!(f, "burst={}ms", self.burst.as_millis())
    }
}

/// The token bucket of an export, which all reactors share.
#[derive(Debug)]
pub(crate) struct Bucket {
    limits: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: Option<Limit>,
    /// Times until which requests, and bytes, are paid for.
    paid: [Instant; 2],
    /// Charged requests that wait, in order of arrival.
    places: VecDeque<Place>,
    next_number: u64,
}

/// A charged request that waits.
#[derive(Debug)]
struct Place {
    number: u64,
    /// The times until which requests and bytes were paid for before this request, and what it costs in each.
    from: [Instant; 2],
    costs: [Duration; 2],
}

impl State {
    /// Returns the time at which a request may begin if `from` are the times until which requests and bytes were paid
    /// for before it.
    fn begins(&self, from: [Instant; 2]) -> Instant {
        let (from, burst) = (from[0].max(from[1]), self.limit.map_or(Duration::ZERO, |limit| limit.burst));
        from.checked_sub(burst).unwrap_or(from)
    }

    fn at(&self, number: u64) -> Result<usize, usize> {
        self.places.binary_search_by_key(&number, |place| place.number)
    }
}

/// The place of a request that waits. If it is dropped before the request has begun, the request costs nothing.
#[derive(Debug)]
pub(crate) struct Waits {
    bucket: Arc<Bucket>,
    number: u64,
    begun: bool,
}

impl Waits {
    /// Returns the time at which its request may begin. It gets earlier when requests before it are dropped.
    pub(crate) fn begins(&self) -> Option<Instant> {
        let state = self.bucket.lock();
        state.at(self.number).ok().map(|at| state.begins(state.places[at].from))
    }

    /// Called when its request begins.
    pub(crate) fn begin(mut self) {
        self.begun = true;
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let state = &mut *self.bucket.lock();
        let Ok(at) = state.at(self.number) else { return };
        let Some(place) = state.places.remove(at) else { return };
        if self.begun {
            return;
        }
        let now = Instant::now();
        for (of, cost) in place.costs.into_iter().enumerate() {
            // B1: the part of the cost that lies in the past went unused, and is not given back.
            let back = cost.min((place.from[of] + cost).saturating_duration_since(now));
            state.paid[of] -= back;
            state.places.range_mut(at..).for_each(|behind| behind.from[of] -= back);
        }
    }
}

impl Default for Bucket {
    fn default() -> Bucket {
        let now = Instant::now();
        Bucket {
            limits: AtomicBool::new(false),
            state: Mutex::new(State { limit: None, paid: [now; 2], places: VecDeque::new(), next_number: 0 }),
        }
    }
}

/// Returns the time that `many` requests or bytes take at this rate.
fn cost(many: u64, rate: Option<u64>) -> Duration {
    let ns = |rate: u64| u128::from(many) * 1_000_000_000 / u128::from(rate.max(1));
    rate.map_or(Duration::ZERO, |rate| Duration::from_nanos(u64::try_from(ns(rate)).unwrap_or(u64::MAX)))
}

impl Bucket {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("invariant: nothing panics under this lock")
    }

    /// Returns true if there is a limit. If not, requests need not be charged.
    pub(crate) fn limits(&self) -> bool {
        // Relaxed: the limit itself is under the lock.
        self.limits.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> Option<Limit> {
        self.lock().limit
    }

    /// Sets another limit, or none. Saved-up time and debts are dropped.
    pub(crate) fn set(&self, limit: Option<Limit>, now: Instant) {
        let mut state = self.lock();
        (state.limit, state.paid) = (limit, [now; 2]);
        for place in &mut state.places {
            (place.from, place.costs) = ([now; 2], [Duration::ZERO; 2]);
        }
        drop(state);
        // Relaxed: see `limits`.
        self.limits.store(limit.is_some(), Ordering::Relaxed);
    }

    /// Charges a request of `bytes` bytes. Returns the time at which it may begin, and its place; `None` if that is now
    /// and nobody waits.
    pub(crate) fn charge(bucket: &Arc<Bucket>, bytes: u64, now: Instant) -> Option<(Instant, Waits)> {
        let state = &mut *bucket.lock();
        let Limit { iops, bps, .. } = state.limit?;
        let costs = [cost(1, iops), cost(bytes, bps)];
        // Unused time is saved for the length of a burst only.
        let from = state.paid.map(|paid| paid.max(now));
        state.paid = [from[0] + costs[0], from[1] + costs[1]];
        let begins = state.begins(from);
        if begins <= now && state.places.is_empty() {
            return None;
        }
        let number = state.next_number;
        state.next_number += 1;
        state.places.push_back(Place { number, from, costs });
        Some((begins, Waits { bucket: bucket.clone(), number, begun: false }))
    }
}

#[cfg(test)]
mod tests;
