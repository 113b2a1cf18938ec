//! Fair shares of a bounded memory: who may hold how much of it.
//!
//! Owns the account of bytes that are held, and the line of those who wait for some. Does not own the memory itself
//! (`payload`), nor what it is for: a client is a number, and stands for any session that is served (NBD today). Each
//! reactor has one account, of its part of the server's memory.
//!
//! The memory has three parts. An eighth is divided evenly among all places for clients, so that each has a part of its
//! own. Room for one request of the largest size is for whoever is first in line. The rest is shared: each of the
//! clients that hold more than their own parts may hold as much as is left over then, divided by their number, and all
//! clients of one peer, or of one export, three times as much as is left over. So, however many hold however much,
//! something is left for the next one, and what somebody leaves unused is for those who want it.
//!
//! Invariants:
//! - F1. All that is held is never more than the memory has, except for one request that is larger than all of it and
//!   is granted when nothing is held.
//! - F2. A client that holds no more than its own part with what it asks for gets it, whatever others hold. Where the
//!   memory has less than [`MIN_OWN`] for each place, that holds as long as F1 does.
//! - F3. When `n` clients hold more than their own parts then, a client gets of the shared part what leaves `n` times
//!   as much of it over as the client holds. So `n` that take what they can leave one part of `n + 1` over, whoever was
//!   first. While there are clients of several peers, those of one peer hold at most three times what is left over; the
//!   same for exports.
//! - F4. The first in line that F3 refuses gets the room of the largest request, for one request, until that is given
//!   back. A request that has this room finds there all that it still needs: a write that grows is never stuck because
//!   others grow too.
//! - F5. Who was refused is in line until it gets what it asks for or leaves, in the order in which it was refused.
//! - F6. The sums of a peer and of an export are the sums of what their clients hold.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

/// The memory divided by this is the clients' own parts, all together.
const OWN: u64 = 8;
/// Least that is a client's own: the smallest request.
const MIN_OWN: u64 = 8 << 10;
/// Most that is a client's own.
const MAX_OWN: u64 = 64 << 10;
/// The clients of one peer or export hold at most so many times what is left over for others.
const PARTY: u64 = 3;

/// The other end of a connection, as far as clients of one peer are to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// An address; of IPv6 its network, as one host has all addresses of one.
    Address(IpAddr),
    /// A user of this machine.
    User(u32),
    /// The kernel does not tell.
    Unknown,
}

impl Peer {
    /// The peer with this address.
    pub(crate) fn at(address: IpAddr) -> Peer {
        let IpAddr::V6(six) = address.to_canonical() else { return Peer::Address(address.to_canonical()) };
        Peer::Address(Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX)).into())
    }
}

/// Clients that share: those of a peer, or of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Peer(Peer),
    Export(u32),
}

impl Party {
    /// The number of its kind.
    fn kind(self) -> usize {
        match self {
            Party::Peer(_) => 0,
            Party::Export(_) => 1,
        }
    }
}

/// What a party holds. Without clients it is none, and its place is for another.
#[derive(Debug)]
struct Sum {
    party: Party,
    clients: usize,
    held: u64,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    held: u64,
    /// The places of its parties among the sums.
    sums: [usize; 2],
}

/// A wish for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Bytes now.
    pub(crate) now: u64,
    /// Bytes until the request has all that it needs, those of `now` among them.
    pub(crate) until_whole: u64,
    /// The request has the room of the largest one.
    pub(crate) has_room: bool,
}

/// Which memory was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// The client's own, or of the shared part.
    Share,
    /// Of the room for one request of the largest size.
    Room,
}

/// The account.
#[derive(Debug)]
pub(crate) struct Shares {
    most: u64,
    /// Bytes that each client may hold in any case.
    own: u64,
    /// Bytes of the room for one request of the largest size.
    room: u64,
    /// Bytes of the shared part.
    shared: u64,
    held: u64,
    /// Clients that hold more than their own part.
    large: u64,
    /// Bytes of the room that are held, when a request has it.
    in_room: Option<u64>,
    clients: Vec<Option<Client>>,
    sums: Vec<Sum>,
    /// Parties of each kind that have clients.
    parties: [usize; 2],
    /// Who was refused, and what (F5).
    line: VecDeque<(usize, Wish)>,
    /// Somebody in line might be granted what was refused before.
    freed: bool,
}

impl Shares {
    /// An account of `most` bytes for so many clients, whose requests need at most `largest`.
    pub(crate) fn new(most: u64, places: usize, largest: u64) -> Shares {
        let own = (most / OWN / (places as u64).max(1)).clamp(MIN_OWN, MAX_OWN);
        let room = largest.min(most / 2);
        let shared = most - most / OWN - room;
        let (clients, sums, line) = Default::default();
        let (held, large, in_room, parties, freed) = (0, 0, None, [0; 2], false);
        Shares { most, own, room, shared, held, large, in_room, clients, sums, parties, line, freed }
    }

    /// A client has come.
    pub(crate) fn enter(&mut self, client: usize, peer: Peer, export: u32) {
        if self.clients.len() <= client {
            self.clients.resize_with(client + 1, || None);
        }
        debug_assert!(self.clients[client].is_none(), "F6: a client counts once");
        let sums = [Party::Peer(peer), Party::Export(export)].map(|party| self.sum_of(party));
        self.clients[client] = Some(Client { held: 0, sums });
    }

    /// The place of a party's sum, for one client more.
    fn sum_of(&mut self, party: Party) -> usize {
        let known = self.sums.iter().position(|sum| sum.clients > 0 && sum.party == party);
        let at = known.or_else(|| self.sums.iter().position(|sum| sum.clients == 0)).unwrap_or(self.sums.len());
        if at == self.sums.len() {
            self.sums.push(Sum { party, clients: 0, held: 0 });
        }
        if known.is_none() {
            self.sums[at].party = party;
            self.parties[party.kind()] += 1;
        }
        self.sums[at].clients += 1;
        at
    }

    /// A client that holds nothing any more has gone.
    pub(crate) fn leave(&mut self, client: usize) {
        let Some(Client { held, sums }) = self.clients.get_mut(client).and_then(Option::take) else { return };
        debug_assert_eq!(held, 0, "F6: what a client holds is given back before it leaves");
        for at in sums {
            let sum = &mut self.sums[at];
            sum.clients -= 1;
            self.parties[sum.party.kind()] -= usize::from(sum.clients == 0);
        }
        self.line.retain(|(other, _)| *other != client);
        self.freed = true;
    }

    /// Bytes that a client holds.
    pub(crate) fn held(&self, client: usize) -> u64 {
        self.clients.get(client).and_then(Option::as_ref).map_or(0, |client| client.held)
    }

    /// Whether a client holds memory that others may need: more than its own part.
    pub(crate) fn holds_what_others_need(&self, client: usize) -> bool {
        self.held(client) > self.own
    }

    /// Bytes that every client may hold, whatever others do (F2).
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// Grants a client what it asks for, or puts it in line.
    pub(crate) fn ask(&mut self, client: usize, wish: Wish) -> Option<Granted> {
        let granted = self.judge(client, wish);
        // With nobody in line, which is the rule, there is nothing to look for.
        let place = self.line.iter().position(|(other, _)| *other == client);
        match (granted, place) {
            (Some(_), Some(at)) => {
                self.line.remove(at);
                // Another is first in line now.
                self.freed |= at == 0;
            }
            (None, None) => self.line.push_back((client, wish)),
            (None, Some(at)) => self.line[at].1 = wish,
            (Some(_), None) => {}
        }
        if granted? == Granted::Room {
            self.in_room = Some(self.in_room.unwrap_or(0) + wish.now);
        }
        self.count(client, |held| *held += wish.now);
        granted
    }

    fn judge(&self, client: usize, wish: Wish) -> Option<Granted> {
        let of = self.clients.get(client).copied().flatten()?;
        let Wish { now, until_whole, has_room } = wish;
        let in_room = self.in_room.unwrap_or(0);
        if has_room {
            debug_assert!(in_room + now <= self.room, "F4: the room has all that its request needs");
            return Some(Granted::Room);
        }
        // F1: the room of the largest request is not touched by others.
        let (held, outside) = (of.held + now, self.held - in_room + now);
        if self.held == 0 || (held <= self.own && outside <= self.most - self.room) {
            return Some(Granted::Share);
        }
        let left = self.shared.checked_sub(outside);
        let large = self.large + u64::from(of.held <= self.own);
        if left.is_some_and(|left| held * large <= left && of.sums.iter().all(|at| self.leaves(*at, now, left))) {
            return Some(Granted::Share);
        }
        let is_first = self.line.front().is_none_or(|(first, _)| *first == client);
        let fits = until_whole <= self.room && self.held + until_whole <= self.most;
        (is_first && self.in_room.is_none() && fits).then_some(Granted::Room)
    }

    /// Whether a party may hold so much more when so much is left over then (F3).
    fn leaves(&self, at: usize, now: u64, left: u64) -> bool {
        let sum = &self.sums[at];
        self.parties[sum.party.kind()] < 2 || sum.held + now <= PARTY * left
    }

    /// A client gives back what a request held, some of which may have been of the room for the largest one.
    pub(crate) fn give(&mut self, client: usize, bytes: u64, of_room: bool) {
        if of_room {
            self.in_room = None;
        }
        self.freed = true;
        self.count(client, |held| *held -= bytes);
    }

    /// Changes what a client holds, and all sums that it is in (F6).
    fn count(&mut self, client: usize, change: impl Fn(&mut u64)) {
        change(&mut self.held);
        if let Some(Some(client)) = self.clients.get_mut(client) {
            self.large -= u64::from(client.held > self.own);
            change(&mut client.held);
            self.large += u64::from(client.held > self.own);
            client.sums.iter().for_each(|at| change(&mut self.sums[*at].held));
        }
    }

    /// Returns whether a client's share has room for so many bytes more now.
    #[cfg(test)]
    pub(crate) fn has_share_for(&self, client: usize, now: u64) -> bool {
        let wish = Wish { now, until_whole: self.most, has_room: false };
        self.judge(client, wish) == Some(Granted::Share)
    }

    /// Whether somebody is in line.
    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Those in line that would be granted what they were refused, in order, when something has changed since they
    /// asked: they ask again.
    pub(crate) fn take_hopeful(&mut self) -> Vec<usize> {
        if !std::mem::take(&mut self.freed) {
            return Vec::new();
        }
        let hopeful = self.line.iter().filter(|(client, wish)| self.judge(*client, *wish).is_some());
        hopeful.map(|(client, _)| *client).collect()
    }
}

#[cfg(test)]
mod tests;
