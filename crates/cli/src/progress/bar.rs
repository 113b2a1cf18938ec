//! The progress bar on a terminal, in a line that never wraps.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Number of columns before the message: name, bar, blanks and brackets.
const FRONT: usize = 9 + 2 + BAR + 2;
/// Number of columns of the bar itself.
const BAR: usize = 12;
const TEMPLATE: &str = "{prefix:>9} [{bar:12}] {msg}";
/// Assumed width of a terminal that does not report it.
const USUAL: usize = 80;

/// Makes a bar of this number of steps, on stderr.
pub fn new(steps: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(TEMPLATE).expect("a constant, tried by a test");
    bar.set_style(style.progress_chars("=> "));
    bar
}

/// Returns the number of columns that are left for the message behind the bar.
pub fn room() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(USUAL);
    // The last column stays empty, because some terminals wrap as soon as it is written.
    columns.saturating_sub(FRONT + 1)
}

/// Joins as many words with commas as fit into `columns`. The first word that does not fit ends the message, because
/// the most important words come first.
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
mod tests {
    use super::*;

    #[test]
    fn the_template_is_as_wide_as_it_says() {
        new(1000);
        assert!(TEMPLATE.contains(&format!("{{bar:{BAR}}}")) && TEMPLATE.contains("{prefix:>9}"));
    }

    #[test]
    fn words_fit_and_the_first_come_first() {
        let words: Vec<String> =
            ["IOPS=7.19M", "3s left", "BW=27.4 GiB/s", "p99=8.32 us", "p50=808 ns", "p99.9=16 us", "IOs/call=8/8"]
                .map(String::from)
                .into();
        let at = |columns: usize| fitting(&words, columns - FRONT - 1);
        assert_eq!(at(60), "IOPS=7.19M, 3s left, BW=27.4 GiB/s");
        assert_eq!(at(59), "IOPS=7.19M, 3s left");
        assert_eq!(at(80), "IOPS=7.19M, 3s left, BW=27.4 GiB/s, p99=8.32 us");
        assert_eq!(at(200), words.join(", "));
        for columns in 0..200 {
            assert!(fitting(&words, columns).chars().count() <= columns, "{columns}");
        }
    }
}
