//! The door: clients that were accepted and have no place.
//!
//! Owns the list of those that wait, and who of them is next or is turned away (D3 of
//! [`places`](super::places), which calls this). Does not own the places.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::movement::Idle;
use crate::shares::Peer;

/// Clients that wait for a place, of all threads together. Each has a descriptor.
const MOST_WAITING: usize = 128;

/// A client that was accepted and waits for a place.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) fd: OwnedFd,
    pub(super) listener: usize,
    pub(super) peer: Peer,
}

/// Those who wait.
#[derive(Debug, Default)]
pub(super) struct Door {
    /// The oldest first.
    pub(super) waiting: Vec<Waiting>,
    /// When to look who has nothing to do, while all places are taken.
    pub(super) look_at: Option<Instant>,
    /// Since when connections have nothing to do, while others wait.
    pub(super) idle: Vec<Idle>,
}

/// Places by peer.
pub(super) type Places = BTreeMap<Peer, usize>;

impl Door {
    /// The one that has the next place that is free: of the peer with fewest, the oldest.
    pub(super) fn first(&self, places: &Places) -> Option<usize> {
        let of = |at: &usize| places.get(&self.waiting[*at].peer).copied().unwrap_or(0);
        (0..self.waiting.len()).min_by_key(of)
    }

    /// A connection has another client, or none.
    pub(super) fn forget(&mut self, conn: usize) {
        self.idle.get_mut(conn).into_iter().for_each(|idle| *idle = Idle::default());
    }

    /// Those who wait are told that there is nothing to wait for.
    pub(super) fn close(&mut self) {
        self.waiting.clear();
    }

    /// Forgets those that have hung up.
    pub(super) fn forget_gone(&mut self) {
        self.waiting.retain(|waiting| !has_hung_up(&waiting.fd));
    }

    /// Turns one away if too many wait for the places of a reactor, of which peers have these; whether it did (D3).
    pub(super) fn turn_away(&mut self, mut places: Places, most: usize, reactors: usize) -> bool {
        if self.waiting.len() <= (most / 8).clamp(1, MOST_WAITING.div_ceil(reactors)) {
            return false;
        }
        self.waiting.iter().for_each(|waiting| *places.entry(waiting.peer).or_default() += 1);
        let most = (0..self.waiting.len()).max_by_key(|at| places[&self.waiting[*at].peer]);
        most.into_iter().for_each(|at| drop(self.waiting.remove(at)));
        true
    }
}

/// Returns whether the other end of a socket has closed.
fn has_hung_up(fd: &OwnedFd) -> bool {
    let mut look = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::RDHUP)];
    // Where the kernel cannot say now, it is asked the next time.
    let _ = poll(&mut look, Some(&Timespec::default()));
    !look[0].revents().is_empty()
}
