//! Statistics of I/O on files: counts each I/O and its times for its file and ring.
//!
//! Owns the times of I/O with a slot: those of its bios, which the block layer passes, and the time with workers. The
//! block layer counts plain records. A ring without statistics counts nothing. Neither does the ring of a worker: the
//! ring that the worker works for counts that work, as time with a worker.
//!
//! Invariants:
//! - T1: an I/O counts once, when it ends, if it came to a device or a worker.
//! - T2: the times of a slot are those of its request, and valid if [`REQ_TIMED`] is set.

use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::sync::Arc;
use sheave_blk::ctx::RunEnd;
use sheave_blk::stats::{RecordStats, Split};
use sheave_iomap::dio::open_file::SlowRunOf;
use sheave_iomap::io_stats::{IoKind, RingIo};
use sheave_iomap::slow::{FlightRecorder, Place};

use crate::core::Core;
use crate::op::rw::is_write;
use crate::plain_run::PlainOwner;
use crate::req::REQ_TIMED;
use crate::sqe::opcode;

/// Period in which each file's usual latency is updated.
const LOOK_NS: u64 = 1_000_000_000;
/// Most files per call of `look_at_files`.
const LOOK_AT: usize = 16;

/// State of a ring's statistics.
#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) ring: RingIo,
    pub(crate) clock: Clock,
    /// Times of the bio that ends now.
    pub(crate) bio: Split,
    /// File for the next `Core::look_at_files`.
    pub(crate) next_file: usize,
}

impl Times {
    pub(crate) fn new(clock: Clock, slow_limit: Duration) -> Times {
        let recorder = Arc::new(FlightRecorder::new(clock.clone(), slow_limit));
        Times { ring: RingIo { group: Arc::default(), recorder }, clock, bio: Split::default(), next_file: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotTimes {
    /// Sum of the times so far.
    pub(crate) split: Split,
    /// Start of the current time with a worker, the wait for one included.
    pub(crate) with_worker: Option<CoarseTs>,
}

impl SlotTimes {
    pub(crate) fn leave_worker(&mut self, now: CoarseTs) {
        if let Some(since) = self.with_worker.take() {
            self.split.worker_ns += now.ns_since(since);
        }
    }
}

fn kind_of(opcode: u8) -> IoKind {
    match opcode::is_rw(opcode) {
        true if is_write(opcode) => IoKind::Write,
        true => IoKind::Read,
        false => IoKind::Other,
    }
}

impl Core {
    /// Returns the statistics for plain records of this owner.
    #[inline(always)]
    pub(crate) fn record_stats(&self, owner: u32) -> Option<&RecordStats> {
        self.files.get(PlainOwner(owner).file() as usize)?.records()
    }

    /// Counts ended plain records that the block layer had to send as bios.
    #[cold]
    pub(crate) fn count_former_records(&self, owner: u32, run: &RunEnd) {
        let file = self.files.get(PlainOwner(owner).file() as usize);
        if let Some(cell) = file.and_then(|file| file.io())
            && cell.note_run(run.op.into(), &run.split, (run.ios, run.bytes_all))
        {
            self.keep_slow_records(owner, run);
        }
    }

    #[cold]
    pub(crate) fn count_failed_record(&self, owner: u32) {
        let file = self.files.get(PlainOwner(owner).file() as usize);
        if let Some(cell) = file.and_then(|file| file.io()) {
            cell.note_error();
        }
    }

    fn slot_times(&mut self, slot: u32) -> &mut SlotTimes {
        let (req, times) = (&mut self.reqs[slot], &mut self.cold[slot as usize].times);
        if req.rflags & REQ_TIMED == 0 {
            req.rflags |= REQ_TIMED;
            *times = SlotTimes::default();
        }
        times
    }

    /// Counts an I/O that ends with the success of its last bio.
    #[inline]
    pub(crate) fn count_inline(&mut self, slot: u32, res: i32) {
        let Some(times) = &self.times else { return };
        let mut split = times.bio;
        if self.reqs[slot].rflags & REQ_TIMED != 0 {
            split.add(&self.cold[slot as usize].times.split);
        } else if split.total_ns() == 0 {
            // The device keeps no statistics (`Device::set_stats`), and no worker was involved.
            return;
        }
        self.count_slot(slot, &split, res);
    }

    /// Stores the times of a slot whose last bio has ended. A worker, or the wait for one, follows.
    #[cold]
    pub(crate) fn data_ended(&mut self, slot: u32) {
        let Some(Times { clock, bio, .. }) = &self.times else { return };
        let (now, bio) = (clock.coarse(), *bio);
        let times = self.slot_times(slot);
        // The flush of a sync is part of the time with the worker that began the sync.
        if times.with_worker.is_none() {
            times.split.add(&bio);
            times.with_worker = Some(now);
        }
    }

    /// Starts the time with a worker, the wait for one included.
    #[cold]
    pub(crate) fn enter_worker(&mut self, slot: u32) {
        let Some(now) = self.times.as_ref().map(|times| times.clock.coarse()) else { return };
        self.slot_times(slot).with_worker.get_or_insert(now);
    }

    /// Ends the time with a worker.
    #[cold]
    pub(crate) fn leave_worker(&mut self, slot: u32) {
        let Some(now) = self.times.as_ref().map(|times| times.clock.coarse()) else { return };
        self.slot_times(slot).leave_worker(now);
    }

    /// Counts an I/O whose slot has times.
    #[cold]
    pub(crate) fn count_timed(&mut self, slot: u32, res: i32) {
        self.leave_worker(slot);
        let split = self.cold[slot as usize].times.split;
        self.count_slot(slot, &split, res);
    }

    fn count_slot(&self, slot: u32, split: &Split, res: i32) {
        let req = &self.reqs[slot];
        if let Some(cell) = self.files.get(req.file as usize).and_then(|file| file.io()) {
            let kind = kind_of(req.opcode);
            let bytes = if kind == IoKind::Other { 0 } else { res.max(0) as u64 };
            let slow = cell.note(kind, split, bytes);
            if res < 0 {
                cell.note_error();
            }
            if slow {
                self.keep_slow_slot(slot, kind, split);
            }
        }
    }

    #[cold]
    fn keep_slow_slot(&self, slot: u32, kind: IoKind, split: &Split) {
        let req = &self.reqs[slot];
        let (Some(times), Some(file)) = (&self.times, self.files.get(req.file as usize)) else { return };
        let (pos, len) = match req.opcode {
            // Any given range is ignored: all of the file is synced.
            opcode::FSYNC => (0, 0),
            opcode::FALLOCATE => (req.off, u32::try_from(req.addr).unwrap_or(u32::MAX)),
            _ => (req.kiocb.pos, req.kiocb.len),
        };
        let what = SlowRunOf { kind, place: Place::File(pos), len, ios: 1 };
        file.keep_slow(what, split, times.clock.coarse(), self.live());
    }

    /// Records slow plain I/Os. They have already left the count of I/Os in flight.
    #[cold]
    pub(crate) fn keep_slow_records(&self, owner: u32, slow: &RunEnd) {
        let Some(file) = self.files.get(PlainOwner(owner).file() as usize) else { return };
        let ios = slow.ios as u32;
        let what = SlowRunOf { kind: slow.op.into(), place: file.place_of(slow.sector), len: slow.bytes, ios };
        file.keep_slow(what, &slow.split, slow.ended, self.live() + ios);
    }

    /// Updates the usual latencies of up to `LOOK_AT` files. Returns the time of the next call, chosen so that each
    /// file has its turn about once a second.
    #[cold]
    pub(crate) fn look_at_files(&mut self, now: CoarseTs) -> CoarseTs {
        let Some(times) = &mut self.times else { return CoarseTs(u64::MAX) };
        let (first, files) = (times.next_file, self.files.len());
        let many = files.min(LOOK_AT);
        for at in first..first + many {
            if let Some(file) = self.files.get_mut(at % files) {
                file.look(now);
            }
        }
        times.next_file = (first + many) % files.max(1);
        CoarseTs(now.0 + LOOK_NS * many.max(1) as u64 / files.max(1) as u64)
    }
}
