//! Medians, and changes with their 95 % intervals.
//!
//! A change comes from turns of the same round: the ratio of an arm to the first arm, so that a machine that gets
//! slower from round to round does not pass for an effect. Ratios multiply, so their logarithms are averaged: the
//! estimate is the geometric mean of the ratios, the interval is that of the paired t test on the logarithms
//! (Student, "The probable error of a mean", Biometrika 6, 1908). A metric that is a percentage already changes by
//! points: there the differences themselves are averaged, with the same t.
//!
//! With few rounds the interval is wide, as it must be: for three rounds t is 4.30.

use crate::report::Change;

/// 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The 97.5 % quantile of the normal distribution, which Student's t comes to with many rounds.
const NORMAL: f64 = 1.960;

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
    let ratios = before.iter().zip(after).map(|(before, after)| after / before);
    let logarithms: Vec<f64> = ratios.map(f64::ln).collect();
    if !logarithms.iter().all(|log| log.is_finite()) {
        return None;
    }
    let (mean, half) = mean_and_half_width(&logarithms)?;
    let percent = |log: f64| log.exp_m1() * 100.0;
    Some(Change { percent: percent(mean), low: percent(mean - half), high: percent(mean + half) })
}

/// By how many points values in percent changed against `before`, paired by round; `None` without a round.
pub fn change_in_points(before: &[f64], after: &[f64]) -> Option<Change> {
    let differences: Vec<f64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    let (mean, half) = mean_and_half_width(&differences)?;
    Some(Change { percent: mean, low: mean - half, high: mean + half })
}

/// The mean, and half the width of its interval; no width from one value alone.
fn mean_and_half_width(values: &[f64]) -> Option<(f64, f64)> {
    let count = values.len();
    if count == 0 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / count as f64;
    if count == 1 {
        return Some((mean, 0.0));
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
    let quantile = T.get(count - 2).copied().unwrap_or(NORMAL);
    Some((mean, quantile * (variance / count as f64).sqrt()))
}

#[cfg(test)]
mod tests;
