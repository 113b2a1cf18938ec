//! Tests of the account alone: invariant by invariant, and for random clients.

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
fn who_is_first_when_the_one_before_is_content_with_less_has_hope() {
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
        4 => (0..CLIENTS, bytes, any::<bool>()).prop_map(|(client, bytes, grows)| Op::Begin { client, bytes, grows }),
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
    fn whatever_clients_do_bounds_hold_and_all_that_grows_gets_to_its_end(ops in prop::collection::vec(op(), 1..400)) {
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
                if let Some(at) = all.iter().position(|holds| holds.client == client && holds.bytes == holds.whole) {
                    let Holds { client, bytes, of_room, .. } = all.swap_remove(at);
                    shares.give(client, bytes, of_room);
                }
            }
        }
        prop_assert_eq!(shares.held, 0);
    }
}
