//! The bar of a long command on a terminal, in a line that never breaks.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Columns of what stands in front of the words: name, bar, and the blanks and brackets around them.
const FRONT: usize = 9 + 2 + BAR + 2;
/// Columns of the bar itself.
const BAR: usize = 12;
const TEMPLATE: &str = "{prefix:>9} [{bar:12}] {msg}";
/// Columns when the terminal does not tell how many it has.
const USUAL: usize = 80;

/// A bar of so many steps, on stderr.
pub fn new(steps: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(TEMPLATE).expect("a constant, tried by a test");
    bar.set_style(style.progress_chars("=> "));
    bar
}

/// Columns that the terminal has for the words behind the bar.
pub fn room() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(USUAL);
    // The last column stays free: some terminals go to the next line when it is written.
    columns.saturating_sub(FRONT + 1)
}

/// The first of the words, as many as fit into so many columns, joined by commas. A word that does not fit ends them,
/// so that what matters most is shown.
pub fn fitting(words: &[String], columns: usize) -> String {
    let mut line = String::new();
    for word in words {
        let comma = if line.is_empty() { "" } else { ", " };
        if line.chars().count() + comma.len() + word.chars().count() > columns {
            break;
        }
        line += comma;
        line += word;
    }
    line
}

#[cfg(test)]
mod tests;
