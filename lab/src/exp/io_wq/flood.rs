//! A turn of an arm. Each turn has a pool of its own, made and warmed up before the clock starts.
//!
//! A timed turn has two parts. The first part gives items, time and latencies; no lock reads a clock in it. The second
//! part, a third as long, measures locks and start latencies. Its counts are scaled to the number of items of the first
//! part.

use std::collections::BTreeMap;
use std::time::Duration;

use super::design::{self, bad, work_of};
use crate::LabError;
use crate::experiment::{ArmRun, Lab, Turn, TurnEnd};
use crate::point::Point;
use crate::wq::{self, Flood, Limit, Side, Work};

/// Maximum of workers if the point has none.
const WORKERS: u64 = 2;
const LONGEST_WARM_UP: Duration = Duration::from_millis(20);

pub struct FloodRun {
    side: Side,
    flood: Flood,
}

/// Makes the flood of a point.
pub fn of(lab: &Lab, point: &Point) -> Result<Flood, LabError> {
    point.check(design::ID, design::PARAMETERS, design::UNUSED)?;
    let cpus = point.number("cpus").map_or(lab.cpus.len(), |cpus| (cpus as usize).min(lab.cpus.len()));
    let cpus = lab.cpus[..cpus].to_vec();
    let stepped = point.number("stepped") == Some(1);
    if stepped && point.threads > 1 {
        return Err(bad("stepped=1 has one submitter"));
    }
    Ok(Flood {
        depth: point.depth,
        batch: point.batch.min(point.depth),
        workers: point.number("workers").unwrap_or(WORKERS) as u32,
        submitters: point.threads,
        work: work_of(point)?,
        hashed: 0,
        warm_up: Limit::Items(0),
        turn: Limit::Items(0),
        worker_cpus: cpus.clone(),
        cpus,
        stepped,
        stop: lab.stop.clone(),
    })
}

/// Checks a point and makes its arm.
pub fn prepare(lab: &Lab, side: Side, point: &Point) -> Result<Box<dyn ArmRun>, LabError> {
    let flood = of(lab, point)?;
    if flood.work != Work::Nop && matches!(side, Side::Kernel | Side::Ours(wq::Arm::Ring)) {
        return Err(bad("a ring has no item that spins or sleeps: leave work out"));
    }
    if flood.stepped && side == Side::Kernel {
        return Err(bad("the kernel's workers are threads: leave stepped out"));
    }
    Ok(Box::new(FloodRun { side, flood }))
}

impl ArmRun for FloodRun {
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        match end {
            TurnEnd::Time(time) => {
                let warm_up = Limit::Time(LONGEST_WARM_UP.min(time / 4));
                let part = |time| Flood { warm_up, turn: Limit::Time(time), ..self.flood.clone() };
                let plain = self.side.turn(&part(time * 3 / 4), false)?;
                let measured = self.side.turn(&part(time / 4), true)?;
                Ok(turn(plain, Some(&measured)))
            }
            TurnEnd::Ios(ios) => {
                let each = ios.div_ceil(u64::from(self.flood.submitters));
                let flood = Flood { turn: Limit::Items(each), ..self.flood.clone() };
                Ok(turn(self.side.turn(&flood, false)?, None))
            }
        }
    }
}

fn turn(plain: wq::Turn, measured: Option<&wq::Turn>) -> Turn {
    let (mut counters, mut gauges) = (BTreeMap::new(), BTreeMap::new());
    let ios = plain.counts.ios;
    // The kernel gives no figures of its pool, so its `taken` is 0.
    if let Some(measured) = measured.filter(|measured| measured.pool.taken > 0 && measured.counts.ios > 0) {
        let pool = &measured.pool;
        let scale = ios as f64 / measured.counts.ios as f64;
        let counts = [
            ("locks_taken", pool.taken),
            ("locks_contended", pool.contended),
            ("flag_reads", pool.flag_reads),
            ("lock_hold_ns", pool.hold_ns),
            ("lock_wait_ns", pool.wait_ns),
        ];
        counters.extend(counts.map(|(name, count)| (name, count as f64 * scale)));
        gauges.insert("lock_wait_percent", 100.0 * pool.wait_ns as f64 / measured.spent.cpu_ns.max(1) as f64);
        gauges.insert("workers", plain.pool.created as f64);
        gauges.insert("start_p50_ns", wq::turn::quantile(&pool.starts, 0.5) as f64);
        gauges.insert("start_p99_ns", wq::turn::quantile(&pool.starts, 0.99) as f64);
    }
    Turn {
        ios,
        wall_ns: plain.spent.wall_ns,
        cpu_ns: plain.spent.cpu_ns,
        context_switches: plain.switches,
        latency: Some(plain.latency),
        counters,
        gauges,
    }
}
