//! Shared by the scenario and model tests of the block layer: a scripted driver, and a ring to use it.
//!
//! [`Puppet`] takes, holds, refuses and ends requests as its [`Script`] says, and records them. [`Rig`] is a ring with
//! one or more devices, a virtual clock, and the list of bios that ended. No test driver accesses memory: the address
//! of a vector is only a number here.
#![allow(dead_code)] // Each test binary uses a part of it.

use std::time::Duration;

use sheave_base::clock::{Clock, VirtualClock};
use sheave_base::status::Status;
use sheave_base::sync::{Arc, Mutex, MutexGuard};
use sheave_blk::bio::{BVec, NO_FIXED_BUF, Op, Segment};
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Started, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::queue::Queue;
use sheave_blk::request::{DoneList, Rq, RqList, RqTable};
use sheave_blk::{Device, DeviceError};

/// Length of the usual test block in bytes.
pub const BLOCK: u32 = 4096;
/// Length of the usual test block in sectors.
pub const BLOCK_SECTORS: u64 = 8;

/// Makes a vector at any address, for drivers that do not access it.
#[allow(unsafe_code)]
pub fn vec_at(base: usize, len: usize) -> BVec {
    // SAFETY: no driver of these tests accesses the memory of a request, except devices whose memory lives as long as
    // the test.
    unsafe { BVec::new(base, len) }
}

/// A request as the driver got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub op: Op,
    pub sector: u64,
    pub bytes: u32,
    pub flags: u8,
    pub tag: u16,
    pub vecs: Vec<Segment>,
    /// Time stamp of the request's issue for statistics, in ns.
    pub issued_at: u64,
}

/// Instructions for a [`Puppet`], and its records. Shared by all its hardware queues.
#[derive(Debug)]
pub struct Script {
    /// Number of requests that the driver will still take. It refuses further ones.
    pub accept: u32,
    /// Number of requests that the driver will still end. It holds further ones.
    pub finish: u32,
    /// True if the driver ends the newest request first.
    pub lifo: bool,
    /// Status of requests by operation, if not success.
    pub fail: Vec<(Op, Status)>,
    /// True if the driver ends requests in the call that passes them.
    pub in_call: bool,
    /// Duration of each call that passes requests.
    pub takes: Option<(VirtualClock, Duration)>,
    /// True if the driver ends overdue requests.
    pub ends_overdue: bool,
    /// Requests taken, in order.
    pub seen: Vec<Seen>,
    /// Number of requests offered by each call of `queue_rqs`.
    pub offers: Vec<usize>,
    /// Tags for which `timed_out` was called.
    pub overdue: Vec<u16>,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            accept: u32::MAX,
            finish: u32::MAX,
            lifo: false,
            fail: Vec::new(),
            in_call: false,
            takes: None,
            ends_overdue: false,
            seen: Vec::new(),
            offers: Vec::new(),
            overdue: Vec::new(),
        }
    }
}

impl Script {
    fn see(&mut self, rq: &Rq, rqs: &RqTable<'_>) {
        let r = rqs.get(rq);
        let vecs = rqs.segments(rq.tag()).collect();
        let (op, sector, bytes, flags) = (r.op, r.sector, r.bytes, r.flags);
        self.seen.push(Seen { op, sector, bytes, flags, tag: rq.tag(), vecs, issued_at: r.issued_at().0 });
    }

    fn pass_time(&self) {
        if let Some((time, takes)) = &self.takes {
            time.advance(*takes);
        }
    }

    fn status_of(&self, op: Op) -> Status {
        self.fail.iter().find(|(of, _)| *of == op).map_or(Status::Ok, |(_, status)| *status)
    }
}

/// A driver that follows its script.
#[derive(Clone, Debug)]
pub struct Puppet {
    pub limits: Limits,
    pub caps: Capabilities,
    pub size: u64,
    pub host_depth: Option<u16>,
    pub script: Arc<Mutex<Script>>,
}

impl Puppet {
    /// Makes a driver of 1 GiB, depth 64, with every operation and without a volatile cache.
    pub fn new() -> Puppet {
        let limits = Limits::default().queue_depth(64).max_discard_sectors(1 << 20).max_write_zeroes_sectors(1 << 20);
        let caps = Capabilities::default().discard(true).write_zeroes(true).polled(true);
        Puppet { limits, caps, size: 1 << 30, host_depth: None, script: Arc::new(Mutex::new(Script::default())) }
    }

    pub fn depth(mut self, depth: u16) -> Puppet {
        self.limits.queue_depth = depth;
        self
    }

    pub fn host_depth(mut self, depth: u16) -> Puppet {
        self.host_depth = Some(depth);
        self
    }

    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Puppet {
        change(&mut self.limits);
        self
    }

    pub fn caps(mut self, change: impl FnOnce(&mut Capabilities)) -> Puppet {
        change(&mut self.caps);
        self
    }

    /// Makes the driver hold all requests until told to end them.
    pub fn holding(self) -> Puppet {
        self.script().finish = 0;
        self
    }

    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// Returns the sectors of the requests taken so far, in order.
    pub fn sectors_seen(&self) -> Vec<u64> {
        self.script().seen.iter().map(|seen| seen.sector).collect()
    }

    pub fn device(&self) -> Device {
        Device::from_driver("puppet", Box::new(self.clone()))
    }

    pub fn device_with_timeout(&self, timeout: Duration) -> Device {
        Device::with_timeout("puppet", Box::new(self.clone()), timeout)
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: its queues take every request within the limits that it reports.
unsafe impl Driver for Puppet {
    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.caps
    }

    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn host_wide_depth(&self) -> Option<u16> {
        self.host_depth
    }

    fn open_hctx(&self, _: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(PuppetQueue { held: Vec::new(), script: self.script.clone() }))
    }
}

#[derive(Debug)]
struct PuppetQueue {
    held: Vec<Rq>,
    script: Arc<Mutex<Script>>,
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for PuppetQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        let mut script = self.script.lock().unwrap();
        script.offers.push(list.len());
        script.pass_time();
        while script.accept > 0 {
            let Some(rq) = list.pop() else { break };
            if script.accept != u32::MAX {
                script.accept -= 1;
            }
            script.see(&rq, rqs);
            if script.in_call {
                let status = script.status_of(rqs.get(&rq).op);
                done.push(rq, status);
            } else {
                self.held.push(rq);
            }
        }
    }

    fn queue_rq(&mut self, rq: Rq, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> Started {
        let mut script = self.script.lock().unwrap();
        script.offers.push(1);
        script.pass_time();
        if script.accept == 0 {
            return Started::Refused(rq);
        }
        if script.accept != u32::MAX {
            script.accept -= 1;
        }
        script.see(&rq, rqs);
        if script.in_call {
            let status = script.status_of(rqs.get(&rq).op);
            return Started::Ended(rq, status);
        }
        self.held.push(rq);
        Started::Taken
    }

    fn poll(&mut self, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        let mut script = self.script.lock().unwrap();
        while script.finish > 0 && !self.held.is_empty() {
            if script.finish != u32::MAX {
                script.finish -= 1;
            }
            let at = if script.lifo { self.held.len() - 1 } else { 0 };
            let rq = self.held.remove(at);
            let status = script.status_of(rqs.get(&rq).op);
            done.push(rq, status);
        }
    }

    fn next_event(&self) -> NextEvent {
        match self.held.is_empty() {
            true => NextEvent::Idle,
            false if self.script.lock().unwrap().finish > 0 => NextEvent::Ready,
            false => NextEvent::Stuck,
        }
    }

    fn timed_out(&mut self, tag: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut {
        let mut script = self.script.lock().unwrap();
        script.overdue.push(tag);
        let at = self.held.iter().position(|rq| rq.tag() == tag);
        let at = at.expect("only a request that the driver holds can be overdue");
        if !script.ends_overdue {
            return TimedOut::Waiting;
        }
        done.push(self.held.remove(at), Status::Timeout);
        TimedOut::Ended
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        while let Some(rq) = self.held.pop() {
            done.push(rq, Status::Offline);
        }
    }
}

/// A ring under test. Bios have numbers chosen by the test, and their ends are recorded.
pub struct Rig {
    pub ctx: IoCtx,
    pub time: VirtualClock,
    pub devices: Vec<(u16, Device)>,
    /// Owner and status of every bio that ended, in order.
    pub ended: Vec<(u32, Status)>,
}

impl Rig {
    /// Makes a ring of 64 bios with statistics and these devices.
    pub fn new(devices: &[&Device]) -> Rig {
        Rig::with(64, true, devices)
    }

    pub fn with(bios: u32, stats: bool, devices: &[&Device]) -> Rig {
        let (clock, time) = Clock::virtual_clock();
        let options = IoCtxOptions { bios, kring_entries: 8, iopoll: false, stats, clock };
        let mut ctx = IoCtx::new(options).expect("a ring needs one descriptor");
        let devices = devices.iter().map(|&device| (ctx.attach(device).expect("attach"), device.clone())).collect();
        Rig { ctx, time, devices, ended: Vec::new() }
    }

    /// Submits one I/O to the first device. Reads and writes have one vector, whose address is made of the owner's
    /// number.
    pub fn io(&mut self, op: Op, sector: u64, bytes: u32, owner: u32) -> bool {
        self.io_flags(op, 0, sector, bytes, owner)
    }

    pub fn io_flags(&mut self, op: Op, flags: u16, sector: u64, bytes: u32, owner: u32) -> bool {
        self.io_to(0, op, flags, sector, bytes, owner)
    }

    pub fn io_to(&mut self, device: usize, op: Op, flags: u16, sector: u64, bytes: u32, owner: u32) -> bool {
        let vec = vec_at(address(owner), bytes as usize);
        let vecs = if op.has_data() { std::slice::from_ref(&vec) } else { &[] };
        let spec = BioSpec { bdev: self.devices[device].0, op, flags, sector, bytes, owner };
        self.ctx.submit(&spec, vecs, NO_FIXED_BUF)
    }

    pub fn vecs(&mut self, op: Op, sector: u64, vecs: &[BVec], owner: u32) -> bool {
        let bytes = vecs.iter().map(|vec| vec.len() as u32).sum();
        let spec = BioSpec { bdev: self.devices[0].0, op, flags: 0, sector, bytes, owner };
        self.ctx.submit(&spec, vecs, NO_FIXED_BUF)
    }

    /// Submits a read of one block.
    pub fn read(&mut self, block: u64, owner: u32) -> bool {
        self.io(Op::Read, block * BLOCK_SECTORS, BLOCK, owner)
    }

    /// Submits a write of one block.
    pub fn write(&mut self, block: u64, owner: u32) -> bool {
        self.io(Op::Write, block * BLOCK_SECTORS, BLOCK, owner)
    }

    pub fn flush(&mut self, owner: u32) -> bool {
        self.io(Op::Flush, 0, 0, owner)
    }

    pub fn poll(&mut self) -> u32 {
        let ended = &mut self.ended;
        self.ctx.poll(&mut |owner, status| ended.push((owner, status)))
    }

    pub fn shutdown(&mut self) {
        let ended = &mut self.ended;
        self.ctx.shutdown(&mut |owner, status| ended.push((owner, status)));
    }

    /// Polls until nothing is in flight. Panics if that takes too many polls.
    pub fn drain(&mut self) {
        for _ in 0..1_000_000 {
            self.poll();
            if self.ctx.is_idle() {
                return;
            }
        }
        panic!("the ring does not become idle: {} ended so far", self.ended.len());
    }

    /// Returns the bios that ended since the last call.
    pub fn take_ended(&mut self) -> Vec<(u32, Status)> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the owners of the bios that ended since the last call, all with success.
    pub fn take_ok(&mut self) -> Vec<u32> {
        let ended = self.take_ended();
        assert!(ended.iter().all(|(_, status)| status.is_ok()), "all ends well: {ended:?}");
        ended.into_iter().map(|(owner, _)| owner).collect()
    }

    pub fn device(&self) -> &Device {
        &self.devices[0].1
    }

    pub fn queue(&self) -> &Arc<Queue> {
        &self.device().legs()[0].queue
    }

    /// Returns the number of requests of the first device in flight.
    pub fn in_flight(&self) -> u32 {
        self.device().in_flight().total()
    }
}

/// Returns an address for the memory of an I/O that identifies its owner.
pub fn address(owner: u32) -> usize {
    (owner as usize + 1) << 24
}
