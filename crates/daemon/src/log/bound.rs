//! Rate limit of events (L2): a token bucket for each place in the code that logs one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;

/// Tokens of a full bucket.
pub const BURST: u32 = 20;
/// Interval after which a token is added.
pub const REST: Duration = Duration::from_secs(5);

/// Tokens left, and events suppressed.
#[derive(Debug)]
struct Bucket {
    left: u32,
    since: Instant,
    left_out: u64,
}

/// The buckets. Their number is bounded by the places in the code.
#[derive(Debug, Default)]
pub(super) struct Bound(HashMap<Identifier, Bucket>);

impl Bound {
    /// Takes a token. Returns the number of events suppressed since the last one, or `None` if this one is to be
    /// suppressed.
    pub(super) fn ask(&mut self, kind: Identifier, now: Instant) -> Option<u64> {
        let bucket = self.0.entry(kind).or_insert(Bucket { left: BURST, since: now, left_out: 0 });
        let rests = (now.saturating_duration_since(bucket.since).as_millis() / REST.as_millis()) as u32;
        if rests > 0 {
            bucket.left = bucket.left.saturating_add(rests).min(BURST);
            bucket.since = now;
        }
        if bucket.left == 0 {
            bucket.left_out += 1;
            return None;
        }
        bucket.left -= 1;
        Some(std::mem::take(&mut bucket.left_out))
    }
}
