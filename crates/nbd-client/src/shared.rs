//! What all rings of a device share: the export, and what a lost connection may have lost.
//!
//! A server may keep acknowledged writes in a cache, and a server that dies loses them. So a flush must never lie
//! across a reconnect: one that the next server answers covers nothing that the last one had (C2). Nobody knows which
//! writes were lost, and their memory has gone back to who wrote, so they cannot be sent again: the flush fails.
//!
//! Owns the *marks* by which that is known, under one lock for all rings. It is taken for each batch of replies in
//! which writes end, for flushes, and when connections come and go; never for reads.
//!
//! Invariants:
//! - S1: `acked` grows before the first write of a batch of replies ends; `clean` is a value that it had when a flush
//!   was sent that ended well. Where they differ, there are writes that a server may lose.
//! - S2: whoever loses a connection of the present *epoch* begins the next. Replies to writes and flushes that came by
//!   a connection of an earlier epoch count for nothing: their ring makes its connections anew, and asks again.
//!   Otherwise a write could end, by bytes that the old server still had sent, after another ring has looked whether
//!   it may be lost.
//! - S3: when an epoch ends with `acked` and `clean` apart, `losses` grows. Each ring's next flush fails once for it;
//!   and that of a ring which comes later, if none has failed yet.
//! - S4: the connections of an epoch are with one life of the server. A connection that comes up looks whether one that
//!   was up before has ended, of whichever ring, and the epoch with it; for its ring may not have seen it yet. A server
//!   that ends closes its connections before it can be started again.
//! - S5: while `acked` and `clean` are apart, some connection of the epoch is open: a ring that goes leaves one of its
//!   own behind, unless another is there, or the epoch ends. A ring that comes takes it, for a server may serve one
//!   client.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use sheave::Status;
use sheave_nbd::wire::tflag;

use crate::control::{Control, First};
use crate::negotiation::{Export, Wish};
use crate::request::Covers;
use crate::socket;
use crate::spec::Target;

/// Most notices that are kept: what comes then is more of the same.
const MAX_NOTICES: usize = 32;
/// What an export must be able to do again, once it could.
const ABILITIES: u16 =
    tflag::SEND_FLUSH | tflag::SEND_FUA | tflag::SEND_TRIM | tflag::SEND_WRITE_ZEROES | tflag::CAN_MULTI_CONN;

/// Why a connection of an earlier epoch is lost.
pub(crate) const STALE: &str = "another ring has lost its own";

/// Why an epoch ends whose connections their rings have not looked at.
const ENDED: &str = "the server has ended one that waited";

/// The epoch of the connection that the device is opened by.
pub(crate) const FIRST_EPOCH: u64 = 0;

/// What the rings of a device share.
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
    /// Losses that a failed flush has told of.
    told: u64,
    rings: u32,
    /// The connections of this epoch that came up (S4).
    up: Vec<Weak<OwnedFd>>,
    /// A connection that no ring has, and its epoch: that which the device was opened by, or that a ring left (S5).
    spare: Option<(u64, First)>,
    /// The one that asks where data is, when that which the device was opened by does not.
    control: Option<Control>,
    notices: Vec<String>,
}

/// A ring beside which there may be no other.
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

    /// Whether a flush on one connection covers what was written by another.
    pub(crate) fn is_multi(&self) -> bool {
        self.target.assume_multi || self.read_only() || self.export.has(tflag::CAN_MULTI_CONN)
    }

    pub(crate) fn read_only(&self) -> bool {
        self.target.read_only || self.export.has(tflag::READ_ONLY)
    }

    /// A ring comes; what it has heard of losses.
    pub(crate) fn join(&self) -> Result<u64, OnlyOne> {
        let multi = self.is_multi();
        let mut state = self.lock();
        if state.rings > 0 && !multi {
            return Err(OnlyOne);
        }
        state.rings += 1;
        Ok(state.told) // S3
    }

    /// A ring is about to go that has connections of this epoch; whether it must leave one (S5).
    pub(crate) fn must_leave_one(&self, epoch: u64, ours: impl Fn(&Arc<OwnedFd>) -> bool) -> bool {
        let mut state = self.lock();
        let is_ours = |fd: &Weak<OwnedFd>| fd.upgrade().is_none_or(|fd| ours(&fd));
        let last = state.up.iter().all(is_ours);
        let must = last && state.epoch == epoch && state.acked != state.clean;
        if !must {
            state.up.retain(|fd| !is_ours(fd)); // So that the next ring which goes does not rely on them.
        }
        must
    }

    /// Takes the connection that a ring leaves.
    pub(crate) fn keep(&self, epoch: u64, spare: First) {
        self.lock().spare = Some((epoch, spare));
    }

    /// A ring goes.
    pub(crate) fn leave(&self) {
        self.lock().rings -= 1;
    }

    /// A connection that no ring has, once, and only in its epoch, which comes with it.
    pub(crate) fn take_spare(&self) -> Option<(u64, First)> {
        let mut state = self.lock();
        let spare = state.spare.take();
        spare.filter(|&(epoch, _)| state.epoch == epoch)
    }

    /// A connection that can be asked where data is, if there is one that is of no other use now; and whether it is the
    /// first.
    pub(crate) fn take_control(&self) -> Option<(Control, bool)> {
        let mut state = self.lock();
        // One that a ring has left was not asked for the context, and one that S5 wants is left alone.
        let serves = |(epoch, first): &mut (u64, First)| *epoch == FIRST_EPOCH && first.allocation.is_some();
        if state.epoch == FIRST_EPOCH
            && state.acked == state.clean
            && let Some((_, first)) = state.spare.take_if(serves)
        {
            return Control::of_first(first, &self.target).ok().map(|control| (control, true));
        }
        state.control.take().map(|control| (control, false))
    }

    /// Gives it back; the first one to whichever ring comes.
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

    /// Whether a connection that is made again uses TLS: if the first one did, none goes without.
    pub(crate) fn wish(&self) -> Wish {
        if self.export.secure { Wish::Require } else { self.target.wish() }
    }

    /// The present epoch, for connections that are made now.
    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// A connection has its export. It is one of this epoch, unless that is over (S4).
    ///
    /// # Errors
    ///
    /// Why the epoch is over: the connection is to be lost.
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

    /// Writes were answered that are not durable; false when they count for nothing (S2).
    #[must_use]
    pub(crate) fn acked(&self, epoch: u64) -> bool {
        let mut state = self.lock();
        state.acked += 1;
        state.epoch == epoch
    }

    /// A flush is about to be sent.
    pub(crate) fn flush_begins(&self) -> Covers {
        Covers(self.lock().acked)
    }

    /// A flush was answered, and well; false when that counts for nothing (S2).
    #[must_use]
    pub(crate) fn flush_ended(&self, covers: Covers, epoch: u64) -> bool {
        let mut state = self.lock();
        if state.epoch != epoch {
            return false;
        }
        state.clean = state.clean.max(covers.0); // S1
        true
    }

    /// A connection of this epoch is lost (S2).
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

    /// How a flush ends that is not to be sent: it must fail (S3), or the server has none. Nothing makes `clean` grow
    /// there, so that each loss after a write fails the next flush.
    pub(crate) fn flush_here(&self, seen: &mut u64) -> Option<Status> {
        let sent = self.export.has(tflag::SEND_FLUSH);
        if !sent {
            // Nobody is asked, so it is looked whether the server is there.
            let mut state = self.lock();
            let (ended, epoch) = (state.has_ended(), state.epoch);
            drop(state);
            if ended {
                self.lost(epoch, ENDED);
            }
        }
        if self.must_fail(seen) { Some(Status::IoErr) } else { (!sent).then_some(Status::Ok) }
    }

    /// Whether a flush of a ring that has heard of so many losses must fail; it has heard of all afterwards (S3).
    pub(crate) fn must_fail(&self, seen: &mut u64) -> bool {
        let mut state = self.lock();
        let fails = *seen != state.losses;
        *seen = state.losses;
        state.told = state.told.max(state.losses * u64::from(fails));
        fails
    }

    /// Why this is not the export that the device was opened on (C4).
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

    /// Something that the user should know.
    pub(crate) fn notice(&self, text: String) {
        self.lock().notice(text);
    }

    pub(crate) fn notices(&self) -> Vec<String> {
        self.lock().notices.clone()
    }
}

impl State {
    /// Whether the server has ended a connection of this epoch (S4).
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
