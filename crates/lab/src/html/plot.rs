//! Plots of results: a metric along a sweep, its change along the same, latencies.

use super::axis::{Lie, from_zero, log_ticks, time};
use super::frame::{Frame, Look, Sign};
use crate::report::{ArmResult, Change, Latency, Row, SweepReport};
use crate::table::{figure, interval};
use crate::terms::{Axis, AxisScale};

/// From one arm to the next at the same place.
const ASIDE: f64 = 3.0;

/// The metric along a sweep, from 0, with the range of the rounds.
pub fn metric(sweep: &SweepReport, looks: &[Look]) -> String {
    let metric = sweep.metric;
    let (low, high, ticks) =
        from_zero(sweep.rows.iter().flat_map(|row| row.arms.iter().flatten()).map(|arm| arm.range[1]));
    let label = format!("{} by {}, of each arm", metric.label, sweep.axis.label);
    let mut frame = Frame::new(&label, along(sweep), Lie::Even(low, high));
    frame.across(&ticks, |tick| figure(tick, metric));
    frame.titles(&axis_title(sweep.axis), &metric.title());
    series(
        &mut frame,
        sweep,
        looks,
        |arm| Some((arm.value, arm.range)),
        |row, look, arm| format!("{}, {}: {}", look.name, row.label, figure(arm.value, metric)),
    );
    frame.finish()
}

/// The change against the first arm along a sweep, with its interval.
pub fn changes(sweep: &SweepReport, looks: &[Look]) -> Option<String> {
    let metric = sweep.metric;
    let all = || sweep.rows.iter().flat_map(|row| row.arms.iter().flatten()).filter_map(|arm| arm.change);
    let all = || all().filter(Change::is_measurable);
    all().next()?;
    // Intervals of few noisy rounds must not squeeze the rest into a line: they are cut where they leave the plot.
    let room = all().map(|change| change.percent.abs()).fold(1.0, f64::max) * 0.35;
    let (least, most) =
        all().fold((0.0f64, 0.0f64), |(low, high), change| (low.min(change.percent), high.max(change.percent)));
    let bound = |value: f64| value.clamp(least - room, most + room);
    let (low, high, ticks) = from_zero(all().flat_map(|change| [bound(change.low), bound(change.high)]));
    let unit = if metric.in_points() { "points" } else { "%" };
    let label = format!("Change of {} against {}, by {}", metric.label, looks[0].name, sweep.axis.label);
    let mut frame = Frame::new(&label, along(sweep), Lie::Even(low, high));
    frame.across(&ticks, |tick| format!("{tick:+.0}").replace("+0", "0").replace("-0", "0"));
    frame.titles(&axis_title(sweep.axis), &format!("change against {} ({unit})", looks[0].name));
    let value = |arm: &ArmResult| {
        arm.change.filter(Change::is_measurable).map(|change| (change.percent, [bound(change.low), bound(change.high)]))
    };
    series(&mut frame, sweep, looks, value, |row, look, arm| {
        let change = arm.change.map_or(String::new(), |change| interval(change, metric));
        format!("{}, {}: {change}", look.name, row.label)
    });
    Some(frame.finish())
}

/// Lines with marks, or bars where places have no order; `value` gives a figure and the ends of its whisker.
fn series(
    frame: &mut Frame,
    sweep: &SweepReport,
    looks: &[Look],
    value: impl Fn(&ArmResult) -> Option<(f64, [f64; 2])>,
    says: impl Fn(&Row, &Look, &ArmResult) -> String,
) {
    let bars = sweep.axis.scale == AxisScale::Categories;
    let ticks = sweep.rows.iter().enumerate().map(|(at, row)| (place(sweep, at, row), row.label.clone()));
    frame.below(&ticks.collect::<Vec<_>>());
    let used: Vec<usize> = (0..looks.len())
        .filter(|&index| sweep.rows.iter().any(|row| row.arm(index).and_then(&value).is_some()))
        .collect();
    frame.legend(used.iter().map(|&index| &looks[index]), if bars { Sign::Bar } else { Sign::Mark });
    for (nth, &index) in used.iter().enumerate() {
        let look = &looks[index];
        let found = sweep.rows.iter().enumerate().filter_map(|(at, row)| {
            let arm = row.arm(index)?;
            let (middle, ends) = value(arm)?;
            Some((place(sweep, at, row), middle, ends, says(row, look, arm)))
        });
        let found: Vec<_> = found.collect();
        let slot = frame.x.slot() * 0.8 / used.len() as f64;
        let shift = (nth as f64 + 0.5) * slot - frame.x.slot() * 0.4;
        let aside = (nth as f64 - (used.len() - 1) as f64 / 2.0) * ASIDE;
        if !bars {
            let line = found.iter().map(|(x, middle, ..)| frame.at(*x, *middle)).map(|(x, y)| (x + aside, y));
            let line: Vec<(f64, f64)> = line.collect();
            frame.svg.path(&format!("line {}", look.class), &line);
        }
        for (x, middle, [low, high], says) in found {
            let (x, y) = frame.at(x, middle);
            // Whiskers of arms that lie at the same place stand side by side.
            let x = x + if bars { shift } else { aside };
            if bars {
                let zero = frame.y.place(0.0);
                let (top, size) = (y.min(zero), (slot * 0.92, (zero - y).abs().max(0.5)));
                frame.svg.bar(&format!("bar {}", look.class), (x - slot * 0.46, top), size, &says);
            }
            let (low, high) = (frame.y.place(low), frame.y.place(high));
            frame.svg.line(&format!("whisker {}", if bars { "over" } else { &look.class }), (x, low), (x, high));
            if !bars {
                frame.svg.mark(&format!("mark {}", look.class), look.mark, (x, y), &says);
            }
        }
    }
}

/// Where a row lies: by its value, or by its number.
fn place(sweep: &SweepReport, at: usize, row: &Row) -> f64 {
    if sweep.axis.scale == AxisScale::Categories { at as f64 } else { row.x }
}

fn along(sweep: &SweepReport) -> Lie {
    let values = || sweep.rows.iter().map(|row| row.x);
    let high = values().fold(f64::NEG_INFINITY, f64::max);
    match sweep.axis.scale {
        AxisScale::Categories => Lie::Slots(sweep.rows.len()),
        AxisScale::Linear => {
            let low = values().fold(f64::INFINITY, f64::min);
            // A little room at both ends, so that marks do not stand on the frame.
            let room = ((high - low) * 0.04).max(0.02);
            Lie::Even(low - room, high + room)
        }
        AxisScale::Log2 => {
            let low = values().filter(|x| *x > 0.0).fold(f64::INFINITY, f64::min).min(high.max(1.0));
            let room = (high.max(low) / low).powf(0.04).max(1.02);
            Lie::Log { low: low / room, high: high.max(low) * room, zero: values().any(|x| x <= 0.0) }
        }
    }
}

fn axis_title(axis: Axis) -> String {
    if axis.unit.is_empty() { axis.label.into() } else { format!("{} ({})", axis.label, axis.unit) }
}

/// How the latencies of a row's arms are spread.
pub fn latencies(row: &Row, looks: &[Look]) -> Option<String> {
    let arms: Vec<(&Look, &Latency)> = looks
        .iter()
        .zip(&row.arms)
        .filter_map(|(look, arm)| Some((look, arm.as_ref()?.latency.as_ref()?)))
        .filter(|(_, latency)| !latency.shares.is_empty())
        .collect();
    let shares = || arms.iter().flat_map(|(_, latency)| &latency.shares);
    // What fewer than one I/O in ten thousand took would be a flat line over half of the plot; the table has the rest.
    let (low, high) = shares()
        .filter(|[_, share]| *share >= 1e-4)
        .fold((f64::INFINITY, 0.0f64), |(low, high), [ns, _]| (low.min(*ns), high.max(*ns)));
    if !low.is_finite() {
        return None;
    }
    let bucket = (1.0f64 / 12.0).exp2();
    let (low, high) = (low / bucket.powi(4), high * bucket.powi(5));
    let (_, top, ticks) = from_zero(shares().map(|[_, share]| share * 100.0));
    let label = format!("Latencies of each arm, {}", row.label);
    let mut frame = Frame::new(&label, Lie::Log { low, high, zero: false }, Lie::Even(0.0, top));
    frame.across(&ticks, |tick| format!("{tick:.0} %"));
    frame.below(&log_ticks(low, high).into_iter().map(|tick| (tick, time(tick))).collect::<Vec<_>>());
    frame.titles("latency of an I/O (12 buckets each doubling)", "share of the I/Os in a bucket");
    frame.legend(arms.iter().map(|(look, _)| *look), Sign::Bar);
    for (look, latency) in &arms {
        let mut outline = vec![frame.at(low, 0.0)];
        let mut end = low;
        for &[ns, share] in latency.shares.iter().filter(|[ns, _]| *ns * bucket <= high) {
            // Empty buckets were left out.
            if ns > end * 1.001 {
                outline.extend([frame.at(end, 0.0), frame.at(ns, 0.0)]);
            }
            end = ns * bucket;
            outline.extend([frame.at(ns, share * 100.0), frame.at(end, share * 100.0)]);
        }
        outline.push(frame.at(end, 0.0));
        frame.svg.area(&format!("shade {}", look.class), &outline);
        frame.svg.path(&format!("line {}", look.class), &outline);
    }
    Some(frame.finish())
}
