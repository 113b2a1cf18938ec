//! Medians, and changes with their intervals.
//!
//! A change comes from turns of the same round: the ratio of an arm to the first arm, so that a machine that gets
//! slower from round to round does not pass for an effect. The estimate is the median of these ratios. Its interval is
//! that of the sign test: from the j-th smallest ratio to the j-th largest, with the largest j for which that holds the
//! median with at least the confidence asked for, whatever the ratios' distribution (W. R. Thompson, "On Confidence
//! Ranges for the Median", Annals of Mathematical Statistics 7, 1936; W. J. Conover, "Practical Nonparametric
//! Statistics", section on quantiles). One turn that a machine disturbed moves neither. A metric that is a percentage
//! already changes by points: there differences take the place of ratios.
//!
//! An interval needs rounds: 6 for 95 %, 8 for 99 %. With fewer a change is *not measurable*, and so is one whose
//! interval holds both no change and its double: ends that are [`f64::NAN`] say so.

use serde::{Deserialize, Serialize};

use crate::serial;

/// The confidence of the changes in tables.
pub const OF_CHANGES: f64 = 0.95;
/// The confidence of what the same arm twice differs by.
pub const OF_CONTROLS: f64 = 0.99;
/// An interval around no change is told as long as its ends are less than so many times each other.
const TELLING: f64 = 2.0;

/// A change against the first arm, in percent, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Change {
    /// The estimate.
    #[serde(deserialize_with = "serial::number")]
    pub percent: f64,
    /// Lower end; no number (in JSON `null`) where the change is not measurable.
    #[serde(deserialize_with = "serial::number")]
    pub low: f64,
    /// Upper end; likewise.
    #[serde(deserialize_with = "serial::number")]
    pub high: f64,
}

impl Change {
    /// Whether there is an interval that tells something.
    pub fn is_measurable(&self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }

    /// The estimate without an interval, for who may claim nothing by it.
    pub fn blinded(self) -> Self {
        Self { low: f64::NAN, high: f64::NAN, ..self }
    }

    /// Whether two intervals have a value in common; without an interval there is none.
    pub fn meets(&self, other: Self) -> bool {
        self.is_measurable() && other.is_measurable() && self.low <= other.high && other.low <= self.high
    }

    /// Half of what the interval spans.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Whether the interval leaves 0 out.
    pub fn is_clear(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// The middle value; the mean of the two middle ones of an even number; `None` of nothing.
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

/// How values changed against `before`, paired by round, in percent; `None` without a round or when a value is not
/// above 0.
pub fn change(before: &[f64], after: &[f64]) -> Option<Change> {
    of_ratios(&ratios(before, after)?, OF_CHANGES)
}

/// The ratios of values paired by round; `None` when one is not above 0.
pub fn ratios(before: &[f64], after: &[f64]) -> Option<Vec<f64>> {
    let ratios: Vec<f64> = before.iter().zip(after).map(|(before, after)| after / before).collect();
    ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0).then_some(ratios)
}

/// The median of ratios as a change in percent, with its interval.
pub fn of_ratios(ratios: &[f64], confidence: f64) -> Option<Change> {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let telling = |[low, high]: &[f64; 2]| *low > 1.0 || *high < 1.0 || high / low < TELLING;
    let [low, high] = around_median(ratios, confidence).filter(telling).unwrap_or([f64::NAN; 2]);
    Some(Change { percent: percent(median(ratios)?), low: percent(low), high: percent(high) })
}

/// The same for values in percent: by how many points they changed.
pub fn change_in_points(before: &[f64], after: &[f64]) -> Option<Change> {
    let differences: Vec<f64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    let [low, high] = around_median(&differences, OF_CHANGES).unwrap_or([f64::NAN; 2]);
    Some(Change { percent: median(&differences)?, low, high })
}

/// The order statistics that hold the median with this confidence; `None` of too few values.
fn around_median(values: &[f64], confidence: f64) -> Option<[f64; 2]> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let rank = rank(values.len(), confidence)?;
    Some([values[rank - 1], values[values.len() - rank]])
}

/// The largest j for which the j-th smallest to the j-th largest of `count` values hold the median with this
/// confidence: so that fewer than j of them are on one side with at most half of what the confidence leaves.
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
