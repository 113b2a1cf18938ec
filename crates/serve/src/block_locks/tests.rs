//! Tests of the order in which changes begin: written-down orders, and random events against the rules (B1, B2).

use proptest::prelude::*;

use super::*;

fn owner(slot: u32) -> Owner {
    Owner { reactor: slot as usize % 3, slot }
}

fn change(blocks: (u64, u64), rewritten: &[u64]) -> Change {
    Change { blocks, rewritten: rewritten.to_vec() }
}

/// Makes an entry. Returns its ticket, and true if it begins when no reactor has a change under way.
fn enter(locks: &BlockLocks, slot: u32, change: Change) -> (u64, bool) {
    match locks.enter(owner(slot), change) {
        Entered::Entry { ticket, begins, ask } => {
            let heard: Vec<_> = ask.iter().map(|reactor| locks.heard(ticket, *reactor)).collect();
            (ticket, begins || heard.contains(&Some(owner(slot))))
        }
        Entered::Free => panic!("it has no entry"),
    }
}

#[test]
fn whole_blocks_have_no_entry_unless_one_of_them_is_rewritten() {
    let locks = BlockLocks::new(512);
    assert!(locks.is_quiet());
    assert_eq!(locks.enter(owner(0), change((0, 9), &[])), Entered::Free);
    assert!(locks.is_quiet());
    let (ticket, begins) = enter(&locks, 1, change((3, 5), &[3, 5]));
    assert!(begins && !locks.is_quiet());
    // The block between the two is changed, but not rewritten.
    for (blocks, waits) in [((0, 2), false), ((4, 4), false), ((6, 9), false), ((0, 3), true), ((5, 5), true)] {
        let entered = locks.enter(owner(2), change(blocks, &[]));
        assert_eq!(entered != Entered::Free, waits, "{blocks:?}");
    }
    assert_eq!(locks.end(ticket), [owner(2), owner(2)]);
    assert!(!locks.is_quiet(), "the two that have waited are there until they end");
}

#[test]
fn who_rewrites_a_block_waits_for_what_every_reactor_has_under_way_there() {
    let locks = BlockLocks::new(512);
    [0, 1, 1].into_iter().for_each(|reactor| locks.join(reactor));
    let Entered::Entry { ticket, begins, ask } = locks.enter(owner(0), change((7, 7), &[7])) else { panic!() };
    assert_eq!((begins, ask), (false, vec![0, 1]));
    assert_eq!(locks.heard(ticket, 1), None);
    assert_eq!(locks.heard(ticket, 1), None, "who says it twice does not stand for others");
    assert_eq!(locks.heard(ticket, 0), Some(owner(0)));
    locks.end(ticket);
    // A reactor that leaves has nothing under way.
    let Entered::Entry { ticket, .. } = locks.enter(owner(0), change((7, 7), &[7])) else { panic!() };
    assert_eq!(locks.heard(ticket, 0), None);
    assert_eq!((locks.leave(1), locks.leave(1)), (vec![], vec![owner(0)]));
    // An entry that it leaves behind holds up no other.
    let (_, begins) = enter(&locks, 3, change((7, 7), &[7]));
    assert!(!begins);
    assert_eq!(locks.leave(0), [], "the entry of this reactor has ended with it, the other was of it, too");
    assert!(locks.is_quiet());
}

#[test]
fn a_change_that_waits_keeps_its_place_in_blocks_that_nobody_rewrote_when_it_came() {
    let locks = BlockLocks::new(512);
    let (first, _) = enter(&locks, 0, change((5, 5), &[5]));
    let (wide, begins) = enter(&locks, 1, change((4, 6), &[]));
    assert!(!begins);
    let (second, begins) = enter(&locks, 2, change((6, 6), &[6]));
    assert!(!begins, "the change of blocks 4 to 6 came before, and may begin at any time");
    assert_eq!(locks.end(first), [owner(1)]);
    assert_eq!(locks.end(wide), [owner(2)]);
    assert_eq!(locks.end(second), []);
    assert!(locks.is_quiet());
}

/// Next step of a test: a change arrives, a reactor answers, or a change that has begun ends. Numbers choose one of
/// several.
#[derive(Clone, Debug)]
enum Act {
    Enter { first: u64, blocks: u64, head: bool, tail: bool },
    Hear(usize),
    End(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let enter = (0u64..8, 1u64..5, any::<bool>(), any::<bool>());
    let act = prop_oneof![
        enter.prop_map(|(first, blocks, head, tail)| Act::Enter { first, blocks, head, tail }),
        (0usize..100).prop_map(Act::Hear),
        (0usize..100).prop_map(Act::End),
    ];
    proptest::collection::vec(act, 1..80)
}

/// The test's record of a change.
struct Known {
    change: Change,
    ticket: Option<u64>,
    begun: bool,
    unheard: Vec<usize>,
}

/// Returns true if one rewrites a block that the other changes.
fn collide(one: &Change, other: &Change) -> bool {
    one.rewritten.iter().any(|block| other.has(*block)) || other.rewritten.iter().any(|block| one.has(*block))
}

struct World {
    locks: BlockLocks,
    known: BTreeMap<u32, Known>,
}

impl World {
    fn began(&mut self, owners: impl IntoIterator<Item = Owner>) {
        for owner in owners {
            let it = self.known.get_mut(&owner.slot).expect("it has come");
            assert!(!it.begun, "told twice");
            it.begun = true;
        }
        // B1, for all that have begun. Changes without an entry are the subject of the questions in `hear`.
        let begun: Vec<_> = self.known.values().filter(|it| it.begun).collect();
        for (at, one) in begun.iter().enumerate() {
            assert!(one.unheard.is_empty(), "it has begun before all have answered");
            for other in &begun[..at] {
                assert!(!collide(&one.change, &other.change), "{:?} beside {:?}", one.change, other.change);
            }
        }
    }

    /// A reactor answers if no change without an entry conflicts; otherwise that change ends first.
    fn hear(&mut self, slot: u32) {
        let Some(reactor) = self.known[&slot].unheard.first().copied() else { return };
        let change = self.known[&slot].change.clone();
        self.known.retain(|_, it| it.ticket.is_some() || !collide(&it.change, &change));
        let it = self.known.get_mut(&slot).expect("it has an entry");
        it.unheard.remove(0);
        let ticket = it.ticket.expect("who asks has one");
        let begins = self.locks.heard(ticket, reactor);
        self.began(begins);
    }

    fn end(&mut self, slot: u32) {
        let it = self.known.remove(&slot).expect("it is there");
        let begins = it.ticket.map(|ticket| self.locks.end(ticket));
        self.began(begins.into_iter().flatten());
    }
}

proptest! {
    #[test]
    fn whatever_comes_and_ends_no_two_collide_and_each_begins(acts in acts()) {
        let mut world = World { locks: BlockLocks::new(512), known: BTreeMap::new() };
        (0..3).for_each(|reactor| world.locks.join(reactor));
        for (slot, act) in (0..).zip(acts) {
            match act {
                Act::Enter { first, blocks, head, tail } => {
                    let last = first + blocks - 1;
                    let mut rewritten = Vec::new();
                    rewritten.extend(head.then_some(first));
                    rewritten.extend((tail && (!head || last > first)).then_some(last));
                    let change = Change { blocks: (first, last), rewritten };
                    let (ticket, begins, ask) = match world.locks.enter(owner(slot), change.clone()) {
                        Entered::Free => (None, true, vec![]),
                        Entered::Entry { ticket, begins, ask } => (Some(ticket), begins, ask),
                    };
                    // Changes without an entry may run beside entries whose questions were not answered yet.
                    let begun = begins && ticket.is_some();
                    world.known.insert(slot, Known { change, ticket, begun: false, unheard: ask });
                    world.began(begun.then_some(owner(slot)));
                }
                Act::Hear(number) => {
                    let open = world.known.iter().filter(|it| !it.1.unheard.is_empty());
                    let asks: Vec<u32> = open.map(|it| *it.0).collect();
                    if !asks.is_empty() {
                        world.hear(asks[number % asks.len()]);
                    }
                }
                Act::End(number) => {
                    let ends = |it: &Known| it.begun || it.ticket.is_none();
                    let begun: Vec<u32> = world.known.iter().filter(|it| ends(it.1)).map(|it| *it.0).collect();
                    if !begun.is_empty() {
                        world.end(begun[number % begun.len()]);
                    }
                }
            }
        }
        // B2: all remaining changes begin and end, one after the other.
        while let Some(slot) = world.known.keys().next().copied() {
            while world.known.get(&slot).is_some_and(|it| !it.unheard.is_empty()) {
                world.hear(slot);
            }
            let it = &world.known[&slot];
            prop_assert!(it.begun || it.ticket.is_none(), "the earliest waits for nobody");
            world.end(slot);
        }
        prop_assert!(world.locks.is_quiet());
        prop_assert!(world.locks.lock().queues.is_empty());
    }
}
