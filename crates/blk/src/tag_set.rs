//! Tags: which requests of a hardware context are in use, and the in-flight count that follows from it.
//!
//! Owns the allocation of tags and their visibility to readers. A tag is the index of a preallocated request; the
//! requests themselves are in [`hctx`](crate::hctx).
//!
//! Two kinds of set. An **owned** set belongs to one hardware context: its owner allocates from a private word and
//! publishes the busy word once per batch, with no read-modify-write. A **shared** (host-wide) set serves all
//! hardware contexts of a driver that has one limit for the whole host, through an
//! [`Sbitmap`](sheave_base::sbitmap::Sbitmap). Queues that are stacked on such a driver share its tags, but each has a
//! set of its own, which knows its own requests alone.
//!
//! Two counts follow from the tags. A request is **accounted** from the flush of its batch until it has ended. It is
//! **in the driver** (*in flight*) while it is accounted and the block layer does not hold it back, because the driver
//! refused it or the queue is quiesced.
//!
//! Invariants:
//! - I1: a tag has one owner from `take` to `free`; a batch takes the lowest free bits and never a busy one.
//! - I2: `info[tag]` is written before the tag's busy bit is published, so whoever sees the bit sees what it stands
//!   for. A bit without info (taken ahead, not used yet, or another queue's) counts as nothing.
//! - I3: nothing is counted when an I/O starts or ends: [`TagSet::for_each`] walks the busy bits. Every tag is
//!   looked at once, so a count is never negative and never above the depth.
//! - I4: one more tag than the depth exists, `depth`: the flush request's. It is never allocated here.
//! - I5: what is only gathered counts as nothing. Its bit is not set yet in an owned set, and its info is not live
//!   yet in a shared one.

mod in_flight;
mod shared;

use crossbeam_utils::CachePadded;
use sheave_base::parker::Unparker;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::bio::Op;
use in_flight::{HELD, LIVE, PART_SHIFT, tell_of_word};
use shared::SharedTags;

pub use in_flight::InFlight;
pub(crate) use in_flight::TagWalk;

/// What a busy tag stands for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TagInfo(u32);

#[derive(Debug)]
enum Kind {
    Owned(Arc<[CachePadded<AtomicU64>]>),
    Shared(Arc<SharedTags>),
}

/// The part of a tag set that any thread may read.
#[derive(Debug)]
pub struct TagSet {
    depth: u16,
    kind: Kind,
    /// By tag, for all bits of the words.
    info: Arc<[AtomicU32]>,
}

impl TagSet {
    /// A set for one hardware context.
    pub fn owned(depth: u16) -> Arc<TagSet> {
        let words = usize::from(depth).div_ceil(64);
        let busy = (0..words).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        Self::with(depth, Kind::Owned(busy))
    }

    /// A host-wide set.
    pub fn shared(depth: u16) -> Arc<TagSet> {
        Self::with(depth, Kind::Shared(Arc::new(SharedTags::new(u32::from(depth)))))
    }

    /// A set for another queue on the tags of this one: each knows its own requests alone. Only a host-wide set can be
    /// shared so; beside one that is owned stands another owned one.
    pub(crate) fn beside(&self) -> Arc<TagSet> {
        match &self.kind {
            Kind::Owned(_) => Self::owned(self.depth),
            Kind::Shared(shared) => Self::with(self.depth, Kind::Shared(shared.clone())),
        }
    }

    fn with(depth: u16, kind: Kind) -> Arc<TagSet> {
        let bits = u32::from(depth).next_multiple_of(64);
        Arc::new(TagSet { depth, kind, info: (0..bits).map(|_| AtomicU32::new(0)).collect() })
    }

    /// Tags in the set.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    fn words(&self) -> u32 {
        u32::from(self.depth).div_ceil(64)
    }

    fn busy(&self, word: u32) -> u64 {
        match &self.kind {
            // Acquire: pairs with the stores in `Tags::publish` and `Tags::free_batch`, and in what those call.
            Kind::Owned(busy) => busy[word as usize].load(Ordering::Acquire),
            Kind::Shared(shared) => shared.map.busy(word),
        }
    }

    /// Walks the busy tags once: tells of each accounted request its operation, its partition, and whether the block
    /// layer holds it back.
    pub(crate) fn for_each(&self, mut tell: impl FnMut(Op, u16, bool)) {
        for word in 0..self.words() {
            tell_of_word(&self.info, word as usize, self.busy(word), &mut tell);
        }
    }

    /// What a walk over an owned set needs, without a look at the set; of a shared set, which is walked once for all
    /// its hardware contexts, nothing.
    pub(crate) fn walk(&self) -> TagWalk {
        match &self.kind {
            Kind::Owned(busy) => TagWalk::new(busy.clone(), self.info.clone()),
            Kind::Shared(_) => TagWalk::new(Arc::new([]), self.info.clone()),
        }
    }
}

/// The owner's half of a tag set.
#[derive(Debug)]
pub(crate) struct Tags {
    set: Arc<TagSet>,
    /// The set's, one step nearer: what is said of each tag, and the busy words of an owned set; a shared one has none.
    info: Arc<[AtomicU32]>,
    busy: Arc<[CachePadded<AtomicU64>]>,
    /// Free bits of the word that tags are taken from; its own entry of `free` is out of date.
    current: u64,
    /// That word.
    word: usize,
    /// Owned set: the free bits of each word. Shared set: bits taken ahead.
    free: Box<[u64]>,
    /// The bits of each word that are tags.
    all: Box<[u64]>,
    /// Other words whose busy bits changed since they were published.
    dirty: u64,
    shared: bool,
    /// The ring's number in a shared set.
    id: u32,
    word_hint: u32,
    /// Tags of a shared set that this ring has taken and not freed.
    held: u32,
    /// The ring wanted one of them the last time, and got none.
    hungry: bool,
}

impl Tags {
    pub(crate) fn new(set: Arc<TagSet>) -> Tags {
        let depth = u32::from(set.depth);
        let id = match &set.kind {
            Kind::Owned(_) => 0,
            Kind::Shared(shared) => shared.get_id(),
        };
        let shared = matches!(set.kind, Kind::Shared(_));
        let all: Box<[u64]> = (0..set.words()).map(|word| low_bits((depth - word * 64).min(64))).collect();
        let free = if shared { vec![0; all.len()].into() } else { all.clone() };
        let busy = if let Kind::Owned(busy) = &set.kind { busy.clone() } else { Arc::new([]) };
        let info = set.info.clone();
        Tags {
            set,
            info,
            busy,
            current: free[0],
            word: 0,
            free,
            all,
            dirty: 0,
            shared,
            id,
            word_hint: 0,
            held: 0,
            hungry: false,
        }
    }

    /// Takes the lowest free tag; `ahead` is how many more the batch is expected to want.
    #[inline(always)]
    pub(crate) fn take(&mut self, ahead: u32) -> Option<u16> {
        if self.current == 0 && !self.next_word(ahead) {
            return None;
        }
        let bit = self.current.trailing_zeros();
        self.current &= self.current - 1;
        Some((self.word as u32 * 64 + bit) as u16)
    }

    /// Whether the next `take` gives a tag; a shared set is asked for up to `ahead` of them.
    #[inline]
    pub(crate) fn ensure(&mut self, ahead: u32) -> bool {
        self.current != 0 || self.next_word(ahead)
    }

    /// Goes to the lowest word with free bits; a shared set without any is asked for up to `ahead`. False when there is
    /// none.
    #[cold]
    fn next_word(&mut self, ahead: u32) -> bool {
        self.switch_to(self.free.len());
        let mut found = self.free.iter().position(|&word| word != 0);
        if let (None, Kind::Shared(shared)) = (found, &self.set.kind) {
            let want = ahead.clamp(1, 64).min(shared.share_left(self.held, self.hungry));
            if want > 0
                && let Some((base, mask)) = shared.map.get_batch(&mut self.word_hint, want)
            {
                self.held += mask.count_ones();
                self.free[(base / 64) as usize] = mask;
                found = Some((base / 64) as usize);
            }
            if self.hungry != found.is_none() {
                self.hungry = found.is_none();
                shared.set_hungry(self.hungry);
            }
        }
        self.switch_to(found.unwrap_or(0));
        found.is_some()
    }

    /// Makes `word` the one that tags are taken from; the number of words stands for none.
    fn switch_to(&mut self, word: usize) {
        if let Some(entry) = self.free.get_mut(self.word) {
            *entry = self.current;
            self.dirty |= 1 << self.word;
        }
        self.word = word;
        self.current = self.free.get(word).copied().unwrap_or(0);
    }

    /// What is to be said of a request that is gathered (I5).
    #[inline]
    pub(crate) fn info_of(&self, op: Op, part: u16) -> TagInfo {
        let live = if self.shared { 0 } else { LIVE };
        TagInfo(live | op as u32 | u32::from(part) << PART_SHIFT)
    }

    /// The tag's request is accounted: the driver has it, or the block layer holds it back.
    #[cold]
    pub(crate) fn set_held(&self, tag: u16, held: bool) {
        let info = &self.info[usize::from(tag)];
        // Relaxed: only the owner of the tag stores; readers see it in time, as in `set_info`.
        let state = if held { LIVE | HELD } else { LIVE };
        info.store(info.load(Ordering::Relaxed) & !(LIVE | HELD) | state, Ordering::Relaxed);
    }

    /// Says what the tag's request is (I2).
    #[inline(always)]
    pub(crate) fn set_info(&self, tag: u16, info: TagInfo) {
        // Relaxed: published by `publish`; for a shared set, whose bit is set already, by `publish_words`, before the
        // mark of `HctxShared::start_dispatch`.
        self.info[usize::from(tag)].store(info.0, Ordering::Relaxed);
    }

    /// Takes the lowest free tag and shows to readers what it stands for, for a request that goes to the driver now.
    /// `None` unless it is an owned set where only the word that tags are taken from has changed, and has a free one.
    #[inline(always)]
    pub(crate) fn take_alone(&mut self, info: TagInfo) -> Option<u16> {
        let (word, current) = (self.word, self.current);
        if current == 0 || self.dirty != 0 {
            return None;
        }
        let busy = self.busy.get(word)?;
        let bit = current & current.wrapping_neg();
        let tag = word * 64 + current.trailing_zeros() as usize;
        self.current = current ^ bit;
        // Relaxed: before the store below (I2).
        self.info[tag].store(info.0, Ordering::Relaxed);
        // Relaxed, the load: an owned word has one writer. Release, the store: as in `publish_words`.
        busy.store(busy.load(Ordering::Relaxed) | bit, Ordering::Release);
        Some(tag as u16)
    }

    /// Frees the tag that [`Tags::take_alone`] gave last, when none was taken or freed since.
    #[inline(always)]
    pub(crate) fn free_alone(&mut self, tag: u16) {
        let bit = 1 << (tag & 63);
        debug_assert!(self.word == usize::from(tag / 64) && self.current & bit == 0, "none was taken or freed since");
        self.current |= bit;
        if let Some(busy) = self.busy.get(self.word) {
            // Relaxed and Release: as in `free_batch`.
            busy.store(busy.load(Ordering::Relaxed) & !bit, Ordering::Release);
        }
    }

    /// The lowest free tags that follow each other, `most` at most; none when the word that tags are taken from has
    /// none. They stay free until [`Tags::took`].
    #[inline(always)]
    pub(crate) fn row(&self, most: usize) -> TagRow<'_> {
        let first = self.current.trailing_zeros();
        let many = (!(self.current >> (first & 63))).trailing_zeros().min(most as u32);
        let first = self.word * 64 + first as usize;
        TagRow { first: first as u16, info: self.info.get(first..first + many as usize).unwrap_or_default() }
    }

    /// Takes so many of the tags of the row that was asked for last, from the first on.
    #[inline(always)]
    pub(crate) fn took(&mut self, many: u32) {
        debug_assert!(many <= 64 && many <= self.current.count_ones(), "no more than were free");
        let first = self.current.trailing_zeros() & 63;
        self.current &= !(low_bits(many) << first);
    }

    /// Makes what was taken visible to readers, before the requests go to the driver. False, and nothing is done, when
    /// [`Tags::publish_words`] must.
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> bool {
        match self.busy.get(self.word) {
            // As it is for small batches: one word has changed.
            Some(busy) if self.dirty == 0 => {
                // Release: as in `publish_words`.
                busy.store(!self.current & self.all[self.word], Ordering::Release);
                true
            }
            _ => false,
        }
    }

    /// Has the next [`Tags::publish`] leave it to [`Tags::publish_words`].
    pub(crate) fn publish_by_words(&mut self) {
        self.dirty |= 1 << self.word;
    }

    /// Makes visible all that was taken; those are the tags of `batch`, but for one at most, the flush request's.
    #[inline(never)]
    pub(crate) fn publish_words(&mut self, batch: &[u16]) {
        let mut dirty = std::mem::take(&mut self.dirty) | 1 << self.word;
        let Kind::Owned(busy) = &self.set.kind else {
            // The bits of a shared set are visible since they were taken.
            batch.iter().filter(|&&tag| tag < self.set.depth).for_each(|&tag| self.set_held(tag, false));
            return;
        };
        self.free[self.word] = self.current;
        while dirty != 0 {
            let word = dirty.trailing_zeros() as usize;
            dirty &= dirty - 1;
            // Release: the info comes before the bit (I2); pairs with the load in `TagSet::busy`. The gate needs more
            // than that: see `HctxShared::start_dispatch`, which follows.
            busy[word].store(!self.free[word] & self.all[word], Ordering::Release);
        }
    }

    /// Frees the tags of one word.
    #[inline(always)]
    pub(crate) fn free_batch(&mut self, word: usize, mask: u64) {
        match self.busy.get(word) {
            // As it is for small batches: tags are taken from this word.
            Some(busy) if self.word == word => {
                debug_assert_eq!(self.current & mask, 0, "a tag is freed once");
                self.current |= mask;
                // Relaxed, the load: an owned word has one writer. Release, the store: as in `free_other`.
                busy.store(busy.load(Ordering::Relaxed) & !mask, Ordering::Release);
            }
            _ => self.free_other(word, mask),
        }
    }

    /// Frees tags of another word than tags are taken from, or of a shared set.
    #[inline(never)]
    fn free_other(&mut self, word: usize, mask: u64) {
        match &self.set.kind {
            Kind::Owned(busy) => {
                self.free[self.word] = self.current;
                self.dirty |= 1 << self.word;
                debug_assert_eq!(self.free[word] & mask, 0, "a tag is freed once");
                self.free[word] |= mask;
                // Low tags first: few requests then stay in few cache lines.
                self.word = self.word.min(word);
                self.current = self.free[self.word];
                // Relaxed, the load: an owned word has one writer. What is only gathered stays invisible (I5).
                let left = busy[word].load(Ordering::Relaxed) & !mask;
                // Release: what the requests did happened before they left; pairs with the load in `TagSet::busy`.
                busy[word].store(left, Ordering::Release);
            }
            Kind::Shared(shared) => {
                let mut bits = mask;
                while bits != 0 {
                    let tag = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    // Relaxed: the bit is cleared after it, by `free` (release).
                    self.info[tag].store(0, Ordering::Relaxed);
                }
                self.held -= mask.count_ones();
                shared.free(word as u32 * 64, mask);
            }
        }
    }

    /// Frees the tags of a batch.
    #[inline(always)]
    pub(crate) fn free_all(&mut self, freed: &mut Freed) {
        if freed.words == 0 {
            let mask = std::mem::take(&mut freed.mask);
            if mask != 0 {
                self.free_batch(usize::from(freed.word), mask);
            }
            return;
        }
        self.free_many_words(freed);
    }

    #[inline(never)]
    fn free_many_words(&mut self, freed: &mut Freed) {
        freed.put_away();
        let mut words = std::mem::take(&mut freed.words);
        while words != 0 {
            let word = words.trailing_zeros() as usize % MAX_WORDS;
            words &= words - 1;
            let mask = std::mem::take(&mut freed.by_word[word]);
            if mask != 0 {
                self.free_batch(word, mask);
            }
        }
    }

    /// Whether other rings take their tags from the same set.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Gives back what a shared set granted ahead and nobody used; at the end of a plug.
    #[inline]
    pub(crate) fn return_unused(&mut self) {
        if self.shared {
            self.return_unused_slow();
        }
    }

    fn return_unused_slow(&mut self) {
        let Kind::Shared(shared) = &self.set.kind else { return };
        self.free[self.word] = self.current;
        self.current = 0;
        for (word, bits) in self.free.iter_mut().enumerate() {
            if *bits != 0 {
                self.held -= bits.count_ones();
                shared.free(word as u32 * 64, *bits);
                *bits = 0;
            }
        }
    }

    /// Asks to be woken when another ring frees a tag of a shared set. True: asked, now try once more before sleeping.
    /// False for an owned set, whose tags only the owner frees.
    pub(crate) fn ask_for_wake_up(&self, unparker: &Unparker) -> bool {
        let Kind::Shared(shared) = &self.set.kind else {
            return false;
        };
        shared.ask(self.id, unparker);
        true
    }
}

impl Drop for Tags {
    fn drop(&mut self) {
        if let Kind::Shared(shared) = &self.set.kind {
            if self.hungry {
                shared.set_hungry(false);
            }
            shared.put_id(self.id);
        }
    }
}

/// Words of tags at most: the depth that `Limits::normalized` allows.
const MAX_WORDS: usize = 64;

/// The tags that a batch frees.
#[derive(Debug)]
pub(crate) struct Freed {
    /// The word that is being gathered, and its tags.
    word: u16,
    pub(crate) mask: u64,
    /// A bit for each other word that has some.
    words: u64,
    by_word: [u64; MAX_WORDS],
}

impl Default for Freed {
    fn default() -> Self {
        Freed { word: 0, mask: 0, words: 0, by_word: [0; MAX_WORDS] }
    }
}

impl Freed {
    #[inline(always)]
    pub(crate) fn add(&mut self, tag: u16) {
        self.go_to(tag);
        self.mask |= 1 << (tag % 64);
    }

    /// Makes the tag's word the one that is gathered.
    #[inline(always)]
    pub(crate) fn go_to(&mut self, tag: u16) {
        if tag / 64 != self.word {
            if self.mask != 0 {
                self.put_away();
            }
            self.word = tag / 64;
        }
    }

    #[inline(always)]
    fn put_away(&mut self) {
        self.by_word[usize::from(self.word) % MAX_WORDS] |= self.mask;
        self.words |= 1 << self.word;
        self.mask = 0;
    }
}

/// Free tags that follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TagRow<'a> {
    /// The first of them.
    pub(crate) first: u16,
    info: &'a [AtomicU32],
}

impl<'a> TagRow<'a> {
    pub(crate) fn len(&self) -> usize {
        self.info.len()
    }

    /// What says of each of them what its request is.
    #[inline(always)]
    pub(crate) fn infos(&self) -> impl Iterator<Item = InfoOf<'a>> {
        self.info.iter().map(InfoOf)
    }
}

/// What says of one tag what its request is.
#[derive(Debug)]
pub(crate) struct InfoOf<'a>(&'a AtomicU32);

impl InfoOf<'_> {
    /// Says it, before the tag is [taken](Tags::took) (I2).
    #[inline(always)]
    pub(crate) fn set(&self, info: TagInfo) {
        // Relaxed: as in `Tags::set_info`.
        self.0.store(info.0, Ordering::Relaxed);
    }
}

#[inline]
fn low_bits(n: u32) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
