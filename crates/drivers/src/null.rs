//! `null`: a device that does nothing, at once or after a given latency. For measuring the layers above it.
//!
//! Spec: `null:size=1T,latency=10us,complete=poll|timer|thread,depth=256,bs=512,timeout=30s`; `host_depth=N` sets one
//! limit of N requests for all rings together; `keep=SIZE` keeps the first bytes (`keep`).
//!
//! | `complete` | end of a request |
//! |---|---|
//! | `poll` (default without latency) | at the next poll of its ring |
//! | `timer` (default with latency) | by its ring, when the latency has passed; a sleeping ring wakes up for it |
//! | `thread` | by another thread, as by an interrupt: immediately, or when the latency has passed |
//!
//! Reads leave the memory as it is (outside of the part that `keep` covers). Writes, flushes, discards and write-zeroes
//! succeed.
//!
//! Invariants:
//! - I1: requests of one hardware queue finish in the order in which they arrived (the latency is constant).
//! - I2: the completion thread ends when its hardware queue is dropped, after it has finished the requests that it
//!   holds.

mod keep;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sheave_base::clock::PreciseTs;
use sheave_base::status::Status;

use crate::spec::Params;
use sheave_blk::device::Device;
use sheave_blk::driver::{
    Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Remote, RemoteRq, Started, TimedOut,
};
use sheave_blk::error::DeviceError;
use sheave_blk::limits::Limits;
use sheave_blk::queue::DEFAULT_TIMEOUT;
use sheave_blk::request::{DoneList, Rq, RqList, RqQueue, RqTable};

/// Mode in which requests are completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complete {
    /// The ring completes requests in its next poll.
    Poll,
    /// The ring completes requests when the latency has passed.
    Timer,
    /// Another thread completes requests.
    Thread,
}

#[derive(Clone, Debug)]
pub struct Null {
    pub size: u64,
    /// Time that a request takes.
    pub latency: Duration,
    pub complete: Complete,
    /// Largest number of requests in flight on one hardware queue.
    pub depth: u16,
    /// Bytes of a logical block.
    pub block: u32,
    /// Largest number of requests in flight on all rings together, if there is such a limit.
    pub host_depth: Option<u16>,
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: there is no memory that a request could miss.
unsafe impl Driver for Null {
    fn limits(&self) -> Limits {
        Limits::default()
            .logical_block(self.block)
            .max_sectors(u32::MAX >> 9)
            .max_segments(1024)
            .max_discard_sectors(u32::MAX >> 9)
            .max_write_zeroes_sectors(u32::MAX >> 9)
            .queue_depth(self.depth)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .fua(true)
            .discard(true)
            .write_zeroes(true)
            .polled(self.complete == Complete::Poll)
            .direct_io(true)
            .asynchronous(self.complete != Complete::Poll)
    }

    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn host_wide_depth(&self) -> Option<u16> {
        self.host_depth
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(match self.complete {
            Complete::Poll => Box::new(Polled),
            Complete::Timer => Box::new(Timed {
                held: RqQueue::with_depth(open.depth),
                due: VecDeque::with_capacity(usize::from(open.depth) + 1),
                latency: self.latency,
            }),
            Complete::Thread => Box::new(Threaded::start(open, self.latency)?),
        })
    }
}

/// Queue whose requests end in the call that passes them.
#[derive(Debug)]
struct Polled;

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: no memory is touched; each token ends once, in the queue or on the thread that it was sent to.
unsafe impl HwQueue for Polled {
    #[inline]
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        list.complete_all(done);
    }

    #[inline]
    fn queue_rq(&mut self, rq: Rq, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> Started {
        Started::Ended(rq, Status::Ok)
    }

    fn ends_in_call(&self) -> bool {
        true
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn next_event(&self) -> NextEvent {
        NextEvent::Idle
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}
}

/// Queue whose requests the ring finishes when the latency has passed.
#[derive(Debug)]
struct Timed {
    held: RqQueue,
    /// Due time of each request in `held`.
    due: VecDeque<PreciseTs>,
    latency: Duration,
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: no memory is touched; each token ends once, in the queue or on the thread that it was sent to.
unsafe impl HwQueue for Timed {
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, env: &mut HwEnv<'_>, _: &mut DoneList) {
        let due = env.clock.precise().after(self.latency);
        self.due.extend(std::iter::repeat_n(due, list.len()));
        list.take_all(&mut self.held);
    }

    fn poll(&mut self, _: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        let Some(&first) = self.due.front() else { return };
        let now = env.clock.precise();
        if first > now {
            return;
        }
        while self.due.front().is_some_and(|&due| due <= now) {
            self.due.pop_front();
            if let Some(rq) = self.held.pop() {
                done.push(rq, Status::Ok);
            }
        }
    }

    fn next_event(&self) -> NextEvent {
        self.due.front().map_or(NextEvent::Idle, |&due| NextEvent::At(due))
    }

    fn timed_out(&mut self, tag: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut {
        let Some(at) = self.held.position(tag) else { return TimedOut::Waiting };
        self.due.remove(at);
        if let Some(rq) = self.held.remove(tag) {
            done.push(rq, Status::Timeout);
        }
        TimedOut::Ended
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.due.clear();
        self.held.complete_all(done);
    }
}

/// Queue whose requests another thread finishes.
#[derive(Debug)]
struct Threaded {
    send: Option<SyncSender<(Instant, RemoteRq)>>,
    remote: Remote,
    latency: Duration,
    thread: Option<JoinHandle<()>>,
}

impl Threaded {
    fn start(open: &HctxOpen<'_>, latency: Duration) -> Result<Threaded, DeviceError> {
        let (send, receive) = sync_channel(usize::from(open.depth) + 1);
        let thread = std::thread::Builder::new()
            .name(format!("sheave-null-{}", open.hctx))
            .spawn(move || complete_in_order(&receive))
            .map_err(|source| DeviceError::Host {
                what: "starting the null device's completion thread".into(),
                fix: "Raise the limit of processes (ulimit -u), or use complete=timer".into(),
                source,
            })?;
        Ok(Threaded { send: Some(send), remote: open.remote.clone(), latency, thread: Some(thread) })
    }
}

/// Main function of the completion thread, which stands for the interrupt of a device.
fn complete_in_order(receive: &Receiver<(Instant, RemoteRq)>) {
    for (due, rq) in receive {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(left);
        }
        rq.complete(Status::Ok);
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: no memory is touched; each token ends once, in the queue or on the thread that it was sent to.
unsafe impl HwQueue for Threaded {
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        let due = Instant::now() + self.latency;
        while let Some(rq) = list.pop() {
            let out = self.remote.send_out(rq);
            let Some(send) = &self.send else { return out.complete(Status::Offline) };
            // The channel has room for every tag, so it is never full.
            if let Err(error) = send.try_send((due, out)) {
                use std::sync::mpsc::TrySendError::{Disconnected, Full};
                let (Full((_, out)) | Disconnected((_, out))) = error;
                out.complete(Status::Offline);
            }
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn next_event(&self) -> NextEvent {
        NextEvent::Remote
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        self.send = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            debug_assert!(false, "the completion thread does not panic");
        }
    }
}

/// Opens `null:...`.
pub(crate) fn from_spec(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let block = params.block()?;
    let size = params.size("size")?.unwrap_or(1 << 30);
    let latency = params.duration("latency")?.unwrap_or_default();
    let default = if latency.is_zero() { Complete::Poll } else { Complete::Timer };
    let words = [("poll", Complete::Poll), ("timer", Complete::Timer), ("thread", Complete::Thread)];
    let complete = params.choice("complete", &words)?.unwrap_or(default);
    if complete == Complete::Poll && !latency.is_zero() {
        return Err(params.error("complete=poll has no latency. Use complete=timer or complete=thread"));
    }
    let depth = params.number("depth", 1, 4096)?.unwrap_or(256) as u16;
    let host_depth = params.number("host_depth", 1, 4096)?.map(|depth| depth as u16);
    let timeout = params.duration("timeout")?.unwrap_or(DEFAULT_TIMEOUT);
    let keep = params.size("keep")?.unwrap_or(0);
    params.finish()?;
    let size = params.check_size(size, block)?;
    let null = Null { size, latency, complete, depth, block, host_depth };
    if keep > 0 {
        if complete != Complete::Poll {
            return Err(params.error("keep= goes with complete=poll alone. Leave latency= and complete= away"));
        }
        let keep = params.check_size(keep, block)?.min(size);
        let keeping = keep::Keeping::new(Box::new(null), keep).map_err(|errno| DeviceError::Host {
            what: format!("mapping {keep} bytes of memory for '{}'", params.spec()),
            fix: "Give a smaller keep=".into(),
            source: errno.into(),
        })?;
        return Ok(Device::with_timeout(params.spec(), Box::new(keeping), timeout));
    }
    Ok(Device::with_timeout(params.spec(), Box::new(null), timeout))
}

#[cfg(test)]
mod tests;
