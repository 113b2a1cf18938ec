//! What a ring owns beside its block layer: queues, slots, tables, and the lists between submission and completion.
//!
//! Owns the state; [`submit`](crate::submit) moves SQEs into it, [`complete`](crate::complete) moves CQEs out of it.
//! It is apart from the ring's [`IoCtx`](sheave_blk::ctx::IoCtx) so that a poll of the devices can complete requests
//! while it walks.

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

/// What few slots need.
#[derive(Debug, Default)]
pub(crate) struct Cold {
    /// Vectors of READV and WRITEV; keeps its room.
    pub(crate) vecs: Vec<BVec>,
    /// The mappings that a write with completion work used.
    pub(crate) pieces: Pieces,
    /// Where its time went, while its slot says that it has times.
    pub(crate) times: SlotTimes,
    /// The place of what the operation owns, while its slot says that it owns something.
    pub(crate) owned: u32,
}

/// A request (with its chain) that waits behind a drain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deferred {
    pub(crate) head: u32,
    /// Slots in the chain.
    pub(crate) count: u32,
    pub(crate) drain: bool,
    /// A drain was submitted right after it. If that was refused, it stands nowhere else.
    pub(crate) before_drain: bool,
}

/// I/Os that ended inline, one after the other, and are counted in the same place: uncounted together, at the end of
/// the poll that ended them.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) file: u32,
    /// Of their kiocbs, those that say where they are counted.
    pub(crate) flags: u16,
    pub(crate) ios: u32,
}

/// Something may wait, be open or be armed beside the I/O that devices have.
const NOISY: u8 = 1;
/// Operations of the ring own memory, or once did: its SQEs and CQEs are looked up in the table of that.
const OWNING: u8 = 2;

/// What keeps a ring from its shortest way, in one byte, so that one look finds that nothing does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quiet(u8);

impl Quiet {
    /// Whether nothing but plain I/O waits, and nobody has ever owned anything.
    #[inline(always)]
    pub(crate) fn is_bare(self) -> bool {
        self.0 == 0
    }

    /// Whether nothing but plain I/O waits.
    #[inline(always)]
    pub(crate) fn is_quiet(self) -> bool {
        self.0 & NOISY == 0
    }

    /// Something may wait.
    #[inline(always)]
    pub(crate) fn stir(&mut self) {
        self.0 |= NOISY;
    }

    /// After a look: whether nothing waits.
    #[inline(always)]
    pub(crate) fn set(&mut self, quiet: bool) {
        self.0 = (self.0 & OWNING) | (u8::from(!quiet) * NOISY);
    }

    /// An operation owns memory.
    #[inline(always)]
    pub(crate) fn own(&mut self) {
        self.0 |= OWNING;
    }
}

/// The state of a ring.
#[derive(Debug)]
pub(crate) struct Core {
    /// The way to the workers.
    pub(crate) wq: RingWq,
    pub(crate) queues: Queues,
    pub(crate) reqs: ReqTable,
    /// The kind of plain I/O that came last.
    pub(crate) known: Option<Known>,
    /// Nothing waits, is open or is armed beside the I/O that devices have: what a look at every list would find
    /// ([`Core::is_quiet`]). Whatever may change that says no, and the next reap looks again.
    pub(crate) quiet: Quiet,
    /// Plain records in flight. Each counts as a slot, which it does without.
    pub(crate) records: u32,
    pub(crate) cold: Box<[Cold]>,
    pub(crate) files: FileTable,
    pub(crate) ended: Ended,
    pub(crate) bufs: BufTable,
    /// CQEs that found the CQ full, in order, with the key of what their operation owned; bounded by `overflow_max`
    /// (submission stops there).
    pub(crate) overflow: VecDeque<(Cqe, Option<u32>)>,
    pub(crate) overflow_max: usize,
    /// Slots to issue: links whose turn has come, deferred requests, what workers gave back.
    pub(crate) ready: VecDeque<u32>,
    /// Slots that found something used up; issued again after completions.
    pub(crate) retry: VecDeque<u32>,
    /// Pending timeouts.
    pub(crate) timers: Timers,
    /// The CQ's tail when the batch of issues began: counted timeouts count its CQEs, whatever the order within.
    pub(crate) batch_tail: u32,
    /// Slots in state `Queued`.
    pub(crate) nr_queued: u32,
    /// Slots whose I/O has ended and that complete as their plan says.
    pub(crate) tasks: VecDeque<u32>,
    /// How many completed as their plan says, and not inline.
    #[cfg(sheave_lab)]
    pub(crate) late: LateCompletions,
    /// Files for which somebody waits in a batch that may begin.
    pub(crate) gathering: Vec<u32>,
    /// What the engine needs while it issues.
    pub(crate) scratch: Scratch,
    /// The chain that is being submitted.
    pub(crate) chain: Chain,
    pub(crate) deferred: VecDeque<Deferred>,
    /// Slots in `deferred`, chains included.
    pub(crate) nr_deferred: u32,
    pub(crate) drain_active: bool,
    pub(crate) drain_next: bool,
    /// CQE_SKIP_SUCCESS was used: a drain could not count what is skipped, so it is refused from then on.
    pub(crate) drain_disabled: bool,
    pub(crate) polled: bool,
    /// With statistics.
    pub(crate) times: Option<Times>,
    /// What operations own.
    pub(crate) owned: OwnedTable,
    /// Times of the typed interface, by SQ index, until submission.
    pub(crate) sq_times: Box<[[i64; 2]]>,
}

/// Mappings that each slot has room for once a file with mappings is attached; a write over more makes its own.
const PIECES_ROOM: usize = 4;

impl Core {
    /// Requests in flight.
    #[inline(always)]
    pub(crate) fn live(&self) -> u32 {
        self.reqs.live() + self.records
    }

    /// Whether nothing is left to start or to complete that the ring knows of.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        let nothing_starts = self.ready.is_empty() && self.deferred.is_empty() && self.gathering.is_empty();
        nothing_starts && self.tasks.is_empty() && self.overflow.is_empty() && !self.timers.is_armed()
    }

    /// Whether a submission of plain I/O, and a reap of nothing else, have no list to look at.
    pub(crate) fn is_quiet(&self) -> bool {
        let nothing_opens = self.chain.last().is_none() && !(self.drain_active | self.drain_next);
        let nothing_ends = !self.files.wants_sweep() && !self.bufs.wants_sweep();
        self.is_settled() && self.retry.is_empty() && nothing_opens && nothing_ends && !self.wq.has_staged()
    }

    /// How many more there may be.
    #[inline(always)]
    pub(crate) fn available(&self) -> u32 {
        self.reqs.available() - self.records
    }

    /// Whether the SQE that is `ahead` of the next goes on with the one behind it, as a chain.
    pub(crate) fn is_linked(&self, ahead: u32) -> bool {
        self.queues.sq_row(ahead, 1).first().is_some_and(|sqe| sqe.flags & IOSQE_LINKS != 0)
    }

    /// How many SQEs right before the one that is `ahead` of the next are in one chain with it.
    pub(crate) fn linked_before(&self, ahead: u32) -> u32 {
        (0..ahead).rev().take_while(|&at| self.is_linked(at)).count() as u32
    }

    /// Adds a file to the table, and makes the room that its I/O needs.
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
            // Every slot may still complete when submission stops.
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
