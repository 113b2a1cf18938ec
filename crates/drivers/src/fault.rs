//! `fault`: a layer over any other device that makes it fail at random, according to a seed.
//!
//! Spec: `fault:seed=1,error=0.01,short=0.01,torn=0.01,delay=0.05,delay_time=1ms,dropped_flush=0.5,stuck=0.001,`
//! `misdirect=0.001,ops=read|write|all,timeout=2s,over=SPEC`; docs/drivers/fault.md explains the keys.
//!
//! | module | holds |
//! |---|---|
//! | `plan` | the kinds of faults, their rates, the draw that decides about a request, and the counts of faults |
//! | `hw` | the hardware queue of one ring: applies decisions to requests |
//!
//! A [`Faulty`] lies over the driver of another queue and has a queue of its own. Requests, tags and statistics are
//! those of its own queue; limits, capabilities and hardware queues are those of the lower driver. Requests without a
//! fault pass unchanged. A device of several legs gets one such queue for each queue below.
//!
//! Invariant I1: a request with a fault ends exactly once, as any other (D1 of [`driver`](sheave_blk::driver)): a stuck
//! request is ended by the timeout walk or by the shutdown of its ring.

mod hw;
mod plan;

use std::ops::Range;

use sheave_base::status::Status;
use sheave_base::sync::Arc;

pub use plan::{FaultCounts, FaultKind, FaultOps, FaultPlan};

use crate::spec::Params;
use hw::{FaultQueue, Faults};
use plan::stream;
use sheave_blk::claim::{Claim, Sharing};
use sheave_blk::device::{Device, Leg};
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwQueue};
use sheave_blk::error::DeviceError;
use sheave_blk::limits::Limits;
use sheave_blk::queue::Queue;

/// A driver over another one.
#[derive(Debug)]
pub struct Faulty {
    lower: Arc<Queue>,
    plan: FaultPlan,
    faults: Faults,
    /// Number of this driver's queue among the queues of the device. Selects the random stream.
    number: u16,
}

/// Makes a device over `device` with the faults of `plan`. Returns it with the counts of its faults.
///
/// ```
/// use sheave_blk::Device;
/// use sheave_drivers::fault::{self, FaultKind, FaultPlan};
///
/// let disk = sheave_drivers::open_device("null:size=1M").unwrap();
/// let plan = FaultPlan::new(7).with(FaultKind::Error, 0.5);
/// let (device, counts) = fault::over("bad disk", &disk, &plan).unwrap();
/// assert_eq!((device.size_bytes(), counts.total()), (1 << 20, 0));
/// ```
pub fn over(name: &str, device: &Device, plan: &FaultPlan) -> Result<(Device, Arc<FaultCounts>), DeviceError> {
    let odds = plan.odds().map_err(|why| DeviceError::spec(name, why))?;
    let counts = Arc::new(FaultCounts::default());
    let mut queues: Vec<(&Arc<Queue>, Arc<Queue>)> = Vec::new();
    for leg in device.legs() {
        if queues.iter().any(|(lower, _)| Arc::ptr_eq(lower, &leg.queue)) {
            continue;
        }
        let faults = Faults {
            odds: odds.clone(),
            reach: reach_on(&leg.queue, device),
            delay_time: plan.delay_time,
            counts: counts.clone(),
        };
        let faulty = Faulty { lower: leg.queue.clone(), plan: plan.clone(), faults, number: queues.len() as u16 };
        let timeout = plan.timeout.unwrap_or(leg.queue.timeout());
        queues.push((&leg.queue, Queue::over(&leg.queue, name, Box::new(faulty), timeout)));
    }
    if let (true, [(_, queue)]) = (device.is_whole(), queues.as_slice()) {
        return Ok((Device::from_queue(name, queue.clone()), counts));
    }
    Ok((Device::from_legs(name, new_legs(device, &queues)), counts))
}

/// Returns the legs of the device, each on the queue that lies over its old one.
fn new_legs(device: &Device, queues: &[(&Arc<Queue>, Arc<Queue>)]) -> Vec<Leg> {
    let mut legs = device.legs().to_vec();
    for leg in &mut legs {
        let sharing = device.legs().iter().filter(|other| Arc::ptr_eq(&other.queue, &leg.queue)).count();
        if let Some((_, queue)) = queues.iter().find(|(lower, _)| Arc::ptr_eq(lower, &leg.queue)) {
            leg.queue = queue.clone();
        }
        // Partition numbers belong to the old queue. A leg that is alone on its queue needs none.
        leg.part = if sharing > 1 { leg.queue.new_partition(0) } else { 0 };
    }
    legs
}

/// Returns the sector ranges of `queue` that belong to the device.
fn reach_on(queue: &Arc<Queue>, device: &Device) -> Vec<Range<u64>> {
    if device.is_whole() {
        return std::iter::once(0..u64::MAX).collect();
    }
    let legs = device.legs().iter().filter(|leg| Arc::ptr_eq(&leg.queue, queue));
    legs.map(|leg| leg.offset..leg.offset + leg.sectors).collect()
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: limits, size and queues are those of the device below, and a cut request is shorter than the original.
unsafe impl Driver for Faulty {
    fn limits(&self) -> Limits {
        self.lower.limits().clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.lower.capabilities()
    }

    fn size_bytes(&self) -> u64 {
        self.lower.sectors() << sheave_blk::bio::SECTOR_SHIFT
    }

    fn host_wide_depth(&self) -> Option<u16> {
        self.lower.driver().host_wide_depth()
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        let lower = self.lower.driver().open_hctx(open)?;
        if self.faults.odds.is_quiet() {
            return Ok(lower);
        }
        let rng = stream(self.plan.seed, self.number, open.hctx);
        Ok(Box::new(FaultQueue::new(self.faults.clone(), lower, open, rng)))
    }

    fn claim(&self, sharing: Sharing) -> Result<Claim, DeviceError> {
        let claims = self.faults.reach.iter().map(|reach| self.lower.claim(reach.clone(), sharing));
        Ok(Claim::all(claims.collect::<Result<_, _>>()?))
    }

    fn still_owns(&self) -> Result<(), Status> {
        self.lower.driver().still_owns()
    }

    fn lasting(&self) -> Option<[u64; 2]> {
        self.lower.driver().lasting()
    }

    fn notices(&self) -> Vec<String> {
        let mut notices = self.lower.driver().notices();
        let counts = self.faults.counts.in_words();
        if !counts.is_empty() {
            notices.push(format!("faults injected with seed={}: {counts}", self.plan.seed));
        }
        if self.plan.rate(FaultKind::DroppedFlush) > 0.0 && !self.lower.capabilities().volatile_cache {
            notices.push(format!(
                "dropped_flush does nothing over {}: it has no volatile cache, so it gets no flushes",
                self.lower.name()
            ));
        }
        notices
    }
}

/// Opens `fault:...`.
pub(crate) fn from_spec(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let mut plan = FaultPlan::new(params.number("seed", 0, u64::MAX)?.unwrap_or(0));
    for kind in FaultKind::ALL {
        plan = plan.with(kind, params.fraction(kind.name())?.unwrap_or(0.0));
    }
    if let Some(delay_time) = params.duration("delay_time")? {
        plan.delay_time = delay_time;
    }
    let words = [("read", FaultOps::Read), ("write", FaultOps::Write), ("all", FaultOps::All)];
    plan.ops = params.choice("ops", &words)?.unwrap_or_default();
    plan.timeout = params.duration("timeout")?;
    plan.odds().map_err(|why| params.error(why))?;
    let under = params.over()?;
    params.finish()?;
    let [device] = under.as_slice() else {
        return Err(params.error("faults are injected into one device. Put linear:over=A+B under it for several"));
    };
    Ok(over(params.spec(), device, &plan)?.0)
}

#[cfg(test)]
mod tests;
