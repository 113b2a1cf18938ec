//! Progress of a run, always on stderr: a bar on a terminal, otherwise a line from time to time.
//!
//! Runs on the main thread and only reads the [`Board`]; its CPU time is subtracted from that of the run.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::Serialize;
use sheave_base::units::{fmt_bytes, fmt_count, fmt_ns};

use crate::args::{BenchArgs, ProgressStyle};
use crate::bench::board::{Board, Goal, Phase, Stage};
use crate::progress::bar;
use sheave_load::cpu::CpuMeter;
use sheave_load::live::Counts;

/// Interval between updates of the bar, and between lines.
const BAR_TICK: Duration = Duration::from_millis(250);
const LINE_TICK: Duration = Duration::from_secs(5);
/// Shortest time over which a rate is computed. Over a shorter time, the rate would depend more on when the counts were
/// published than on the run.
const SHORTEST: Duration = Duration::from_millis(20);

/// Shows the run until all senders of `finished` are dropped.
pub fn watch(args: &BenchArgs, board: &Board, meter: &CpuMeter, finished: &Receiver<()>) {
    let style = resolve(args);
    let bar = (style == ProgressStyle::Bar).then(|| bar::new(1000));
    let (mut last, mut speed): (Option<Sample>, Option<Speed>) = (None, None);
    let mut line_at = Instant::now() + LINE_TICK;
    loop {
        let tick = if bar.is_some() { BAR_TICK } else { LINE_TICK.min(Duration::from_millis(500)) };
        if finished.recv_timeout(tick) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let sample = Sample::take(board);
        // Rates are computed only from two samples of the same stage.
        let before = last.as_ref().filter(|last| last.stage.number == sample.stage.number);
        if before.is_none() {
            speed = None;
        }
        // During the other side's turn of a comparison, our last rate stays on the display.
        speed = before.and_then(|last| sample.since(last)).or(speed);
        match &bar {
            Some(bar) => {
                draw(bar, args, board, &sample, speed.as_ref());
                last = Some(sample);
            }
            None if Instant::now() >= line_at => {
                write_line(style, args, board, &sample, speed.as_ref());
                line_at += LINE_TICK;
                last = Some(sample);
            }
            None => {
                last.get_or_insert(sample);
            }
        }
        meter.note_reporter();
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

fn resolve(args: &BenchArgs) -> ProgressStyle {
    match args.progress {
        ProgressStyle::Auto if std::io::stderr().is_terminal() => ProgressStyle::Bar,
        ProgressStyle::Auto if args.json => ProgressStyle::Json,
        ProgressStyle::Auto => ProgressStyle::Lines,
        chosen => chosen,
    }
}

/// Counts at one moment.
struct Sample {
    stage: Stage,
    counts: Counts,
    /// Time during which the counts were collected.
    counted: Duration,
}

/// Rates between two samples.
#[derive(Clone, Copy, Debug)]
struct Speed {
    iops: f64,
    ios_per_submit: f64,
    ios_per_reap: f64,
}

impl Sample {
    fn take(board: &Board) -> Self {
        Self { stage: board.stage(), counts: board.counts(), counted: board.counted_for() }
    }

    /// Returns the rates since an earlier sample. Returns `None` if nothing was counted between the samples, because
    /// the other side of a comparison had its turn.
    fn since(&self, last: &Self) -> Option<Speed> {
        let time = self.counted.saturating_sub(last.counted);
        if time < SHORTEST {
            return None;
        }
        let more = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let ios = more(self.counts.ios, last.counts.ios);
        Some(Speed {
            iops: more(self.counts.good(), last.counts.good()) / time.as_secs_f64(),
            ios_per_submit: ios / more(self.counts.submits, last.counts.submits).max(1.0),
            ios_per_reap: ios / more(self.counts.reaps, last.counts.reaps).max(1.0),
        })
    }

    /// Returns the completed share of the stage, in thousandths.
    fn permille(&self, board: &Board, args: &BenchArgs) -> u64 {
        if self.stage.phase == Phase::Compare {
            // Relaxed: the number is only shown.
            let done = board.pairs_done.load(sheave_base::sync::atomic::Ordering::Relaxed);
            return done * 1000 / u64::from(args.pairs());
        }
        let share = match self.stage.goal {
            Goal::Ios(0) => return 0,
            Goal::Ios(goal) => self.counts.ios as f64 / goal as f64,
            Goal::Time(goal) => self.stage.since.elapsed().as_secs_f64() / goal.as_secs_f64(),
        };
        (share * 1000.0).clamp(0.0, 1000.0) as u64
    }

    /// Estimates the remaining time from the pace so far.
    fn eta(&self, permille: u64) -> Option<Duration> {
        let elapsed = self.stage.since.elapsed();
        match permille {
            0 => None,
            _ => Some(elapsed.mul_f64((1000 - permille.min(1000)) as f64 / permille as f64)),
        }
    }
}

fn draw(bar: &ProgressBar, args: &BenchArgs, board: &Board, sample: &Sample, speed: Option<&Speed>) {
    let permille = sample.permille(board, args);
    bar.set_prefix(sample.stage.phase.name());
    bar.set_position(permille);
    bar.set_message(bar::fitting(&words(args, board, sample, speed, permille), bar::room()));
}

/// Returns the parts of the message, the most important first.
fn words(args: &BenchArgs, board: &Board, sample: &Sample, speed: Option<&Speed>, permille: u64) -> Vec<String> {
    let mut words = Vec::new();
    words.extend(speed.map(|speed| format!("IOPS={}", fmt_count(speed.iops as u64))));
    words.extend(sample.eta(permille).map(|eta| format!("{}s left", eta.as_secs_f64().ceil())));
    if let Some(speed) = speed {
        let latency = board.latency();
        let quantile = |share| fmt_ns(latency.value_at_quantile(share));
        words.extend([
            format!("BW={}/s", fmt_bytes((speed.iops * f64::from(args.bs)) as u64)),
            format!("p99={}", quantile(0.99)),
            format!("p50={}", quantile(0.5)),
            format!("p99.9={}", quantile(0.999)),
            format!("IOs/call={:.0}/{:.0}", speed.ios_per_submit, speed.ios_per_reap),
        ]);
    }
    words
}

/// A line of progress as JSON.
#[derive(Serialize)]
struct JsonLine<'a> {
    phase: &'a str,
    done: f64,
    eta_s: Option<f64>,
    ios: u64,
    iops: f64,
    bytes_per_sec: f64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    errors: u64,
}

fn write_line(style: ProgressStyle, args: &BenchArgs, board: &Board, sample: &Sample, speed: Option<&Speed>) {
    let permille = sample.permille(board, args);
    let line = match style {
        ProgressStyle::Lines => {
            format!(
                "{} {}%: {}",
                sample.stage.phase.name(),
                permille / 10,
                words(args, board, sample, speed, permille).join(", ")
            )
        }
        ProgressStyle::Json => {
            let latency = board.latency();
            let iops = speed.map_or(0.0, |speed| speed.iops);
            let line = JsonLine {
                phase: sample.stage.phase.name(),
                done: permille as f64 / 1000.0,
                eta_s: sample.eta(permille).map(|eta| eta.as_secs_f64()),
                ios: sample.counts.ios,
                iops,
                bytes_per_sec: iops * f64::from(args.bs),
                p50_ns: latency.value_at_quantile(0.5),
                p99_ns: latency.value_at_quantile(0.99),
                p999_ns: latency.value_at_quantile(0.999),
                errors: sample.counts.errors,
            };
            serde_json::to_string(&line).unwrap_or_default()
        }
        ProgressStyle::Auto | ProgressStyle::Bar | ProgressStyle::None => return,
    };
    // A failure to show the progress must not fail the run.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eta_follows_the_pace() {
        let since = Instant::now() - Duration::from_secs(10);
        let stage = Stage { phase: Phase::Run, goal: Goal::Time(Duration::from_secs(40)), since, number: 1 };
        let sample = Sample { stage, counts: Counts::default(), counted: Duration::from_secs(10) };
        let (slack, before) = (Duration::from_millis(1), since.elapsed());
        let eta = sample.eta(250).expect("some of it is done");
        let (least, most) = (3 * before - slack, 3 * since.elapsed() + slack);
        assert!((least..most).contains(&eta), "{eta:?} and not {least:?} to {most:?}");
        assert_eq!(sample.eta(0), None);
    }

    #[test]
    fn the_speed_of_a_comparison_is_that_of_our_turns_without_failed_ios() {
        let board = Board::new(1);
        let began = Instant::now();
        board.enter(Phase::Compare, Goal::Ios(5));
        let lane = board.lane(0);
        let before = Sample::take(&board);
        board.turn_begins();
        std::thread::sleep(Duration::from_millis(50));
        lane.counters.publish(&Counts { ios: 1_500, errors: 500, ..Counts::default() });
        board.turn_ends();
        let after_ours = Sample::take(&board);
        std::thread::sleep(Duration::from_millis(50));
        let after_theirs = Sample::take(&board);
        let counted = after_theirs.counted;
        assert!(counted >= Duration::from_millis(50) && counted + Duration::from_millis(50) <= began.elapsed());
        let speed = after_theirs.since(&before).expect("a turn of ours");
        assert!((speed.iops * counted.as_secs_f64() - 1_000.0).abs() < 1e-6, "{speed:?}");
        assert!(after_theirs.since(&after_ours).is_none(), "nothing was counted in theirs");
    }
}
