//! One turn of one side: submitters that run together, each with the loop of all benches over an engine of its own.
//!
//! * I1. Every submitter passes every gate, also after an error, so that no thread waits at one for ever.
//! * I2. Time, CPU time and context switches are measured between two gates, while all submitters are warm and none has
//!   ended.

use std::sync::{Arc, Barrier};

use hdrhistogram::Histogram;

use super::{Flood, Limit};
use sheave_load::LoadError;
use sheave_load::Rw;
use sheave_load::cpu::{self, CpuMeter, Spent};
use sheave_load::live::{Counts, report_histogram};
use sheave_load::looper::{Driven, Lane, Looper, Until};
use sheave_load::pace::Pace;
use sheave_load::pattern::Pattern;

/// Results of a turn.
pub struct Turn {
    /// Counts of all submitters.
    pub counts: Counts,
    pub spent: Spent,
    /// Times from queueing an item to its result.
    pub latency: Histogram<u64>,
    /// Context switches of the process, the kernel's workers included.
    pub switches: u64,
    pub pool: PoolFigures,
}

/// The counts of a pool. All are 0 for the kernel's pool, which has no counters that can be read.
#[derive(Clone, Debug, Default)]
pub struct PoolFigures {
    pub created: u64,
    /// Number of acquisitions of the pool's locks.
    pub taken: u64,
    /// Number of acquisitions of a lock that another thread held.
    pub contended: u64,
    /// Number of reads of items' flag words in arms that count them; 0 in other arms.
    pub flag_reads: u64,
    /// Time for which the locks were held, in ns, if it was measured.
    pub hold_ns: u64,
    /// Time spent waiting for the locks, in ns, if it was measured.
    pub wait_ns: u64,
    /// CPU time of those waits, which is the part that was not slept.
    pub wait_cpu_ns: u64,
    /// Upper bounds of times from queueing to start, each with its number of items, if measured.
    pub starts: Vec<(u64, u64)>,
}

impl PoolFigures {
    /// Returns the difference to the counts in `earlier`. `created` stays the number since the start of the pool.
    fn since(self, earlier: &Self) -> Self {
        let before = |bound| earlier.starts.iter().find(|cell| cell.0 == bound).map_or(0, |cell| cell.1);
        Self {
            created: self.created,
            taken: self.taken.saturating_sub(earlier.taken),
            contended: self.contended.saturating_sub(earlier.contended),
            flag_reads: self.flag_reads.saturating_sub(earlier.flag_reads),
            hold_ns: self.hold_ns.saturating_sub(earlier.hold_ns),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
            wait_cpu_ns: self.wait_cpu_ns.saturating_sub(earlier.wait_cpu_ns),
            starts: self
                .starts
                .into_iter()
                .map(|(bound, count)| (bound, count.saturating_sub(before(bound))))
                .filter(|&(_, count)| count > 0)
                .collect(),
        }
    }
}

impl Turn {
    pub fn iops(&self) -> f64 {
        self.counts.ios as f64 * 1e9 / self.spent.wall_ns.max(1) as f64
    }

    pub fn cpu_ns_per_io(&self) -> f64 {
        self.spent.cpu_ns as f64 / self.counts.ios.max(1) as f64
    }
}

/// Runs the submitters of one turn. Calls `figures` after the warm-up and after the end.
pub fn run<E: Driven>(
    flood: &Flood,
    make: impl Fn() -> Result<E, LoadError> + Sync,
    figures: impl Fn() -> PoolFigures,
) -> Result<Turn, LoadError> {
    let gate = Barrier::new(flood.submitters as usize + 1);
    let meter = CpuMeter::default();
    std::thread::scope(|scope| {
        let (make, at_gate) = (&make, &gate);
        let lanes: Vec<Arc<Lane>> = (0..flood.submitters).map(|_| Arc::new(Lane::default())).collect();
        let threads: Vec<_> = lanes
            .iter()
            .enumerate()
            .map(|(index, lane)| {
                let lane = Arc::clone(lane);
                scope.spawn(move || submitter(flood, index, make, lane, at_gate))
            })
            .collect();
        gate.wait();
        // Nothing is in flight, so all counts of the pool so far belong to the warm-up.
        let warm_up = figures();
        let (watch, switches) = (meter.start(), switches());
        gate.wait();
        gate.wait();
        let (spent, switches) = (watch.spent(), self::switches().saturating_sub(switches));
        gate.wait();
        let (mut counts, mut latency) = (Counts::default(), report_histogram());
        for (thread, lane) in threads.into_iter().zip(&lanes) {
            counts += thread.join().map_err(|_| LoadError::run("a thread of the run panicked"))??;
            sheave_load::live::merge(&lane.latency, &mut latency);
        }
        Ok(Turn { counts, spent, latency, switches, pool: figures().since(&warm_up) })
    })
}

/// Runs one submitter through the gates (I1).
fn submitter<E: Driven>(
    flood: &Flood,
    index: usize,
    make: impl Fn() -> Result<E, LoadError>,
    lane: Arc<Lane>,
    gate: &Barrier,
) -> Result<Counts, LoadError> {
    let mut pattern = Pattern::new(Rw::Read, 0, 0, 512, 1, 1);
    let until = |limit| {
        let (runtime, ios) = match limit {
            Limit::Time(time) => (Some(time), u64::MAX),
            Limit::Items(items) => (None, items),
        };
        Until { runtime, ios, stop: Arc::clone(&flood.stop) }
    };
    let pinned = match flood.cpus.len() {
        0 => Ok(()),
        cpus => cpu::pin(flood.cpus[index % cpus]),
    };
    let warm = pinned.and_then(|()| make()).and_then(|engine| {
        let mut looper = Looper::new(engine, flood.depth, flood.batch, 0, lane);
        looper.run(&mut pattern, &until(flood.warm_up), &mut Pace::Unlimited)?;
        looper.reset();
        Ok(looper)
    });
    gate.wait();
    gate.wait();
    let ran = warm.and_then(|mut looper| {
        looper.run(&mut pattern, &until(flood.turn), &mut Pace::Unlimited)?;
        Ok(looper)
    });
    gate.wait();
    // Dropping the last looper ends the pool's threads, so their context switches are read before.
    gate.wait();
    let looper = ran?;
    match looper.first_error() {
        Some(error) => Err(LoadError::run(format!("an item ended with {} instead of 0", error.result))),
        None => Ok(looper.counts()),
    }
}

/// Returns the number of context switches of all living threads of the process, the kernel's workers included.
fn switches() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let status = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    status.map(|status| of_thread(&status)).sum()
}

fn of_thread(status: &str) -> u64 {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or_default()
    };
    field("voluntary_ctxt_switches:") + field("nonvoluntary_ctxt_switches:")
}

/// Returns the upper bound of the cell in which the quantile `share` lies.
pub fn quantile(cells: &[(u64, u64)], share: f64) -> u64 {
    let all: u64 = cells.iter().map(|&(_, count)| count).sum();
    let wanted = (all as f64 * share).ceil() as u64;
    let mut seen = 0;
    for &(bound, count) in cells {
        seen += count;
        if seen >= wanted.max(1) {
            return bound;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_name_the_bound_of_their_cell() {
        let cells = [(10, 50), (20, 49), (1000, 1)];
        assert_eq!([0.5, 0.51, 0.99, 0.995, 1.0].map(|share| quantile(&cells, share)), [10, 20, 20, 1000, 1000]);
        assert_eq!((quantile(&[], 0.5), quantile(&[(7, 1)], 0.0)), (0, 7));
    }

    #[test]
    fn what_the_warm_up_counted_is_not_the_turns() {
        let early = PoolFigures { created: 1, taken: 10, starts: vec![(7, 4), (15, 6)], ..PoolFigures::default() };
        let late =
            PoolFigures { created: 2, taken: 25, starts: vec![(7, 4), (15, 20), (31, 1)], ..PoolFigures::default() };
        let turn = late.since(&early);
        assert_eq!((turn.created, turn.taken, turn.starts), (2, 15, vec![(15, 14), (31, 1)]));
    }
}
