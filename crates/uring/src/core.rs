//! State of a ring beside its block layer: queues, slots, tables, and the lists between submission and completion.
//!
//! Owns the state. [`submit`](crate::submit) moves SQEs into it, [`complete`](crate::complete) moves CQEs out of it.
//! Separate from the ring's [`IoCtx`](sheave_blk::ctx::IoCtx), so that a poll of the devices can complete requests
//! during its walk.

use std::collections::VecDeque;

use sheave_blk::bio::BVec;
use sheave_iomap::dio::{OpenFile, Scratch};
use sheave_iomap::mapping::Pieces;

use crate::cqe::Cqe;
#[cfg(sheave_lab)]
use crate::cqe::LateCompletions;
use crate::io_wq::RingWq;
use crate::owned::OwnedTable;
use crate::plain_run::Known;
use crate::queues::Queues;
use crate::req::{Chain, NO_FILE, ReqTable};
use crate::rsrc::{BufTable, Fd, FileTable};
use crate::sqe::IOSQE_LINKS;
use crate::timers::Timers;
use crate::times::{SlotTimes, Times};

/// Side table of a slot: fields that few requests need.
#[derive(Debug, Default)]
pub(crate) struct Cold {
    /// Vectors of READV and WRITEV. The allocation is kept.
    pub(crate) vecs: Vec<BVec>,
    pub(crate) pieces: Pieces,
    /// Valid while the slot has REQ_TIMED.
    pub(crate) times: SlotTimes,
    /// Index in the table of owned memory. Valid while the slot has REQ_OWNS_BUF.
    pub(crate) owned: u32,
}

/// A request, with its chain, that waits behind a drain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deferred {
    pub(crate) head: u32,
    pub(crate) count: u32,
    pub(crate) drain: bool,
    /// A drain was submitted right after this request. If that drain was refused, this flag is the only trace of it.
    pub(crate) before_drain: bool,
}

/// Consecutive inline completions that one counter of one file's grace counts. Uncounted together, at the end of the
/// poll.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) file: u32,
    /// Flags of the kiocbs that name the counter.
    pub(crate) flags: u16,
    pub(crate) ios: u32,
}

/// Set if anything but plain I/O may be pending: a list, an open chain or drain, an armed timeout.
const NOISY: u8 = 1;
/// Set once an operation of the ring owned memory: SQEs and CQEs must be looked up in the table of owned memory.
const OWNING: u8 = 2;

/// Reasons to leave the ring's shortest path, in one byte: a single load tests for all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quiet(u8);

impl Quiet {
    /// True if only plain I/O is pending, and no operation ever owned memory.
    #[inline(always)]
    pub(crate) fn is_bare(self) -> bool {
        self.0 == 0
    }

    /// True if only plain I/O is pending.
    #[inline(always)]
    pub(crate) fn is_quiet(self) -> bool {
        self.0 & NOISY == 0
    }

    /// Marks the ring noisy: something beside plain I/O may be pending.
    #[inline(always)]
    pub(crate) fn stir(&mut self) {
        self.0 |= NOISY;
    }

    /// Stores the result of a full check ([`Core::is_quiet`]).
    #[inline(always)]
    pub(crate) fn set(&mut self, quiet: bool) {
        self.0 = (self.0 & OWNING) | (u8::from(!quiet) * NOISY);
    }

    /// Marks the ring as one whose operations own memory. Never cleared.
    #[inline(always)]
    pub(crate) fn own(&mut self) {
        self.0 |= OWNING;
    }
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) wq: RingWq,
    pub(crate) queues: Queues,
    pub(crate) reqs: ReqTable,
    /// Cached checks of the last plain run.
    pub(crate) known: Option<Known>,
    /// Cached result of [`Core::is_quiet`]. Everything that may make the ring noisy calls `stir`; the next reap checks
    /// again.
    pub(crate) quiet: Quiet,
    /// Plain records in flight. Each counts as a slot, without using one.
    pub(crate) records: u32,
    pub(crate) cold: Box<[Cold]>,
    pub(crate) files: FileTable,
    pub(crate) ended: Ended,
    pub(crate) bufs: BufTable,
    /// CQEs that found the CQ full, in order, each with the key of the memory its operation owned. Submission stops at
    /// `overflow_max`.
    pub(crate) overflow: VecDeque<(Cqe, Option<u32>)>,
    pub(crate) overflow_max: usize,
    /// Slots to issue: links whose turn has come, deferred requests, requests returned by workers.
    pub(crate) ready: VecDeque<u32>,
    /// Slots that found a resource exhausted. Issued again after completions.
    pub(crate) retry: VecDeque<u32>,
    pub(crate) timers: Timers,
    /// Tail of the CQ at the start of the batch of issues. Counted timeouts count from here, so the order within a
    /// batch does not matter.
    pub(crate) batch_tail: u32,
    pub(crate) nr_queued: u32,
    /// Slots whose I/O has ended and whose completion plan is not inline. Run by `run_tasks`.
    pub(crate) tasks: VecDeque<u32>,
    /// Number of requests that completed by their plan and not inline.
    #[cfg(sheave_lab)]
    pub(crate) late: LateCompletions,
    /// Files whose next batch, of completion work or of a sync, has members and may start.
    pub(crate) gathering: Vec<u32>,
    pub(crate) scratch: Scratch,
    pub(crate) chain: Chain,
    pub(crate) deferred: VecDeque<Deferred>,
    /// Slots in `deferred`, members of chains included.
    pub(crate) nr_deferred: u32,
    pub(crate) drain_active: bool,
    pub(crate) drain_next: bool,
    /// CQE_SKIP_SUCCESS was used. A drain cannot count skipped CQEs, so drains are refused from then on.
    pub(crate) drain_disabled: bool,
    pub(crate) polled: bool,
    pub(crate) times: Option<Times>,
    pub(crate) owned: OwnedTable,
    /// Timespecs of the typed interface by SQ index, kept until submission.
    pub(crate) sq_times: Box<[[i64; 2]]>,
}

/// Number of mappings that each slot has room for once a file with mappings is attached. An I/O over more allocates.
const PIECES_ROOM: usize = 4;

impl Core {
    #[inline(always)]
    pub(crate) fn live(&self) -> u32 {
        self.reqs.live() + self.records
    }

    /// True if no request of the ring can start or complete without a device, a worker or a message.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        let nothing_starts = self.ready.is_empty() && self.deferred.is_empty() && self.gathering.is_empty();
        nothing_starts && self.tasks.is_empty() && self.overflow.is_empty() && !self.timers.is_armed()
    }

    /// True if a submission or reap of plain I/O has to look at no list.
    pub(crate) fn is_quiet(&self) -> bool {
        let nothing_opens = self.chain.last().is_none() && !(self.drain_active | self.drain_next);
        let nothing_ends = !self.files.wants_sweep() && !self.bufs.wants_sweep();
        self.is_settled() && self.retry.is_empty() && nothing_opens && nothing_ends && !self.wq.has_staged()
    }

    /// Returns the number of requests that can still be started.
    #[inline(always)]
    pub(crate) fn available(&self) -> u32 {
        self.reqs.available() - self.records
    }

    /// True if the SQE `ahead` places after the next is linked to its successor.
    pub(crate) fn is_linked(&self, ahead: u32) -> bool {
        self.queues.sq_row(ahead, 1).first().is_some_and(|sqe| sqe.flags & IOSQE_LINKS != 0)
    }

    /// Returns the number of SQEs before the one at `ahead` that are in the same chain.
    pub(crate) fn linked_before(&self, ahead: u32) -> u32 {
        (0..ahead).rev().take_while(|&at| self.is_linked(at)).count() as u32
    }

    /// Adds `file` to the table and reserves the memory that its I/O needs.
    pub(crate) fn add_file(&mut self, file: OpenFile) -> Option<Fd> {
        if !file.is_identity() {
            self.cold.iter_mut().for_each(|cold| cold.pieces.reserve(PIECES_ROOM));
        }
        self.files.add_file(file, self.reqs.slots())
    }

    pub(crate) fn new(queues: Queues, slots: u32, polled: bool, wq: RingWq, times: Option<Times>) -> Core {
        let (sq, cq) = (queues.sq_entries() as usize, queues.cq_entries() as usize);
        let overflow_max = cq + slots as usize;
        let room = slots as usize;
        Core {
            wq,
            queues,
            reqs: ReqTable::new(slots),
            known: None,
            quiet: Quiet(NOISY),
            records: 0,
            cold: (0..slots).map(|_| Cold::default()).collect(),
            files: FileTable::default(),
            ended: Ended { file: NO_FILE, flags: 0, ios: 0 },
            bufs: BufTable::default(),
            // Submission stops at `overflow_max`, but every slot in use then still completes.
            overflow: VecDeque::with_capacity(overflow_max + room),
            overflow_max,
            ready: VecDeque::with_capacity(room),
            retry: VecDeque::with_capacity(room),
            timers: Timers::new(slots),
            batch_tail: 0,
            nr_queued: 0,
            tasks: VecDeque::with_capacity(room),
            #[cfg(sheave_lab)]
            late: LateCompletions::default(),
            gathering: Vec::new(),
            scratch: Scratch::default(),
            chain: Chain::default(),
            deferred: VecDeque::with_capacity(room),
            nr_deferred: 0,
            drain_active: false,
            drain_next: false,
            drain_disabled: false,
            polled,
            times,
            sq_times: vec![[0; 2]; sq].into(),
            owned: OwnedTable::default(),
        }
    }
}
