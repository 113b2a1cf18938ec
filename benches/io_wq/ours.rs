//! Our side: a ring and its pool.
#![allow(unsafe_code)] // SQEs with addresses.

use sheave_blk::Device;
use sheave_uring::sqe::Sqe;
use sheave_uring::{IoWq, Ring};

use crate::loops::Side;
use crate::{Plan, Result};

/// A ring.
pub struct Ours {
    pub ring: Ring,
    pub wq: IoWq,
}

impl Ours {
    /// With so many entries, and a pool of its own. `help`: the ring may run short items itself.
    pub fn new(plan: &Plan, entries: u32, help: bool) -> Result<Ours> {
        let wq = IoWq::builder().max_workers(plan.workers, plan.workers).help(help).build()?;
        let ring = Ring::builder().entries(entries).io_wq(&wq).build()?;
        Ok(Ours { ring, wq })
    }

    /// With a device as registered file 0.
    pub fn over(plan: &Plan, entries: u32, device: &Device, help: bool) -> Result<Ours> {
        let mut ours = Ours::new(plan, entries, help)?;
        let fd = ours.ring.attach(device)?;
        ours.ring.register_files(&[fd])?;
        Ok(ours)
    }

    /// Items that the ring ran itself.
    pub fn helped(&self) -> u64 {
        self.wq.counts()[0].helped
    }
}

impl Side for Ours {
    unsafe fn push(&mut self, sqe: &Sqe) {
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.push_sqe(sqe) };
        assert!(pushed, "there is room for the depth");
    }

    fn submit(&mut self, wait: u32) -> Result<()> {
        if wait == 0 {
            self.ring.submit()?
        } else {
            self.ring.submit_and_wait(wait)?
        };
        Ok(())
    }

    fn reap(&mut self, take: &mut dyn FnMut(u64, i32)) {
        self.ring.for_each_cqe(|cqe| take(cqe.user_data, cqe.res));
    }
}
