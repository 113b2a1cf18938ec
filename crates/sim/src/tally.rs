//! What runs have met: counted, so that nobody has to believe that a kind of trouble comes in random runs.
//!
//! Owns [`Tally`]. Counting draws nothing and marks nothing: a run is the same with it.

use std::collections::BTreeMap;
use std::fmt;

/// How often what was met, by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<String, u64>,
}

impl Tally {
    /// Once more.
    pub fn count(&mut self, what: impl Into<String>) {
        self.count_if(true, what);
    }

    /// Once more, if this is so; without, the name is there all the same, perhaps with 0.
    pub fn count_if(&mut self, is_so: bool, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += u64::from(is_so);
    }

    /// So many times more.
    pub fn count_times(&mut self, times: u64, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += times;
    }

    /// What others have met too.
    pub fn add(&mut self, other: &Tally) {
        for (what, count) in &other.counts {
            *self.counts.entry(what.clone()).or_default() += count;
        }
    }

    /// How often it was met.
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
