//! Confidence of the median of a comparison: its 95 % interval, from the order statistics of the pairs.
//!
//! Assumes that pairs are independent, and nothing about the distribution of ratios, which is skewed on a loaded
//! machine. The median lies between the `k`-th smallest and the `k`-th largest of `n` values unless fewer than `k` of
//! them fell on one side of it, and each falls on either side with probability 1/2. So the interval covers it with
//! probability `1 - 2 P(B < k)`, where `B` is binomial with `n` and 1/2 (Thompson, "On confidence ranges for the median
//! and other expectation distributions", Annals of Mathematical Statistics 7, 1936). The largest `k` that covers at
//! least 95 % is used. With fewer than six pairs there is none, because even the smallest and the largest value cover
//! less.

/// Name of the method in reports.
pub const METHOD: &str = "order statistics of the pairs (binomial), for the median";

/// Minimum probability with which an interval covers the median.
pub const LEVEL: f64 = 0.95;

/// Ranks of the sorted values that bound an interval, and the probability that it covers the median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranks {
    /// Index of the lower bound from the smallest value, and of the upper bound from the largest; 0 is the first.
    from_end: usize,
    /// Probability of covering the median.
    pub coverage: f64,
}

impl Ranks {
    /// Ranks for `count` values; `None` if they are too few.
    pub fn of(count: usize) -> Option<Ranks> {
        let mut best = None;
        // Probability that exactly 0, 1, 2 ... values are below the median, and its sum so far.
        let (mut exactly, mut tail) = (0.5_f64.powi(i32::try_from(count).ok()?), 0.0);
        for from_end in 0..count / 2 {
            tail += exactly;
            let coverage = 1.0 - 2.0 * tail;
            if coverage < LEVEL {
                break;
            }
            best = Some(Ranks { from_end, coverage });
            exactly *= (count - from_end) as f64 / (from_end + 1) as f64;
        }
        best
    }

    /// Returns the interval in `values`, whose number is that of [`Ranks::of`].
    pub fn bounds(self, mut values: Vec<f64>) -> [f64; 2] {
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        [values[self.from_end], values[last - self.from_end]]
    }
}
