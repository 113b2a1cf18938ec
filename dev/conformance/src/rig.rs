//! A ring that keeps the memory of each I/O it sends, and checks that each I/O ends once.
//!
//! Owns the memory until the I/O has ended. A ring whose I/O does not end in time is leaked with its memory, because
//! dropping it would wait for ever.
#![allow(unsafe_code)] // Vouches for the memory of I/O.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_base::clock::Clock;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::{BVec, NO_FIXED_BUF, Op, SECTOR_SHIFT};
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};

/// Time limit for all I/O of a check together, in addition to the device's own time limit.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest sleep of a ring. A ring that sleeps until this limit has not been woken by its driver.
const NAP: Duration = Duration::from_secs(5);

/// The way in which a ring waits for I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Poll,
    Wait,
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) owner: u32,
    pub(crate) status: Status,
    pub(crate) memory: Vec<Buf>,
}

pub(crate) struct Rig {
    ctx: Option<IoCtx>,
    device: Device,
    bdev: u16,
    next: u32,
    live: HashMap<u32, Vec<Buf>>,
    ended: Vec<(u32, Status)>,
    pub(crate) mode: Mode,
    plugged: bool,
    /// Number of sleeps that lasted to their limit although an I/O had ended.
    missed: u32,
}

impl Rig {
    pub(crate) fn new(device: &Device, mode: Mode) -> Result<Rig, String> {
        let options = IoCtxOptions { bios: 128, kring_entries: 128, iopoll: false, stats: true, clock: Clock::real() };
        let mut ctx = IoCtx::new(options).map_err(|error| error.to_string())?;
        let bdev = ctx.attach(device).map_err(|error| format!("not attached: {error}"))?;
        let (live, ended) = (HashMap::new(), Vec::new());
        Ok(Rig { ctx: Some(ctx), device: device.clone(), bdev, next: 0, live, ended, mode, plugged: false, missed: 0 })
    }

    fn ctx(&mut self) -> &mut IoCtx {
        self.ctx.as_mut().expect("invariant: only the end of the rig takes it")
    }

    /// Sends an I/O of `bytes` bytes. `memory` has that length if the operation has data, and is empty otherwise.
    /// Returns the number of the I/O.
    pub(crate) fn send(
        &mut self,
        op: Op,
        flags: u16,
        at: u64,
        bytes: u32,
        mut memory: Vec<Buf>,
    ) -> Result<u32, String> {
        let owner = self.next;
        self.next += 1;
        let vec = |buf: &mut Buf| (buf.as_mut_ptr().expose_provenance(), buf.len());
        let pieces: Vec<(usize, usize)> = memory.iter_mut().map(vec).collect();
        // SAFETY: `live` keeps the memory until the I/O has ended, and nobody looks at it before.
        let vecs: Vec<BVec> = pieces.iter().map(|&(base, len)| unsafe { BVec::new(base, len) }).collect();
        self.live.insert(owner, memory);
        let spec = BioSpec { bdev: self.bdev, op, flags, sector: at >> SECTOR_SHIFT, bytes, owner };
        let deadline = Instant::now() + PATIENCE;
        while !self.ctx().submit(&spec, &vecs, NO_FIXED_BUF) {
            // Bios are freed only after the gathered requests have gone to the driver.
            self.plug(false);
            self.step()?;
            if Instant::now() > deadline {
                return Err(self.hung());
            }
        }
        Ok(owner)
    }

    /// Opens or closes a plug. The I/O that is sent while the plug is open goes to the driver together.
    pub(crate) fn plug(&mut self, open: bool) {
        match (open, std::mem::replace(&mut self.plugged, open)) {
            (true, false) => self.ctx().start_plug(32),
            (false, true) => self.ctx().finish_plug(),
            _ => {}
        }
    }

    pub(crate) fn poll(&mut self) {
        let Rig { ctx, ended, .. } = self;
        if let Some(ctx) = ctx {
            ctx.poll(&mut |owner, status| ended.push((owner, status)));
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.poll();
        if self.mode == Mode::Wait && self.ended.is_empty() {
            let before = Instant::now();
            self.ctx().wait(1, Some(NAP));
            self.poll();
            self.missed += u32::from(before.elapsed() >= NAP && !self.ended.is_empty());
            // More than one is required, because the process itself may have been stopped for the length of a sleep.
            if self.missed > 2 {
                return Err("a ring that slept was not woken when its I/O had ended".into());
            }
        }
        Ok(())
    }

    /// Returns the I/Os that have ended since the previous call.
    pub(crate) fn take(&mut self) -> Result<Vec<Ended>, String> {
        let mut all = Vec::new();
        for (owner, status) in std::mem::take(&mut self.ended) {
            let Some(memory) = self.live.remove(&owner) else {
                return Err(format!("I/O {owner} has ended twice, or was never sent"));
            };
            all.push(Ended { owner, status, memory });
        }
        Ok(all)
    }

    /// Waits until all I/O has ended. Returns it in the order in which it was sent.
    pub(crate) fn wait_all(&mut self) -> Result<Vec<Ended>, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut all = self.take()?;
        while !self.live.is_empty() {
            self.step()?;
            all.extend(self.take()?);
            if Instant::now() > deadline {
                return Err(self.hung());
            }
        }
        all.sort_by_key(|ended| ended.owner);
        Ok(all)
    }

    /// Sends one I/O and waits for it.
    pub(crate) fn run(&mut self, op: Op, flags: u16, at: u64, bytes: u32, memory: Vec<Buf>) -> Result<Ended, String> {
        self.send(op, flags, at, bytes, memory)?;
        self.wait_all()?.pop().ok_or_else(|| "an I/O that was sent alone has no end".to_string())
    }

    /// Shuts the ring down with all its I/O. Returns how each I/O ended.
    pub(crate) fn close(mut self) -> Result<Vec<Ended>, String> {
        let mut ctx = self.ctx.take().expect("invariant: only the end of the rig takes it");
        let ended = &mut self.ended;
        ctx.shutdown(&mut |owner, status| ended.push((owner, status)));
        drop(ctx);
        let all = self.take()?;
        match self.live.len() {
            0 => Ok(all),
            left => Err(format!("{left} I/Os have no end when their ring has gone")),
        }
    }

    /// Returns the number of I/Os that have not ended.
    pub(crate) fn left(&self) -> usize {
        self.live.len() - self.ended.len()
    }

    fn hung(&mut self) -> String {
        let left = self.live.len();
        // The ring and the memory are leaked, because the device may still use the memory.
        std::mem::forget(self.ctx.take());
        std::mem::forget(std::mem::take(&mut self.live));
        format!("{left} I/Os have not ended after {} s ({:?})", PATIENCE.as_secs(), self.mode)
    }

    /// Ends a check: no request may be in flight afterwards.
    pub(crate) fn finish(self) -> Result<(), String> {
        let device = self.device.clone();
        self.close()?;
        match device.in_flight().total() {
            0 => Ok(()),
            left => Err(format!("{left} requests count as in flight when all I/O has ended")),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // A check that failed may have left I/O under way. The ring goes first, and its memory after it.
        drop(self.ctx.take());
    }
}
