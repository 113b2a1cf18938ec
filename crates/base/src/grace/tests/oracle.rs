//! A grace compared with an oracle: random work of several seats on one thread, and the answers a ticket may and must
//! give.
//!
//! The oracle records when each section and each I/O began and ended, and does not use phases:
//!
//! - O1 (I2): a ticket is not over while a section is open that was open when the ticket was taken, nor while an I/O
//!   has not ended that was counted by then, or later in such a section.
//! - O2: a ticket that is over stays over, and so is every ticket taken before it.
//! - O3: work that begins later cannot hold a ticket up for ever. A check takes a step if everything has ended that had
//!   begun before some earlier check. Four such checks end a ticket, even if other work continues: two steps of the
//!   running period, and two of the ticket's own.
//! - O4 (I5): while a ticket is not over at least one holder is named, with at most as many I/Os as its seat has.

use proptest::prelude::*;

use super::*;

/// Next action of a seat, or of the thread that waits.
#[derive(Clone, Copy, Debug)]
enum Act {
    Enter(usize),
    /// Counts that many I/Os, if the seat is in a section.
    Count(usize, u64),
    Leave(usize),
    /// Ends one of the seat's I/Os.
    End(usize, usize),
    /// Replaces a seat that has no section and no I/O.
    Renew(usize),
    Start,
    Look(usize),
}

const SEATS: usize = 3;

/// A counted I/O that has not ended and may hold a ticket up.
#[derive(Clone, Copy, Debug)]
struct Holding {
    began: u64,
    /// Beginning of the section in which it was counted.
    section: u64,
    phase: Phase,
}

struct Place {
    seat: Seat,
    /// Beginning of its section, if it is in one.
    section: Option<u64>,
    ios: Vec<Holding>,
}

struct Known {
    ticket: Ticket,
    taken: u64,
    over: bool,
    /// Moment of an earlier check. A check takes a step if everything that began before this moment has ended (O3).
    since: Option<u64>,
    steps: u32,
}

struct Oracle {
    grace: Arc<Grace>,
    places: Vec<Place>,
    tickets: Vec<Known>,
    now: u64,
}

impl Oracle {
    fn new() -> Oracle {
        let grace = Arc::new(Grace::new());
        let place = |_| Place { seat: Grace::seat(&grace), section: None, ios: Vec::new() };
        let places = (0..SEATS).map(place).collect();
        Oracle { places, tickets: Vec::new(), now: 0, grace }
    }

    /// Returns true if a section or an I/O that began before `moment` has not ended.
    fn is_any_left_of(&self, moment: u64) -> bool {
        self.places.iter().any(|place| {
            place.section.is_some_and(|began| began < moment) || place.ios.iter().any(|io| io.began < moment)
        })
    }

    /// Returns true if the ticket of the moment `taken` must still wait (O1).
    fn holds(&self, taken: u64) -> bool {
        self.places.iter().any(|place| {
            place.section.is_some_and(|began| began < taken) || place.ios.iter().any(|io| io.section < taken)
        })
    }

    fn act(&mut self, act: Act) {
        self.now += 1;
        let now = self.now;
        match act {
            Act::Enter(at) if self.places[at].section.is_none() => {
                self.places[at].seat.enter();
                self.places[at].section = Some(now);
            }
            Act::Count(at, count) => {
                let place = &mut self.places[at];
                let Some(section) = place.section else { return };
                place.seat.count_many(count);
                let phase = place.seat.phase();
                place.ios.extend((0..count).map(|_| Holding { began: now, section, phase }));
            }
            Act::Leave(at) if self.places[at].section.take().is_some() => self.places[at].seat.leave(),
            Act::End(at, which) if !self.places[at].ios.is_empty() => {
                let which = which % self.places[at].ios.len();
                let io = self.places[at].ios.swap_remove(which);
                self.places[at].seat.uncount(io.phase);
            }
            Act::Renew(at) if self.places[at].section.is_none() && self.places[at].ios.is_empty() => {
                self.places[at].seat = Grace::seat(&self.grace);
                assert_eq!(self.grace.seats(), SEATS, "a seat that goes is taken out (I3)");
            }
            Act::Start => {
                let ticket = self.grace.start();
                assert!(self.tickets.last().is_none_or(|last| last.ticket <= ticket));
                self.tickets.push(Known { ticket, taken: now, over: false, since: None, steps: 0 });
            }
            Act::Look(at) if !self.tickets.is_empty() => self.look(at % self.tickets.len()),
            _ => {}
        }
    }

    fn look(&mut self, at: usize) {
        let over = self.grace.is_over(self.tickets[at].ticket);
        if over {
            assert!(!self.holds(self.tickets[at].taken), "O1: it is over, and what it waits for goes on");
            self.tickets[..=at].iter_mut().for_each(|one| one.over = true);
        } else {
            assert!(!self.tickets[at].over, "O2: what is over stays so");
            let holders = self.grace.holders();
            let most: u64 = self.places.iter().map(|place| place.seat.in_flight()).sum();
            assert!(!holders.is_empty(), "O4: nobody is named");
            assert!(holders.iter().map(|one| one.ios).sum::<u64>() <= most, "O4: {holders:?}");
        }
        let now = self.now;
        for number in 0..self.tickets.len() {
            let over = self.grace.is_over(self.tickets[number].ticket);
            let takes_step = self.tickets[number].since.is_some_and(|since| !self.is_any_left_of(since));
            let known = &mut self.tickets[number];
            known.over |= over;
            if known.since.is_none() || takes_step {
                known.since = Some(now);
                known.steps += u32::from(takes_step);
            }
            assert!(known.over || known.steps < 4, "O3: it is not over, and all of before has ended again and again");
        }
    }

    /// When all work has ended, one check ends every ticket.
    fn end(&mut self) {
        for at in 0..SEATS {
            self.act(Act::Leave(at));
            while !self.places[at].ios.is_empty() {
                self.act(Act::End(at, 0));
            }
        }
        assert!(self.tickets.iter().all(|known| self.grace.is_over(known.ticket)), "nothing is under way");
        assert!(self.grace.holders().is_empty());
    }
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..SEATS).prop_map(Act::Enter),
        5 => (0..SEATS, 1..4_u64).prop_map(|(at, count)| Act::Count(at, count)),
        6 => (0..SEATS).prop_map(Act::Leave),
        10 => (0..SEATS, 0..8_usize).prop_map(|(at, which)| Act::End(at, which)),
        1 => (0..SEATS).prop_map(Act::Renew),
        2 => Just(Act::Start),
        6 => (0..16_usize).prop_map(Act::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_ticket_waits_for_all_that_it_must_and_for_nothing_for_ever(acts in prop::collection::vec(acts(), 1..120)) {
        let mut oracle = Oracle::new();
        acts.into_iter().for_each(|act| oracle.act(act));
        oracle.end();
    }
}
