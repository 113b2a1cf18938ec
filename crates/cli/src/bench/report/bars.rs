//! The latency histogram as text: one line for each doubling of the latency, with the share of the I/Os in it.

use std::fmt::Write;

use hdrhistogram::Histogram;
use sheave_base::units::fmt_ns;

/// Width of the longest bar.
const WIDTH: usize = 50;

/// Draws the histogram; returns an empty text if nothing was recorded.
pub fn draw(latency: &Histogram<u64>) -> String {
    let rows = rows(latency);
    let most = rows.iter().map(|row| row.1).max().unwrap_or(0);
    let mut text = String::new();
    if most == 0 {
        return text;
    }
    text.push_str("\n      latency up to    share\n");
    for (limit, count) in rows {
        let share = count as f64 * 100.0 / latency.len() as f64;
        // Every row with at least one I/O gets a mark.
        let len = (count as f64 * WIDTH as f64 / most as f64).round() as usize;
        let bar = if count > 0 && len == 0 { ".".to_owned() } else { "#".repeat(len) };
        // Writing to a String does not fail.
        let _ = writeln!(text, "{:>19}  {share:>6.2}%  {bar}", fmt_ns(limit));
    }
    text
}

/// Returns (upper bound, count) for each doubling, without the empty ones at both ends.
fn rows(latency: &Histogram<u64>) -> Vec<(u64, u64)> {
    let mut rows = Vec::new();
    if latency.is_empty() {
        return rows;
    }
    let mut low = 0;
    for power in 0..64 {
        let high = 1u64 << power;
        rows.push((high, latency.count_between(low, high - 1)));
        low = high;
        if high > latency.max() {
            break;
        }
    }
    let first = rows.iter().position(|row| row.1 > 0).unwrap_or(0);
    rows.split_off(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_load::live::report_histogram;

    #[test]
    fn nothing_draws_nothing() {
        assert_eq!(draw(&report_histogram()), "");
    }

    #[test]
    fn rows_are_doublings_and_lose_nothing() {
        let mut latency = report_histogram();
        for (ns, count) in [(100, 900), (1000, 90), (100_000, 10), (5_000_000, 1)] {
            latency.record_n(ns, count).expect("within range");
        }
        let rows = rows(&latency);
        assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), latency.len());
        assert_eq!(rows[0].0, 128);
        let text = draw(&latency);
        assert!(text.contains("89.9"), "{text}");
        assert!(text.lines().last().is_some_and(|line| line.ends_with('.')), "{text}");
    }
}
