//! A device that completes each request on its own thread, a fixed time after the request arrived.
//!
//! Differs from `null:complete=thread` in two points. If there is a CPU for the thread, it spins while there is I/O,
//! like hardware would, so that a submission wakes no thread. And a callback runs on that thread for each end. The
//! device is the interrupting device of dio-completion, and the completion on another CPU of in-flight.
//!
//! * E1. Requests end in the order in which they came, once each. The thread ends after its hardware queue was dropped.
//! * E2. The CPU time of the thread belongs to the device, not to the I/O: [`Elsewhere::cpu_ns`] returns it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sheave::{Capabilities, Device, DeviceError};
use sheave_base::clock::{Clock, PreciseTs};
use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_blk::bio::Op;
use sheave_blk::driver::{Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Remote, RemoteRq, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, RqList, RqTable};
use sheave_load::cpu;

/// Number of polls of an empty queue between two updates of the CPU time.
const LOOKS: u32 = 4096;
/// Idle time after which a spinning thread sleeps, because its arm then has no turn and the device of another arm may
/// need the CPU.
const IDLE: Duration = Duration::from_millis(1);

/// Called for each request that ends, on the thread that ends it and before the ring is notified.
pub type OnEnd = Box<dyn FnMut(Op) + Send>;
/// Makes the callback of each ring.
pub type MakeOnEnd = Box<dyn Fn() -> OnEnd + Send + Sync>;

pub struct Settings {
    pub size: u64,
    /// Time from a request's arrival to its end.
    pub latency: Duration,
    /// CPUs of the threads. Each ring's thread takes the next one, in turn.
    pub cpus: Vec<usize>,
    /// True if no other threads use these CPUs, so that the threads may spin while there is I/O.
    pub alone: bool,
    pub on_end: MakeOnEnd,
}

/// Handle with which an arm uses the device.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    pub device: Device,
    used_ns: Arc<AtomicU64>,
}

impl Elsewhere {
    /// Makes the device. Its threads start when rings attach.
    pub fn new(settings: Settings) -> Elsewhere {
        let used_ns = Arc::new(AtomicU64::new(0));
        let hardware = Hardware { settings, used_ns: used_ns.clone(), rings: AtomicU64::new(0) };
        Elsewhere { device: Device::from_driver("elsewhere", Box::new(hardware)), used_ns }
    }

    /// Returns the CPU time of the device's threads as of their last update (E2).
    pub fn cpu_ns(&self) -> u64 {
        // Relaxed: a figure by itself.
        self.used_ns.load(Ordering::Relaxed)
    }
}

struct Hardware {
    settings: Settings,
    used_ns: Arc<AtomicU64>,
    rings: AtomicU64,
}

impl std::fmt::Debug for Hardware {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hardware").field("latency", &self.settings.latency).finish_non_exhaustive()
    }
}

#[allow(unsafe_code)] // An unsafe trait: its implementer vouches for the memory of the requests.
// SAFETY: D7: its queues accept all requests that its limits allow.
unsafe impl Driver for Hardware {
    fn limits(&self) -> Limits {
        Limits::default().logical_block(512).max_sectors(u32::MAX >> 9).max_segments(1024)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().fua(true).direct_io(true)
    }

    fn size_bytes(&self) -> u64 {
        self.settings.size
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        // Relaxed: nothing but a distinct number for each ring is needed.
        let ring = self.rings.fetch_add(1, Ordering::Relaxed) as usize;
        let (send, requests) = sync_channel(usize::from(open.depth) + 1);
        let worker = Worker {
            requests,
            clock: open.clock.clone(),
            cpu: self.settings.cpus.get(ring % self.settings.cpus.len().max(1)).copied(),
            alone: self.settings.alone,
            on_end: (self.settings.on_end)(),
            used_ns: self.used_ns.clone(),
            noted_ns: 0,
        };
        let started = std::thread::Builder::new().name(format!("lab-device-{ring}")).spawn(move || worker.live());
        let thread = started.map_err(|source| DeviceError::Host {
            what: "starting the device's thread".into(),
            fix: "Raise the limit of processes (ulimit -u)".into(),
            source,
        })?;
        let (remote, latency) = (open.remote.clone(), self.settings.latency);
        Ok(Box::new(Line { send: Some(send), remote, latency, thread: Some(thread) }))
    }
}

struct Sent {
    due: PreciseTs,
    op: Op,
    rq: RemoteRq,
}

/// The thread that completes the requests of one ring.
struct Worker {
    requests: Receiver<Sent>,
    clock: Clock,
    cpu: Option<usize>,
    alone: bool,
    on_end: OnEnd,
    used_ns: Arc<AtomicU64>,
    /// Part of the thread's CPU time, in ns, that was already added to `used_ns`.
    noted_ns: u64,
}

impl Worker {
    fn live(mut self) {
        if let Some(cpu) = self.cpu {
            // If the pin is refused, the thread is slower; nothing else changes.
            let _ = cpu::pin(cpu);
        }
        while let Some(sent) = self.next() {
            self.wait_until(sent.due);
            (self.on_end)(sent.op);
            sent.rq.complete(Status::Ok);
        }
        self.note();
    }

    /// Waits for the next request. Returns `None` when the hardware queue has been dropped.
    fn next(&mut self) -> Option<Sent> {
        if !self.alone {
            return self.requests.recv().ok();
        }
        let since = self.clock.precise();
        while self.clock.precise().ns_since(since) < IDLE.as_nanos() as u64 {
            for _ in 0..LOOKS {
                match self.requests.try_recv() {
                    Ok(sent) => return Some(sent),
                    Err(TryRecvError::Empty) => std::hint::spin_loop(),
                    Err(TryRecvError::Disconnected) => return None,
                }
            }
            self.note();
        }
        self.requests.recv().ok()
    }

    fn wait_until(&mut self, due: PreciseTs) {
        loop {
            let left = due.left(self.clock.precise());
            match (left.is_zero(), self.alone) {
                (true, _) => return,
                (false, true) => std::hint::spin_loop(),
                (false, false) => std::thread::sleep(left),
            }
        }
    }

    /// Adds the CPU time since the previous call to `used_ns`.
    fn note(&mut self) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        // Relaxed: a figure by itself.
        self.used_ns.fetch_add(now - self.noted_ns, Ordering::Relaxed);
        self.noted_ns = now;
    }
}

/// The hardware queue of one ring.
#[derive(Debug)]
struct Line {
    send: Option<SyncSender<Sent>>,
    remote: Remote,
    latency: Duration,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sent").field(&self.rq).finish()
    }
}

#[allow(unsafe_code)] // An unsafe trait: its implementer vouches for the memory of the requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for Line {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, _: &mut DoneList) {
        let due = env.clock.precise().after(self.latency);
        while let Some(rq) = list.pop() {
            let op = rqs.get(&rq).op;
            let rq = self.remote.send_out(rq);
            let Some(send) = &self.send else { return rq.complete(Status::Offline) };
            // The channel has a place for every tag, so it is never full.
            if let Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) =
                send.try_send(Sent { due, op, rq })
            {
                back.rq.complete(Status::Offline);
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
            debug_assert!(false, "the device's thread does not panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread::ThreadId;

    use sheave::{Buf, Ring, op};

    use super::*;

    #[test]
    fn requests_end_elsewhere_once_each_and_in_order() {
        for alone in [false, true] {
            let ended: Arc<Mutex<Vec<(ThreadId, Op)>>> = Arc::default();
            let told = ended.clone();
            let on_end: MakeOnEnd = Box::new(move || {
                let told = told.clone();
                Box::new(move |op| told.lock().expect("not poisoned").push((std::thread::current().id(), op)))
            });
            let cpus = vec![cpu::allowed()[0]];
            let elsewhere =
                Elsewhere::new(Settings { size: 1 << 20, latency: Duration::from_micros(20), cpus, alone, on_end });
            let mut ring = Ring::builder().entries(16).build().expect("a ring");
            let fd = ring.attach(&elsewhere.device).expect("attached");
            for n in 0..8 {
                // The I/Os are not adjacent, so that none is merged.
                let buf = Buf::zeroed(512, 512).expect("memory");
                let pushed = match n % 2 {
                    0 => ring.push(op::read(fd, buf).offset(n * 8192).user_data(n)),
                    _ => ring.push(op::write(fd, buf).offset(n * 8192).user_data(n)),
                };
                pushed.expect("room");
            }
            ring.submit_and_wait(8).expect("submitted");
            let done: Vec<_> = ring.completions().map(|done| (done.user_data, done.res)).collect();
            assert_eq!(done, (0..8).map(|n| (n, 512)).collect::<Vec<_>>());
            assert_eq!(elsewhere.device.in_flight().total(), 0);
            drop(ring);
            let ended = ended.lock().expect("not poisoned");
            let ops: Vec<Op> = ended.iter().map(|&(_, op)| op).collect();
            assert_eq!(ops, [Op::Read, Op::Write].repeat(4));
            assert!(ended.iter().all(|&(thread, _)| thread != std::thread::current().id()));
            assert!(elsewhere.cpu_ns() > 0);
        }
    }
}
