//! Changes one below the other: what the thread published, and ours with their intervals.
//!
//! One row for each row of the thread's table, or for each experiment on the first page.

use super::axis::{Along, Lie, from_zero};
use super::frame::{Look, width};
use super::svg::{Anchor, Mark, Svg};
use crate::experiment::Metric;
use crate::report::Change;
use crate::table::signed;

const WIDTH: f64 = 1140.0;
const TOP: f64 = 34.0;
/// Between the lines of one row, and between rows.
const LINE: f64 = 16.0;
const GAP: f64 = 12.0;
const RIGHT: f64 = 130.0;

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
        Self { look: look.clone(), change: change.percent, ends: Some([change.low, change.high]) }
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
    let largest = dots().map(|dot| dot.change.abs()).fold(1.0, f64::max);
    let bound = |value: f64| value.clamp(-2.0 * largest, 2.0 * largest);
    let ends = dots().flat_map(|dot| dot.ends.map_or([dot.change; 2], |ends| ends.map(bound)));
    let (low, high, ticks) = from_zero(ends);
    let left = rows.iter().map(|(label, _)| width(label)).fold(60.0, f64::max) + 16.0;
    let lines = rows.iter().map(|(_, dots)| dots.len().max(1) as f64 * LINE + GAP).sum::<f64>();
    let bottom = TOP + lines;
    let mut svg = Svg::new(WIDTH, bottom + 44.0, label);
    let x = Along::new(Lie::Even(low, high), left, WIDTH - RIGHT);
    for &tick in &ticks {
        let class = if tick == 0.0 { "zero" } else { "grid" };
        svg.line(class, (x.place(tick), TOP - 4.0), (x.place(tick), bottom));
        svg.text("tick", (x.place(tick), bottom + 16.0), Anchor::Middle, &format!("{tick:+.0}").replace("+0", "0"));
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
            let (place, y) = (x.place(bound(dot.change)), y + GAP / 2.0 + (at as f64 + 0.5) * LINE);
            let class = &dot.look.class;
            if let Some([low, high]) = dot.ends {
                svg.line(&format!("whisker {class}"), (x.place(bound(low)), y), (x.place(bound(high)), y));
            }
            let says = format!("{}, {label}: {}", dot.look.name, signed(dot.change, metric));
            svg.mark(&format!("mark {class}"), dot.look.mark, (place, y), &says);
            let beside = dot.ends.map_or(place, |[_, high]| x.place(bound(high)).max(place)) + 10.0;
            svg.text("value", (beside, y + 4.0), Anchor::Start, &signed(dot.change, metric));
        }
        y += height;
    }
    Some(svg.finish())
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
