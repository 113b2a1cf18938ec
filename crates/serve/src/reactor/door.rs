//! The door: clients that were accepted and have no place.
//!
//! Owns the list of waiting clients and the idle times of the others, and chooses the client that gets the next place
//! or is turned away (D3 of [`places`](super::places), the caller). Does not own the places.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::shares::Peer;

/// Most clients that wait for a place, over all reactors together. Each takes a descriptor.
const MOST_WAITING: usize = 128;

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) fd: OwnedFd,
    pub(super) listener: usize,
    pub(super) peer: Peer,
}

#[derive(Debug, Default)]
pub(super) struct Door {
    /// Waiting clients, the oldest first.
    pub(super) waiting: Vec<Waiting>,
    /// Time of the next check for idle clients, while all places are taken.
    pub(super) look_at: Option<Instant>,
    /// By connection: the time since which it has had nothing to do, measured while clients wait.
    pub(super) idle: Vec<Idle>,
}

/// Number of places that each peer has.
pub(super) type Places = BTreeMap<Peer, usize>;

impl Door {
    /// Returns the index of the client that gets the next free place: of the clients of the peer with the fewest
    /// places, the oldest.
    pub(super) fn first(&self, places: &Places) -> Option<usize> {
        let of = |at: &usize| places.get(&self.waiting[*at].peer).copied().unwrap_or(0);
        // `min_by_key` returns the first of equal elements, which is the oldest.
        (0..self.waiting.len()).min_by_key(of)
    }

    /// Resets the idle time of a connection number, which has another client now or none.
    pub(super) fn forget(&mut self, conn: usize) {
        self.idle.get_mut(conn).into_iter().for_each(|idle| *idle = Idle::default());
    }

    /// Closes all waiting clients' sockets.
    pub(super) fn close(&mut self) {
        self.waiting.clear();
    }

    /// Removes clients that have hung up.
    pub(super) fn forget_gone(&mut self) {
        self.waiting.retain(|waiting| !has_hung_up(&waiting.fd));
    }

    /// Turns one client away if more wait than a reactor with `most` places allows (D3). `places` are the places by
    /// peer. Returns true if a client was turned away.
    pub(super) fn turn_away(&mut self, mut places: Places, most: usize, reactors: usize) -> bool {
        if self.waiting.len() <= (most / 8).clamp(1, MOST_WAITING.div_ceil(reactors)) {
            return false;
        }
        self.waiting.iter().for_each(|waiting| *places.entry(waiting.peer).or_default() += 1);
        // `max_by_key` returns the last of equal elements, which is the newest.
        let most = (0..self.waiting.len()).max_by_key(|at| places[&self.waiting[*at].peer]);
        most.into_iter().for_each(|at| drop(self.waiting.remove(at)));
        true
    }
}

/// Time since which a client's mark (`Conn::mark`) has not changed.
#[derive(Debug, Default)]
pub(super) struct Idle {
    mark: Option<(u64, u64, u32)>,
    since: Option<Instant>,
}

impl Idle {
    /// Compares `mark` with that of the last call. Returns the time since which the client has had nothing to do;
    /// `None` while it has (`mark` is `None`).
    pub(super) fn look(&mut self, mark: Option<(u64, u64, u32)>, now: Instant) -> Option<Instant> {
        if mark.is_none() || mark != self.mark {
            (self.mark, self.since) = (mark, mark.map(|_| now));
        }
        self.since
    }
}

/// Returns true if the other end of a socket has closed.
pub(super) fn has_hung_up(fd: &OwnedFd) -> bool {
    let mut look = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::RDHUP)];
    // If the poll fails, the next call looks again.
    let _ = poll(&mut look, Some(&Timespec::default()));
    !look[0].revents().is_empty()
}
