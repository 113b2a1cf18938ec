//! A device whose work another thread does, which reports completions by an eventfd: `bell:size=64M,delay=1ms`.
//!
//! Shows a driver without unsafe code that waits for a descriptor: the ring sleeps in its kernel ring, which watches
//! the eventfd, and the driver is polled when it is readable. Any descriptor works: a socket, a timerfd, a pipe of a
//! library. (If the other side is the driver's own code, as here, a `Waker` does the same without a descriptor.)
//!
//! Owns the bytes, under a lock, and one thread for each ring, which ends with the ring's queue.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use sheave::drivers::{
    KernelUse, OpToken, Open, Params, Polled, Registry, Request, RequestId, SafeDriver, SafeQueue, Step, device,
};
use sheave::{Capabilities, Device, DeviceError, Limits, Op, Status};

/// The device.
#[derive(Clone, Debug)]
pub struct Bell {
    bytes: Arc<Mutex<Vec<u8>>>,
    delay: Duration,
}

/// Adds `bell` to the kinds of a registry.
///
/// # Errors
///
/// Fails if the name is taken.
pub fn register(registry: &mut Registry) -> Result<(), DeviceError> {
    registry.register("bell", open)
}

/// Opens `bell:...`.
fn open(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let size = params.size("size")?.unwrap_or(64 << 20);
    let delay = params.duration("delay")?.unwrap_or_default();
    params.finish()?;
    let size = params.check_size(size, 512)?;
    Ok(device(params.spec(), Bell { bytes: Arc::new(Mutex::new(vec![0; size as usize])), delay }))
}

/// A job for the thread. A read has room for its bytes.
struct Job {
    id: RequestId,
    op: Op,
    at: usize,
    bytes: Vec<u8>,
}

/// List of finished jobs, for the queue.
type Done = Arc<Mutex<Vec<Job>>>;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl SafeDriver for Bell {
    fn limits(&self) -> Limits {
        Limits::default().max_sectors(512).queue_depth(32)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().volatile_cache(true)
    }

    fn size_bytes(&self) -> u64 {
        lock(&self.bytes).len() as u64
    }

    fn kernel(&self) -> Option<KernelUse> {
        Some(KernelUse::new(1)) // the watch of the eventfd
    }

    fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        let failed = |source: std::io::Error| DeviceError::Host {
            what: "making an eventfd and a thread".into(),
            fix: "Raise the limits of open files and of threads (ulimit -n, ulimit -u)".into(),
            source,
        };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| failed(errno.into()))?;
        let (bell, done) = (Arc::new(bell), Done::default());
        let (jobs, todo) = mpsc::channel::<Job>();
        let (of, rung, finished) = (self.clone(), bell.clone(), done.clone());
        let work = move || {
            for mut job in todo {
                std::thread::sleep(of.delay);
                of.carry_out(&mut job);
                lock(&finished).push(job);
                // The eventfd counts: a ring that does not watch it yet sees the wake later.
                let _ = rustix::io::write(&*rung, &1u64.to_ne_bytes());
            }
        };
        let thread = std::thread::Builder::new().name("bell".into()).spawn(work).map_err(failed)?;
        Ok(Box::new(BellQueue { jobs: Some(jobs), thread: Some(thread), done, bell, watch: None }))
    }
}

impl Bell {
    fn carry_out(&self, job: &mut Job) {
        let mut all = lock(&self.bytes);
        let Some(here) = all.get_mut(job.at..job.at + job.bytes.len()) else { return };
        match job.op {
            Op::Read => job.bytes.copy_from_slice(here),
            Op::Write => here.copy_from_slice(&job.bytes),
            _ => {}
        }
    }
}

/// The queue of one ring.
#[derive(Debug)]
struct BellQueue {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    done: Done,
    bell: Arc<OwnedFd>,
    watch: Option<OpToken>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("op", &self.op).field("at", &self.at).finish()
    }
}

impl SafeQueue for BellQueue {
    fn start(&mut self, rq: &mut Request<'_>) -> Step {
        let mut bytes = vec![0; rq.bytes() as usize];
        if rq.op() == Op::Write && rq.copy_to(0, &mut bytes).is_err() {
            return Step::End(Status::IoErr);
        }
        let job = Job { id: rq.id(), op: rq.op(), at: rq.sector() as usize * 512, bytes };
        match self.jobs.as_ref().map(|jobs| jobs.send(job)) {
            Some(Ok(())) => Step::Wait,
            _ => Step::End(Status::IoErr),
        }
    }

    fn commit(&mut self, rqs: &mut Polled<'_>) {
        if self.watch.is_none() {
            self.watch = rqs.watch(&self.bell).ok();
        }
    }

    fn poll(&mut self, rqs: &mut Polled<'_>) {
        // Resets the eventfd before the look: a job that is finished after the look signals it again.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        for job in std::mem::take(&mut *lock(&self.done)) {
            let Some(mut rq) = rqs.get(job.id) else { continue };
            let copied = job.op != Op::Read || rq.copy_from(0, &job.bytes).is_ok();
            rqs.end(job.id, if copied { Status::Ok } else { Status::IoErr });
        }
    }
}

impl Drop for BellQueue {
    fn drop(&mut self) {
        self.jobs = None; // ends the thread's loop
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
