//! Confidence of the median of a comparison: its 95 % interval, computed from the order statistics of the pairs.
//!
//! Assumes that pairs are independent. Assumes nothing about the distribution of ratios, which is skewed on a loaded
//! machine.
//!
//! The median lies between the `k`-th smallest and the `k`-th largest of `n` values unless fewer than `k` of them are
//! on one side of it, and each value is on either side with probability 1/2. So the interval contains the median with
//! probability `1 - 2 P(B < k)`, where `B` is binomial with `n` and 1/2 (Thompson, "On confidence ranges for the median
//! and other expectation distributions", Annals of Mathematical Statistics 7, 1936). The largest `k` for which this is
//! at least 95 % is used. With fewer than six pairs there is no interval, because even the one from the smallest to the
//! largest value has a lower probability.

/// Name of the method in reports.
pub const METHOD: &str = "order statistics of the pairs (binomial), for the median";

/// Least probability with which an interval must contain the median.
pub const LEVEL: f64 = 0.95;

/// Positions, among the sorted values, of the ends of an interval, and the probability that the interval contains the
/// median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranks {
    /// Index of the lower end, counted from the smallest value, and of the upper end, counted from the largest. The
    /// first index is 0.
    from_end: usize,
    /// Probability that the interval contains the median.
    pub coverage: f64,
}

impl Ranks {
    /// Returns the ranks for `count` values, or `None` if these are too few.
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

    /// Returns the interval of these values. Their number must be the `count` that was passed to [`Ranks::of`].
    pub fn bounds(self, mut values: Vec<f64>) -> [f64; 2] {
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1);
        [values[self.from_end], values[last - self.from_end]]
    }
}
