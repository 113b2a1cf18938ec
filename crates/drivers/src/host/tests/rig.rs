//! A ring over real files for the tests of the driver: memory, submission, and the list of ended I/Os.
//!
//! The rig keeps the memory of each I/O until it has ended, like a ring.

use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_base::clock::Clock;
use sheave_base::status::Status;

use crate::support::vec_at;
use sheave_blk::bio::{BVec, NO_FIXED_BUF, Op, SECTOR_SHIFT};
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};
use sheave_blk::device::Device;

/// A time longer than any test takes.
pub(super) const LONG: Duration = Duration::from_secs(30);

pub(super) struct Rig {
    pub(super) ctx: IoCtx,
    /// Owner and status of each ended I/O, oldest first.
    pub(super) ended: Vec<(u32, Status)>,
    submitted: u32,
}

impl Rig {
    pub(super) fn new() -> Rig {
        Rig::with_entries(64)
    }

    pub(super) fn with_entries(kring_entries: u32) -> Rig {
        let (clock, stats) = (Clock::real(), true);
        let options = IoCtxOptions { bios: 512, kring_entries, iopoll: false, stats, clock };
        Rig { ctx: IoCtx::new(options).expect("a ring"), ended: Vec::new(), submitted: 0 }
    }

    /// Makes a ring with this device. Returns `None`, with a loud message, where io_uring is forbidden.
    pub(super) fn over(device: &Device) -> Option<(Rig, u16)> {
        let mut rig = Rig::new();
        let bdev = rig.attach(device)?;
        Some((rig, bdev))
    }

    pub(super) fn attach(&mut self, device: &Device) -> Option<u16> {
        match self.ctx.attach(device) {
            Ok(bdev) => Some(bdev),
            Err(error) => {
                eprintln!("SKIPPED: {error}");
                None
            }
        }
    }

    /// Submits an I/O on `vecs`. Returns its number.
    pub(super) fn submit(&mut self, bdev: u16, op: Op, flags: u16, at: u64, bytes: u32, vecs: &[BVec]) -> u32 {
        self.submit_fixed(bdev, op, flags, at, bytes, vecs, NO_FIXED_BUF)
    }

    #[expect(clippy::too_many_arguments, reason = "all that an I/O is made of")]
    pub(super) fn submit_fixed(
        &mut self,
        bdev: u16,
        op: Op,
        flags: u16,
        at: u64,
        bytes: u32,
        vecs: &[BVec],
        fixed: u16,
    ) -> u32 {
        let owner = self.submitted;
        let spec = BioSpec { bdev, op, flags, sector: at >> SECTOR_SHIFT, bytes, owner };
        assert!(self.ctx.submit(&spec, vecs, fixed), "a bio");
        self.submitted += 1;
        owner
    }

    pub(super) fn poll(&mut self) {
        let ended = &mut self.ended;
        self.ctx.poll(&mut |owner, status| ended.push((owner, status)));
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.submitted - self.ended.len() as u32
    }

    /// Waits until everything submitted has ended, each I/O once.
    pub(super) fn drain(&mut self) {
        let start = Instant::now();
        while self.in_flight() > 0 {
            self.ctx.wait(1, Some(LONG));
            self.poll();
            assert!(start.elapsed() < LONG, "{} of {} have not ended", self.in_flight(), self.submitted);
        }
        self.each_ended_once();
    }

    pub(super) fn each_ended_once(&self) {
        let mut owners: Vec<u32> = self.ended.iter().map(|(owner, _)| *owner).collect();
        owners.sort_unstable();
        assert!(owners.iter().copied().eq(0..self.submitted), "each of {} once: {owners:?}", self.submitted);
    }

    pub(super) fn status_of(&self, owner: u32) -> Status {
        self.ended.iter().find(|(of, _)| *of == owner).expect("ended").1
    }

    /// Runs one I/O from start to end.
    pub(super) fn run(&mut self, bdev: u16, op: Op, flags: u16, at: u64, memory: &mut [u8]) -> Status {
        let vecs = [vec_of(memory)];
        let vecs = if memory.is_empty() { &[] } else { &vecs[..] };
        let owner = self.submit(bdev, op, flags, at, memory.len() as u32, vecs);
        self.drain();
        self.status_of(owner)
    }

    /// Runs a discard or write-zeroes from start to end.
    pub(super) fn run_range(&mut self, bdev: u16, op: Op, flags: u16, at: u64, bytes: u32) -> Status {
        let owner = self.submit(bdev, op, flags, at, bytes, &[]);
        self.drain();
        self.status_of(owner)
    }
}

pub(super) fn vec_of(memory: &mut [u8]) -> BVec {
    vec_at(memory.as_mut_ptr() as usize, memory.len())
}

/// Returns aligned memory filled with a pattern.
pub(super) fn memory(len: usize, fill: u8) -> Buf {
    let mut buf = Buf::zeroed(len, 4096).expect("memory");
    buf.fill(fill);
    buf
}
