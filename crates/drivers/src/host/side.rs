//! A thread for what a kernel ring that polls (IOPOLL) cannot do: flushes, discards, write-zeroes.
//!
//! Owns the thread, started with the first such request, and the blocking calls. Reads and writes never come here.
//!
//! Invariants:
//! - I1: requests end in the order in which they came.
//! - I2: the thread ends with [`Side::finish`], after it has ended all it was sent.
//!
//! Called by `queue`, for kernel rings that poll only.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use rustix::fs::FallocateFlags;
use rustix::io::Errno as SysErrno;
use sheave_base::status::{Errno, Status};
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU32, Ordering};

use super::shared::{HostShared, Zeroing};
use sheave_blk::bio::{Op, SECTOR_SHIFT};
use sheave_blk::driver::{HctxOpen, Remote, RemoteRq};
use sheave_blk::request::{RQ_FUA, Request, Rq};

/// What the thread needs to know of a request.
#[derive(Debug)]
struct Job {
    op: Op,
    offset: u64,
    len: u64,
    durable: bool,
    rq: RemoteRq,
}

/// The owner's side of the thread.
#[derive(Debug)]
pub(super) struct Side {
    shared: Arc<HostShared>,
    remote: Remote,
    depth: u16,
    /// Jobs sent and not ended.
    jobs: Arc<AtomicU32>,
    running: Option<(SyncSender<Job>, JoinHandle<()>)>,
}

impl Side {
    pub(super) fn new(shared: Arc<HostShared>, open: &HctxOpen<'_>) -> Side {
        let jobs = Arc::new(AtomicU32::new(0));
        Side { shared, remote: open.remote.clone(), depth: open.depth, jobs, running: None }
    }

    /// Has the thread carry out a request.
    pub(super) fn send(&mut self, rq: Rq, request: &Request) {
        let job = Job {
            op: request.op,
            offset: request.sector << SECTOR_SHIFT,
            len: u64::from(request.bytes),
            durable: request.flags & RQ_FUA != 0,
            rq: self.remote.send_out(rq),
        };
        if self.running.is_none() {
            self.running = self.start();
        }
        // No thread to be had: the caller may try again later.
        let Some((send, _)) = &self.running else { return job.rq.complete(Status::NoMem) };
        // Relaxed: only the owner adds; see `is_busy`.
        self.jobs.fetch_add(1, Ordering::Relaxed);
        // There is room for every tag, so the channel is never full.
        if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) = send.try_send(job) {
            self.jobs.fetch_sub(1, Ordering::Relaxed);
            job.rq.complete(Status::Offline);
        }
    }

    fn start(&self) -> Option<(SyncSender<Job>, JoinHandle<()>)> {
        let (send, receive) = sync_channel(usize::from(self.depth) + 1);
        let (shared, jobs) = (self.shared.clone(), self.jobs.clone());
        let run = move || work(&shared, &receive, &jobs);
        let thread = std::thread::Builder::new().name("sheave-file-side".into()).spawn(run).ok()?;
        Some((send, thread))
    }

    /// Whether the thread holds a request.
    pub(super) fn is_busy(&self) -> bool {
        // Acquire pairs with the Release in `work`: a request that counts no more was completed before.
        self.jobs.load(Ordering::Acquire) > 0
    }

    /// Waits until the thread has ended everything.
    pub(super) fn finish(&mut self) {
        if let Some((send, thread)) = self.running.take() {
            drop(send);
            if thread.join().is_err() {
                debug_assert!(false, "the thread does not panic");
            }
        }
    }
}

fn work(shared: &HostShared, receive: &Receiver<Job>, jobs: &AtomicU32) {
    for job in receive {
        let status = match carry_out(shared, &job) {
            Ok(()) => Status::Ok,
            Err(errno) => {
                shared.explain(errno);
                Status::from_errno(Errno(errno))
            }
        };
        job.rq.complete(status);
        // Release pairs with the Acquire in `is_busy`.
        jobs.fetch_sub(1, Ordering::Release);
    }
}

fn carry_out(shared: &HostShared, job: &Job) -> Result<(), i32> {
    match job.op {
        Op::Flush => return sync(shared),
        Op::Discard => fallocate(shared, FallocateFlags::PUNCH_HOLE, job)?,
        Op::WriteZeroes => zero(shared, job)?,
        Op::Read | Op::Write => return Err(libc::EINVAL),
        _ => return Err(libc::EOPNOTSUPP),
    }
    if job.durable { sync(shared) } else { Ok(()) }
}

fn sync(shared: &HostShared) -> Result<(), i32> {
    rustix::fs::fdatasync(shared.file.as_fd()).map_err(SysErrno::raw_os_error)?;
    if shared.is_whole() { Ok(()) } else { Err(libc::EIO) }
}

fn fallocate(shared: &HostShared, how: FallocateFlags, job: &Job) -> Result<(), i32> {
    rustix::fs::fallocate(shared.file.as_fd(), how | FallocateFlags::KEEP_SIZE, job.offset, job.len)
        .map_err(SysErrno::raw_os_error)
}

fn zero(shared: &HostShared, job: &Job) -> Result<(), i32> {
    // Each round steps one way down, and there are three.
    loop {
        let way = shared.zeroing();
        let done = match way {
            Zeroing::ZeroRange => fallocate(shared, FallocateFlags::ZERO_RANGE, job),
            Zeroing::PunchHole => fallocate(shared, FallocateFlags::PUNCH_HOLE, job),
            Zeroing::Write => write_zeroes(shared, job),
        };
        match done {
            Err(libc::EOPNOTSUPP) if shared.zeroing_fails(way) => {}
            done => return done,
        }
    }
}

fn write_zeroes(shared: &HostShared, job: &Job) -> Result<(), i32> {
    let zeroes = shared.zeroes().ok_or(libc::ENOMEM)?;
    let mut at = 0;
    while at < job.len {
        let len = (job.len - at).min(zeroes.len() as u64);
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        shared.file.file().write_all_at(&zeroes[..len as usize], job.offset + at).map_err(errno)?;
        at += len;
    }
    Ok(())
}
