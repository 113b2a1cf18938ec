//! I/O that a driver sends to the devices below it: a mirror writes to several, a cache reads from one of two.
//!
//! Owns the mailbox between a stacked driver's hardware queue and the ring that the queue and the devices below both
//! belong to: children to be sent, and children that have ended. Children are ordinary bios of the ring. The ring
//! therefore waits for them, polls for them and counts them as any other I/O, in its one kernel ring. Does not own the
//! bios: `hctx` takes them and [`ctx`](crate::ctx) sends them.
//!
//! Invariants:
//! - S1: each child that was submitted ends exactly once, by [`Lower::take_ended`].
//! - S2: a hardware queue is not dropped while it has an unfinished child.
//! - S3 (progress): each level of stacked devices has bios of its own ([`bio_set`](crate::bio_set)), and I/O on a level
//!   waits only for lower levels. A ring whose bios are all taken by I/O from above can therefore still end its
//!   children.
//!
//! Called by drivers, by the ring that sends children, and at the end of bios.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use sheave_base::status::Status;

use crate::bio::{BVec, Op};

/// Largest number of stacked devices on top of each other.
pub const MAX_LEVELS: u8 = 4;

/// I/O to a device below a driver. It is cut if it is larger than that device's limits.
#[derive(Clone, Debug)]
pub struct LowerIo {
    /// Index of the device among those below the driver.
    pub lower: usize,
    /// Operation.
    pub op: Op,
    /// True if the write must be durable when it has ended.
    pub fua: bool,
    /// First sector on that device.
    pub sector: u64,
    /// Length in bytes. For reads and writes it equals the length of the memory.
    pub bytes: u32,
    /// Memory of a read or write, in at most [`MAX_VECS`](crate::ctx::MAX_VECS) pieces.
    pub vecs: Vec<BVec>,
    /// Number passed back at the end.
    pub token: u64,
}

/// A hardware queue's access to the devices below its driver. It belongs to the ring's thread, as the queue does.
#[derive(Clone, Debug)]
pub struct Lower(Rc<RefCell<Mailbox>>);

#[derive(Debug)]
struct Mailbox {
    /// Numbers of the devices below, in the ring.
    bdevs: Vec<u16>,
    /// Level of the driver: 0 if no device below is stacked.
    level: u8,
    wanted: VecDeque<LowerIo>,
    /// Number of children sent and not ended.
    sent: u32,
    ended: VecDeque<(u64, Status)>,
}

impl Lower {
    pub(crate) fn new(bdevs: Vec<u16>, level: u8) -> Lower {
        let (wanted, ended) = (VecDeque::new(), VecDeque::new());
        Lower(Rc::new(RefCell::new(Mailbox { bdevs, level, wanted, sent: 0, ended })))
    }

    /// Returns the number of devices below.
    pub fn count(&self) -> usize {
        self.0.borrow().bdevs.len()
    }

    /// Submits a child. It is sent when the ring's current call has finished with this queue, or with the next poll or
    /// wait, and ends by [`Lower::take_ended`] (S1). It ends as invalid if the device does not exist, or the length of
    /// the memory differs from that of the I/O.
    ///
    /// The memory must stay valid until the child has ended, as promised by the maker of the [`BVec`]s.
    pub fn submit(&self, io: LowerIo) {
        let mut mailbox = self.0.borrow_mut();
        let len = io.vecs.iter().fold(0usize, |sum, vec| sum.saturating_add(vec.len()));
        let fits = if io.op.has_data() { len == io.bytes as usize && len > 0 } else { len == 0 };
        if io.lower >= mailbox.bdevs.len() || !fits || io.vecs.len() > usize::from(u16::MAX) {
            return mailbox.ended.push_back((io.token, Status::Invalid));
        }
        mailbox.wanted.push_back(io);
    }

    /// Returns the token and status of the next child that has ended, in the order of their ends.
    pub fn take_ended(&self) -> Option<(u64, Status)> {
        self.0.borrow_mut().ended.pop_front()
    }

    /// Returns true if [`Lower::take_ended`] has a child to return.
    pub fn has_ended(&self) -> bool {
        !self.0.borrow().ended.is_empty()
    }

    /// Returns the number of submitted children that [`Lower::take_ended`] has not returned yet.
    pub fn unfinished(&self) -> usize {
        let mailbox = self.0.borrow();
        mailbox.wanted.len() + mailbox.sent as usize + mailbox.ended.len()
    }

    /// Cancels children that were not sent yet. For a queue that shuts down.
    pub fn cancel_unsent(&self) {
        let mailbox = &mut *self.0.borrow_mut();
        mailbox.ended.extend(mailbox.wanted.drain(..).map(|io| (io.token, Status::Canceled)));
    }

    pub(crate) fn level(&self) -> u8 {
        self.0.borrow().level
    }

    /// Returns the next child to be sent, with the number of its device in the ring. The caller has a bio for it.
    pub(crate) fn next_wanted(&self) -> Option<(u16, LowerIo)> {
        let mut mailbox = self.0.borrow_mut();
        let io = mailbox.wanted.pop_front()?;
        mailbox.sent += 1;
        Some((mailbox.bdevs[io.lower], io))
    }

    pub(crate) fn has_wanted(&self) -> bool {
        !self.0.borrow().wanted.is_empty()
    }

    /// Records the end of a child that was sent.
    pub(crate) fn ended(&self, token: u64, status: Status) {
        let mut mailbox = self.0.borrow_mut();
        mailbox.sent -= 1;
        mailbox.ended.push_back((token, status));
    }

    /// Returns the devices below, for detaching them, and stops sending.
    pub(crate) fn take_bdevs(&self) -> Vec<u16> {
        self.cancel_unsent();
        std::mem::take(&mut self.0.borrow_mut().bdevs)
    }
}
