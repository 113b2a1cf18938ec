//! Medians, and changes with their intervals.
//!
//! A change is computed from turns of the same round, as the ratio of an arm to the first arm, so that a machine that
//! slows down from round to round does not look like an effect. The estimate is the median of the ratios. Its interval
//! is that of the sign test: from the j-th smallest ratio to the j-th largest, with the largest j for which the
//! interval contains the median with at least the wanted confidence, for any distribution of the ratios (W. R.
//! Thompson, "On Confidence Ranges for the Median", Annals of Mathematical Statistics 7, 1936; W. J. Conover,
//! "Practical Nonparametric Statistics", section on quantiles). One disturbed turn moves neither. A metric that is a
//! percentage changes by points, from differences in place of ratios.
//!
//! An interval needs rounds: 6 for 95 %, 8 for 99 %. With fewer a change is *not measurable*, and so is a change whose
//! interval contains 0 and has a ratio of its ends of 2 or more. Its ends are then [`f64::NAN`].

use serde::{Deserialize, Serialize};

use crate::serial;

/// Confidence of the changes in tables.
pub const OF_CHANGES: f64 = 0.95;
/// Confidence of the comparison of the same arm with itself.
pub const OF_CONTROLS: f64 = 0.99;
/// An interval that contains 0 is kept as long as the ratio of its ends is below this.
const TELLING: f64 = 2.0;

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Change {
    #[serde(deserialize_with = "serial::number")]
    pub percent: f64,
    /// Lower end; NaN (in JSON `null`) if the change is not measurable.
    #[serde(deserialize_with = "serial::number")]
    pub low: f64,
    /// Upper end; NaN (in JSON `null`) if the change is not measurable.
    #[serde(deserialize_with = "serial::number")]
    pub high: f64,
}

impl Change {
    /// Returns true if the change has an interval.
    pub fn is_measurable(&self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }

    /// Returns the estimate without an interval, as not measurable.
    pub fn blinded(self) -> Self {
        Self { low: f64::NAN, high: f64::NAN, ..self }
    }

    /// Returns true if both changes have intervals and these overlap.
    pub fn meets(&self, other: Self) -> bool {
        self.is_measurable() && other.is_measurable() && self.low <= other.high && other.low <= self.high
    }

    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Returns true if the interval excludes 0.
    pub fn is_clear(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Returns the middle value, or the mean of the two middle ones; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[half]),
        _ => Some((values[half - 1] + values[half]) / 2.0),
    }
}

/// Returns the change of values against `before`, paired by round, in percent; `None` without a round or if a value is
/// not above 0.
pub fn change(before: &[f64], after: &[f64]) -> Option<Change> {
    of_ratios(&ratios(before, after)?, OF_CHANGES)
}

/// Returns the ratios of values paired by round, or `None` if one is not above 0.
pub fn ratios(before: &[f64], after: &[f64]) -> Option<Vec<f64>> {
    let ratios: Vec<f64> = before.iter().zip(after).map(|(before, after)| after / before).collect();
    ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0).then_some(ratios)
}

/// Returns the median of ratios as a change in percent, with its interval.
pub fn of_ratios(ratios: &[f64], confidence: f64) -> Option<Change> {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let telling = |[low, high]: &[f64; 2]| *low > 1.0 || *high < 1.0 || high / low < TELLING;
    let [low, high] = around_median(ratios, confidence).filter(telling).unwrap_or([f64::NAN; 2]);
    Some(Change { percent: percent(median(ratios)?), low: percent(low), high: percent(high) })
}

/// Returns the change of values that are percentages, in points.
pub fn change_in_points(before: &[f64], after: &[f64]) -> Option<Change> {
    let differences: Vec<f64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    let [low, high] = around_median(&differences, OF_CHANGES).unwrap_or([f64::NAN; 2]);
    Some(Change { percent: median(&differences)?, low, high })
}

/// Returns the order statistics around the median for this confidence, or `None` for too few values.
fn around_median(values: &[f64], confidence: f64) -> Option<[f64; 2]> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let rank = rank(values.len(), confidence)?;
    Some([values[rank - 1], values[values.len() - rank]])
}

/// Returns the largest j for which the range from the j-th smallest to the j-th largest of `count` values contains the
/// median with this confidence: fewer than j values lie on one side with at most half of the remaining probability.
fn rank(count: usize, confidence: f64) -> Option<usize> {
    let (mut exactly, mut below) = (0.5_f64.powi(count as i32), 0.0);
    let mut rank = 0;
    while rank < count / 2 {
        below += exactly;
        if 2.0 * below > 1.0 - confidence {
            break;
        }
        rank += 1;
        exactly *= (count + 1 - rank) as f64 / rank as f64;
    }
    (rank > 0).then_some(rank)
}

#[cfg(test)]
mod tests;
