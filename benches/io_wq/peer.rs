//! The kernel's side: its io_uring, whose io-wq has as many workers as ours.
#![allow(unsafe_code)] // SQEs are pushed as bytes.

use std::os::fd::RawFd;

use io_uring::{IoUring, squeue};
use sheave_uring::sqe::Sqe;

use crate::Result;
use crate::loops::Side;

/// The kernel's ring.
pub struct Peer {
    ring: IoUring,
    queued: u32,
}

impl Peer {
    /// With so many workers of each kind, and these files registered: 0, 1 and so on. Set up as a program of one thread
    /// sets it up that wants it fast.
    pub fn new(entries: u32, workers: u32, files: &[RawFd]) -> Result<Peer> {
        let ring = IoUring::builder()
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(2 * entries)
            .build(entries)?;
        ring.submitter().register_iowq_max_workers(&mut [workers, workers])?;
        if !files.is_empty() {
            ring.submitter().register_files(files)?;
        }
        Ok(Peer { ring, queued: 0 })
    }
}

impl Side for Peer {
    unsafe fn push(&mut self, sqe: &Sqe) {
        // SAFETY: both are the kernel's 64 bytes.
        let entry = unsafe { std::mem::transmute::<Sqe, squeue::Entry>(*sqe) };
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "there is room for the depth");
        self.queued += 1;
    }

    fn submit(&mut self, wait: u32) -> Result<()> {
        if self.queued > 0 || wait > 0 {
            self.queued = 0;
            self.ring.submit_and_wait(wait as usize)?;
        }
        Ok(())
    }

    fn reap(&mut self, take: &mut dyn FnMut(u64, i32)) {
        for cqe in self.ring.completion() {
            take(cqe.user_data(), cqe.result());
        }
    }
}
