//! Counts of the situations that runs have met, which show that random runs reach them.
//!
//! Owns [`Tally`]. Counting draws no random numbers and does not change the hash of a run, so a run is the same with it
//! and without.

use std::collections::BTreeMap;
use std::fmt;

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<String, u64>,
}

impl Tally {
    /// Counts `what` once.
    pub fn count(&mut self, what: impl Into<String>) {
        self.count_if(true, what);
    }

    /// Counts `what` once if `is_so`. Otherwise adds the name to the tally without counting, so that it is listed even
    /// with 0.
    pub fn count_if(&mut self, is_so: bool, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += u64::from(is_so);
    }

    pub fn count_times(&mut self, times: u64, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += times;
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Tally) {
        for (what, count) in &other.counts {
            *self.counts.entry(what.clone()).or_default() += count;
        }
    }

    /// Returns the count of `what`.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(what, count)| writeln!(out, "{count:10}  {what}"))
    }
}
