//! The result of a run, as a table or as one JSON object.
//!
//! The names of the JSON fields are an interface: scripts and the tests of this repository read them.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use sheave_base::units::{fmt_bytes, fmt_count, fmt_ns};

use crate::bench::compare::Comparison;
use crate::bench::plan::Plan;
use sheave_load::cpu::Spent;
use sheave_load::live::Counts;
use sheave_load::verify::{Tally, wrong::WrongJson};

mod bars;

/// All results of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Name of the device.
    pub device: String,
    /// Access pattern.
    pub rw: &'static str,
    /// Number of bytes per I/O.
    pub bs: u32,
    /// Number of I/Os in flight, for each thread.
    pub depth: u32,
    /// Number of I/Os per submission.
    pub batch: u32,
    /// Number of I/Os that a wait waits for.
    pub batch_complete: u32,
    /// True if all I/Os were NOPs.
    pub nop: bool,
    /// Number of threads.
    pub threads: u32,
    /// True if completions were polled for.
    pub poll: bool,
    /// True if buffers were registered.
    pub fixed_buffers: bool,
    /// True if the ring kept statistics.
    pub stats: bool,
    /// Maximum age of a shared timestamp, if given: a time, or `unbounded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stamp_age: Option<String>,
    /// Seed of the access pattern.
    pub seed: u64,
    /// Number of completed I/Os, including failed ones.
    pub ios: u64,
    /// Number of completed reads.
    pub reads: u64,
    /// Number of completed writes.
    pub writes: u64,
    /// Wall time of the run.
    pub seconds: f64,
    /// Successful I/Os per second.
    pub iops: f64,
    /// Bytes per second of successful I/Os.
    pub bytes_per_sec: f64,
    /// Wall time per successful I/O: 1e9 / iops.
    pub ns_per_io: f64,
    /// CPU time of the process per successful I/O, without that of the progress display.
    pub cpu_ns_per_io: f64,
    /// Average number of I/Os per call that submitted some.
    pub ios_per_submit: f64,
    /// Average number of I/Os per call that found completions.
    pub ios_per_reap: f64,
    /// Mean latency in ns.
    pub mean_ns: f64,
    /// Median latency in ns.
    pub p50_ns: u64,
    /// 99th percentile of the latency in ns.
    pub p99_ns: u64,
    /// 99.9th percentile of the latency in ns.
    pub p999_ns: u64,
    /// Largest latency in ns.
    pub max_ns: u64,
    /// Number of failed I/Os.
    pub errors: u64,
    /// Description of the first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// True if Ctrl-C ended the run.
    pub interrupted: bool,
    /// Notices of the device for its user.
    pub notices: Vec<String>,
    /// Result of --verify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyReport>,
    /// Result of --compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compare: Option<Comparison>,
    #[serde(skip)]
    latency: Histogram<u64>,
}

/// Result of --verify.
#[derive(Debug, Serialize)]
pub struct VerifyReport {
    /// Numbers of blocks.
    #[serde(flatten)]
    pub tally: Tally,
    /// The wrong block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong_block: Option<WrongJson>,
}

/// Raw measurements of a run.
pub struct Measured {
    /// Counts of the run phase.
    pub counts: Counts,
    pub spent: Spent,
    pub latency: Histogram<u64>,
}

impl Report {
    /// Calculates the figures.
    pub fn new(plan: &Plan, device: String, measured: Measured) -> Self {
        let Measured { counts, spent, latency } = measured;
        let args = &plan.args;
        let seconds = spent.wall_ns as f64 / 1e9;
        // Failed I/Os have moved no data and are often fast, so they would falsify the rates.
        let good = counts.good();
        let iops = if spent.wall_ns == 0 { 0.0 } else { good as f64 / seconds };
        let per_io = |total: u64| if good == 0 { 0.0 } else { total as f64 / good as f64 };
        let per_call = |calls: u64| if calls == 0 { 0.0 } else { counts.ios as f64 / calls as f64 };
        Self {
            device,
            rw: args.rw.name(),
            bs: args.bs,
            depth: args.depth(),
            batch: plan.batch,
            batch_complete: plan.complete,
            nop: args.nop,
            threads: args.threads,
            poll: args.poll.is_on(),
            fixed_buffers: args.fixed_buffers.is_on(),
            stats: args.stats.is_on(),
            stamp_age: args.stamp_age.map(|age| match age {
                Duration::MAX => "unbounded".into(),
                _ => format!("{age:?}"),
            }),
            seed: args.seed,
            ios: counts.ios,
            reads: if args.nop { 0 } else { counts.ios.saturating_sub(counts.writes) },
            writes: counts.writes,
            seconds,
            iops,
            bytes_per_sec: if args.nop { 0.0 } else { iops * f64::from(args.bs) },
            ns_per_io: per_io(spent.wall_ns),
            cpu_ns_per_io: per_io(spent.cpu_ns),
            ios_per_submit: per_call(counts.submits),
            ios_per_reap: per_call(counts.reaps),
            mean_ns: latency.mean(),
            p50_ns: latency.value_at_quantile(0.5),
            p99_ns: latency.value_at_quantile(0.99),
            p999_ns: latency.value_at_quantile(0.999),
            max_ns: latency.max(),
            errors: counts.errors,
            first_error: None,
            interrupted: false,
            notices: Vec::new(),
            verify: None,
            compare: None,
            latency,
        }
    }

    /// Formats the table and the histogram.
    pub fn table(&self) -> String {
        let mut rows: Vec<(&str, String)> = vec![
            ("device", self.device.clone()),
            ("work", self.work()),
            (
                "I/Os",
                format!(
                    "{} in {:.2} s{}",
                    self.ios,
                    self.seconds,
                    if self.interrupted { " (ended by Ctrl-C)" } else { "" }
                ),
            ),
            (
                "speed",
                format!(
                    "{} IOPS, {}/s, IOs/call {:.0}/{:.0}",
                    fmt_count(self.iops as u64),
                    fmt_bytes(self.bytes_per_sec as u64),
                    self.ios_per_submit,
                    self.ios_per_reap
                ),
            ),
            (
                "an I/O costs",
                format!("{:.1} ns of wall time, {:.1} ns of CPU time", self.ns_per_io, self.cpu_ns_per_io),
            ),
            (
                "latency",
                format!(
                    "mean {}, p50 {}, p99 {}, p99.9 {}, max {}",
                    fmt_ns(self.mean_ns as u64),
                    fmt_ns(self.p50_ns),
                    fmt_ns(self.p99_ns),
                    fmt_ns(self.p999_ns),
                    fmt_ns(self.max_ns)
                ),
            ),
        ];
        if let Some(verify) = &self.verify {
            rows.push(("verified", verify.words()));
        }
        if let Some(compare) = &self.compare {
            rows.extend(compare_rows(compare));
        }
        rows.push(("errors", self.errors.to_string()));
        let mut text = String::new();
        for (name, value) in rows {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{name:>13}  {value}");
        }
        for notice in &self.notices {
            let _ = writeln!(text, "{:>13}  {notice}", "note");
        }
        text.push_str(&bars::draw(&self.latency));
        text
    }

    fn work(&self) -> String {
        let switch = |on: bool, yes: &'static str, no: &'static str| if on { yes } else { no };
        let what = match self.nop {
            true => "NOPs".to_owned(),
            false => format!("{} of {}", self.rw, fmt_bytes(u64::from(self.bs))),
        };
        let batch = match self.batch == self.batch_complete {
            true => self.batch.to_string(),
            false => format!("{} in, {} out", self.batch, self.batch_complete),
        };
        let mut work = format!(
            "{what}, depth {}, batch {batch}, {} thread{}, {}, {}, statistics {}",
            self.depth,
            self.threads,
            switch(self.threads == 1, "", "s"),
            switch(self.poll, "polled", "not polled"),
            switch(self.fixed_buffers, "fixed buffers", "plain buffers"),
            switch(self.stats, "on", "off"),
        );
        if let Some(age) = &self.stamp_age {
            // Writing to a String does not fail.
            let _ = write!(work, ", stamp age {age}");
        }
        work
    }
}

impl VerifyReport {
    fn words(&self) -> String {
        let Tally { filled, checked, read_back, unknown, wrong } = self.tally;
        let mut words = format!("{} blocks right", (checked + read_back).saturating_sub(wrong));
        let _ = write!(words, " ({filled} filled before, {checked} read in the run, {read_back} read back)");
        if unknown > 0 {
            let _ = write!(words, ", {unknown} not known after failed writes");
        }
        if wrong > 0 {
            let _ = write!(words, ", {wrong} WRONG");
        }
        words
    }
}

fn compare_rows(compare: &Comparison) -> [(&'static str, String); 4] {
    let theirs = format!(
        "{}: {} IOPS, {:.1} ns of wall time, {:.1} ns of CPU time an I/O",
        compare.name,
        fmt_count(compare.iops as u64),
        compare.ns_per_io,
        compare.cpu_ns_per_io
    );
    let ratio = format!(
        "{:.2}x the IOPS ({:.2} to {:.2}), {:.2}x the CPU time an I/O; medians of {} pairs",
        compare.ratio_iops, compare.ratio_iops_range[0], compare.ratio_iops_range[1], compare.ratio_cpu, compare.pairs
    );
    let more = format!(
        "{:+.1} ns of wall time, {:+.1} ns of CPU time an I/O",
        compare.more_ns_per_io, compare.more_cpu_ns_per_io
    );
    [("beside it", theirs), ("Sheave does", ratio), ("95 % interval", interval_words(compare)), ("which is", more)]
}

/// Describes the 95 % intervals of both ratios, or how to get them.
fn interval_words(compare: &Comparison) -> String {
    let (Some([low, high]), Some([least, most]), Some(coverage)) =
        (compare.ratio_iops_95, compare.ratio_cpu_95, compare.interval_coverage)
    else {
        return format!("none of {} pairs; six or more give one (--pairs)", compare.pairs);
    };
    format!(
        "{low:.3}x to {high:.3}x the IOPS, {least:.3}x to {most:.3}x the CPU time an I/O; {}, {:.1} %",
        compare.interval_method,
        coverage * 100.0
    )
}
