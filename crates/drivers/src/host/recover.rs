//! Next step of a request whose operation was not simply successful: it ends with a status, or is sent again.
//!
//! Owns the rules and the [`Progress`] of a request between its operations. Sends nothing itself.
//!
//! | result | what follows |
//! |---|---|
//! | fewer bytes than asked, more than 0 | the rest is sent; progress is whole blocks |
//! | 0 bytes | the file ends before the device: I/O error, and the capacity is lowered to the new size |
//! | success of a flush | an I/O error, if the file has become shorter than the device |
//! | EAGAIN, EINTR | sent again, at most [`MAX_TRIES`] times |
//! | ECANCELED | a timeout, if the timeout walk asked for it |
//! | EOPNOTSUPP on write-zeroes | the next way of zeroing |
//! | another errno | the status for it |
//!
//! Invariants:
//! - R1: each verdict ends the request, advances it by at least a block, takes the next step or way, or uses up a try:
//!   so the request ends after finitely many.
//! - R2: nothing is sent again for a request that has timed out, or for a queue that shuts down.

use sheave_base::status::{Errno, Status};

use super::probe::FileKind;
use super::shared::{HostShared, Zeroing};
use sheave_blk::bio::Op;
use sheave_blk::limits::Capacity;
use sheave_blk::request::{RQ_FUA, RqHead};

/// Kind of the operations that carry requests.
pub(super) const KIND_IO: u8 = 0;
/// Number of times that a request is sent again without progress.
const MAX_TRIES: u8 = 16;

/// Decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request ends.
    End(Status),
    /// The request is sent again, from its progress on.
    Again,
}

const TIMED_OUT: u8 = 1 << 0;
const SYNCS: u8 = 1 << 1;
/// Bit that is set in every progress, so that a progress is never 0, the value for the plain first path.
const SPECIAL: u8 = 1 << 2;

/// Progress of a request that is not on the plain path; fits into `Request::private`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) done: u32,
    tries: u8,
    flags: u8,
    zeroing: u8,
}

impl Progress {
    pub(super) fn from_bits(bits: u64) -> Progress {
        Progress {
            done: bits as u32,
            tries: (bits >> 32) as u8,
            flags: (bits >> 40) as u8,
            zeroing: (bits >> 48) as u8,
        }
    }

    pub(super) fn to_bits(self) -> u64 {
        let flags = self.flags | SPECIAL;
        u64::from(self.done) | u64::from(self.tries) << 32 | u64::from(flags) << 40 | u64::from(self.zeroing) << 48
    }

    /// Returns the progress of a new write-zeroes.
    pub(super) fn zeroing_by(way: Zeroing) -> Progress {
        Progress { zeroing: way as u8, ..Progress::from_bits(0) }
    }

    pub(super) fn zeroing(self) -> Zeroing {
        Zeroing::from_u8(self.zeroing)
    }

    /// Returns true in the last step, which is an fsync that makes a `fallocate` durable.
    pub(super) fn syncs(self) -> bool {
        self.flags & SYNCS != 0
    }

    pub(super) fn timed_out(mut self) -> Progress {
        self.flags |= TIMED_OUT;
        self
    }
}

/// State that a verdict depends on, in addition to the request.
pub(super) struct Judge<'a> {
    pub(super) shared: &'a HostShared,
    pub(super) capacity: &'a Capacity,
    /// Bytes of the device's logical block.
    pub(super) block: u32,
    /// True if the hardware queue shuts down.
    pub(super) ending: bool,
}

impl Judge<'_> {
    /// Decides about the request after its operation returned `res`, and updates its progress in `private`.
    pub(super) fn verdict(&self, rq: &RqHead, private: &mut u64, res: i32) -> Verdict {
        let mut progress = Progress::from_bits(*private);
        let given_up = progress.flags & TIMED_OUT != 0;
        let verdict = match u32::try_from(res) {
            Ok(moved) => self.moved(rq, &mut progress, moved),
            Err(_) => self.failed(rq, &mut progress, -res),
        };
        *private = progress.to_bits();
        match verdict {
            // R2.
            Verdict::Again if given_up => Verdict::End(Status::Timeout),
            Verdict::Again if self.ending => Verdict::End(Status::Canceled),
            verdict => verdict,
        }
    }

    fn moved(&self, rq: &RqHead, progress: &mut Progress, moved: u32) -> Verdict {
        let by_bytes = match rq.op {
            Op::Read | Op::Write => true,
            Op::WriteZeroes => progress.zeroing() == Zeroing::Write && !progress.syncs(),
            _ => false,
        };
        if rq.op == Op::Flush {
            return Verdict::End(self.shared.flushed(self.capacity, self.block));
        }
        if !by_bytes {
            // O_DSYNC only covers writes: on a file opened with it, zeroes and holes need a sync, too.
            let sync = (rq.flags & RQ_FUA != 0 || self.shared.file.is_synced()) && !progress.syncs();
            if !sync {
                return Verdict::End(Status::Ok);
            }
            progress.flags |= SYNCS;
            return Verdict::Again;
        }
        let left = rq.bytes - progress.done;
        if moved >= left {
            return Verdict::End(Status::Ok);
        }
        if moved == 0 {
            self.shared.look_at_size(self.capacity, self.block);
            return Verdict::End(Status::IoErr);
        }
        // Direct I/O can only continue at a block; a part of a block that was moved is moved again.
        let whole = moved - moved % self.block;
        if whole == 0 {
            return self.try_again(progress, libc::EIO);
        }
        progress.done += whole;
        progress.tries = 0;
        Verdict::Again
    }

    fn failed(&self, rq: &RqHead, progress: &mut Progress, errno: i32) -> Verdict {
        match errno {
            libc::ECANCELED | libc::EINTR if progress.flags & TIMED_OUT != 0 => Verdict::End(Status::Timeout),
            libc::ECANCELED => Verdict::End(Status::Canceled),
            libc::EAGAIN | libc::EINTR => self.try_again(progress, errno),
            libc::EOPNOTSUPP if rq.op == Op::WriteZeroes && self.shared.zeroing_fails(progress.zeroing()) => {
                progress.zeroing = self.shared.zeroing() as u8;
                Verdict::Again
            }
            libc::ENOSPC if self.shared.file.caps().kind == FileKind::Block => {
                // The kernel returns ENOSPC for a write past the end of a block device.
                self.shared.look_at_size(self.capacity, self.block);
                Verdict::End(Status::NoSpc)
            }
            errno => {
                self.shared.explain(errno);
                Verdict::End(Status::from_errno(Errno(errno)))
            }
        }
    }

    fn try_again(&self, progress: &mut Progress, errno: i32) -> Verdict {
        progress.tries += 1;
        if progress.tries > MAX_TRIES {
            return Verdict::End(Status::from_errno(Errno(errno)));
        }
        Verdict::Again
    }
}
