//! The state that all rings of a device share: the export, and the record of what a lost connection may have lost.
//!
//! A server may keep acknowledged writes in a cache, and loses them if it dies. So a flush must not lie across a
//! reconnect: a flush that the next server answers covers no write that the last server had (C2). The client cannot
//! know which writes were lost, and their memory has gone back to their owners, so they cannot be sent again: the flush
//! fails.
//!
//! Owns the *marks* of that record, under one lock for all rings. The lock is taken for each batch of replies in which
//! writes end, for flushes, and when connections come and go; never for reads.
//!
//! Invariants:
//! - S1: `acked` grows before the first write of a batch of replies ends; `clean` is a value that `acked` had when a
//!   flush was sent that succeeded. While they differ, there are writes that a server may lose.
//! - S2: a ring that loses a connection of the present *epoch* begins the next. Replies to writes and flushes on a
//!   connection of an earlier epoch are void: their ring reconnects and sends the requests again. Otherwise a write
//!   could end, by bytes that the old server had still sent, after another ring has checked for lost writes.
//! - S3: when an epoch ends with `acked` and `clean` apart, `losses` grows. Each ring's next flush fails once for it; a
//!   ring that joins later fails one only if no flush has failed for it yet.
//! - S4: all connections of an epoch are with one run of the server: a server that ends closes its connections before
//!   it can be started again. A connection that comes up checks whether the server has closed any earlier connection of
//!   the epoch, and if so ends the epoch, because the ring of the closed connection may not have seen that yet.
//! - S5: while `acked` and `clean` are apart, some connection of the epoch is open: a ring that leaves hands over one
//!   of its own, unless another is open or the epoch ends. A ring that joins takes it over, since some servers serve
//!   one client at a time.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use sheave::Status;
use sheave_nbd::wire::tflag;

use crate::control::{Control, First};
use crate::negotiation::{Export, Wish};
use crate::request::Covers;
use crate::socket;
use crate::spec::Target;

/// Most notices that are kept. Further ones would repeat them.
const MAX_NOTICES: usize = 32;
/// Abilities that an export must still have after a reconnect, if it had them.
const ABILITIES: u16 =
    tflag::SEND_FLUSH | tflag::SEND_FUA | tflag::SEND_TRIM | tflag::SEND_WRITE_ZEROES | tflag::CAN_MULTI_CONN;

/// Cause of giving up a connection of an earlier epoch.
pub(crate) const STALE: &str = "another ring has lost its own";

/// Cause of ending an epoch because the server has closed a connection that its ring has not looked at.
const ENDED: &str = "the server has ended one that waited";

/// The epoch of the connection that the device is opened by.
pub(crate) const FIRST_EPOCH: u64 = 0;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) target: Target,
    pub(crate) export: Export,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    epoch: u64,
    acked: u64,
    clean: u64,
    losses: u64,
    /// Value of `losses` up to which some flush has failed.
    told: u64,
    rings: u32,
    /// The connections of this epoch that came up (S4).
    up: Vec<Weak<OwnedFd>>,
    /// A connection without a ring, and its epoch: the one that the device was opened by, or that a ring left (S5).
    spare: Option<(u64, First)>,
    /// A connection for block status, made when the first one cannot serve for it.
    control: Option<Control>,
    notices: Vec<String>,
}

/// Refusal of a second ring, because flushes on one connection do not cover writes on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnlyOne;

impl Shared {
    pub(crate) fn new(target: Target, export: Export, first: First, notices: Vec<String>) -> Shared {
        let up = vec![Arc::downgrade(&first.fd)];
        let state = State { spare: Some((FIRST_EPOCH, first)), up, notices, ..State::default() };
        Shared { target, export, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns true if a flush on one connection covers the writes on all others.
    pub(crate) fn is_multi(&self) -> bool {
        self.target.assume_multi || self.read_only() || self.export.has(tflag::CAN_MULTI_CONN)
    }

    pub(crate) fn read_only(&self) -> bool {
        self.target.read_only || self.export.has(tflag::READ_ONLY)
    }

    /// Admits a ring. Returns the value of `losses` up to which some flush has failed, so that this ring need not (S3).
    pub(crate) fn join(&self) -> Result<u64, OnlyOne> {
        let multi = self.is_multi();
        let mut state = self.lock();
        if state.rings > 0 && !multi {
            return Err(OnlyOne);
        }
        state.rings += 1;
        Ok(state.told) // S3
    }

    /// Called by a ring that leaves. Returns true if it must hand over a connection (S5). `ours` returns true for
    /// its own connections.
    pub(crate) fn must_leave_one(&self, epoch: u64, ours: impl Fn(&Arc<OwnedFd>) -> bool) -> bool {
        let mut state = self.lock();
        let is_ours = |fd: &Weak<OwnedFd>| fd.upgrade().is_none_or(|fd| ours(&fd));
        let last = state.up.iter().all(is_ours);
        let must = last && state.epoch == epoch && state.acked != state.clean;
        if !must {
            state.up.retain(|fd| !is_ours(fd)); // The next ring that leaves must not count them.
        }
        must
    }

    /// Keeps a connection that a leaving ring hands over.
    pub(crate) fn keep(&self, epoch: u64, spare: First) {
        self.lock().spare = Some((epoch, spare));
    }

    pub(crate) fn leave(&self) {
        self.lock().rings -= 1;
    }

    /// Takes the spare connection with its epoch, if that is the present one.
    pub(crate) fn take_spare(&self) -> Option<(u64, First)> {
        let mut state = self.lock();
        let spare = state.spare.take();
        spare.filter(|&(epoch, _)| state.epoch == epoch)
    }

    /// Takes a connection for block status, if one is idle. The bool is true if it is the first one.
    pub(crate) fn take_control(&self) -> Option<(Control, bool)> {
        let mut state = self.lock();
        // A connection that a ring left has not negotiated the context, and one that S5 needs is left alone.
        let serves = |(epoch, first): &mut (u64, First)| *epoch == FIRST_EPOCH && first.allocation.is_some();
        if state.epoch == FIRST_EPOCH
            && state.acked == state.clean
            && let Some((_, first)) = state.spare.take_if(serves)
        {
            return Control::of_first(first, &self.target).ok().map(|control| (control, true));
        }
        state.control.take().map(|control| (control, false))
    }

    /// Returns a connection to [`Shared::take_control`]. The first one becomes the spare connection of the next ring.
    pub(crate) fn give_control(&self, control: Control, is_first: bool) {
        if !is_first {
            self.lock().control = Some(control);
        } else if let Ok(first) = control.into_first() {
            let mut state = self.lock();
            if state.epoch == FIRST_EPOCH && state.spare.is_none() {
                state.up.push(Arc::downgrade(&first.fd));
                state.spare = Some((FIRST_EPOCH, first));
            }
        }
    }

    /// Returns the requirement for TLS of a reconnect: if the first connection used TLS, all do.
    pub(crate) fn wish(&self) -> Wish {
        if self.export.secure { Wish::Require } else { self.target.wish() }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Adds a connection that has negotiated its export to its epoch, unless that is over (S4).
    ///
    /// # Errors
    ///
    /// The cause for which the epoch is over. The connection must be given up.
    pub(crate) fn come_up(&self, epoch: u64, fd: &Arc<OwnedFd>) -> Result<(), &'static str> {
        let mut state = self.lock();
        if state.epoch != epoch {
            return Err(STALE);
        }
        if state.has_ended() {
            return Err(ENDED);
        }
        state.up.push(Arc::downgrade(fd));
        Ok(())
    }

    /// Counts writes that were answered and are not durable. Returns false if the epoch is over; the replies are void
    /// then (S2).
    #[must_use]
    pub(crate) fn acked(&self, epoch: u64) -> bool {
        let mut state = self.lock();
        state.acked += 1;
        state.epoch == epoch
    }

    /// Returns the mark of a flush that is about to be sent.
    pub(crate) fn flush_begins(&self) -> Covers {
        Covers(self.lock().acked)
    }

    /// Records a successful flush reply. Returns false if the connection was replaced since the flush was sent; the
    /// flush then proves nothing (S2).
    #[must_use]
    pub(crate) fn flush_ended(&self, covers: Covers, epoch: u64) -> bool {
        let mut state = self.lock();
        if state.epoch != epoch {
            return false;
        }
        state.clean = state.clean.max(covers.0); // S1
        true
    }

    /// Ends the epoch, unless it has ended already. Called when a connection of the epoch is lost (S2).
    pub(crate) fn lost(&self, epoch: u64, why: &str) {
        let mut state = self.lock();
        if state.epoch != epoch {
            return;
        }
        state.epoch += 1;
        state.up.clear();
        state.spare = None;
        let words = self.target.words();
        let mut text = format!("{words}: the connection was lost, as {why}; it is made again");
        if state.acked != state.clean {
            state.losses += 1; // S3
            state.clean = state.acked;
            text += ". Writes that had ended and were not flushed may be lost, so the next flush fails";
        }
        state.notice(text);
    }

    /// Returns the status of a flush that is not sent, or `None` if it must be sent. It fails if writes may be lost
    /// (S3); it succeeds if the server has no flush. Without flushes `clean` never grows, so each loss after a write
    /// fails the next flush.
    pub(crate) fn flush_here(&self, seen: &mut u64) -> Option<Status> {
        let sent = self.export.has(tflag::SEND_FLUSH);
        if !sent {
            // Nothing is sent, so check here that the server is still there.
            let mut state = self.lock();
            let (ended, epoch) = (state.has_ended(), state.epoch);
            drop(state);
            if ended {
                self.lost(epoch, ENDED);
            }
        }
        if self.must_fail(seen) { Some(Status::IoErr) } else { (!sent).then_some(Status::Ok) }
    }

    /// Returns true if a ring's flush must fail for losses after `seen`, and sets `seen` to all losses (S3).
    pub(crate) fn must_fail(&self, seen: &mut u64) -> bool {
        let mut state = self.lock();
        let fails = *seen != state.losses;
        *seen = state.losses;
        state.told = state.told.max(state.losses * u64::from(fails));
        fails
    }

    /// Returns the difference from the export that the device was opened on, if there is one (C4).
    pub(crate) fn differs(&self, now: &Export) -> Option<String> {
        let was = &self.export;
        let gone = was.flags & ABILITIES & !now.flags;
        let read_only = now.has(tflag::READ_ONLY) && !was.has(tflag::READ_ONLY);
        if now.size != was.size {
            return Some(format!("it had {} bytes and now has {}", was.size, now.size));
        }
        if was.name.is_some() && now.name != was.name {
            let name = |export: &Export| export.name.clone().unwrap_or_default();
            return Some(format!("it was called '{}' and now '{}'", name(was), name(now)));
        }
        if read_only || gone != 0 {
            return Some(format!("it had the abilities {:#x} and now has {:#x}", was.flags, now.flags));
        }
        let blocks = now.min_block > was.min_block.max(512) || now.max_payload < was.max_payload;
        blocks.then(|| format!("it took blocks of {} and now takes {}", was.min_block, now.min_block))
    }

    pub(crate) fn notice(&self, text: String) {
        self.lock().notice(text);
    }

    pub(crate) fn notices(&self) -> Vec<String> {
        self.lock().notices.clone()
    }
}

impl State {
    /// Returns true if the server has closed a connection of this epoch (S4).
    fn has_ended(&mut self) -> bool {
        self.up.retain(|fd| fd.strong_count() > 0);
        let up: Vec<Arc<OwnedFd>> = self.up.iter().filter_map(Weak::upgrade).collect();
        socket::any_ended(&up)
    }

    fn notice(&mut self, text: String) {
        if self.notices.len() < MAX_NOTICES && !self.notices.contains(&text) {
            self.notices.push(text);
        }
    }
}

#[cfg(test)]
mod tests;
