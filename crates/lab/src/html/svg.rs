//! Drawing: elements of one inline SVG. Colours and fonts are the page's; this only names classes.
//!
//! * I1. All text that goes in is escaped here or by [`escape`]; numbers are written by us.

use std::fmt::{Display, Write};

/// Text as HTML and SVG take it, also within attributes.
pub fn escape(text: impl Display) -> String {
    let text = text.to_string();
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Others below a space are not allowed in HTML at all.
            c if c.is_control() && !c.is_whitespace() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Where a text is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// At its beginning.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// Shapes of marks; colour alone does not tell series apart in print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A disc.
    Disc,
    /// A square.
    Square,
    /// A triangle.
    Triangle,
    /// A square on its corner.
    Diamond,
    /// Two lines.
    Cross,
    /// A disc that is empty inside.
    Ring,
}

/// One drawing.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
    label: String,
}

impl Svg {
    /// An empty one; `label` says in words what it shows.
    pub fn new(width: f64, height: f64, label: &str) -> Self {
        Self { width, height, body: String::new(), label: label.into() }
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(self.body, r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#);
    }

    /// A line through points.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.body, r#"<polyline class="{class}" points="{}"/>"#, places.join(" "));
    }

    /// A filled shape.
    pub fn area(&mut self, class: &str, points: &[(f64, f64)]) {
        let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.body, r#"<polygon class="{class}" points="{}"/>"#, places.join(" "));
    }

    /// A box with a word for whoever points at it.
    pub fn bar(&mut self, class: &str, corner: (f64, f64), size: (f64, f64), says: &str) {
        let ((x, y), (width, height)) = (corner, size);
        let _ = write!(self.body, r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" "#);
        let says = escape(says);
        let _ = writeln!(self.body, r#"width="{width:.1}" height="{height:.1}"><title>{says}</title></rect>"#);
    }

    /// A mark with a word for whoever points at it.
    pub fn mark(&mut self, class: &str, mark: Mark, at: (f64, f64), says: &str) {
        let (x, y) = at;
        let shape = match mark {
            Mark::Disc => format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="4"/>"#),
            Mark::Ring => format!(r#"<circle class="hollow" cx="{x:.1}" cy="{y:.1}" r="4"/>"#),
            Mark::Square => format!(r#"<rect x="{:.1}" y="{:.1}" width="7.4" height="7.4"/>"#, x - 3.7, y - 3.7),
            Mark::Triangle => polygon(at, &[(0.0, -4.8), (4.6, 3.6), (-4.6, 3.6)]),
            Mark::Diamond => polygon(at, &[(0.0, -5.4), (5.4, 0.0), (0.0, 5.4), (-5.4, 0.0)]),
            Mark::Cross => format!(r#"<path class="hollow" d="M{:.1} {:.1}l8 8m-8 0l8-8"/>"#, x - 4.0, y - 4.0),
        };
        let _ = writeln!(self.body, r#"<g class="{class}">{shape}<title>{}</title></g>"#, escape(says));
    }

    /// A line of text.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let ((x, y), anchor) = (at, anchor.name());
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            escape(text)
        );
    }

    /// A line of text that reads upwards, held in its middle.
    pub fn text_up(&mut self, class: &str, at: (f64, f64), text: &str) {
        let (x, y) = at;
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" transform="translate({x:.1} {y:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
            escape(text)
        );
    }

    /// The element.
    pub fn finish(self) -> String {
        let Self { width, height, body, label } = self;
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">\n{body}</svg>\n",
            escape(label)
        )
    }
}

fn polygon(at: (f64, f64), corners: &[(f64, f64)]) -> String {
    let places: Vec<String> = corners.iter().map(|(x, y)| format!("{:.1},{:.1}", at.0 + x, at.1 + y)).collect();
    format!(r#"<polygon points="{}"/>"#, places.join(" "))
}
