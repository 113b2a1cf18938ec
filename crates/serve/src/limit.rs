//! Limits of speed: how many requests and bytes a second an export carries out, for all its clients together.
//!
//! A bucket of tokens, kept as the time at which it would be full again (the generic cell rate algorithm): a request
//! moves that time on by what it costs, and begins when the time is at most [`Limit::burst`] ahead. A request that
//! comes too early is charged at once and begins later. While clients wait, each further request waits behind theirs,
//! so what the limit lets through goes round among them, request by request.
//!
//! Invariants:
//! - B1. Over any time `t` of load an export carries out at most `rate * (t + burst)`, and one request more.
//! - B2. A client has at most one request that was charged and has not begun: it is not read from meanwhile. So no
//!   client can take the future of the others.
//! - B3. The clock is the caller's, and real: no cached time comes here.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard};

/// What is saved up, if nothing else is said.
const BURST: Duration = Duration::from_millis(100);
/// Fewest bytes a second: the longest request takes 512 s then, and no client waits for ever.
const MIN_BPS: u64 = 64 << 10;
/// How long a reactor sleeps at least for requests to come due: a timer for each would cost more than they do.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Shortest and longest burst: several ticks, so that none is lost; and what a person may wait for.
const BURSTS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

/// How fast an export may be. Written `iops=1000,bps=100M,burst=200ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests a second; `None`: as many as there are.
    pub iops: Option<u64>,
    /// Bytes a second that are read and written.
    pub bps: Option<u64>,
    /// So much time of not being used is made up for at full speed.
    pub burst: Duration,
}

/// A number with one of these letters behind it, which stand for a factor.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let unit = units.iter().find(|(unit, _)| !unit.is_empty() && text.ends_with(unit));
    let (number, factor) = unit.map_or((text, 1), |(unit, factor)| (&text[..text.len() - unit.len()], *factor));
    number.parse::<u64>().ok()?.checked_mul(factor)
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
                "iops" => {
                    let iops = scaled(value, &[("k", 1000), ("M", 1_000_000)]).filter(|iops| *iops > 0);
                    limit.iops = Some(iops.ok_or_else(wrong)?);
                }
                "bps" => {
                    let bps = scaled(value, &[("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)]).ok_or_else(wrong)?;
                    if bps < MIN_BPS {
                        return Err(format!("bps={value} is too little: at least 64K, or long requests never end"));
                    }
                    limit.bps = Some(bps);
                }
                "burst" => {
                    let burst = scaled(value, &[("ms", 1), ("s", 1000)]).map(Duration::from_millis);
                    let known =
                        value.ends_with('s') && burst.is_some_and(|burst| BURSTS.0 <= burst && burst <= BURSTS.1);
                    limit.burst = burst.filter(|_| known).ok_or("burst is 10ms to 60s")?;
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

/// The bucket of an export, which all reactors share.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// There is a limit.
    limits: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: Option<Limit>,
    /// When requests are paid for.
    ios: Instant,
    /// When bytes are.
    bytes: Instant,
    /// Requests that were charged and wait.
    waiting: usize,
}

/// A place among those who wait.
#[derive(Debug)]
pub(crate) struct Waits(Arc<Bucket>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl Default for Bucket {
    fn default() -> Bucket {
        let now = Instant::now();
        Bucket {
            limits: AtomicBool::new(false),
            state: Mutex::new(State { limit: None, ios: now, bytes: now, waiting: 0 }),
        }
    }
}

/// The time that so many take at this rate.
fn cost(many: u64, rate: Option<u64>) -> Duration {
    let ns = |rate: u64| u128::from(many) * 1_000_000_000 / u128::from(rate.max(1));
    rate.map_or(Duration::ZERO, |rate| Duration::from_nanos(u64::try_from(ns(rate)).unwrap_or(u64::MAX)))
}

impl Bucket {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("invariant: nothing panics under this lock")
    }

    /// Whether there is a limit: who sees none has nothing to ask.
    pub(crate) fn limits(&self) -> bool {
        // Relaxed: the limit itself is under the lock.
        self.limits.load(Ordering::Relaxed)
    }

    pub(crate) fn limit(&self) -> Option<Limit> {
        self.lock().limit
    }

    /// Another limit, or none. What was saved up or owed is forgotten.
    pub(crate) fn set(&self, limit: Option<Limit>, now: Instant) {
        let mut state = self.lock();
        *state = State { limit, ios: now, bytes: now, waiting: state.waiting };
        drop(state);
        // Relaxed: see `limits`.
        self.limits.store(limit.is_some(), Ordering::Relaxed);
    }

    /// Charges a request of so many bytes; when it may begin, unless that is now and nobody waits.
    pub(crate) fn charge(bucket: &Arc<Bucket>, bytes: u64, now: Instant) -> Option<(Instant, Waits)> {
        let mut state = bucket.lock();
        let Limit { iops, bps, burst } = state.limit?;
        // What is not used is saved for the length of a burst, no longer.
        let (ios, paid) = (state.ios.max(now), state.bytes.max(now));
        let begins = state.ios.max(state.bytes).checked_sub(burst).unwrap_or(now);
        (state.ios, state.bytes) = (ios + cost(1, iops), paid + cost(bytes, bps));
        if begins <= now && state.waiting == 0 {
            return None;
        }
        state.waiting += 1;
        Some((begins, Waits(bucket.clone())))
    }
}

#[cfg(test)]
mod tests;
