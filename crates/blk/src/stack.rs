//! I/O that a driver sends to the devices below it: a mirror writes to several, a cache reads from one of two.
//!
//! Owns the mailbox between a stacked driver's hardware queue and the ring that both the queue and the devices below
//! it belong to: children that are wanted, and children that have ended. Children are ordinary bios of the ring, so the
//! ring waits for them, polls for them and counts them as any other I/O, in the one kernel ring that it has. Does not
//! own the bios: `hctx` takes them and [`ctx`](crate::ctx) sends them.
//!
//! Invariants:
//! - S1: each child that was submitted ends exactly once, by [`Lower::take_ended`].
//! - S2: while a child is unfinished its hardware queue is not dropped.
//! - S3 (progress): each level of stacked devices has bios of its own ([`bio_set`](crate::bio_set)), and what is on a
//!   level waits for lower levels alone; so a ring whose bios are all taken by I/O from above still ends its children.
//!
//! Called by drivers, by the ring that sends children, and where bios end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use sheave_base::status::Status;

use crate::bio::{BVec, Op};

/// Most stacked devices on top of each other.
pub const MAX_LEVELS: u8 = 4;

/// An I/O for a device below a driver. It may be larger than that device's limits, and is cut then.
#[derive(Clone, Debug)]
pub struct LowerIo {
    /// Number of the device among those that the driver stands on.
    pub lower: usize,
    /// What to do.
    pub op: Op,
    /// The write is to be durable when it has ended.
    pub fua: bool,
    /// First sector on that device.
    pub sector: u64,
    /// Length; for reads and writes that of the memory.
    pub bytes: u32,
    /// The memory of a read or write; no more than [`MAX_VECS`](crate::ctx::MAX_VECS) pieces.
    pub vecs: Vec<BVec>,
    /// Given back when it has ended.
    pub token: u64,
}

/// A hardware queue's way to the devices below its driver. It belongs to the ring's thread, as the queue does.
#[derive(Clone, Debug)]
pub struct Lower(Rc<RefCell<Mailbox>>);

#[derive(Debug)]
struct Mailbox {
    /// The devices below as the ring numbers them.
    bdevs: Vec<u16>,
    /// 0 for a driver that stands on devices that stand on none.
    level: u8,
    wanted: VecDeque<LowerIo>,
    /// Sent and not ended.
    sent: u32,
    ended: VecDeque<(u64, Status)>,
}

impl Lower {
    pub(crate) fn new(bdevs: Vec<u16>, level: u8) -> Lower {
        let (wanted, ended) = (VecDeque::new(), VecDeque::new());
        Lower(Rc::new(RefCell::new(Mailbox { bdevs, level, wanted, sent: 0, ended })))
    }

    /// How many devices there are below.
    pub fn count(&self) -> usize {
        self.0.borrow().bdevs.len()
    }

    /// Submits a child: it is on its way when the ring's current call has done with this queue, or with the next poll
    /// or wait, and ends by [`Lower::take_ended`] (S1). A device below that there is not, and memory that is not as
    /// long as the I/O, end it as invalid.
    ///
    /// The memory must stay valid until the child has ended; who made the [`BVec`]s has promised it.
    pub fn submit(&self, io: LowerIo) {
        let mut mailbox = self.0.borrow_mut();
        let len = io.vecs.iter().fold(0usize, |sum, vec| sum.saturating_add(vec.len()));
        let fits = if io.op.has_data() { len == io.bytes as usize && len > 0 } else { len == 0 };
        if io.lower >= mailbox.bdevs.len() || !fits || io.vecs.len() > usize::from(u16::MAX) {
            return mailbox.ended.push_back((io.token, Status::Invalid));
        }
        mailbox.wanted.push_back(io);
    }

    /// A child that has ended, in the order in which they did: its token and how it ended.
    pub fn take_ended(&self) -> Option<(u64, Status)> {
        self.0.borrow_mut().ended.pop_front()
    }

    /// Whether [`Lower::take_ended`] would give a child.
    pub fn has_ended(&self) -> bool {
        !self.0.borrow().ended.is_empty()
    }

    /// Children submitted that [`Lower::take_ended`] has not given yet.
    pub fn unfinished(&self) -> usize {
        let mailbox = self.0.borrow();
        mailbox.wanted.len() + mailbox.sent as usize + mailbox.ended.len()
    }

    /// Ends children that no device below has seen yet, as cancelled: for a queue that shuts down.
    pub fn cancel_unsent(&self) {
        let mailbox = &mut *self.0.borrow_mut();
        mailbox.ended.extend(mailbox.wanted.drain(..).map(|io| (io.token, Status::Canceled)));
    }

    pub(crate) fn level(&self) -> u8 {
        self.0.borrow().level
    }

    /// The next child to be sent, with the number of its device in the ring, if `take` says that there is a bio.
    pub(crate) fn next_wanted(&self) -> Option<(u16, LowerIo)> {
        let mut mailbox = self.0.borrow_mut();
        let io = mailbox.wanted.pop_front()?;
        mailbox.sent += 1;
        Some((mailbox.bdevs[io.lower], io))
    }

    pub(crate) fn has_wanted(&self) -> bool {
        !self.0.borrow().wanted.is_empty()
    }

    /// A child that was sent has ended.
    pub(crate) fn ended(&self, token: u64, status: Status) {
        let mut mailbox = self.0.borrow_mut();
        mailbox.sent -= 1;
        mailbox.ended.push_back((token, status));
    }

    /// The devices below are closed: nothing is sent any more.
    pub(crate) fn take_bdevs(&self) -> Vec<u16> {
        self.cancel_unsent();
        std::mem::take(&mut self.0.borrow_mut().bdevs)
    }
}
