//! Medians, and changes with their intervals.
//!
//! A change is computed from turns of the same round, as the ratio of an arm to the first arm. So a machine that slows
//! down from round to round does not look like an effect. The estimate is the median of the ratios.
//!
//! The interval is that of the sign test. It goes from the j-th smallest ratio to the j-th largest, with the largest j
//! for which the interval contains the median with at least the wanted confidence, for any distribution of the ratios
//! (W. R. Thompson, "On Confidence Ranges for the Median", Annals of Mathematical Statistics 7, 1936; W. J. Conover,
//! "Practical Nonparametric Statistics", section on quantiles). One disturbed turn moves neither the estimate nor the
//! interval. A metric that is a percentage changes by points, so differences are used instead of ratios.
//!
//! An interval needs rounds: 6 for 95 %, 8 for 99 %. With fewer rounds a change is *not measurable*. A change is not
//! measurable either if its interval contains 0 and the ratio of the interval's ends is 2 or more. The ends are then
//! [`f64::NAN`].

use serde::{Deserialize, Serialize};

use crate::serial;

/// Confidence of the changes in tables.
pub const OF_CHANGES: f64 = 0.95;
/// Confidence of the comparison of the same arm with itself.
pub const OF_CONTROLS: f64 = 0.99;
/// Limit of the ratio of an interval's ends. An interval that contains 0 is kept only if its ratio is below this limit.
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

    /// Returns the estimate without an interval, which makes the change not measurable.
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

/// Returns the middle value, or the mean of the two middle ones. Returns `None` if there are no values.
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

/// Returns the change from `before` to `after`, paired by round, in percent. Returns `None` without a round or if a
/// value is not above 0.
pub fn change(before: &[f64], after: &[f64]) -> Option<Change> {
    of_ratios(&ratios(before, after)?, OF_CHANGES)
}

/// Returns the ratios of `after` to `before`, paired by round. Returns `None` if one of them is not above 0.
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

/// Returns the two values that bound the median with this confidence. Returns `None` if there are too few values.
fn around_median(values: &[f64], confidence: f64) -> Option<[f64; 2]> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let rank = rank(values.len(), confidence)?;
    Some([values[rank - 1], values[values.len() - rank]])
}

/// Returns the largest j for which the range from the j-th smallest to the j-th largest of `count` values contains the
/// median with this confidence. The probability that fewer than j values lie on one given side must be at most half of
/// the remaining probability.
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
mod tests {
    use super::*;
    use sheave_base::rng::Rng;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!((median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (None, Some(2.0), Some(2.5)));
    }

    #[test]
    fn ranks_are_those_of_the_tables() {
        let at = |confidence: f64| [5, 6, 8, 9, 10, 12, 16, 20, 100].map(|count| rank(count, confidence));
        assert_eq!(at(0.95), [None, Some(1), Some(1), Some(2), Some(2), Some(3), Some(4), Some(6), Some(40)]);
        assert_eq!(at(0.99), [None, None, Some(1), Some(1), Some(1), Some(2), Some(3), Some(4), Some(37)]);
    }

    #[test]
    fn a_drift_that_hits_both_arms_leaves_the_change_alone() {
        let before = [100.0, 50.0, 25.0, 80.0, 60.0, 10.0];
        let change = change(&before, &before.map(|value| value * 1.1)).unwrap();
        assert!(near(change.percent, 10.0) && near(change.low, 10.0) && near(change.high, 10.0), "{change:?}");
    }

    #[test]
    fn one_turn_that_was_disturbed_moves_nothing() {
        let mut after = [1.10, 1.11, 1.12, 1.13, 1.14, 1.15, 1.16, 1.17, 1.18];
        let quiet = change(&[1.0; 9], &after).unwrap();
        assert!(near(quiet.percent, 14.0) && near(quiet.low, 11.0) && near(quiet.high, 17.0), "{quiet:?}");
        after[8] = 1000.0;
        assert_eq!(change(&[1.0; 9], &after), Some(quiet));
    }

    #[test]
    fn what_cannot_be_measured_is_called_so() {
        let few = change(&[1.0; 5], &[1.2; 5]).unwrap();
        assert!(near(few.percent, 20.0) && !few.is_measurable() && !few.is_clear(), "{few:?}");
        let wild = change(&[1.0; 6], &[0.001, 900.0, 1.0, 2.0, 0.5, 3.0]).unwrap();
        assert!(!wild.is_measurable(), "{wild:?}");
        let large = change(&[1.0; 6], &[2.0, 9.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        assert!(large.is_clear(), "wide, and all on one side: {large:?}");
        let points = change_in_points(&[38.0; 6], &[36.0; 6]).unwrap();
        assert_eq!((points.percent, points.low, points.high), (-2.0, -2.0, -2.0));
        assert!(!change_in_points(&[38.0; 3], &[36.0; 3]).unwrap().is_measurable());
    }

    #[test]
    fn empty_input_has_no_result() {
        assert_eq!(change(&[], &[]), None);
        assert_eq!(change(&[0.0], &[1.0]), None);
        assert_eq!(change(&[1.0], &[0.0]), None);
    }

    /// With skewed noise, like that of machines, the interval of no effect excludes 0 as rarely as its confidence
    /// promises.
    #[test]
    fn the_interval_holds_the_truth_as_often_as_it_says() {
        let mut rng = Rng::new(11);
        let mut noise = || 1.0 + (rng.draw() % 1000) as f64 / 1000.0 * ((rng.draw() % 1000) as f64 / 300.0);
        for (rounds, confidence) in [(10, 0.95), (12, 0.95), (10, 0.99), (16, 0.99)] {
            let missed = (0..4000).filter(|_| {
                let pair = [0, 1].map(|_| (0..rounds).map(|_| noise()).collect::<Vec<f64>>());
                let ratios = ratios(&pair[0], &pair[1]).expect("above 0");
                let [low, high] = around_median(&ratios, confidence).expect("enough rounds");
                low > 1.0 || high < 1.0
            });
            let share = missed.count() as f64 / 4000.0;
            assert!(share <= (1.0 - confidence) * 1.25, "{rounds} rounds at {confidence}: {share}");
        }
    }
}
