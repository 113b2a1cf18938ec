//! The state that all rings of a device share: the export, and the record of what a lost connection may have lost.
//!
//! A server may keep acknowledged writes in a cache, and loses them if it dies. So a flush that the next server answers
//! covers no write that the last server had (C2). The client cannot know which writes were lost. Their memory has gone
//! back to the owners, so they cannot be sent again. Therefore such a flush fails.
//!
//! Owns the *marks* of that record, under one lock for all rings. The lock is taken for each batch of replies in which
//! writes end, for flushes, and when connections come and go; never for reads.
//!
//! Invariants:
//! - S1: `acked` grows before the first write of a batch of replies ends. `clean` is the value that `acked` had when
//!   the last successful flush was sent. While they differ, there are writes that a server may lose.
//! - S2: a ring that loses a connection of the present *epoch* begins the next epoch. Replies to writes and flushes on
//!   a connection of an earlier epoch are void: their ring reconnects and sends the requests again. Otherwise a write
//!   could end because of bytes that the old server had still sent, after another ring has checked for lost writes.
//! - S3: when an epoch ends while `acked` and `clean` differ, `losses` grows. The next flush of each ring fails once
//!   for it. A ring that joins later must fail a flush only if no flush has failed for this loss yet.
//! - S4: all connections of an epoch are with one run of the server, because a server that ends closes its connections
//!   before it can be started again. When a connection comes up, it is checked if the server has closed any earlier
//!   connection of the epoch. If so, the epoch ends, because the ring of the closed connection may not have seen that
//!   yet.
//! - S5: while `acked` and `clean` differ, some connection of the epoch is open. A ring that leaves hands over one of
//!   its connections, unless another one is open or the epoch ends. A ring that joins takes it over, because some
//!   servers serve only one client at a time.
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

/// Largest number of notices that are kept. Further ones would repeat them.
const MAX_NOTICES: usize = 32;
/// Abilities that an export must still have after a reconnect, if it had them.
const ABILITIES: u16 =
    tflag::SEND_FLUSH | tflag::SEND_FUA | tflag::SEND_TRIM | tflag::SEND_WRITE_ZEROES | tflag::CAN_MULTI_CONN;

/// Reason for closing a connection of an earlier epoch.
pub(crate) const STALE: &str = "another ring has lost its own";

/// Reason for ending an epoch: the server has closed a connection, and its ring has not noticed that yet.
const ENDED: &str = "the server has ended one that waited";

/// The epoch of the connection with which the device is opened.
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
    /// Value of `losses` for which some flush has already failed.
    told: u64,
    rings: u32,
    /// The connections of this epoch that came up (S4).
    up: Vec<Weak<OwnedFd>>,
    /// A connection without a ring, and its epoch. It is the one with which the device was opened, or one that a ring
    /// left (S5).
    spare: Option<(u64, First)>,
    /// A connection for block status, made when the first one cannot be used for it.
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

    /// Admits a ring. Returns the value of `losses` for which some flush has already failed, so that this ring need not
    /// fail one (S3).
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
    /// connections of that ring.
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

    /// Takes the spare connection and its epoch. Returns `None` if that is not the present epoch.
    pub(crate) fn take_spare(&self) -> Option<(u64, First)> {
        let mut state = self.lock();
        let spare = state.spare.take();
        spare.filter(|&(epoch, _)| state.epoch == epoch)
    }

    /// Takes an idle connection for block status, if there is one. The bool is true if it is the first one.
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

    /// Returns the requirement for TLS of a reconnect. If the first connection used TLS, all connections must.
    pub(crate) fn wish(&self) -> Wish {
        if self.export.secure { Wish::Require } else { self.target.wish() }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Adds a connection whose negotiation has ended to the connections of `epoch`, unless that epoch is over (S4).
    ///
    /// # Errors
    ///
    /// Returns the reason why the epoch has ended. The connection must be closed.
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

    /// Counts writes that were answered but are not durable. Returns false if the epoch has ended, which makes the
    /// replies void (S2).
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

    /// Records a successful reply to a flush. Returns false if the connection was replaced after the flush was sent,
    /// because the flush then proves nothing (S2).
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

    /// Returns the status of a flush that need not be sent, or `None` if it must be sent. The flush fails if writes may
    /// be lost (S3), and succeeds if the server has no flush. Without flushes `clean` never grows, so each loss after a
    /// write fails the next flush.
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

    /// Returns the difference from the export with which the device was opened, or `None` if there is none (C4).
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
mod tests {
    use std::fs::File;
    use std::os::unix::net::{SocketAddr, UnixStream};
    use std::sync::Arc;
    use std::time::Duration;

    use sheave_nbd::handshake::Mode;
    use sheave_nbd::wire::tflag;

    use super::{FIRST_EPOCH, Shared};
    use crate::control::First;
    use crate::negotiation::Export;
    use crate::spec::{Place, Target};

    fn export() -> Export {
        Export {
            size: 1 << 20,
            flags: 1 | tflag::SEND_FLUSH | tflag::CAN_MULTI_CONN,
            mode: Mode::Simple,
            min_block: 1,
            preferred_block: 4096,
            max_payload: 32 << 20,
            name: Some("x".into()),
            allocation: None,
            secure: false,
        }
    }

    fn shared_of(export: Export) -> Shared {
        let target = Target {
            spec: "nbd:unix:/x".into(),
            place: Place::Unix("/x".into(), SocketAddr::from_pathname("/x").expect("a path")),
            others: Vec::new(),
            export: "x".into(),
            connections: 1,
            timeout: Duration::from_secs(1),
            connect: Duration::from_secs(1),
            read_only: false,
            assume_multi: false,
            block_status: true,
            tls: None,
        };
        let fd = Arc::new(File::open("/dev/null").expect("there is one").into());
        let first = First { fd, secure: None, mode: export.mode, allocation: None };
        Shared::new(target, export, first, Vec::new())
    }

    fn shared() -> Shared {
        shared_of(export())
    }

    #[test]
    fn a_loss_without_writes_fails_no_flush() {
        let shared = shared();
        let mut seen = shared.join().expect("room");
        assert!(shared.acked(0));
        let covers = shared.flush_begins();
        assert!(shared.flush_ended(covers, 0));
        shared.lost(0, "it closed");
        assert!(!shared.must_fail(&mut seen));
        assert_eq!(shared.epoch(), 1);
    }

    #[test]
    fn writes_that_ended_and_were_not_flushed_fail_the_next_flush_of_each_ring_once() {
        let shared = shared();
        let (mut one, mut two) = (shared.join().expect("room"), shared.join().expect("room"));
        assert!(shared.acked(0));
        shared.lost(0, "it closed");
        assert!(shared.must_fail(&mut one) && !shared.must_fail(&mut one));
        assert!(shared.must_fail(&mut two) && !shared.must_fail(&mut two));
        let mut late = shared.join().expect("room");
        assert!(!shared.must_fail(&mut late), "it was told");
        assert!(shared.notices().iter().any(|text| text.contains("may be lost, so the next flush fails")));
    }

    #[test]
    fn a_loss_that_failed_no_flush_yet_fails_one_of_a_ring_that_joins_later() {
        let shared = shared();
        shared.join().expect("room");
        assert!(shared.acked(0));
        shared.lost(0, "it closed");
        let mut late = shared.join().expect("room");
        assert!(shared.must_fail(&mut late));
    }

    #[test]
    fn a_write_that_ended_after_a_flush_was_sent_is_not_covered_by_it() {
        let shared = shared();
        let mut seen = shared.join().expect("room");
        assert!(shared.acked(0));
        let covers = shared.flush_begins();
        assert!(shared.acked(0)); // by another connection, while the flush is under way
        assert!(shared.flush_ended(covers, 0));
        shared.lost(0, "it closed");
        assert!(shared.must_fail(&mut seen));
    }

    #[test]
    fn answers_by_connections_of_an_earlier_epoch_count_for_nothing() {
        let shared = shared();
        let mut seen = shared.join().expect("room");
        let covers = shared.flush_begins();
        shared.lost(0, "it closed");
        assert!(!shared.acked(0), "the server that sent it is gone");
        assert!(!shared.flush_ended(covers, 0));
        assert_eq!(shared.epoch(), 1);
        shared.lost(0, "the other ring sees it too");
        assert_eq!(shared.epoch(), 1, "it is the same loss");
        assert!(shared.acked(1));
        shared.lost(1, "and again");
        assert!(shared.must_fail(&mut seen));
    }

    #[test]
    fn a_connection_comes_up_only_in_an_epoch_whose_connections_are_open() {
        let shared = shared();
        let pair = || UnixStream::pair().map(|(ours, theirs)| (Arc::new(ours.into()), theirs)).expect("a pair");
        let ((one, server), (two, _other)) = (pair(), pair());
        shared.come_up(0, &one).expect("the first one is open");
        shared.come_up(0, &two).expect("both are open");
        drop(server);
        assert!(shared.come_up(0, &two).is_err(), "its end was not seen, but is there");
        drop(one);
        shared.come_up(0, &two).expect("what its ring has closed says nothing");
        shared.lost(0, "it closed");
        assert!(shared.come_up(0, &two).is_err(), "it began before the loss");
        shared.come_up(1, &two).expect("the next epoch has none yet");
    }

    #[test]
    fn the_last_ring_with_connections_leaves_one_while_writes_are_not_flushed() {
        let shared = shared();
        drop(shared.take_spare());
        let pair = || UnixStream::pair().map(|(ours, theirs)| (Arc::new(ours.into()), theirs)).expect("a pair");
        let ((one, _of_one), (two, _of_two)) = (pair(), pair());
        shared.come_up(0, &one).expect("none has ended");
        shared.come_up(0, &two).expect("none has ended");
        assert!(shared.acked(0));
        assert!(!shared.must_leave_one(0, |fd| Arc::ptr_eq(fd, &one)), "the other is there");
        assert!(shared.must_leave_one(0, |fd| Arc::ptr_eq(fd, &two)), "one does not count any more");
        let covers = shared.flush_begins();
        assert!(shared.flush_ended(covers, 0));
        assert!(!shared.must_leave_one(0, |fd| Arc::ptr_eq(fd, &two)), "nothing can be lost");
    }

    #[test]
    fn only_the_first_epoch_has_the_first_connection_and_gives_it_once() {
        let shared = shared();
        assert!(shared.take_spare().is_some() && shared.take_spare().is_none());
        let other = self::shared();
        other.lost(FIRST_EPOCH, "it closed");
        assert!(other.take_spare().is_none());
    }

    #[test]
    fn a_server_without_multi_conn_gives_one_ring_a_connection() {
        let mut export = export();
        export.flags &= !tflag::CAN_MULTI_CONN;
        let shared = shared_of(export.clone());
        shared.join().expect("the first");
        assert!(shared.join().is_err());
        shared.leave();
        shared.join().expect("the first has gone");
        export.flags |= tflag::READ_ONLY;
        let shared = shared_of(export);
        shared.join().and_then(|_| shared.join()).expect("nothing is written");
    }

    #[test]
    fn an_export_that_is_another_is_told_by_what_differs() {
        let shared = shared();
        assert_eq!(shared.differs(&export()), None);
        let more = Export { flags: export().flags | tflag::SEND_TRIM, mode: Mode::Extended, ..export() };
        assert_eq!(shared.differs(&more), None);
        for (other, says) in [
            (Export { size: 1 << 21, ..export() }, "1048576 bytes and now has 2097152"),
            (Export { name: Some("y".into()), ..export() }, "called 'x' and now 'y'"),
            (Export { flags: 1 | tflag::CAN_MULTI_CONN, ..export() }, "abilities"),
            (Export { flags: export().flags | tflag::READ_ONLY, ..export() }, "abilities"),
            (Export { min_block: 4096, ..export() }, "blocks of 1 and now takes 4096"),
        ] {
            let why = shared.differs(&other).expect("another");
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn notices_are_bounded() {
        let shared = shared();
        (0..1000).for_each(|number| shared.notice(number.to_string()));
        assert_eq!(shared.notices().len(), super::MAX_NOTICES);
    }
}
