//! What all plots have in common: a frame with axes, grid, titles and a legend.

use super::axis::{Along, Lie};
use super::svg::{Anchor, Mark, Svg};
use crate::terms::{ArmInfo, Role};

/// Size of a plot, and of its margins.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 56.0;
/// What a letter of a legend or of a tick takes, about.
const LETTER: f64 = 6.6;

/// How an arm looks, in every plot the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Class of its colour.
    pub class: String,
    /// Shape of its marks.
    pub mark: Mark,
    /// In legends.
    pub name: String,
}

/// How the arms of an experiment look: before, seed and after alike in all experiments.
pub fn looks(arms: &[ArmInfo]) -> Vec<Look> {
    let mut others = 0;
    let mut look = |arm: &ArmInfo| {
        let (class, mark) = match arm.role {
            Role::Before => ("before".into(), Mark::Square),
            Role::Seed => ("seed".into(), Mark::Triangle),
            Role::After => ("after".into(), Mark::Disc),
            Role::Other => {
                others += 1;
                (format!("other{}", (others - 1) % 4 + 1), [Mark::Diamond, Mark::Ring, Mark::Cross][others % 3])
            }
        };
        Look { class, mark, name: arm.name.into() }
    };
    arms.iter().map(&mut look).collect()
}

/// What stands before a name in a legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The mark of the arm.
    Mark,
    /// The colour of its bars.
    Bar,
    /// The dashes of its prediction.
    Dashes,
}

/// A plot with its axes.
pub struct Frame {
    /// What is drawn.
    pub svg: Svg,
    /// Along the bottom.
    pub x: Along,
    /// Along the left.
    pub y: Along,
}

impl Frame {
    /// An empty one; `label` says in words what it shows.
    pub fn new(label: &str, x: Lie, y: Lie) -> Self {
        Self {
            svg: Svg::new(WIDTH, HEIGHT, label),
            x: Along::new(x, LEFT, WIDTH - RIGHT),
            y: Along::new(y, HEIGHT - BOTTOM, TOP),
        }
    }

    /// Where a pair of values lies.
    pub fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.x.place(x), self.y.place(y))
    }

    /// Lines across, each with its value.
    pub fn across(&mut self, ticks: &[f64], text: impl Fn(f64) -> String) {
        for &tick in ticks {
            let y = self.y.place(tick);
            let class = if tick == 0.0 { "zero" } else { "grid" };
            self.svg.line(class, (LEFT, y), (WIDTH - RIGHT, y));
            self.svg.text("tick", (LEFT - 7.0, y + 4.0), Anchor::End, &text(tick));
        }
    }

    /// Values along the bottom.
    pub fn below(&mut self, ticks: &[(f64, String)]) {
        let floor = HEIGHT - BOTTOM;
        self.svg.line("axis", (LEFT, floor), (WIDTH - RIGHT, floor));
        let room = match self.x.slot() {
            0.0 => (WIDTH - LEFT - RIGHT) / ticks.len().max(1) as f64,
            slot => slot,
        };
        // Every second or third where they would run into each other.
        let widest = ticks.iter().flat_map(|(_, text)| broken(text, room)).map(|line| width(&line)).fold(0.0, f64::max);
        let every = if self.x.slot() > 0.0 { 1 } else { (widest / room).ceil().max(1.0) as usize };
        for (tick, text) in ticks.iter().step_by(every) {
            let x = self.x.place(*tick);
            self.svg.line("axis", (x, floor), (x, floor + 4.0));
            for (line, words) in broken(text, room).iter().enumerate() {
                self.svg.text("tick", (x, floor + 17.0 + 13.0 * line as f64), Anchor::Middle, words);
            }
        }
    }

    /// What the axes are, with their units.
    pub fn titles(&mut self, x: &str, y: &str) {
        self.svg.text("title", ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0), Anchor::Middle, x);
        self.svg.text_up("title", (14.0, (TOP + HEIGHT - BOTTOM) / 2.0), y);
    }

    /// What is what, along the top.
    pub fn legend<'a>(&mut self, looks: impl Iterator<Item = &'a Look>, sign: Sign) {
        let mut x = LEFT;
        for look in looks {
            let class = &look.class;
            match sign {
                Sign::Dashes => self.svg.line(&format!("line dashed {class}"), (x, 14.0), (x + 22.0, 14.0)),
                Sign::Bar => self.svg.mark(&format!("mark {class}"), Mark::Square, (x + 6.0, 14.0), &look.name),
                Sign::Mark => self.svg.mark(&format!("mark {class}"), look.mark, (x + 6.0, 14.0), &look.name),
            }
            let text = x + if sign == Sign::Dashes { 28.0 } else { 16.0 };
            self.svg.text("legend", (text, 18.0), Anchor::Start, &look.name);
            x = text + width(&look.name) + 18.0;
        }
    }

    /// The element.
    pub fn finish(self) -> String {
        self.svg.finish()
    }
}

/// About how wide a text is.
pub fn width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

/// A label in as many lines as its room asks for, broken at spaces only.
fn broken(text: &str, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + width(word) + LETTER <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}
