//! The result of `sheave-lab wq`: medians over the turns, as a table or as one JSON object.
//!
//! Names that `sheave bench` has too mean the same in both. `docs/internals/io-wq.md` explains the others.

use std::fmt::Write;

use serde::Serialize;
use sheave_base::units::{fmt_count, fmt_ns};

use super::plan::WqPlan;
use crate::interval::median;
use crate::wq::Turn;
use crate::wq::turn::quantile;

/// Fields of the JSON object.
#[derive(Debug, Serialize)]
pub struct Report {
    arm: &'static str,
    work: String,
    depth: u32,
    batch: u32,
    threads: u32,
    workers: u32,
    hashed: u32,
    turns: usize,
    ios: u64,
    seconds: f64,
    iops: f64,
    ns_per_io: f64,
    cpu_ns_per_io: f64,
    mean_ns: f64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    errors: u64,
    context_switches_per_io: f64,
    workers_created: u64,
    /// The fields from here on are figures of the last turn, in which the pool was measured too.
    start_p50_ns: u64,
    start_p99_ns: u64,
    lock_hold_ns_per_io: f64,
    lock_wait_ns_per_io: f64,
    lock_wait_percent_of_cpu: f64,
    lock_wait_cpu_percent_of_cpu: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    compare: Option<Compared>,
}

/// The figures of the peer, and the ratios of our figures to them.
#[derive(Debug, Serialize)]
struct Compared {
    name: &'static str,
    pairs: usize,
    iops: f64,
    cpu_ns_per_io: f64,
    p50_ns: u64,
    p99_ns: u64,
    context_switches_per_io: f64,
    ratio_iops: f64,
    ratio_cpu: f64,
    ratio_iops_range: [f64; 2],
}

impl Report {
    /// Computes the figures. Returns `None` if there was no turn.
    pub fn new(plan: &WqPlan, ours: &[Turn], theirs: &[Turn], measured: &Turn) -> Option<Self> {
        let middle = |figure: fn(&Turn) -> f64| median(&ours.iter().map(figure).collect::<Vec<_>>());
        let iops = middle(Turn::iops)?;
        let ios: u64 = ours.iter().map(|turn| turn.counts.ios).sum();
        let items = measured.counts.ios.max(1) as f64;
        let mut latency = sheave_load::live::report_histogram();
        for turn in ours {
            latency += &turn.latency;
        }
        Some(Self {
            arm: plan.arm.name(),
            work: plan.flood.work.to_string(),
            depth: plan.flood.depth,
            batch: plan.flood.batch,
            threads: plan.flood.submitters,
            workers: plan.flood.workers,
            hashed: plan.flood.hashed,
            turns: ours.len(),
            ios,
            seconds: ours.iter().map(|turn| turn.spent.wall_ns).sum::<u64>() as f64 / 1e9,
            iops,
            ns_per_io: 1e9 / iops,
            cpu_ns_per_io: middle(Turn::cpu_ns_per_io)?,
            mean_ns: latency.mean(),
            p50_ns: latency.value_at_quantile(0.5),
            p99_ns: latency.value_at_quantile(0.99),
            p999_ns: latency.value_at_quantile(0.999),
            max_ns: latency.max(),
            errors: ours.iter().map(|turn| turn.counts.errors).sum(),
            context_switches_per_io: middle(switches_per_io)?,
            workers_created: ours.iter().map(|turn| turn.pool.created).max().unwrap_or(0),
            start_p50_ns: quantile(&measured.pool.starts, 0.5),
            start_p99_ns: quantile(&measured.pool.starts, 0.99),
            lock_hold_ns_per_io: measured.pool.hold_ns as f64 / items,
            lock_wait_ns_per_io: measured.pool.wait_ns as f64 / items,
            lock_wait_percent_of_cpu: 100.0 * measured.pool.wait_ns as f64 / measured.spent.cpu_ns.max(1) as f64,
            lock_wait_cpu_percent_of_cpu: 100.0 * measured.pool.wait_cpu_ns as f64
                / measured.spent.cpu_ns.max(1) as f64,
            compare: Compared::new(ours, theirs),
        })
    }

    pub fn table(&self) -> String {
        let mut rows = vec![
            (
                "workers",
                format!(
                    "{}, {} of at most {} made, {} submitter(s), depth {}, batch {}, {}{}",
                    self.arm,
                    self.workers_created,
                    self.workers,
                    self.threads,
                    self.depth,
                    self.batch,
                    self.work,
                    if self.hashed > 0 { format!(" with {} hashes", self.hashed) } else { String::new() }
                ),
            ),
            (
                "speed",
                format!("{} items/s, median of {} turns, {} items", fmt_count(self.iops as u64), self.turns, self.ios),
            ),
            (
                "an item costs",
                format!(
                    "{:.1} ns of wall time, {:.1} ns of CPU time, {:.4} context switches",
                    self.ns_per_io, self.cpu_ns_per_io, self.context_switches_per_io
                ),
            ),
            ("queue to start", format!("p50 {}, p99 {}", fmt_ns(self.start_p50_ns), fmt_ns(self.start_p99_ns))),
            (
                "to the result",
                format!("p50 {}, p99 {}, max {}", fmt_ns(self.p50_ns), fmt_ns(self.p99_ns), fmt_ns(self.max_ns)),
            ),
            (
                "locks",
                format!(
                    "held {:.1} ns an item, waited for {:.2} ns an item, {:.2} % of CPU time ({:.3} % not asleep)",
                    self.lock_hold_ns_per_io,
                    self.lock_wait_ns_per_io,
                    self.lock_wait_percent_of_cpu,
                    self.lock_wait_cpu_percent_of_cpu
                ),
            ),
        ];
        if let Some(compare) = &self.compare {
            rows.extend(compare.rows());
        }
        let mut text = String::new();
        for (name, value) in rows {
            // Writing to a `String` does not fail.
            let _ = writeln!(text, "{name:>14}  {value}");
        }
        text
    }
}

impl Compared {
    fn new(ours: &[Turn], theirs: &[Turn]) -> Option<Self> {
        let middle = |figure: fn(&Turn) -> f64| median(&theirs.iter().map(figure).collect::<Vec<_>>());
        let ratios = |figure: fn(&Turn) -> f64| -> Vec<f64> {
            ours.iter().zip(theirs).map(|(our, their)| figure(our) / figure(their)).collect()
        };
        let mut latency = sheave_load::live::report_histogram();
        for turn in theirs {
            latency += &turn.latency;
        }
        let iops_ratios = ratios(Turn::iops);
        let lowest = iops_ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = iops_ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self {
            name: "kernel io_uring, NOP with IOSQE_ASYNC",
            pairs: theirs.len(),
            iops: middle(Turn::iops)?,
            cpu_ns_per_io: middle(Turn::cpu_ns_per_io)?,
            p50_ns: latency.value_at_quantile(0.5),
            p99_ns: latency.value_at_quantile(0.99),
            context_switches_per_io: middle(switches_per_io)?,
            ratio_iops: median(&iops_ratios)?,
            ratio_cpu: median(&ratios(Turn::cpu_ns_per_io))?,
            ratio_iops_range: [lowest, highest],
        })
    }
}

impl Compared {
    fn rows(&self) -> [(&'static str, String); 2] {
        let theirs = format!(
            "{}: {} items/s, {:.1} ns of CPU time, to the result p50 {}, p99 {}",
            self.name,
            fmt_count(self.iops as u64),
            self.cpu_ns_per_io,
            fmt_ns(self.p50_ns),
            fmt_ns(self.p99_ns)
        );
        let [lowest, highest] = self.ratio_iops_range;
        let ratio = format!(
            "{:.2}x the items ({lowest:.2} to {highest:.2}), {:.2}x the CPU time an item; medians of {} pairs",
            self.ratio_iops, self.ratio_cpu, self.pairs
        );
        [("beside it", theirs), ("Sheave does", ratio)]
    }
}

fn switches_per_io(turn: &Turn) -> f64 {
    turn.switches as f64 / turn.counts.ios.max(1) as f64
}
