//! Tags on one thread against a model: one owner each, lowest first, and the in-flight count computed from them.
//! Threads are in `model::tags`.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Take(u32),
    /// Takes consecutive tags, at most this many.
    TakeRow(usize),
    /// Takes a tag that goes to the driver at once, and frees it.
    Alone,
    /// Frees the live tags with these indices.
    Free(Vec<usize>),
    Publish,
    EndPlug,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..40_u32).prop_map(Step::Take),
        4 => (0..70_usize).prop_map(Step::TakeRow),
        2 => Just(Step::Alone),
        3 => prop::collection::vec(any::<usize>(), 1..20).prop_map(Step::Free),
        2 => Just(Step::Publish),
        1 => Just(Step::EndPlug),
    ]
}

fn free(tags: &mut Tags, list: &[u16]) {
    let mut masks = BTreeMap::<usize, u64>::new();
    for tag in list {
        *masks.entry(usize::from(tag / 64)).or_default() |= 1 << (tag % 64);
    }
    masks.into_iter().for_each(|(word, mask)| tags.free_batch(word, mask));
}

fn publish(tags: &mut Tags, live: &[(u16, Op, u16)]) {
    if !tags.publish() {
        tags.publish_words(&live.iter().map(|tag| tag.0).collect::<Vec<_>>());
    }
}

fn in_flight(set: &TagSet, part: u16) -> (InFlight, InFlight) {
    let (mut whole, mut of_part) = (InFlight::default(), InFlight::default());
    set.for_each(|op, of, _| {
        whole.count(op);
        if of == part {
            of_part.count(op);
        }
    });
    (whole, of_part)
}

/// Runs the steps on an owned or shared set. Each live tag is a request with an operation and a partition.
fn run(set: &Arc<TagSet>, steps: &[Step]) {
    let depth = set.depth();
    let mut tags = Tags::new(set.clone());
    let mut live: Vec<(u16, Op, u16)> = Vec::new();
    let mut number = 0;
    for step in steps {
        match step {
            Step::Take(ahead) => {
                let ensured = tags.ensure(*ahead);
                let tag = tags.take(*ahead);
                assert_eq!(tag.is_some(), ensured);
                assert_eq!(tag.is_none(), live.len() == usize::from(depth), "none is left, or there is one");
                let Some(tag) = tag else { continue };
                assert!(tag < depth && live.iter().all(|(have, ..)| *have != tag), "I1: {tag} was busy");
                number += 1;
                let (op, part) = (Op::from_u8((number % 5) as u8), number % 3);
                tags.set_info(tag, tags.info_of(op, part));
                live.push((tag, op, part));
            }
            Step::TakeRow(most) => {
                if !tags.ensure(1) {
                    continue;
                }
                let (op, part) = (Op::Write, 1);
                let info = tags.info_of(op, part);
                let row = tags.row(*most);
                let (first, many) = (row.first, row.len());
                assert!(many <= *most && (many > 0 || *most == 0), "there is one free at least");
                row.infos().for_each(|of| of.set(info));
                tags.took(many as u32);
                for tag in first..first + many as u16 {
                    assert!(tag < depth && live.iter().all(|(have, ..)| *have != tag), "I1: {tag} was busy");
                    live.push((tag, op, part));
                }
            }
            Step::Alone => {
                publish(&mut tags, &live);
                if let Some(tag) = tags.take_alone(tags.info_of(Op::Read, 2)) {
                    assert!(live.iter().all(|(have, ..)| *have != tag), "I1: {} was busy", tag);
                    assert_eq!(in_flight(set, 0).0.total() as usize, live.len() + 1, "it is seen");
                    tags.free_alone(tag);
                } else {
                    assert!(tags.shared || tags.dirty != 0 || tags.current == 0);
                }
            }
            Step::Free(picks) => {
                let mut gone = Vec::new();
                for pick in picks.iter().take(live.len()) {
                    gone.push(live.swap_remove(pick % live.len()).0);
                }
                free(&mut tags, &gone);
            }
            Step::Publish => publish(&mut tags, &live),
            Step::EndPlug => tags.return_unused(),
        }
        publish(&mut tags, &live);
        for part in 0..3 {
            let (whole, of_part) = in_flight(set, part);
            assert_eq!(whole.total() as usize, live.len(), "taken ahead counts as nothing");
            assert_eq!(of_part.total() as usize, live.iter().filter(|tag| tag.2 == part).count());
            assert_eq!(whole.reads as usize, live.iter().filter(|tag| tag.1 == Op::Read).count());
            assert_eq!(whole.writes as usize, live.iter().filter(|tag| tag.1 == Op::Write).count());
        }
    }
    let all: Vec<u16> = live.iter().map(|tag| tag.0).collect();
    free(&mut tags, &all);
    tags.return_unused();
    let busy: u32 = (0..set.words()).map(|word| set.busy(word).count_ones()).sum();
    assert_eq!(busy, 0, "everything went back");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn one_owner_each_and_exact_counts(
        depth in prop_oneof![1..10_u16, 60..70_u16, 100..300_u16],
        steps in prop::collection::vec(step(), 1..200),
    ) {
        run(&TagSet::owned(depth), &steps);
        run(&TagSet::shared(depth), &steps);
    }
}

#[test]
fn the_lowest_free_tag_first() {
    let mut tags = Tags::new(TagSet::owned(130));
    let all: Vec<u16> = std::iter::from_fn(|| tags.take(1)).collect();
    assert_eq!(all, (0..130).collect::<Vec<_>>());
    free(&mut tags, &[129, 64, 70, 3]);
    assert_eq!(
        [tags.take(1), tags.take(1), tags.take(1), tags.take(1), tags.take(1)],
        [Some(3), Some(64), Some(70), Some(129), None]
    );
}

#[test]
fn two_owners_of_a_shared_set_never_have_the_same_tag() {
    let set = TagSet::shared(100);
    let (mut a, mut b) = (Tags::new(set.clone()), Tags::new(set.clone()));
    let mut taken = std::collections::BTreeSet::new();
    while let Some(tag) = a.take(8) {
        assert!(taken.insert(tag));
        if let Some(tag) = b.take(8) {
            assert!(taken.insert(tag));
        }
    }
    // Tags that one owner has taken ahead are not available to the other until they are returned.
    b.return_unused();
    while let Some(tag) = a.take(1) {
        assert!(taken.insert(tag));
    }
    a.return_unused();
    while let Some(tag) = b.take(1) {
        assert!(taken.insert(tag));
    }
    assert_eq!(taken.len(), 100);
}

#[test]
fn gathered_requests_of_an_owned_set_show_when_they_are_published() {
    let set = TagSet::owned(8);
    let mut tags = Tags::new(set.clone());
    let tag = tags.take(1).unwrap();
    tags.set_info(tag, tags.info_of(Op::Read, 0));
    assert_eq!(in_flight(&set, 0).0.total(), 0);
    assert!(tags.publish(), "one word");
    assert_eq!(in_flight(&set, 0).0.total(), 1);
    free(&mut tags, &[tag]);
    assert_eq!(in_flight(&set, 0).0.total(), 0);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "freed once")]
fn a_tag_that_is_freed_twice_is_found() {
    let mut tags = Tags::new(TagSet::owned(8));
    let tags_taken = [tags.take(1).unwrap(), tags.take(1).unwrap()];
    free(&mut tags, &tags_taken[..1]);
    free(&mut tags, &tags_taken[..1]);
}
