//! Parity over three devices or more: `xor:over=SPEC+SPEC+SPEC`. One of them may be lost.
//!
//! | module | holds |
//! |---|---|
//! | `layout` | location of a sector and of its parity |
//! | `stripes` | one write at a time to a stripe, across rings; the lost device |
//! | `work` | the steps of a request, child by child |
//!
//! A device whose I/O fails is lost from then on: it is neither read nor written, and its data is computed from the
//! others. `missing=N` opens without the device of this number, from 0 on; that device must not be used again, as it
//! has missed writes. When a second device fails, I/O fails. As with any parity without a journal, a crash between the
//! write of data and that of its parity leaves a stripe that is read wrongly after a later loss of a device.
#![forbid(unsafe_code)]

mod layout;
mod stripes;
mod work;

use std::sync::Arc;

use sheave::drivers::{
    ChildEnd, Open, Params, Polled, Registry, Request, RequestId, SafeDriver, SafeQueue, Step, WaitsFor, Waker, stacked,
};
use sheave::{Capabilities, Device, DeviceError, Limits, Op, Status};

use layout::{Layout, UNIT_SECTORS};
use stripes::Stripes;
use work::{Next, Work};

/// The device.
#[derive(Debug)]
struct Xor {
    layout: Layout,
    stripes: Arc<Stripes>,
    block: u32,
    volatile_cache: bool,
}

/// Adds `xor` to the kinds of a registry.
///
/// # Errors
///
/// Fails if the name is taken.
pub fn register(registry: &mut Registry) -> Result<(), DeviceError> {
    registry.register("xor", open)
}

/// Opens `xor:...`.
fn open(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let missing = params.number("missing", 0, 63)?;
    let lower = params.over()?;
    params.finish()?;
    if lower.len() < 3 || missing.is_some_and(|missing| missing >= lower.len() as u64) {
        return Err(params.error(format!(
            "parity over {} devices, of which one may be missing: give three or more, as in \
             xor:over=ram:size=1M+ram:size=1M+ram:size=1M",
            lower.len()
        )));
    }
    let units = lower.iter().map(|device| device.size_bytes() >> 9).min().unwrap_or_default() / UNIT_SECTORS;
    if units == 0 {
        return Err(params.error("the smallest device has no 64 KiB. Give larger ones"));
    }
    let xor = Xor {
        layout: Layout { devices: lower.len(), units },
        stripes: Arc::new(Stripes::new(missing.map(|missing| missing as usize))),
        block: lower.iter().map(|device| device.limits().logical_block).max().unwrap_or(512),
        volatile_cache: lower.iter().any(|device| device.capabilities().volatile_cache),
    };
    Ok(stacked(params.spec(), xor, lower))
}

impl SafeDriver for Xor {
    fn limits(&self) -> Limits {
        // A request lies within a unit, so it has one device and one parity.
        let unit = UNIT_SECTORS as u32;
        Limits::default().logical_block(self.block).max_sectors(unit).chunk_sectors(unit).queue_depth(64)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().volatile_cache(self.volatile_cache)
    }

    fn size_bytes(&self) -> u64 {
        self.layout.size_bytes()
    }

    fn open_queue(&self, open: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        Ok(Box::new(XorQueue {
            layout: self.layout,
            stripes: Arc::clone(&self.stripes),
            number: self.stripes.new_queue(),
            waker: open.waker(),
            work: (0..open.depth()).map(|_| None).collect(),
            waiting: Vec::new(),
        }))
    }

    fn notices(&self) -> Vec<String> {
        self.stripes.lost().map(|lost| format!("device {lost} is lost, another loss is fatal")).into_iter().collect()
    }
}

/// The queue of one ring.
#[derive(Debug)]
struct XorQueue {
    layout: Layout,
    stripes: Arc<Stripes>,
    /// Number of the queue among those of the device.
    number: u64,
    waker: Waker,
    /// Work in progress, by slot of the request.
    work: Vec<Option<Work>>,
    /// Requests that wait for a stripe that another request has.
    waiting: Vec<RequestId>,
}

impl XorQueue {
    /// Takes a step of a request's work, and releases its stripe at its end.
    fn step(&mut self, rq: &mut Request<'_>, step: impl FnOnce(&mut Work, &Stripes, &mut Request<'_>) -> Next) -> Step {
        let at = rq.id().slot();
        let Some(work) = &mut self.work[at] else { return Step::End(Status::IoErr) };
        match step(work, &self.stripes, rq) {
            Next::Children => Step::Wait,
            Next::Anew => self.begin(rq),
            Next::End(status) => {
                if let Some(work) = self.work[at].take() {
                    self.stripes.unlock(work.locked());
                }
                Step::End(status)
            }
        }
    }

    /// Begins a request if it needs no stripe, or if no other request has its stripe. A read of lost data needs the
    /// stripe too, because a half-finished write would make the read compute other bytes.
    fn begin(&mut self, rq: &mut Request<'_>) -> Step {
        let place = self.layout.place(rq.sector());
        let computed = rq.op() == Op::Read && self.stripes.lost() == Some(place.data);
        let stripe = (rq.op() == Op::Write || computed).then_some(place.stripe);
        if let Some(stripe) = stripe
            && !self.stripes.lock(stripe, self.number, &self.waker)
        {
            self.waiting.push(rq.id());
            return Step::Wait;
        }
        self.work[rq.id().slot()] = Some(Work::new(self.layout.devices, place, stripe));
        self.step(rq, |work, stripes, rq| work.begin(stripes, rq))
    }
}

impl SafeQueue for XorQueue {
    fn start(&mut self, rq: &mut Request<'_>) -> Step {
        self.begin(rq)
    }

    fn child_ended(&mut self, rq: &mut Request<'_>, child: ChildEnd) -> Step {
        self.step(rq, |work, stripes, rq| work.child_ended(stripes, rq, child))
    }

    fn poll(&mut self, rqs: &mut Polled<'_>) {
        for id in std::mem::take(&mut self.waiting) {
            let step = rqs.get(id).map(|mut rq| self.begin(&mut rq));
            if let Some(Step::End(status)) = step {
                rqs.end(id, status);
            }
        }
    }

    fn waits_for(&self) -> WaitsFor {
        if self.waiting.is_empty() { WaitsFor::Nothing } else { WaitsFor::Waker }
    }
}

impl Drop for XorQueue {
    fn drop(&mut self) {
        // Releases the stripes of requests that were cancelled with their ring.
        self.work.iter_mut().filter_map(Option::take).for_each(|work| self.stripes.unlock(work.locked()));
    }
}
