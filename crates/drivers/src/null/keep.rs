//! `null:keep=SIZE`: the first bytes are kept in memory, all others are discarded as usual.
//!
//! For measurements that need a small part of the device to keep its data, such as a pool whose superblocks and journal
//! are in the kept part, and whose data is discarded. Owns the split between the two parts. The memory is that of a ram
//! device. Size, limits and capabilities are those of the null device that this one replaces.
//!
//! Invariant I1: a request that begins in the kept part is executed there completely, because the region is larger than
//! the kept part by the longest request. A request that begins behind the kept part ends at once.

use rustix::io::Errno;
use sheave_base::status::Status;
use sheave_base::sync::Arc;

use crate::ram::region::Region;
use sheave_blk::bio::SECTOR_SHIFT;
use sheave_blk::claim::{Claim, Sharing};
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Started, TimedOut};
use sheave_blk::error::DeviceError;
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, Rq, RqList, RqTable};

/// Longest request (I1).
const MAX_SECTORS: u32 = (16 << 20) >> SECTOR_SHIFT;

/// A null device that keeps its first bytes.
#[derive(Debug)]
pub(super) struct Keeping {
    null: Box<dyn Driver>,
    keep_sectors: u64,
    region: Arc<Region>,
}

impl Keeping {
    pub(super) fn new(null: Box<dyn Driver>, keep_bytes: u64) -> Result<Keeping, Errno> {
        let longest = u64::from(MAX_SECTORS) << SECTOR_SHIFT;
        let len = keep_bytes.checked_add(longest).and_then(|len| usize::try_from(len).ok()).ok_or(Errno::NOMEM)?;
        let region = Arc::new(Region::new(len, false)?);
        Ok(Keeping { null, keep_sectors: keep_bytes >> SECTOR_SHIFT, region })
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: there is no memory that a request could miss.
unsafe impl Driver for Keeping {
    fn limits(&self) -> Limits {
        self.null
            .limits()
            .max_sectors(MAX_SECTORS)
            .max_discard_sectors(MAX_SECTORS)
            .max_write_zeroes_sectors(MAX_SECTORS)
    }

    fn capabilities(&self) -> Capabilities {
        self.null.capabilities()
    }

    fn size_bytes(&self) -> u64 {
        self.null.size_bytes()
    }

    fn host_wide_depth(&self) -> Option<u16> {
        self.null.host_wide_depth()
    }

    fn open_hctx(&self, _: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(KeepingQueue { keep_sectors: self.keep_sectors, region: self.region.clone() }))
    }

    fn claim(&self, sharing: Sharing) -> Result<Claim, DeviceError> {
        self.null.claim(sharing)
    }

    fn notices(&self) -> Vec<String> {
        vec![format!("only the first {} bytes are kept", self.keep_sectors << SECTOR_SHIFT)]
    }
}

#[derive(Debug)]
struct KeepingQueue {
    keep_sectors: u64,
    region: Arc<Region>,
}

impl KeepingQueue {
    #[inline]
    fn carry_out(&self, rqs: &RqTable<'_>, rq: &Rq) -> Status {
        let is_kept = rqs.get(rq).sector < self.keep_sectors;
        if is_kept { self.region.carry_out(rqs, rq) } else { Status::Ok }
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: no memory is touched; each token ends once, in the call that it came with or a later one.
unsafe impl HwQueue for KeepingQueue {
    #[inline]
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        let is_behind = |tag: &u16| rqs.by_tag(*tag).sector >= self.keep_sectors;
        // In groups of four, which the compiler unrolls: the device must cost next to nothing in a measurement.
        let (fours, rest) = list.tags().as_chunks::<4>();
        if fours.iter().all(|four| four.iter().all(is_behind)) && rest.iter().all(is_behind) {
            return list.complete_all(done);
        }
        list.carry_out_all(done, |rq, _| self.carry_out(rqs, rq));
    }

    #[inline]
    fn queue_rq(&mut self, rq: Rq, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> Started {
        let status = self.carry_out(rqs, &rq);
        Started::Ended(rq, status)
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
