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
mod tests {
    use super::*;

    fn limit(text: &str) -> Limit {
        text.parse().expect("it is right")
    }

    #[test]
    fn limits_are_written_and_read() {
        let all = Limit { iops: Some(1500), bps: Some(100 << 20), burst: Duration::from_millis(200) };
        assert_eq!(limit("iops=1500,bps=100M,burst=200ms"), all);
        assert_eq!(limit(&all.to_string()), all);
        assert_eq!(limit("iops=2k"), Limit { iops: Some(2000), bps: None, burst: BURST });
        assert_eq!(limit("bps=64K,burst=2s").burst, Duration::from_secs(2));
        // Sizes, counts and times use the common notation.
        for (text, bps) in
            [("100MiB", 100 << 20), ("100m", 100 << 20), ("1.5G", 3 << 29), ("100 MB", 100 << 20), ("1T", 1 << 40)]
        {
            assert_eq!(limit(&format!("bps={text}")).bps, Some(bps), "{text}");
        }
        assert_eq!((limit("iops=1.5k").iops, limit("iops=2K").iops), (Some(1500), Some(2000)));
        assert_eq!(limit("iops=1,burst=0.5s").burst, Duration::from_millis(500));
        let why = |text: &str| text.parse::<Limit>().expect_err("wrong");
        assert!(why("bps=1Q").contains("use k, M, G, T, P or E"), "{}", why("bps=1Q"));
        assert!(why("iops=1x").contains("1000, 50k or 1.5M") && why("iops=1,burst=100").contains("add ns, us, ms"));
        let wrong =
            ["", "iops", "iops=", "iops=0", "iops=1x", "bps=63K", "bps=99999999999G", "burst=1s", "speed=1", "iops=1,"];
        for text in wrong.into_iter().chain(["iops=1,burst=9ms", "iops=1,burst=61s", "iops=1,burst=100", "iops=-1"]) {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }

    /// Simulates clients that always have another request, and a reactor that sleeps for whole ticks. Returns the
    /// number of requests of each client that began within `time`.
    fn run(text: &str, bytes: &[u64], time: Duration) -> Vec<u64> {
        let bucket = Arc::new(Bucket::default());
        let start = Instant::now();
        bucket.set(Some(limit(text)), start);
        let (mut now, mut begun) = (start, vec![0; bytes.len()]);
        let mut waiting: Vec<(Instant, usize, Option<Waits>)> =
            (0..bytes.len()).map(|one| (start, one, None)).collect();
        while now < start + time {
            waiting.sort_by_key(|(until, client, _)| (*until, *client));
            if waiting[0].0 > now {
                now += TICK;
                continue;
            }
            let (_, client, place) = waiting.remove(0);
            place.into_iter().for_each(Waits::begin);
            begun[client] += 1;
            let next = loop {
                match Bucket::charge(&bucket, bytes[client], now) {
                    None => begun[client] += 1,
                    Some((until, place)) => break (until, client, Some(place)),
                }
            };
            waiting.push(next);
        }
        begun
    }

    #[test]
    fn the_rate_is_kept_to_one_percent_whatever_the_requests() {
        let second = Duration::from_secs(1);
        for (text, bytes, expected) in [
            ("iops=1000", vec![4096], 1000u64),
            ("iops=50000", vec![512], 50_000),
            ("iops=7", vec![4096], 7),
            ("bps=64M", vec![4096], 16_384),
            ("bps=64M", vec![1 << 20], 64),
            ("bps=64M,iops=100", vec![4096], 100),
            ("bps=1M,iops=1000000", vec![65_536], 16),
            ("iops=1000", vec![4096; 16], 1000),
        ] {
            let seconds = 20;
            let all: u64 = run(text, &bytes, second * seconds).iter().sum();
            let (least, most) = (expected * u64::from(seconds), expected * u64::from(seconds) + expected / 10 + 32);
            assert!(all * 100 >= least * 99 && all <= most + most / 100, "{text}: {all}, not {least} to {most}");
        }
    }

    #[test]
    fn clients_of_one_export_have_equal_shares() {
        for (text, clients) in [("iops=1000,burst=10ms", 2), ("iops=20000,burst=10ms", 5), ("iops=300,burst=10ms", 16)]
        {
            let begun = run(text, &vec![4096; clients], Duration::from_secs(10));
            let mean = begun.iter().sum::<u64>() as f64 / clients as f64;
            for one in &begun {
                assert!((*one as f64 - mean).abs() < mean * 0.05, "{text}: {begun:?}");
            }
        }
    }

    #[test]
    fn what_was_not_used_is_saved_for_a_burst_and_no_longer() {
        let bucket = Arc::new(Bucket::default());
        let start = Instant::now();
        bucket.set(Some(limit("iops=1000,burst=50ms")), start);
        let at_once = |now: Instant| (0..10_000).take_while(|_| Bucket::charge(&bucket, 0, now).is_none()).count();
        assert_eq!(at_once(start), 51);
        // After an idle hour, 50 ms are saved up.
        let now = start + Duration::from_secs(3600);
        assert_eq!(at_once(now), 51);
        // The request that would have had to wait was dropped, and this one is in its place.
        assert_eq!(Bucket::charge(&bucket, 0, now).map(|(until, _)| until), Some(now + Duration::from_millis(1)));
    }

    #[test]
    fn who_comes_while_another_waits_is_behind() {
        let bucket = Arc::new(Bucket::default());
        let now = Instant::now();
        bucket.set(Some(limit("iops=1000,burst=10ms")), now);
        let place = (0..100).find_map(|_| Bucket::charge(&bucket, 0, now)).expect("it waits");
        // Much later everything is paid for, but the request that waits has not begun yet.
        let later = now + Duration::from_secs(1);
        let (behind, other) = Bucket::charge(&bucket, 0, later).expect("behind");
        assert!(place.0 < behind && behind <= later);
        place.1.begin();
        other.begin();
        assert!(Bucket::charge(&bucket, 0, later).is_none());
    }

    #[test]
    fn another_limit_counts_at_once_and_none_lets_everything_through() {
        let bucket = Arc::new(Bucket::default());
        let now = Instant::now();
        assert!(!bucket.limits() && Bucket::charge(&bucket, 1 << 30, now).is_none());
        bucket.set(Some(limit("iops=1")), now);
        assert!(bucket.limits());
        let waits = (0..100).filter_map(|_| Bucket::charge(&bucket, 0, now));
        waits.for_each(|(_, place)| place.begin());
        assert!(Bucket::charge(&bucket, 0, now).is_some_and(|(until, _)| until > now + Duration::from_secs(90)));
        bucket.set(Some(limit("iops=1000")), now);
        assert!(Bucket::charge(&bucket, 0, now).is_none());
        bucket.set(None, now);
        assert!((0..1000).all(|_| Bucket::charge(&bucket, 1 << 30, now).is_none()));
    }

    #[test]
    fn who_goes_before_its_request_begins_has_cost_nothing_and_those_behind_move_up() {
        let bucket = Arc::new(Bucket::default());
        let now = Instant::now();
        bucket.set(Some(limit("bps=1M,iops=1,burst=10ms")), now);
        let charge = |bytes| Bucket::charge(&bucket, bytes, now);
        assert!(charge(32 << 20).is_none(), "the first begins at once, and takes 32 s");
        let mut gone: Vec<_> = (0..5).map(|_| charge(32 << 20).expect("it waits").1).collect();
        let (told, behind) = charge(0).expect("it waits");
        assert_eq!(told, now + Duration::from_millis(6 * 32_000 - 10));
        let last = charge(0).expect("it waits");
        gone.remove(2);
        assert_eq!(behind.begins(), Some(now + Duration::from_millis(5 * 32_000 - 10)));
        drop(gone);
        assert_eq!(behind.begins(), Some(now + Duration::from_millis(32_000 - 10)));
        // A request that begins is paid for, and those behind it stay in place.
        behind.begin();
        assert_eq!(last.1.begins(), Some(now + Duration::from_millis(32_000 - 10)));
        // A new limit gives nothing back for requests that were charged by the last one.
        bucket.set(Some(limit("iops=1,burst=10ms")), now);
        assert!(last.1.begins().is_some_and(|begins| begins <= now));
        drop(last);
        assert!(charge(0).is_none());
        assert_eq!(charge(0).map(|(begins, _)| begins), Some(now + Duration::from_millis(990)));
    }

    #[test]
    fn a_dropped_request_refunds_only_future_time() {
        let bucket = Arc::new(Bucket::default());
        // All of this was a minute ago.
        let Some(then) = Instant::now().checked_sub(Duration::from_secs(60)) else { return };
        bucket.set(Some(limit("bps=1M,burst=1s")), then);
        assert!(Bucket::charge(&bucket, 10 << 20, then).is_none());
        let (_, late) = Bucket::charge(&bucket, 20 << 20, then).expect("it waits");
        let (_, place) = Bucket::charge(&bucket, 60 << 20, then).expect("it waits");
        // The time of this request is in the past, and of the other one's 30 s are left.
        drop(late);
        assert!(place.begins().is_some_and(|begins| begins == then + Duration::from_secs(29)));
        let before = Instant::now();
        drop(place);
        // Same state as if the request had never arrived: no debt is left, and no credit is added.
        let paid = bucket.lock().paid[1];
        assert!(before <= paid && paid <= Instant::now(), "{:?}", paid - then);
    }
}
