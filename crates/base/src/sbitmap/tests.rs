//! The bitmap on one thread against a plain model of it, and on real threads.

use proptest::prelude::*;

use super::*;
use crate::sync::atomic::AtomicBool;
use crate::sync::thread;

#[test]
fn takes_the_lowest_bits_and_gives_them_back() {
    let map = Sbitmap::new(70);
    let mut hint = 0;
    assert_eq!((map.depth(), map.words(), map.weight()), (70, 2, 0));
    assert_eq!(map.get_batch(&mut hint, 3), Some((0, 0b111)));
    map.clear_batch(0, 0b010);
    assert_eq!((map.busy(0), map.weight()), (0b101, 2));
    assert_eq!(map.get_batch(&mut hint, 100), Some((0, !0b101)), "the freed tag is folded in");
    assert_eq!(map.get_batch(&mut hint, 100), Some((64, 0b11_1111)), "and the next word has six");
    assert_eq!((map.get(&mut hint), hint, map.weight()), (None, 1, 70));
    map.clear_batch(64, 0b1000);
    assert_eq!(map.get(&mut hint), Some(67));
}

#[test]
fn folds_only_when_the_free_bits_do_not_suffice() {
    let map = Sbitmap::new(4);
    assert_eq!(map.get_batch(&mut 0, 2), Some((0, 0b0011)));
    map.clear_batch(0, 0b0001);
    assert_eq!(map.get_batch(&mut 0, 1), Some((0, 0b0100)), "one is free without folding");
    assert_eq!(map.get_batch(&mut 0, 2), Some((0, 0b1001)), "two are free with folding");
    assert_eq!(map.get_batch(&mut 0, 2), None);
}

#[test]
fn every_depth_grants_each_of_its_tags_once() {
    for depth in [1, 2, 63, 64, 65, 127, 128, 129, 1000] {
        let map = Sbitmap::new(depth);
        let mut hint = 7;
        let mut granted: Vec<_> = std::iter::from_fn(|| map.get(&mut hint)).collect();
        granted.sort_unstable();
        assert!(granted.into_iter().eq(0..depth), "depth {depth}");
        assert_eq!(map.weight(), depth);
    }
}

#[test]
fn any_hint_and_no_want_are_fine() {
    let map = Sbitmap::new(130);
    let mut hint = u32::MAX;
    assert_eq!(map.get_batch(&mut hint, 0), None);
    assert!(map.get(&mut hint).is_some() && hint < map.words());
}

#[test]
#[should_panic(expected = "depth of at least 1")]
fn a_depth_of_zero_is_refused() {
    let _ = Sbitmap::new(0);
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
#[should_panic(expected = "freed a tag twice")]
fn a_double_free_panics_in_debug_builds() {
    let map = Sbitmap::new(8);
    let _ = map.get(&mut 0);
    map.clear_batch(0, 1);
    map.clear_batch(0, 1);
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
#[should_panic(expected = "nobody had taken")]
fn a_free_of_a_free_tag_panics_in_debug_builds() {
    Sbitmap::new(8).clear_batch(0, 1);
}

#[test]
fn real_threads_never_share_a_tag() {
    const DEPTH: u32 = 100;
    const TURNS: u32 = 20_000;
    let map = Sbitmap::new(DEPTH);
    let taken: Vec<AtomicBool> = (0..DEPTH).map(|_| AtomicBool::new(false)).collect();
    thread::scope(|scope| {
        for start in 0..3 {
            let (map, taken) = (&map, &taken);
            scope.spawn(move || {
                let mut hint = start;
                for turn in 0..TURNS {
                    let Some((first, mask)) = map.get_batch(&mut hint, 1 + turn % 40) else { continue };
                    let tags = || (0..WORD_BITS).filter(|bit| mask >> bit & 1 == 1).map(|bit| first + bit);
                    for tag in tags() {
                        assert!(!taken[tag as usize].swap(true, Ordering::Relaxed), "tag {tag}");
                    }
                    for tag in tags() {
                        taken[tag as usize].store(false, Ordering::Relaxed);
                    }
                    map.clear_batch(first, mask);
                }
            });
        }
    });
    assert_eq!(map.weight(), 0);
}

/// A step of one thread.
#[derive(Debug, Clone)]
enum Op {
    Get { hint: u32, want: u32 },
    Clear { word: u32, bits: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0_u32..9, prop_oneof![0_u32..4, 0_u32..100]).prop_map(|(hint, want)| Op::Get { hint, want }),
        (0_u32..4, any::<u64>(), any::<u64>()).prop_map(|(word, bits, also)| Op::Clear { word, bits: bits & also }),
    ]
}

/// The bitmap as plain words: the live tags, and the freed ones that were not folded yet.
struct Plain {
    depth: u32,
    live: Vec<u64>,
    freed: Vec<u64>,
}

impl Plain {
    fn valid(&self, word: usize) -> u64 {
        (0..WORD_BITS).filter(|bit| word as u32 * WORD_BITS + bit < self.depth).fold(0, |mask, bit| mask | 1 << bit)
    }

    fn get(&mut self, hint: u32, want: u32) -> Option<(u32, u64)> {
        let words = self.live.len();
        for at in (0..words).map(|step| (hint as usize + step) % words) {
            let mut free = self.valid(at) & !self.live[at] & !self.freed[at];
            if free.count_ones() < want {
                self.freed[at] = 0;
                free = self.valid(at) & !self.live[at];
            }
            let grant = (0..WORD_BITS)
                .filter(|bit| free >> bit & 1 == 1)
                .take(want as usize)
                .fold(0, |mask, bit| mask | 1 << bit);
            if grant != 0 {
                self.live[at] |= grant;
                return Some((at as u32 * WORD_BITS, grant));
            }
        }
        None
    }
}

proptest! {
    #[test]
    fn behaves_like_plain_words(depth in 1_u32..200, ops in prop::collection::vec(op(), 1..200)) {
        let map = Sbitmap::new(depth);
        let words = map.words() as usize;
        let mut plain = Plain { depth, live: vec![0; words], freed: vec![0; words] };
        for op in ops {
            match op {
                Op::Get { mut hint, want: 0 } => prop_assert_eq!(map.get_batch(&mut hint, 0), None),
                Op::Get { hint, want } => {
                    prop_assert_eq!(map.get_batch(&mut hint.clone(), want), plain.get(hint, want));
                }
                Op::Clear { word, bits } => {
                    let word = word as usize % words;
                    let freed = plain.live[word] & bits;
                    plain.live[word] &= !freed;
                    plain.freed[word] |= freed;
                    map.clear_batch(word as u32 * WORD_BITS, freed);
                }
            }
            for word in 0..words {
                prop_assert_eq!(map.busy(word as u32), plain.live[word]);
            }
            let live: u32 = plain.live.iter().map(|live| live.count_ones()).sum();
            prop_assert_eq!(map.weight(), live);
        }
    }

    #[test]
    fn lowest_bits_are_the_lowest(bits: u64, count in 0_u32..70) {
        let (got, missing) = lowest_bits(bits, count);
        prop_assert_eq!(got.count_ones() + missing, count);
        prop_assert_eq!(got & !bits, 0);
        prop_assert_eq!(got.count_ones(), count.min(bits.count_ones()));
        let left = bits & !got;
        prop_assert!(left == 0 || got == 0 || got.ilog2() < left.trailing_zeros());
    }
}
