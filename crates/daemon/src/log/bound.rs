//! How often events of a kind are told (L2): a bucket for each place in the code that tells one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;

/// Events of a kind at once.
pub const BURST: u32 = 20;
/// Afterwards one in so long a time.
pub const REST: Duration = Duration::from_secs(5);

/// What is left of a kind.
#[derive(Debug)]
struct Bucket {
    left: u32,
    since: Instant,
    left_out: u64,
}

/// The buckets; there are no more of them than places in the code.
#[derive(Debug, Default)]
pub(super) struct Bound(HashMap<Identifier, Bucket>);

impl Bound {
    /// Whether one more is told now, and then how many were not since the last.
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
