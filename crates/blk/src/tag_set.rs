//! Tags: they show which requests of a hardware context are in use, and the in-flight count is computed from them.
//!
//! Owns the allocation of tags and their visibility to readers. A tag is the index of a preallocated request; the
//! requests themselves are in [`hctx`](crate::hctx).
//!
//! Two kinds of set. An **owned** set belongs to one hardware context: its owner allocates from a private word and
//! publishes the busy word once per batch, with no read-modify-write. A **shared** (host-wide) set serves all hardware
//! contexts of a driver that has one limit for the whole host, through an [`Sbitmap`](sheave_base::sbitmap::Sbitmap).
//! Queues that are stacked on such a driver share its tags, but each has a set of its own that describes only its own
//! requests.
//!
//! Two counts are computed from the tags. A request is **accounted** from the flush of its batch until it has ended. It
//! is **in the driver** (*in flight*) while it is accounted and the block layer does not hold it back because the
//! driver refused it or the queue is quiesced.
//!
//! Invariants:
//! - I1: a tag has one owner from `take` to `free`. A batch takes the lowest free bits.
//! - I2: `info[tag]` is written before the tag's busy bit is published, so a reader that sees the bit sees the info of
//!   its request. A bit without info (taken ahead and not used yet, or another queue's) is not counted.
//! - I3: no counter is updated when an I/O starts or ends: [`TagSet::for_each`] walks the busy bits. It reads each tag
//!   once, so a count is never negative and never above the depth.
//! - I4: one tag beyond the depth exists: `depth` itself, for the flush request. It is never allocated here.
//! - I5: requests that are only gathered are not counted. In an owned set their bit is not set yet, in a shared one
//!   their info is not live yet.

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

/// Description of a busy tag's request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TagInfo(u32);

#[derive(Debug)]
enum Kind {
    Owned(Arc<[CachePadded<AtomicU64>]>),
    Shared(Arc<SharedTags>),
}

/// Part of a tag set that any thread may read.
#[derive(Debug)]
pub struct TagSet {
    depth: u16,
    kind: Kind,
    /// Info word of each tag. Has an entry for each bit of the busy words, also for those beyond `depth`.
    info: Arc<[AtomicU32]>,
}

impl TagSet {
    /// Makes a set for one hardware context.
    pub fn owned(depth: u16) -> Arc<TagSet> {
        let words = usize::from(depth).div_ceil(64);
        let busy = (0..words).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        Self::with(depth, Kind::Owned(busy))
    }

    /// Makes a host-wide set.
    pub fn shared(depth: u16) -> Arc<TagSet> {
        Self::with(depth, Kind::Shared(Arc::new(SharedTags::new(u32::from(depth)))))
    }

    /// Makes a set for another queue that uses the same tags; each describes only its own requests. Only host-wide tags
    /// can be shared. For an owned set this is another owned set.
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

    /// Returns the number of tags in the set.
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

    /// Walks the busy tags once. Calls `tell` for each accounted request with its operation, its partition, and true if
    /// the block layer holds it back.
    pub(crate) fn for_each(&self, mut tell: impl FnMut(Op, u16, bool)) {
        for word in 0..self.words() {
            tell_of_word(&self.info, word as usize, self.busy(word), &mut tell);
        }
    }

    /// Returns the data of a walk over an owned set, without a pointer to the set. Empty for a shared set, which is
    /// walked once for all its hardware contexts.
    pub(crate) fn walk(&self) -> TagWalk {
        match &self.kind {
            Kind::Owned(busy) => TagWalk::new(busy.clone(), self.info.clone()),
            Kind::Shared(_) => TagWalk::new(Arc::new([]), self.info.clone()),
        }
    }
}

/// Owner's half of a tag set.
#[derive(Debug)]
pub(crate) struct Tags {
    set: Arc<TagSet>,
    /// `info` and the busy words of `set`, cached to save a pointer. A shared set has no busy words.
    info: Arc<[AtomicU32]>,
    busy: Arc<[CachePadded<AtomicU64>]>,
    /// Free bits of `word`. The entry of `free` for that word is out of date.
    current: u64,
    /// Word that tags are taken from.
    word: usize,
    /// Owned set: free bits of each word. Shared set: bits taken ahead.
    free: Box<[u64]>,
    /// Mask of the bits in each word that stand for tags. The last word may have bits beyond the depth.
    all: Box<[u64]>,
    /// Mask of words other than `word` whose busy bits changed since they were published.
    dirty: u64,
    shared: bool,
    /// The ring's number in a shared set.
    id: u32,
    word_hint: u32,
    /// Number of tags of a shared set that this ring has taken and not freed.
    held: u32,
    /// True if the ring's last attempt to take a tag of a shared set failed.
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

    /// Takes the lowest free tag. `ahead` is the number of tags that the batch is expected to need.
    #[inline(always)]
    pub(crate) fn take(&mut self, ahead: u32) -> Option<u16> {
        if self.current == 0 && !self.next_word(ahead) {
            return None;
        }
        let bit = self.current.trailing_zeros();
        self.current &= self.current - 1;
        Some((self.word as u32 * 64 + bit) as u16)
    }

    /// Returns true if the next `take` succeeds. Takes up to `ahead` tags of a shared set to achieve that.
    #[inline]
    pub(crate) fn ensure(&mut self, ahead: u32) -> bool {
        self.current != 0 || self.next_word(ahead)
    }

    /// Switches to the lowest word with free bits. Without any, takes up to `ahead` tags of a shared set. Returns false
    /// if there are none.
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

    /// Makes `word` the one that tags are taken from. The number of words stands for no word.
    fn switch_to(&mut self, word: usize) {
        if let Some(entry) = self.free.get_mut(self.word) {
            *entry = self.current;
            self.dirty |= 1 << self.word;
        }
        self.word = word;
        self.current = self.free.get(word).copied().unwrap_or(0);
    }

    /// Returns the info word of a newly gathered request: op, partition, and LIVE for an owned set (I5).
    #[inline]
    pub(crate) fn info_of(&self, op: Op, part: u16) -> TagInfo {
        let live = if self.shared { 0 } else { LIVE };
        TagInfo(live | op as u32 | u32::from(part) << PART_SHIFT)
    }

    /// Marks the tag's request as accounted, with the block layer (`held`) or the driver.
    #[cold]
    pub(crate) fn set_held(&self, tag: u16, held: bool) {
        let info = &self.info[usize::from(tag)];
        // Relaxed: only the owner of the tag stores; readers see it in time, as in `set_info`.
        let state = if held { LIVE | HELD } else { LIVE };
        info.store(info.load(Ordering::Relaxed) & !(LIVE | HELD) | state, Ordering::Relaxed);
    }

    /// Stores the info of the tag's request (I2).
    #[inline(always)]
    pub(crate) fn set_info(&self, tag: u16, info: TagInfo) {
        // Relaxed: published by `publish`; for a shared set, whose bit is set already, by `publish_words`, before the
        // mark of `HctxShared::start_dispatch`.
        self.info[usize::from(tag)].store(info.0, Ordering::Relaxed);
    }

    /// Takes the lowest free tag and publishes its info at once, for a request that goes to the driver now. Returns
    /// `None` unless the set is owned, no other word has changed since it was published, and `word` has a free bit.
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

    /// Frees the tag that [`Tags::take_alone`] returned last. No tag was taken or freed since.
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

    /// Returns at most `most` of the lowest free tags that are consecutive. Empty if `word` has no free bit. They stay
    /// free until [`Tags::took`].
    #[inline(always)]
    pub(crate) fn row(&self, most: usize) -> TagRow<'_> {
        let first = self.current.trailing_zeros();
        let many = (!(self.current >> (first & 63))).trailing_zeros().min(most as u32);
        let first = self.word * 64 + first as usize;
        TagRow { first: first as u16, info: self.info.get(first..first + many as usize).unwrap_or_default() }
    }

    /// Takes the first `many` tags of the row that was returned last.
    #[inline(always)]
    pub(crate) fn took(&mut self, many: u32) {
        debug_assert!(many <= 64 && many <= self.current.count_ones(), "no more than were free");
        let first = self.current.trailing_zeros() & 63;
        self.current &= !(low_bits(many) << first);
    }

    /// Publishes the taken tags to readers, before the requests go to the driver. Returns false, without any effect, if
    /// [`Tags::publish_words`] is needed.
    #[inline(always)]
    pub(crate) fn publish(&mut self) -> bool {
        match self.busy.get(self.word) {
            // The usual case for small batches: one word has changed.
            Some(busy) if self.dirty == 0 => {
                // Release: as in `publish_words`.
                busy.store(!self.current & self.all[self.word], Ordering::Release);
                true
            }
            _ => false,
        }
    }

    /// Makes the next [`Tags::publish`] return false.
    pub(crate) fn publish_by_words(&mut self) {
        self.dirty |= 1 << self.word;
    }

    /// Publishes all taken tags. `batch` contains them, and possibly the flush request's.
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

    /// Frees tags of one word.
    #[inline(always)]
    pub(crate) fn free_batch(&mut self, word: usize, mask: u64) {
        match self.busy.get(word) {
            // The usual case for small batches: tags are taken from the same word.
            Some(busy) if self.word == word => {
                debug_assert_eq!(self.current & mask, 0, "a tag is freed once");
                self.current |= mask;
                // Relaxed, the load: an owned word has one writer. Release, the store: as in `free_other`.
                busy.store(busy.load(Ordering::Relaxed) & !mask, Ordering::Release);
            }
            _ => self.free_other(word, mask),
        }
    }

    /// Frees tags of a word other than `word`, or of a shared set.
    #[inline(never)]
    fn free_other(&mut self, word: usize, mask: u64) {
        match &self.set.kind {
            Kind::Owned(busy) => {
                self.free[self.word] = self.current;
                self.dirty |= 1 << self.word;
                debug_assert_eq!(self.free[word] & mask, 0, "a tag is freed once");
                self.free[word] |= mask;
                // Low tags first, so that few requests stay within few cache lines.
                self.word = self.word.min(word);
                self.current = self.free[self.word];
                // Relaxed, the load: an owned word has one writer. Requests that are only gathered stay invisible (I5).
                let left = busy[word].load(Ordering::Relaxed) & !mask;
                // Release: the effects of the requests come before their end; pairs with the load in `TagSet::busy`.
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

    /// Returns true if other rings take their tags from the same set.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Returns tags of a shared set that were taken ahead and not used. Called at the end of a plug.
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

    /// Requests a wake-up when another ring frees a tag of a shared set. Returns true if so; the caller then retries
    /// once before it sleeps. Returns false for an owned set, whose tags only the owner frees.
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

/// Largest number of words of tags, which follows from the depth that `Limits::normalized` allows.
const MAX_WORDS: usize = 64;

/// Tags that a batch frees.
#[derive(Debug)]
pub(crate) struct Freed {
    /// Word whose tags are being collected in `mask`.
    word: u16,
    pub(crate) mask: u64,
    /// Mask of other words with tags to free.
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

    /// Makes the tag's word the one that is collected.
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

/// Consecutive free tags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TagRow<'a> {
    pub(crate) first: u16,
    info: &'a [AtomicU32],
}

impl<'a> TagRow<'a> {
    pub(crate) fn len(&self) -> usize {
        self.info.len()
    }

    /// Returns the info cell of each tag.
    #[inline(always)]
    pub(crate) fn infos(&self) -> impl Iterator<Item = InfoOf<'a>> {
        self.info.iter().map(InfoOf)
    }
}

/// Info cell of one tag.
#[derive(Debug)]
pub(crate) struct InfoOf<'a>(&'a AtomicU32);

impl InfoOf<'_> {
    /// Stores the info of the tag's request before the tag is [taken](Tags::took) (I2).
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
