//! The display of a run on the terminal: growing tables on stdout, progress on stderr between turns.
//!
//! * I1. Nothing is drawn during a turn, because the thread that draws is also the one that measures.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sheave_load::output;

use crate::report::{ExperimentReport, InstructionRow, Part, Row};
use crate::run::Show;
use crate::table;

/// Interval of progress lines if stderr is no terminal.
const LINE: Duration = Duration::from_secs(10);

const TEMPLATE: &str = "[{bar:24}] {msg}";

/// Display of a run.
pub struct Shown {
    /// True if stdout gets only the JSON.
    json: bool,
    /// True to print all checks and the whole verdict.
    long: bool,
    bar: Option<ProgressBar>,
    start: Instant,
    line_at: Instant,
}

impl Shown {
    /// Makes a display, with a progress bar if stderr is a terminal.
    pub fn new(json: bool, long: bool) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template(TEMPLATE);
            bar.set_style(style.expect("the template is a constant, and tried by a test").progress_chars("=> "));
            bar
        });
        let start = Instant::now();
        Self { json, long, bar, start, line_at: start + LINE }
    }

    /// Removes the progress bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn print(&self, text: &str) {
        match &self.bar {
            _ if self.json => {}
            Some(bar) => bar.suspend(|| output::text(text)),
            None => output::text(text),
        }
    }
}

impl Show for Shown {
    fn begin(&mut self, report: &ExperimentReport) {
        self.print(&table::heading(report));
    }

    fn part(&mut self, report: &ExperimentReport, part: &Part<'_>) {
        self.print(&table::part(report, part));
    }

    fn row(&mut self, part: &Part<'_>, row: &Row) {
        self.print(&table::row(part, row));
    }

    fn instructions(&mut self, report: &ExperimentReport, row: &InstructionRow) {
        self.print(&table::instructions(report, row));
    }

    fn end(&mut self, report: &ExperimentReport) {
        self.print(&table::ending(report, self.long));
    }

    fn progress(&mut self, done: Duration, total: Duration, what: &str) {
        let share = if total.is_zero() { 0.0 } else { (done.as_secs_f64() / total.as_secs_f64()).min(1.0) };
        let left = left(self.start.elapsed(), share);
        if let Some(bar) = &self.bar {
            bar.set_position((share * 1000.0) as u64);
            bar.set_message(format!("{what}{left}"));
        } else if Instant::now() >= self.line_at {
            eprintln!("{:.0} %: {what}{left}", share * 100.0);
            self.line_at = Instant::now() + LINE;
        }
    }
}

/// Formats the time left, estimated from the pace so far. Returns an empty string during the first percent, where the
/// estimate would be a guess.
fn left(elapsed: Duration, share: f64) -> String {
    if share < 0.01 {
        return String::new();
    }
    let seconds = (elapsed.as_secs_f64() * (1.0 - share) / share).ceil() as u64;
    match seconds {
        0..100 => format!(", {seconds} s left"),
        _ => format!(", {} min left", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_told_once_it_is_known() {
        assert_eq!(left(Duration::from_secs(1), 0.0), "");
        assert_eq!(left(Duration::from_secs(10), 0.5), ", 10 s left");
        assert_eq!(left(Duration::from_secs(60), 0.1), ", 9 min left");
    }

    #[test]
    fn the_template_of_the_bar_is_one() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
