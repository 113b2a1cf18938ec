//! A bitmap of tags that many threads allocate from and free into ("scalable bitmap").
//!
//! Owns the record of which tags are taken. Does not own the meaning of a tag, and does not wait: a caller that gets no
//! tag decides itself how to be woken.
//!
//! A word holds 64 tags. Freeing does not touch the word that allocation works on: it sets bits in a second word,
//! `cleared`, on a cache line of its own. Allocation folds `cleared` back by one exchange when it runs short.
//!
//! | `set` bit | `cleared` bit | the tag is |
//! |---|---|---|
//! | 0 | 0 | free |
//! | 1 | 0 | live, or held for a moment by the thread that folds it |
//! | 1 | 1 | freed, waiting to be folded |
//!
//! * I1: a tag has one owner from the exchange that set its bit until [`Sbitmap::clear_batch`].
//! * I2: a grant is the lowest free bits of one word, and holds no bit that was busy.
//! * I3: a bit in `cleared` is also in `set`; the thread that takes it out of `cleared` takes it out of `set`, once.
//! * I4: the old owner's writes before the free of a tag are visible to the new owner after the grant.
//!
//! Called by tag sets that several threads share. A tag set with one owner does not need it.

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU64, Ordering};

/// Number of tags in one word.
pub const WORD_BITS: u32 = u64::BITS;

/// A concurrent bitmap of `depth` tags, `0..depth`.
#[derive(Debug)]
pub struct Sbitmap {
    words: Box<[Word]>,
    depth: u32,
}

/// 64 tags on two cache lines: one that allocation writes and one that freeing writes.
#[derive(Debug)]
struct Word {
    /// Bit n is set if tag `first + n` is not free. Bits past the depth stay 0 and are never granted.
    set: CachePadded<AtomicU64>,
    /// Bit n is set if tag `first + n` was freed and waits to be folded (I3).
    cleared: CachePadded<AtomicU64>,
}

impl Sbitmap {
    /// Makes a bitmap of `depth` free tags.
    ///
    /// # Panics
    /// When `depth` is 0: nothing could ever be granted.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        assert!(depth > 0, "a tag bitmap needs a depth of at least 1");
        let words = (0..depth.div_ceil(WORD_BITS)).map(|_| Word::new()).collect();
        Self { words, depth }
    }

    /// Returns the number of tags.
    #[inline]
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the number of words: word `w` holds the tags from `w * WORD_BITS`.
    #[inline]
    #[must_use]
    pub fn words(&self) -> u32 {
        self.depth.div_ceil(WORD_BITS)
    }

    /// Takes up to `want` tags of one word, the lowest that are free, trying the word `word_hint` first.
    ///
    /// Returns the first tag of the word and a mask: bit n grants the tag `first + n`. The mask is never 0, and may
    /// have fewer than `want` bits although other words have free tags. Its tags are freed by
    /// [`clear_batch`](Self::clear_batch), together or in parts. `word_hint` stores the word to continue with. Each
    /// thread has its own, with any start value.
    ///
    /// Returns `None` if each word in turn had no free tag (or `want` is 0). Tags that another thread is folding at
    /// that moment are not seen; that thread then takes at least one tag, so a free, and with it a reason to retry, is
    /// still to come.
    #[inline]
    pub fn get_batch(&self, word_hint: &mut u32, want: u32) -> Option<(u32, u64)> {
        if want == 0 {
            return None;
        }
        let words = self.words();
        let mut at = if *word_hint < words { *word_hint } else { *word_hint % words };
        for _ in 0..words {
            let mask = self.words[at as usize].take(want, self.valid(at));
            if mask != 0 {
                *word_hint = at;
                return Some((at * WORD_BITS, mask));
            }
            at = if at + 1 == words { 0 } else { at + 1 };
        }
        None
    }

    /// Takes one tag. Like [`get_batch`](Self::get_batch) with `want` 1.
    #[inline]
    pub fn get(&self, word_hint: &mut u32) -> Option<u32> {
        self.get_batch(word_hint, 1).map(|(first, mask)| first + mask.trailing_zeros())
    }

    /// Frees the tags `first + n` for each bit n of `mask`: one atomic instruction for the batch.
    ///
    /// `first` is the first tag of a word. The caller owns all these tags before the call and none of them afterwards.
    /// Debug builds panic if one of them is not live.
    #[inline]
    pub fn clear_batch(&self, first: u32, mask: u64) {
        debug_assert_eq!(first % WORD_BITS, 0, "clear_batch names a word by its first tag");
        self.words[(first / WORD_BITS) as usize].put(mask);
    }

    /// Returns the live tags of a word: bit n is tag `word * WORD_BITS + n`.
    ///
    /// While other threads allocate and free, the result holds every tag that is live during the whole call, and may
    /// also hold a tag that is just being folded. Without them it is exact.
    #[inline]
    #[must_use]
    pub fn busy(&self, word: u32) -> u64 {
        self.words[word as usize].busy()
    }

    /// Returns the number of live tags: the sum over [`busy`](Self::busy), never above the depth.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.words.iter().map(|word| word.busy().count_ones()).sum()
    }

    /// Returns the bits of a word that are tags: all but those past the depth.
    #[inline]
    fn valid(&self, word: u32) -> u64 {
        let tags = self.depth - word * WORD_BITS;
        if tags >= WORD_BITS { u64::MAX } else { (1 << tags) - 1 }
    }
}

impl Word {
    fn new() -> Self {
        Self { set: CachePadded::new(AtomicU64::new(0)), cleared: CachePadded::new(AtomicU64::new(0)) }
    }

    /// Takes the lowest `want` free bits, or fewer if there are fewer. Returns 0 if there is none.
    #[inline]
    fn take(&self, want: u32, valid: u64) -> u64 {
        // Relaxed: only a guess, confirmed by the exchange below.
        let mut set = self.set.load(Ordering::Relaxed);
        let mut folded = false;
        // Every turn except the fold means that another thread has made progress on this word.
        loop {
            let (grant, missing) = lowest_bits(!set & valid, want);
            if missing > 0 && !folded {
                folded = true;
                if self.fold() {
                    set = self.set.load(Ordering::Relaxed);
                    continue;
                }
            }
            if grant == 0 {
                return 0;
            }
            // Acquire pairs with the Release in `fold` (I4). An exchange of the whole word, and not a blind OR: a
            // grant computed from an old value may hold bits that are busy by now (I2).
            match self.set.compare_exchange_weak(set, set | grant, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return grant,
                Err(now) => set = now,
            }
        }
    }

    /// Marks `mask` as freed.
    #[inline]
    fn put(&self, mask: u64) {
        debug_assert_eq!(self.set.load(Ordering::Relaxed) & mask, mask, "freed a tag that nobody had taken");
        // Release pairs with the Acquire in `fold` (I4).
        let before = self.cleared.fetch_or(mask, Ordering::Release);
        debug_assert_eq!(before & mask, 0, "freed a tag twice");
    }

    /// Takes the bits in `cleared` out of `set`, so that they can be allocated. Returns true if there were any.
    #[inline]
    fn fold(&self) -> bool {
        // Relaxed: a missed bit is like a free that has not happened yet. Saves the write to the line that freeing
        // owns.
        if self.cleared.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // The exchange makes this thread the only one to fold these bits (I3).
        // Acquire pairs with the Release in `put` (I4).
        let freed = self.cleared.swap(0, Ordering::Acquire);
        if freed == 0 {
            return false;
        }
        // Release pairs with the Acquire in `take` (I4).
        self.set.fetch_and(!freed, Ordering::Release);
        true
    }

    #[inline]
    fn busy(&self) -> u64 {
        // Relaxed, both: a tag that is live since before the call has its bit in `set` and its old free out of
        // `cleared`, and a thread that knows the grant cannot read anything older, in whatever order it reads.
        self.set.load(Ordering::Relaxed) & !self.cleared.load(Ordering::Relaxed)
    }
}

/// Returns the lowest `count` set bits of `bits`, or all of them, and the number of bits missing from `count`.
#[inline]
fn lowest_bits(bits: u64, count: u32) -> (u64, u32) {
    let (mut rest, mut got, mut missing) = (bits, 0, count);
    // One turn for each run of ones (at most 32), not for each bit: free tags mostly lie together.
    while rest != 0 && missing > 0 {
        let low = rest.trailing_zeros();
        let run = (rest >> low).trailing_ones().min(missing);
        let ones = (u64::MAX >> (WORD_BITS - run)) << low;
        got |= ones;
        rest ^= ones;
        missing -= run;
    }
    (got, missing)
}

#[cfg(all(test, any(shuttle, loom)))]
mod model;
#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
