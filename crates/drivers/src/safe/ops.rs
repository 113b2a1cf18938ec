//! The operations of a driver on the ring's kernel ring, by slot.
//!
//! Owns the data that the kernel reads during an operation: the descriptor, the list of pieces of memory, the address,
//! the time. Owns the list of requests that an operation holds, and the generation of its slot. Does not own the memory
//! that the pieces name, nor the end of requests (`queue`).
//!
//! ```text
//!   free -> unsent -> in the kernel -> free       unsent: the submission queue was full even after an enter
//!                        |      ^
//!                        v      |
//!                        fired--+                 a watch between its event and the driver's poll
//! ```
//!
//! Invariants:
//! - O1: the data of a slot is changed and dropped only while the kernel does not have its operation.
//! - O2: the user data of an operation contains its slot and the slot's generation. The same is true of cancellations,
//!   and of the token of the driver. A wrong generation is ignored.
//! - O3: each operation ends once: with the CQE that announces no further one, or before the kernel had it. Until then
//!   the requests that it holds do not end.
//! - O4: at most as many slots are in use as the driver requested.
#![allow(unsafe_code)] // Prepares operations that name memory.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use sheave_blk::driver::{GENERATION_BITS, KIND_IGNORED, KernelEvent, kernel_user_data, with_generation};
use sheave_kring::{Address, Direction, Full, IoVec, KOp, KernelRing, Message, OpTime};

/// Kind of a driver's operations, in their user data.
const KIND_OP: u8 = 0;
/// `IORING_CQE_F_MORE`.
const CQE_MORE: u32 = 1 << 1;

/// Handle of an operation of one queue; invalid once the operation has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpToken {
    queue: u64,
    slot: u16,
    generation: u32,
}

/// Kind of an operation; its slot has the other arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Message(Direction),
    File(KOp, u64, i32),
    RecvMultishot,
    Connect,
    Watch,
    Timer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpState {
    /// The slot has no operation.
    Free,
    /// The operation is in the list `unsent`.
    Unsent,
    /// The operation is prepared, or taken by the kernel.
    InKernel,
    /// A watch whose event came, and for which the driver has not been polled yet.
    Fired,
    /// The operation ended before the kernel had it, or the kernel has released it. It ends as cancelled with the next
    /// call of the driver.
    Aborted,
}

#[derive(Debug)]
struct OpSlot {
    state: OpState,
    what: What,
    generation: u32,
    /// True if the operation is to be cancelled and the cancellation is not prepared yet.
    cancel: bool,
    cancelled: bool,
    fd: Option<Arc<OwnedFd>>,
    message: Box<Message>,
    address: Option<Box<Address>>,
    time: Option<Box<OpTime>>,
    /// Tags of the requests that the operation holds (O3).
    holds: Vec<u16>,
}

/// Kind of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// A watched descriptor is readable.
    Fired,
    /// Result for the driver; the operation has ended unless `more`.
    Result { slot: u16, more: bool },
}

/// The operations of one queue.
#[derive(Debug)]
pub(super) struct Ops {
    key: u64,
    hctx: u16,
    slots: Box<[OpSlot]>,
    free: Vec<u16>,
    unsent: VecDeque<u16>,
    aborted: VecDeque<u16>,
    in_kernel: u32,
    fired: u32,
    /// Number of operations whose cancellation found the submission queue full.
    uncancelled: u32,
    /// Group id of the receive buffers, if there are any.
    pub(super) group: Option<u16>,
    /// True to simulate a full submission queue.
    #[cfg(test)]
    pub(super) refuse: bool,
}

impl Ops {
    pub(super) fn new(key: u64, hctx: u16, most: u16, group: Option<u16>) -> Ops {
        let slot = |_| OpSlot {
            state: OpState::Free,
            what: What::Timer,
            generation: 0,
            cancel: false,
            cancelled: false,
            fd: None,
            message: Message::new(),
            address: None,
            time: None,
            holds: Vec::new(),
        };
        Ops {
            key,
            hctx,
            slots: (0..most).map(slot).collect(),
            free: (0..most).rev().collect(),
            unsent: VecDeque::with_capacity(usize::from(most)),
            aborted: VecDeque::with_capacity(usize::from(most)),
            in_kernel: 0,
            fired: 0,
            uncancelled: 0,
            group,
            #[cfg(test)]
            refuse: false,
        }
    }

    pub(super) fn in_kernel(&self) -> u32 {
        self.in_kernel
    }

    /// Returns true if an operation or a cancellation waits for room, or an end is to be reported.
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || !self.aborted.is_empty() || self.fired + self.uncancelled > 0
    }

    /// Returns true if one more operation can begin (O4).
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn user_data(&self, slot: u16) -> u64 {
        let generation = self.slots[usize::from(slot)].generation;
        with_generation(kernel_user_data(self.hctx, slot, KIND_OP), generation)
    }

    /// Begins an operation. Returns `None` if no slot is free (O4).
    ///
    /// # Safety
    /// The pieces are memory that stays valid until the operation has ended, or until this queue is dropped, which
    /// happens only after the kernel has ended all operations. Nobody else uses the memory meanwhile, or changes memory
    /// that is sent.
    pub(super) unsafe fn begin(
        &mut self,
        kring: &mut KernelRing,
        what: What,
        fd: Option<Arc<OwnedFd>>,
        pieces: &[IoVec],
        holds: impl Iterator<Item = u16>,
    ) -> Option<OpToken> {
        self.begin_with(kring, what, fd, |op| {
            op.holds.extend(holds);
            // Never more than the kernel accepts: the caller has checked.
            pieces.iter().for_each(|&piece| _ = op.message.push(piece));
        })
    }

    pub(super) fn connect(&mut self, kring: &mut KernelRing, fd: Arc<OwnedFd>, to: &Address) -> Option<OpToken> {
        self.begin_with(kring, What::Connect, Some(fd), |op| op.address = Some(Box::new(to.clone())))
    }

    pub(super) fn timer(&mut self, kring: &mut KernelRing, time: OpTime) -> Option<OpToken> {
        self.begin_with(kring, What::Timer, None, |op| op.time = Some(Box::new(time)))
    }

    /// Begins an operation without memory outside of its slot.
    pub(super) fn plain(&mut self, kring: &mut KernelRing, what: What, fd: Arc<OwnedFd>) -> Option<OpToken> {
        self.begin_with(kring, what, Some(fd), |_| {})
    }

    fn begin_with(
        &mut self,
        kring: &mut KernelRing,
        what: What,
        fd: Option<Arc<OwnedFd>>,
        fill: impl FnOnce(&mut OpSlot),
    ) -> Option<OpToken> {
        let slot = self.free.pop()?;
        let op = &mut self.slots[usize::from(slot)];
        op.generation = (op.generation + 1) & ((1 << GENERATION_BITS) - 1); // O2
        (op.what, op.fd, op.cancel, op.cancelled) = (what, fd, false, false);
        fill(op);
        let generation = op.generation;
        self.send_or_keep(kring, slot);
        Some(OpToken { queue: self.key, slot, generation })
    }

    /// Prepares an operation, or queues it behind those that wait for room.
    fn send_or_keep(&mut self, kring: &mut KernelRing, slot: u16) {
        self.slots[usize::from(slot)].state = OpState::Unsent;
        if !self.unsent.is_empty() || self.prep_entering(kring, slot).is_err() {
            self.unsent.push_back(slot);
        }
    }

    /// Enters the kernel ring if its submission queue is full.
    fn make_room(&self, kring: &mut KernelRing) -> Result<(), Full> {
        #[cfg(test)]
        if self.refuse {
            return Err(Full);
        }
        if kring.space() == 0 {
            // After a refusal there is still no room, which the next line finds.
            let _ = kring.enter(0, None);
        }
        if kring.space() == 0 { Err(Full) } else { Ok(()) }
    }

    /// Prepares an operation, after an enter if the submission queue is full.
    fn prep_entering(&mut self, kring: &mut KernelRing, slot: u16) -> Result<(), Full> {
        self.make_room(kring)?;
        let user_data = self.user_data(slot);
        let op = &mut self.slots[usize::from(slot)];
        let fd = op.fd.as_ref().map_or(-1, |fd| fd.as_raw_fd());
        match op.what {
            // SAFETY: O1, and what the caller of `begin` promised of the pieces.
            What::Message(direction) => unsafe { kring.prep_message(fd, direction, &mut op.message, user_data) }?,
            What::File(way, offset, flags) => {
                // SAFETY: as above.
                unsafe { kring.prep_file(fd, way, &mut op.message, offset, flags, user_data) }?
            }
            What::RecvMultishot => kring.prep_recv_multishot(fd, self.group.unwrap_or(u16::MAX), user_data)?,
            What::Watch => kring.prep_readable(fd, user_data)?,
            What::Connect => {
                let Some(to) = &op.address else { return Err(Full) };
                // SAFETY: O1: the address is in a box of the slot's.
                unsafe { kring.prep_connect(fd, to, user_data) }?;
            }
            What::Timer => {
                let Some(time) = &op.time else { return Err(Full) };
                // SAFETY: O1: the time is in a box of the slot's.
                unsafe { kring.prep_timer(time, user_data) }?;
            }
        }
        op.state = OpState::InKernel;
        self.in_kernel += 1;
        Ok(())
    }

    /// Assigns a completion to its operation. Returns `None` if the slot has another generation by now (O2).
    pub(super) fn came(&mut self, event: &KernelEvent) -> Option<Came> {
        let op = self.slots.get_mut(usize::from(event.tag))?;
        if op.state != OpState::InKernel || op.generation != event.generation {
            return None;
        }
        let more = event.flags & CQE_MORE != 0;
        if more {
            return Some(Came::Result { slot: event.tag, more });
        }
        self.in_kernel -= 1;
        self.uncancelled -= u32::from(std::mem::take(&mut op.cancel));
        if op.what == What::Watch && event.res > 0 && !op.cancelled {
            op.state = OpState::Fired;
            self.fired += 1;
            return Some(Came::Fired);
        }
        op.state = OpState::Aborted; // Until it is released.
        Some(Came::Result { slot: event.tag, more })
    }

    /// Returns the token of the operation in this slot.
    pub(super) fn token(&self, slot: u16) -> OpToken {
        OpToken { queue: self.key, slot, generation: self.slots[usize::from(slot)].generation }
    }

    /// Frees the slot of an operation that has ended; calls `held` with the tag of each request that it held.
    pub(super) fn release(&mut self, slot: u16, mut held: impl FnMut(u16)) {
        let op = &mut self.slots[usize::from(slot)];
        debug_assert!(op.state == OpState::Aborted, "O1: the kernel does not have it");
        op.state = OpState::Free;
        (op.fd, op.address, op.time) = (None, None, None);
        op.message.clear();
        op.holds.drain(..).for_each(&mut held);
        self.free.push(slot);
    }

    /// Requests the end of an operation, which ends in any case. Returns false if the token names none (O2).
    pub(super) fn cancel(&mut self, kring: &mut KernelRing, token: OpToken) -> bool {
        let of = |op: &&OpSlot| op.generation == token.generation && op.state != OpState::Free;
        let named = token.queue == self.key && self.slots.get(usize::from(token.slot)).as_ref().is_some_and(of);
        if named {
            self.cancel_slot(kring, token.slot);
        }
        named
    }

    pub(super) fn cancel_all(&mut self, kring: &mut KernelRing) {
        if self.free.len() == self.slots.len() {
            return;
        }
        (0..self.slots.len() as u16).for_each(|slot| self.cancel_slot(kring, slot));
    }

    /// Requests the end of the operations that hold a request.
    pub(super) fn cancel_holding(&mut self, kring: &mut KernelRing, tag: u16) {
        for slot in 0..self.slots.len() as u16 {
            if self.slots[usize::from(slot)].holds.contains(&tag) {
                self.cancel_slot(kring, slot);
            }
        }
    }

    fn cancel_slot(&mut self, kring: &mut KernelRing, slot: u16) {
        let op = &mut self.slots[usize::from(slot)];
        if std::mem::replace(&mut op.cancelled, true) {
            return;
        }
        match op.state {
            OpState::Free => op.cancelled = false,
            OpState::Aborted => {}
            OpState::InKernel => {
                op.cancel = true;
                self.uncancelled += 1;
                self.prep_cancel(kring, slot);
            }
            OpState::Unsent | OpState::Fired => {
                self.fired -= u32::from(op.state == OpState::Fired);
                op.state = OpState::Aborted;
                self.unsent.retain(|&other| other != slot);
                self.aborted.push_back(slot);
            }
        }
    }

    fn prep_cancel(&mut self, kring: &mut KernelRing, slot: u16) {
        let (victim, ignored) = (self.user_data(slot), kernel_user_data(self.hctx, slot, KIND_IGNORED));
        if self.make_room(kring).and_then(|()| kring.prep_cancel(victim, ignored)).is_ok() {
            self.slots[usize::from(slot)].cancel = false;
            self.uncancelled -= 1;
        }
    }

    /// Watches the descriptors again whose events the driver has been polled for.
    pub(super) fn watch_again(&mut self, kring: &mut KernelRing) {
        if self.fired == 0 {
            return;
        }
        for slot in 0..self.slots.len() as u16 {
            if self.slots[usize::from(slot)].state == OpState::Fired {
                self.fired -= 1;
                self.send_or_keep(kring, slot);
            }
        }
    }

    /// Prepares the operations and cancellations that found the submission queue full.
    pub(super) fn send(&mut self, kring: &mut KernelRing) {
        while let Some(&slot) = self.unsent.front() {
            if self.prep_entering(kring, slot).is_err() {
                return;
            }
            self.unsent.pop_front();
        }
        if self.uncancelled > 0 {
            for slot in 0..self.slots.len() as u16 {
                if self.slots[usize::from(slot)].cancel {
                    self.prep_cancel(kring, slot);
                }
            }
        }
    }

    /// Removes an operation from the list of those that ended before the kernel had them, and returns its slot.
    pub(super) fn take_aborted(&mut self) -> Option<u16> {
        self.aborted.pop_front()
    }

    /// Returns the number of operations that [`Ops::take_aborted`] can return.
    pub(super) fn aborted(&self) -> usize {
        self.aborted.len()
    }

    /// Ends all operations after the kernel ring is gone.
    pub(super) fn lost(&mut self) {
        for (slot, op) in (0..).zip(&mut self.slots) {
            if !matches!(op.state, OpState::Free | OpState::Aborted) {
                (op.state, op.cancel) = (OpState::Aborted, false);
                self.aborted.push_back(slot);
            }
        }
        self.unsent.clear();
        (self.in_kernel, self.fired, self.uncancelled, self.group) = (0, 0, 0, None);
    }
}
