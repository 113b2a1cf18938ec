//! Fair shares of a bounded memory: the limit of what each client may hold.
//!
//! Owns the account of held bytes, and the line of clients that wait for some. Does not own the memory itself
//! (`payload`), nor its use: a client is a number, and stands for any session that is served (NBD today). Each reactor
//! has one account, of its part of the server's memory.
//!
//! The memory has three parts. An eighth is divided evenly among all places for clients, so that each has a part of its
//! own. Room for one request of the largest size goes to the first in line. The rest is shared by the clients that hold
//! more than their own parts: each of them may hold as much as would then be left over, divided by the number of such
//! clients; all clients of one peer, or of one export, may together hold three times as much as would be left over.
//! Thus, however many clients hold however much, something is left for the next one, and memory that one leaves unused
//! is available to others.
//!
//! Invariants:
//! - F1. The bytes held never exceed the memory, except for one request that is larger than all of it and is granted
//!   when nothing is held.
//! - F2. A request that keeps a client within its own part is granted, whatever others hold. If the memory has less
//!   than [`MIN_OWN`] for each place, this holds as long as F1 does.
//! - F3. Let `n` be the number of clients that hold more than their own parts after a request is granted. Beyond its
//!   own part, a client gets memory only if `n` times what it then holds is left over in the shared part. Thus `n`
//!   clients that take all they can leave one part of `n + 1` over, whoever was first. While there are clients of
//!   several peers, those of one peer hold at most three times what is left over; the same for exports.
//! - F4. The first in line that F3 refuses gets the room of the largest request, for one request, until that is given
//!   back. A request that has this room finds all that it still needs there: a growing write never gets stuck because
//!   others grow too.
//! - F5. A refused client stays in line, in the order of refusal, until it gets what it asked for or leaves.
//! - F6. The sum of a peer, or of an export, is the sum of what its clients hold.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

/// Divisor: this fraction of the memory is the clients' own parts together.
const OWN: u64 = 8;
/// Least size of a client's own part: the smallest request.
const MIN_OWN: u64 = 8 << 10;
/// Largest size of a client's own part.
const MAX_OWN: u64 = 64 << 10;
/// The clients of one peer, or of one export, hold at most this many times what is left over for others.
const PARTY: u64 = 3;

/// The other end of a connection, for sharing among the clients of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// An IP address. For IPv6 the /64 network, because one host may use all of its addresses.
    Address(IpAddr),
    /// A user of this machine, by a unix socket.
    User(u32),
    /// Not known to the kernel.
    Unknown,
}

impl Peer {
    /// Returns the peer with this address.
    pub(crate) fn at(address: IpAddr) -> Peer {
        let IpAddr::V6(six) = address.to_canonical() else { return Peer::Address(address.to_canonical()) };
        Peer::Address(Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX)).into())
    }
}

/// A group of clients that share: those of one peer, or of one export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Peer(Peer),
    Export(u32),
}

impl Party {
    /// Index of the kind of party in `Client::sums` and `Shares::parties`.
    fn kind(self) -> usize {
        match self {
            Party::Peer(_) => 0,
            Party::Export(_) => 1,
        }
    }
}

/// Sum of a party's memory. Without clients the entry is unused, and the next new party takes it.
#[derive(Debug)]
struct Sum {
    party: Party,
    clients: usize,
    held: u64,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    held: u64,
    /// Indices of its parties in `Shares::sums`.
    sums: [usize; 2],
}

/// A request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Bytes wanted now.
    pub(crate) now: u64,
    /// Bytes until the request has all that it needs, including `now`.
    pub(crate) until_whole: u64,
    /// True if the request has the room of the largest one already.
    pub(crate) has_room: bool,
}

/// The part of the memory that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// The client's own part, or the shared part.
    Share,
    /// The room for one request of the largest size.
    Room,
}

/// The account of one reactor's memory.
#[derive(Debug)]
pub(crate) struct Shares {
    most: u64,
    /// Size of a client's own part.
    own: u64,
    /// Size of the room for one request of the largest size.
    room: u64,
    /// Size of the shared part.
    shared: u64,
    held: u64,
    /// Number of clients that hold more than their own part.
    large: u64,
    /// Bytes of the room that are held; `None` while no request has it.
    in_room: Option<u64>,
    clients: Vec<Option<Client>>,
    sums: Vec<Sum>,
    /// Number of parties of each kind that have clients.
    parties: [usize; 2],
    /// Refused clients and their wishes, in order (F5).
    line: VecDeque<(usize, Wish)>,
    /// True if something has changed since the last refusal: a client in line might be granted its wish now.
    freed: bool,
}

impl Shares {
    /// Makes an account of `most` bytes for `places` clients, whose requests need at most `largest` bytes.
    pub(crate) fn new(most: u64, places: usize, largest: u64) -> Shares {
        let own = (most / OWN / (places as u64).max(1)).clamp(MIN_OWN, MAX_OWN);
        let room = largest.min(most / 2);
        let shared = most - most / OWN - room;
        let (clients, sums, line) = Default::default();
        let (held, large, in_room, parties, freed) = (0, 0, None, [0; 2], false);
        Shares { most, own, room, shared, held, large, in_room, clients, sums, parties, line, freed }
    }

    /// Adds a client.
    pub(crate) fn enter(&mut self, client: usize, peer: Peer, export: u32) {
        if self.clients.len() <= client {
            self.clients.resize_with(client + 1, || None);
        }
        debug_assert!(self.clients[client].is_none(), "F6: a client counts once");
        let sums = [Party::Peer(peer), Party::Export(export)].map(|party| self.sum_of(party));
        self.clients[client] = Some(Client { held: 0, sums });
    }

    /// Adds one client to a peer or an export. Returns the index of that party's entry in `sums`.
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

    /// Removes a client, which must hold nothing.
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

    pub(crate) fn held(&self, client: usize) -> u64 {
        self.clients.get(client).and_then(Option::as_ref).map_or(0, |client| client.held)
    }

    /// Returns true if a client holds more than its own part: memory that others may need.
    pub(crate) fn holds_what_others_need(&self, client: usize) -> bool {
        self.held(client) > self.own
    }

    /// Returns the size of a client's own part (F2).
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// Grants a wish, or puts the client in line with it.
    pub(crate) fn ask(&mut self, client: usize, wish: Wish) -> Option<Granted> {
        let granted = self.judge(client, wish);
        // Usually the line is empty, and the search ends at once.
        let place = self.line.iter().position(|(other, _)| *other == client);
        match (granted, place) {
            (Some(_), Some(at)) => {
                self.line.remove(at);
                // The next client is first in line now.
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
        // F1: with nothing held, a request of any size is granted. F2: so is one within the client's own part.
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

    /// Returns true if a party may hold `now` bytes more, after which `left` bytes of the shared part are left over
    /// (F3).
    fn leaves(&self, at: usize, now: u64, left: u64) -> bool {
        let sum = &self.sums[at];
        self.parties[sum.party.kind()] < 2 || sum.held + now <= PARTY * left
    }

    /// Takes back what a request held. `of_room` is true if some of it was of the room for the largest request.
    pub(crate) fn give(&mut self, client: usize, bytes: u64, of_room: bool) {
        if of_room {
            self.in_room = None;
        }
        self.freed = true;
        self.count(client, |held| *held -= bytes);
    }

    /// Changes what a client holds, and all sums that include it (F6).
    fn count(&mut self, client: usize, change: impl Fn(&mut u64)) {
        change(&mut self.held);
        if let Some(Some(client)) = self.clients.get_mut(client) {
            self.large -= u64::from(client.held > self.own);
            change(&mut client.held);
            self.large += u64::from(client.held > self.own);
            client.sums.iter().for_each(|at| change(&mut self.sums[*at].held));
        }
    }

    /// Returns true if a client's share has room for `now` more bytes.
    #[cfg(test)]
    pub(crate) fn has_share_for(&self, client: usize, now: u64) -> bool {
        let wish = Wish { now, until_whole: self.most, has_room: false };
        self.judge(client, wish) == Some(Granted::Share)
    }

    /// Returns true if a client is in line.
    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// Returns the clients in line whose wishes would be granted now, in order, if something has changed since they
    /// were refused. Each then asks again.
    pub(crate) fn take_hopeful(&mut self) -> Vec<usize> {
        if !std::mem::take(&mut self.freed) {
            return Vec::new();
        }
        let hopeful = self.line.iter().filter(|(client, wish)| self.judge(*client, *wish).is_some());
        hopeful.map(|(client, _)| *client).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const LARGEST: u64 = 32 * MIB;

    /// Makes an account of 256 MiB with 512 places, as one of two reactors has, and with `clients` clients of one peer.
    fn account(clients: usize) -> Shares {
        let mut shares = Shares::new(256 * MIB, 512, LARGEST);
        (0..clients).for_each(|client| shares.enter(client, Peer::User(0), 0));
        shares
    }

    fn at_once(bytes: u64) -> Wish {
        Wish { now: bytes, until_whole: bytes, has_room: false }
    }

    /// Asks for pieces while they are granted as a share. Returns the bytes granted.
    fn take_all(shares: &mut Shares, client: usize, piece: u64) -> u64 {
        let from = shares.held(client);
        while let Some(granted) = shares.ask(client, at_once(piece)) {
            if granted == Granted::Room {
                shares.give(client, piece, true);
                break;
            }
        }
        shares.held(client) - from
    }

    #[test]
    fn a_client_that_holds_little_gets_its_own_part_whatever_others_hold() {
        let mut shares = account(512);
        assert_eq!(shares.own(), 64 << 10);
        // Takes everything that is available, by large requests and then by smaller ones.
        for piece in [LARGEST, MIB, 16 << 10, 1 << 10] {
            for client in 0..256 {
                take_all(&mut shares, client, piece);
            }
        }
        let left = shares.shared.saturating_sub(shares.held);
        assert!(left < 256 * shares.own(), "{left} bytes are left, which tests nothing");
        // Takes the room for a large request, too.
        assert_eq!(shares.ask(0, at_once(LARGEST)), Some(Granted::Room));
        for client in 256..512 {
            assert_eq!(shares.ask(client, at_once(shares.own())), Some(Granted::Share), "client {client} (F2)");
        }
        assert!(shares.held <= 256 * MIB, "F1");
    }

    #[test]
    fn whoever_comes_finds_something_left_over() {
        let mut shares = account(49);
        for client in 0..48 {
            take_all(&mut shares, client, 4096);
            let (left, parts) = (shares.shared - shares.held, client as u64 + 2);
            assert!(left >= shares.shared / parts - MIB, "{left} is left over by {client} clients and one (F3)");
        }
        assert_eq!(take_all(&mut shares, 0, 4096), 0);
        assert_eq!(shares.ask(48, at_once((64 << 10) + 4096)), Some(Granted::Share));
    }

    #[test]
    fn clients_of_one_peer_leave_a_quarter_to_those_of_another_unless_they_are_alone() {
        let alone = {
            let mut shares = account(200);
            (0..200).map(|client| take_all(&mut shares, client, 16 << 10)).sum::<u64>()
        };
        for (peer, export) in [(Peer::User(1), 0), (Peer::User(0), 1)] {
            let mut shares = account(200);
            shares.enter(200, peer, export);
            let many = (0..200).map(|client| take_all(&mut shares, client, 16 << 10)).sum::<u64>();
            let shared = shares.shared;
            // The clients' own parts come on top.
            let own = 200 * shares.own();
            assert!(many <= shared * 3 / 4 + own && alone > shared * 9 / 10, "{many} and {alone} of {shared}");
            assert!(take_all(&mut shares, 200, 16 << 10) >= (shared / 4 - own) / 202 - (32 << 10));
        }
    }

    #[test]
    fn the_first_in_line_has_room_for_one_request_and_then_the_next_has() {
        let mut shares = account(9);
        // Three of the largest leave over as much as the three hold together.
        let granted: Vec<_> = (0..8).map(|client| shares.ask(client, at_once(LARGEST))).collect();
        let (share, room) = (Some(Granted::Share), Some(Granted::Room));
        assert_eq!(granted, [share, share, share, room, None, None, None, None]);
        assert!(shares.take_hopeful().is_empty());
        // The last in line may not pass the first.
        assert_eq!(shares.ask(8, at_once(LARGEST)), None);
        shares.give(3, LARGEST, true);
        assert_eq!(shares.take_hopeful(), [4]);
        assert_eq!(shares.ask(8, at_once(LARGEST)), None);
        assert_eq!(shares.ask(4, at_once(LARGEST)), room);
        // The next in line leaves, so that another is first.
        shares.leave(5);
        shares.give(4, LARGEST, true);
        assert_eq!(shares.take_hopeful(), [6]);
    }

    #[test]
    fn a_smaller_wish_of_the_first_in_line_lets_the_next_one_retry() {
        let mut shares = account(9);
        (0..8).for_each(|client| _ = shares.ask(client, at_once(LARGEST)));
        shares.give(3, LARGEST, true);
        assert_eq!(shares.take_hopeful(), [4]);
        assert_eq!(shares.ask(4, at_once(4096)), Some(Granted::Share));
        assert_eq!(shares.take_hopeful(), [5], "F5");
    }

    #[test]
    fn a_request_larger_than_all_is_granted_alone() {
        let mut shares = Shares::new(MIB, 1024, LARGEST);
        (0..2).for_each(|client| shares.enter(client, Peer::User(0), 0));
        assert_eq!(shares.ask(0, at_once(LARGEST)), Some(Granted::Share));
        assert_eq!(shares.ask(1, at_once(4096)), None);
        shares.give(0, LARGEST, false);
        assert_eq!(shares.take_hopeful(), [1]);
    }

    #[test]
    fn a_network_is_one_peer_and_so_is_an_address_in_either_form() {
        let at = |text: &str| Peer::at(text.parse().expect("an address"));
        assert_eq!(at("2001:db8:1:2::3"), at("2001:db8:1:2:ffff::1"));
        assert_ne!(at("2001:db8:1:2::3"), at("2001:db8:1:3::3"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        /// Begins a read, or a write that grows.
        Begin {
            client: usize,
            bytes: u64,
            grows: bool,
        },
        /// More of a write's payload arrives.
        Grow(usize),
        End(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        let bytes = prop_oneof![1..=64u64 << 10, 1..=MIB, 1..=LARGEST, Just(LARGEST)];
        prop_oneof![
            4 => (0..CLIENTS, bytes, any::<bool>())
                .prop_map(|(client, bytes, grows)| Op::Begin { client, bytes, grows }),
            4 => any::<usize>().prop_map(Op::Grow),
            1 => any::<usize>().prop_map(Op::End),
        ]
    }

    const CLIENTS: usize = 40;

    /// A request that holds memory.
    #[derive(Clone, Copy, Debug)]
    struct Holds {
        client: usize,
        bytes: u64,
        whole: u64,
        of_room: bool,
    }

    impl Holds {
        /// Grows to four times its size, as a reactor does it.
        fn grow(&mut self, shares: &mut Shares) {
            let now = (self.bytes * 3).min(self.whole - self.bytes);
            let wish = Wish { now, until_whole: self.whole - self.bytes, has_room: self.of_room };
            if now > 0
                && let Some(granted) = shares.ask(self.client, wish)
            {
                self.bytes += now;
                self.of_room |= granted == Granted::Room;
            }
        }
    }

    fn judge(shares: &Shares, all: &[Holds]) -> Result<(), TestCaseError> {
        let sum: u64 = all.iter().map(|holds| holds.bytes).sum();
        prop_assert_eq!(shares.held, sum);
        prop_assert!(sum <= shares.most, "F1");
        prop_assert!(shares.in_room.unwrap_or(0) <= shares.room, "F4");
        prop_assert!(all.iter().filter(|holds| holds.of_room).count() == usize::from(shares.in_room.is_some()), "F4");
        for client in 0..CLIENTS {
            let of = all.iter().filter(|holds| holds.client == client).map(|holds| holds.bytes).sum::<u64>();
            prop_assert_eq!(shares.held(client), of);
        }
        for at in 0..shares.sums.len() {
            let has = |client: &Client| client.sums.contains(&at);
            let of: u64 = shares.clients.iter().flatten().filter(|client| has(client)).map(|client| client.held).sum();
            prop_assert_eq!(shares.sums[at].held, of, "F6");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn whatever_clients_do_bounds_hold_and_all_that_grows_gets_to_its_end(
            ops in prop::collection::vec(op(), 1..400)
        ) {
            let mut shares = Shares::new(256 * MIB, 512, LARGEST);
            (0..CLIENTS).for_each(|client| shares.enter(client, Peer::User(client as u32 % 3), client as u32 % 2));
            let mut all: Vec<Holds> = Vec::new();
            for op in ops {
                match op {
                    Op::Begin { client, bytes, grows } => {
                        let now = if grows { bytes.min(shares.own()) } else { bytes };
                        let fits = shares.held(client) + now <= shares.own();
                        let granted = shares.ask(client, Wish { now, until_whole: bytes, has_room: false });
                        prop_assert!(granted.is_some() || !fits, "F2");
                        if let Some(granted) = granted {
                            all.push(Holds { client, bytes: now, whole: bytes, of_room: granted == Granted::Room });
                        }
                    }
                    Op::Grow(at) if !all.is_empty() => {
                        let at = at % all.len();
                        all[at].grow(&mut shares);
                    }
                    Op::End(at) if !all.is_empty() => {
                        let Holds { client, bytes, of_room, .. } = all.swap_remove(at % all.len());
                        shares.give(client, bytes, of_room);
                    }
                    _ => {}
                }
                judge(&shares, &all)?;
            }
            // Clients in line that hold nothing leave. Each growing request then gets all that it needs, from the
            // memory that other requests free at their ends.
            for round in 0.. {
                if all.is_empty() {
                    break;
                }
                prop_assert!(round < 10_000, "F4: {} are stuck", all.len());
                for client in 0..CLIENTS {
                    if !all.iter().any(|holds| holds.client == client) {
                        shares.line.retain(|(other, _)| *other != client);
                    }
                }
                all.iter_mut().for_each(|holds| holds.grow(&mut shares));
                judge(&shares, &all)?;
                // A request that has all its memory ends. A client's writes are received one after the other.
                for client in 0..CLIENTS {
                    let is_whole = |holds: &Holds| holds.client == client && holds.bytes == holds.whole;
                    if let Some(at) = all.iter().position(is_whole) {
                        let Holds { client, bytes, of_room, .. } = all.swap_remove(at);
                        shares.give(client, bytes, of_room);
                    }
                }
            }
            prop_assert_eq!(shares.held, 0);
        }
    }
}
