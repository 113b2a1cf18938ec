//! Changes one below the other: what the thread published, and ours with their intervals.
//!
//! One row for each row of the thread's table, or for each experiment on the first page.

use super::axis::{Along, Lie, from_zero};
use super::frame::{Look, width};
use super::svg::{Anchor, Mark, Svg};
use crate::report::Change;
use crate::table::signed;
use crate::terms::Metric;

const WIDTH: f64 = 1140.0;
const TOP: f64 = 34.0;
/// Between the lines of one row, and between rows.
const LINE: f64 = 16.0;
const GAP: f64 = 12.0;
const RIGHT: f64 = 130.0;
/// From one tick to the next, at least.
const TICK_ROOM: f64 = 42.0;

/// One change.
pub struct Dot {
    /// How it looks.
    pub look: Look,
    /// The change.
    pub change: f64,
    /// Its interval.
    pub ends: Option<[f64; 2]>,
}

impl Dot {
    /// A change that was measured.
    pub fn measured(look: &Look, change: Change) -> Self {
        Self {
            look: look.clone(),
            change: change.percent,
            ends: change.is_measurable().then_some([change.low, change.high]),
        }
    }

    /// A change that the thread published.
    pub fn published(change: f64) -> Self {
        let look = Look { class: "published".into(), mark: Mark::Diamond, name: "published".into() };
        Self { look, change, ends: None }
    }

    /// A change in instructions.
    pub fn instructions(look: &Look, change: f64) -> Self {
        let look = Look { mark: Mark::Cross, name: format!("{} (instructions)", look.name), ..look.clone() };
        Self { look, change, ends: None }
    }
}

/// Rows of changes under labels; `None` without a single one.
pub fn draw(rows: &[(String, Vec<Dot>)], metric: Metric, label: &str) -> Option<String> {
    let dots = || rows.iter().flat_map(|(_, dots)| dots);
    dots().next()?;
    let scale = Scale::of(dots());
    let left = rows.iter().map(|(label, _)| width(label)).fold(60.0, f64::max) + 16.0;
    let lines = rows.iter().map(|(_, dots)| dots.len().max(1) as f64 * LINE + GAP).sum::<f64>();
    let bottom = TOP + lines;
    let mut svg = Svg::new(WIDTH, bottom + 44.0, label);
    let x = Along::new(scale.lie.clone(), left, WIDTH - RIGHT);
    let place = |change: f64| x.place(scale.value(change));
    let mut last = f64::NEG_INFINITY;
    for &change in &scale.ticks {
        let (class, at) = (if change == 0.0 { "zero" } else { "grid" }, place(change));
        // Zero stays; of the others, those that have room.
        if change != 0.0 && at - last < TICK_ROOM || change < 0.0 && place(0.0) - at < TICK_ROOM {
            continue;
        }
        last = at;
        svg.line(class, (at, TOP - 4.0), (at, bottom));
        svg.text("tick", (at, bottom + 16.0), Anchor::Middle, &tick(change));
    }
    let unit = if metric.in_points() { "points" } else { "%" };
    svg.text(
        "title",
        ((left + WIDTH - RIGHT) / 2.0, bottom + 36.0),
        Anchor::Middle,
        &format!("change against before ({unit})"),
    );
    legend(&mut svg, dots().map(|dot| &dot.look), left);
    let mut y = TOP;
    for (label, dots) in rows {
        let height = dots.len().max(1) as f64 * LINE + GAP;
        svg.text("label", (left - 12.0, y + height / 2.0 + 2.0), Anchor::End, label);
        svg.line("grid", (left, y + height), (WIDTH - RIGHT, y + height));
        for (at, dot) in dots.iter().enumerate() {
            let (at_x, y) = (place(dot.change), y + GAP / 2.0 + (at as f64 + 0.5) * LINE);
            let class = &dot.look.class;
            if let Some([low, high]) = dot.ends {
                svg.line(&format!("whisker {class}"), (place(low), y), (place(high), y));
            }
            let says = format!("{}, {label}: {}", dot.look.name, signed(dot.change, metric));
            svg.mark(&format!("mark {class}"), dot.look.mark, (at_x, y), &says);
            let beside = dot.ends.map_or(at_x, |[_, high]| place(high).max(at_x)) + 10.0;
            svg.text("value", (beside, y + 4.0), Anchor::Start, &signed(dot.change, metric));
        }
        y += height;
    }
    Some(svg.finish())
}

/// Where changes lie: evenly, or by the logarithm of the ratio when small ones stand beside large ones.
struct Scale {
    lie: Lie,
    ticks: Vec<f64>,
    low: f64,
    high: f64,
}

/// Ratios that are marked on a logarithmic axis, as changes in percent.
const MARKED: [f64; 13] = [-90.0, -80.0, -50.0, -25.0, 0.0, 25.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0];
/// From which change on an even axis would hide the small ones.
const LARGE: f64 = 60.0;

impl Scale {
    fn of<'a>(dots: impl Iterator<Item = &'a Dot> + Clone) -> Self {
        let largest = dots.clone().map(|dot| dot.change.abs()).fold(1.0, f64::max);
        // An interval of three noisy rounds must not squeeze the rest into a line.
        let (floor, roof) = (-2.0 * largest, 2.0 * largest);
        let ends = dots.flat_map(|dot| dot.ends.unwrap_or([dot.change; 2])).map(|end| end.clamp(floor, roof));
        if largest <= LARGE {
            let (low, high, ticks) = from_zero(ends);
            return Self { lie: Lie::Even(low, high), ticks, low, high };
        }
        let (low, high) = ends.fold((0.0f64, 0.0f64), |(low, high), end| (low.min(end), high.max(end)));
        let (low, high) = (low.max(MARKED[0]), high.min(MARKED[MARKED.len() - 1]));
        let from = MARKED.iter().copied().rfind(|tick| *tick <= low).unwrap_or(low);
        let to = MARKED.iter().copied().find(|tick| *tick >= high).unwrap_or(high);
        let ticks = MARKED.into_iter().filter(|tick| (from..=to).contains(tick)).collect();
        let lie = Lie::Log { low: ratio(from), high: ratio(to), zero: false };
        Self { lie, ticks, low: from, high: to }
    }

    /// What the axis takes: a change that is off its ends lies at the end.
    fn value(&self, change: f64) -> f64 {
        let change = change.clamp(self.low, self.high);
        if matches!(self.lie, Lie::Log { .. }) { ratio(change) } else { change }
    }
}

fn ratio(percent: f64) -> f64 {
    1.0 + percent / 100.0
}

fn tick(change: f64) -> String {
    if change == 0.0 { "0".into() } else { format!("{change:+.0}") }
}

/// Each look once.
fn legend<'a>(svg: &mut Svg, looks: impl Iterator<Item = &'a Look>, left: f64) {
    let mut seen: Vec<&Look> = Vec::new();
    let mut x = left;
    for look in looks {
        if seen.iter().any(|other| other.name == look.name) {
            continue;
        }
        seen.push(look);
        svg.mark(&format!("mark {}", look.class), look.mark, (x + 6.0, 12.0), &look.name);
        svg.text("legend", (x + 16.0, 16.0), Anchor::Start, &look.name);
        x += 16.0 + width(&look.name) + 20.0;
    }
}
