//! Progress of a copy, scrub or check, always on stderr. On a terminal it is a bar, otherwise a line from time to time,
//! which is JSON if the result is JSON.

pub mod bar;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::Serialize;
use sheave_base::units::fmt_bytes;
use sheave_daemon::copy::Meter;

use crate::args::ProgressStyle;
use crate::output;
use crate::space::Warner;

/// Interval between updates of the bar, and between lines.
const BAR_TICK: Duration = Duration::from_millis(250);
const LINE_TICK: Duration = Duration::from_secs(5);

/// Progress of one operation.
pub struct Progress {
    what: &'static str,
    style: ProgressStyle,
    bar: Option<ProgressBar>,
    /// Total number of bytes, if known.
    total: Option<u64>,
    done: u64,
    since: Instant,
    next: Instant,
    /// Monitor of the pool that is written to.
    warner: Option<Warner>,
}

/// A line of progress as JSON.
#[derive(Serialize)]
struct JsonLine {
    phase: &'static str,
    /// Completed share from 0 to 1; null if the total is unknown.
    done: Option<f64>,
    eta_s: Option<f64>,
    bytes: u64,
    total_bytes: Option<u64>,
    bytes_per_sec: f64,
}

impl Meter for Progress {
    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        self.show();
    }
}

impl Progress {
    /// Begins the display. `what` is one word.
    pub fn new(what: &'static str, asked: ProgressStyle, json: bool, total: Option<u64>) -> Self {
        let style = match asked {
            ProgressStyle::Auto if output::is_quiet() => ProgressStyle::None,
            ProgressStyle::Auto if std::io::stderr().is_terminal() => ProgressStyle::Bar,
            ProgressStyle::Auto if json => ProgressStyle::Json,
            ProgressStyle::Auto => ProgressStyle::Lines,
            chosen => chosen,
        };
        let bar = (style == ProgressStyle::Bar).then(|| bar::new(1000).with_prefix(what));
        let since = Instant::now();
        let tick = if bar.is_some() { BAR_TICK } else { LINE_TICK };
        Self { what, style, bar, total, done: 0, since, next: since + tick, warner: None }
    }

    /// Sets a monitor that warns if the pool has little space, now and during the copy.
    pub fn warn(&mut self, warner: Warner) {
        self.warner = Some(warner);
        self.look();
    }

    fn look(&mut self) {
        match (&mut self.warner, &self.bar) {
            (Some(warner), Some(bar)) => bar.suspend(|| warner.look()),
            (Some(warner), None) => warner.look(),
            (None, _) => {}
        }
    }

    /// Sets the number of bytes that are done, and the estimated total.
    pub fn set(&mut self, done: u64, total: u64) {
        (self.done, self.total) = (done, Some(total));
        self.show();
    }

    /// Sets the number of bytes that are done, and the total if known.
    pub fn reach(&mut self, done: u64, total: Option<u64>) {
        self.done = done;
        self.total = total.or(self.total);
        self.show();
    }

    fn show(&mut self) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.look();
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.share().map_or(0, |share| (share * 1000.0) as u64));
                bar.set_message(bar::fitting(&self.words(), bar::room()));
                self.next = now + BAR_TICK;
            }
            None => {
                self.write_line();
                self.next = now + LINE_TICK;
            }
        }
    }

    /// Ends the display, and returns the elapsed time.
    pub fn finish(mut self) -> Duration {
        self.look();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.since.elapsed()
    }

    fn share(&self) -> Option<f64> {
        self.total.map(|total| if total == 0 { 1.0 } else { (self.done as f64 / total as f64).min(1.0) })
    }

    fn speed(&self) -> f64 {
        self.done as f64 / self.since.elapsed().as_secs_f64().max(1e-9)
    }

    /// Estimates the remaining time from the pace so far.
    fn eta(&self) -> Option<Duration> {
        let left = self.total?.saturating_sub(self.done) as f64;
        let speed = self.speed();
        (speed > 0.0).then(|| Duration::try_from_secs_f64(left / speed).unwrap_or(Duration::MAX))
    }

    /// Returns the parts of the message, the most important first.
    fn words(&self) -> Vec<String> {
        let of = self.total.map_or(String::new(), |total| format!(" of {}", fmt_bytes(total)));
        let mut words = vec![format!("{}{of}", fmt_bytes(self.done))];
        words.extend(self.eta().map(|eta| format!("{:.0}s left", eta.as_secs_f64().ceil())));
        words.push(format!("{}/s", fmt_bytes(self.speed() as u64)));
        words
    }

    fn write_line(&self) {
        let line = match self.style {
            ProgressStyle::Json => {
                let line = JsonLine {
                    phase: self.what,
                    done: self.share(),
                    eta_s: self.eta().map(|eta| eta.as_secs_f64()),
                    bytes: self.done,
                    total_bytes: self.total,
                    bytes_per_sec: self.speed(),
                };
                serde_json::to_string(&line).unwrap_or_default()
            }
            ProgressStyle::Lines => match self.share() {
                Some(share) => format!("{} {:.0}%: {}", self.what, share * 100.0, self.words().join(", ")),
                None => format!("{}: {}", self.what, self.words().join(", ")),
            },
            _ => return,
        };
        // A failure to show the progress must not stop the operation.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_and_without_a_total() {
        let mut progress = Progress::new("import", ProgressStyle::None, false, Some(4096));
        progress.advance(1024);
        let words = progress.words();
        assert!(words[0] == "1 KiB of 4 KiB" && words[1].ends_with("s left") && words[2].ends_with("/s"), "{words:?}");
        assert_eq!(progress.share(), Some(0.25));
        let mut stream = Progress::new("import", ProgressStyle::None, false, None);
        stream.advance(4096);
        assert!(stream.words()[0] == "4 KiB" && stream.share().is_none() && stream.eta().is_none());
        assert_eq!(Progress::new("import", ProgressStyle::None, false, Some(0)).share(), Some(1.0));
        stream.set(8192, 16384);
        assert_eq!(stream.share(), Some(0.5), "the whole is known later");
    }
}
