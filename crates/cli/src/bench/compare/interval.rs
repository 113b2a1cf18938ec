//! How sure the median of a comparison is: its 95 % interval from the pairs' own order.
//!
//! Owns the arithmetic. Nothing is assumed of how ratios are distributed, which a loaded machine makes lopsided, but
//! that pairs are independent. The median lies between the `k`-th smallest and the `k`-th largest of `n` values unless
//! fewer than `k` of them fell on one side of it, and each falls on either side with probability 1/2: the interval
//! covers it with probability `1 - 2 P(B < k)`, `B` binomial with `n` and 1/2 (Thompson, "On confidence ranges for the
//! median and other expectation distributions", Annals of Mathematical Statistics 7, 1936). The largest `k` that covers
//! at least 95 % is taken; below six pairs there is none, for even the smallest and the largest cover less.

/// What reports call the method.
pub const METHOD: &str = "order statistics of the pairs (binomial), for the median";

/// The least probability with which an interval covers the median.
pub const LEVEL: f64 = 0.95;

/// Which of the sorted values bound an interval, and how probably it covers the median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranks {
    /// The place of the lower bound from the smallest value on, and of the upper bound from the largest on; 0 is the
    /// first.
    from_end: usize,
    /// Probability.
    pub coverage: f64,
}

impl Ranks {
    /// For so many values; `None` for too few.
    pub fn of(count: usize) -> Option<Ranks> {
        let mut best = None;
        // The probabilities that exactly 0, 1, 2 ... values are below the median, and their sum so far.
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

    /// The interval in these values, as many as the ranks were made for.
    pub fn bounds(self, mut values: Vec<f64>) -> [f64; 2] {
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        [values[self.from_end], values[last - self.from_end]]
    }
}
