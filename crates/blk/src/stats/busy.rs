//! The busy time of one hardware context, or of one partition there: for how long at least one of its requests was
//! accounted, and in which ticks that was.
//!
//! Owns two words and a calendar. While no request is accounted, `word` holds the busy time so far, in ns. A busy
//! period takes its start from the word when it begins, and adds its end when it ends; so in the middle of one the
//! word is negative, and lacks the present time to be the busy time until now. An I/O or a batch in the middle of a
//! period costs nothing. `since` is the start of the last period.
//!
//! The [calendar](Calendar) is for readers who put several contexts together: it has a bit for each tick of some 0.5 ms
//! of the last 17 s, set if a period touched the tick. A period that ends in the tick in which the one before it ended
//! has nothing to mark, so a context writes there at most once a tick, to memory that no other context writes.
//!
//! Invariants:
//! - B1: periods do not overlap: one begins at the stamp of its first request, but not before the last one ended (that
//!   request may have waited in the plug through the end of it), and ends at the stamp of the batch that leaves
//!   nothing.
//! - B2: the sign of the word tells busy from idle, for the clock's 0 is before anything was done: whoever is busy all
//!   the time from some moment on has a busy time that is less than the time.
//! - B3: who calls knows whether a period is open: a begin and an end follow each other in turns.
//! - B4: a period is in the calendar, from its first tick to its last, before the word says that it has ended.

use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::sync::count;

/// A tick is 2^19 ns.
const TICK_SHIFT: u32 = 19;
/// Ticks of one page of a calendar.
const PAGE_TICKS: u64 = 32;
/// Pages of a calendar.
const PAGES: usize = 1024;
/// Ticks of a calendar: 17.2 s.
const TICKS: u64 = PAGES as u64 * PAGE_TICKS;

fn tick(at: CoarseTs) -> u64 {
    at.0 >> TICK_SHIFT
}

/// Some ticks of one page.
struct Page {
    number: u64,
    /// A bit for each of the ticks.
    bits: u64,
}

impl Page {
    /// Its place in a calendar.
    fn at(&self) -> usize {
        self.number as usize % PAGES
    }

    /// The page without ticks.
    fn empty(&self) -> u64 {
        self.number << 32
    }

    /// What a calendar has in its place, with its ticks.
    fn add_to(&self, have: u64) -> u64 {
        if have >> 32 == self.empty() >> 32 { have | self.bits } else { self.empty() | self.bits }
    }
}

/// The ticks from `from` to `to`, those alone that a calendar holds which ends there.
fn pages(from: CoarseTs, to: CoarseTs) -> impl Iterator<Item = Page> {
    let last = tick(to);
    let first = tick(from).clamp((last + 1).saturating_sub(TICKS), last);
    (first / PAGE_TICKS..=last / PAGE_TICKS).map(move |number| {
        let low = first.max(number * PAGE_TICKS) % PAGE_TICKS;
        let high = last.min(number * PAGE_TICKS + PAGE_TICKS - 1) % PAGE_TICKS;
        Page { number, bits: (u64::from(u32::MAX) >> (PAGE_TICKS - 1 - high)) >> low << low }
    })
}

/// The busy ticks of one or of several contexts: what a reading takes along.
///
/// A page is a word: the number of the page, modulo 2^32, and a bit for each of its ticks. A page takes the place of
/// one that is [`PAGES`] older, and its number tells them apart (until one is 2.3 years old).
#[derive(Clone, Debug, Default)]
pub(super) struct Calendar {
    /// Empty, or [`PAGES`].
    pages: Vec<u64>,
}

impl Calendar {
    fn pages(&mut self) -> &mut [u64] {
        self.pages.resize(PAGES, 0);
        &mut self.pages
    }

    fn mark(&mut self, from: CoarseTs, to: CoarseTs) {
        let mine = self.pages();
        pages(from, to).for_each(|page| mine[page.at()] = page.add_to(mine[page.at()]));
    }

    /// Adds the ticks of a page that another calendar has in the same place; the newer page stays.
    fn add_page(mine: &mut u64, other: u64) {
        let newer = ((other >> 32) as u32).wrapping_sub((*mine >> 32) as u32);
        if newer == 0 {
            *mine |= other;
        } else if newer < u32::MAX / 2 {
            *mine = other;
        }
    }

    /// Adds the ticks of another one.
    pub(super) fn add(&mut self, other: &Calendar) {
        if !other.pages.is_empty() {
            self.pages().iter_mut().zip(&other.pages).for_each(|(mine, other)| Self::add_page(mine, *other));
        }
    }

    /// For how long it was busy between two moments, by ticks, in ns. What is older than the calendar is taken to have
    /// been like the rest. A beginning of 0 stands for the first busy tick: nobody has read a clock before.
    pub(super) fn busy_ns(&self, from: CoarseTs, to: CoarseTs) -> u64 {
        let from = if from == CoarseTs(0) { self.first(to) } else { from };
        let (mut busy, mut all) = (0_u64, 0_u64);
        for page in pages(from, to) {
            busy += u64::from(self.busy_ticks(&page).count_ones());
            all += u64::from(page.bits.count_ones());
        }
        (u128::from(to.ns_since(from)) * u128::from(busy) / u128::from(all.max(1))) as u64
    }

    /// The beginning of the first busy tick that it has, or `to`.
    fn first(&self, to: CoarseTs) -> CoarseTs {
        let first = |page: Page| {
            let busy = self.busy_ticks(&page);
            (busy != 0).then(|| page.number * PAGE_TICKS + u64::from(busy.trailing_zeros()))
        };
        pages(CoarseTs(0), to).find_map(first).map_or(to, |tick| CoarseTs(tick << TICK_SHIFT))
    }

    /// The ticks of this page that were busy.
    fn busy_ticks(&self, page: &Page) -> u64 {
        let have = self.pages.get(page.at()).copied().unwrap_or(0);
        if have >> 32 == page.empty() >> 32 { have & page.bits } else { 0 }
    }
}

/// When the last busy period ended in which there may have been another plug, and the last tick that is in the
/// calendar; its owner's alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BusyEdge {
    ended: CoarseTs,
    tick: u64,
}

impl Default for BusyEdge {
    fn default() -> Self {
        BusyEdge { ended: CoarseTs(0), tick: u64::MAX }
    }
}

/// The busy time of one hardware context, or of one partition there.
#[derive(Debug)]
pub(crate) struct BusyTime {
    word: AtomicU64,
    since: AtomicU64,
    calendar: Box<[count::AtomicU64]>,
}

impl Default for BusyTime {
    fn default() -> Self {
        let calendar = (0..PAGES).map(|_| count::AtomicU64::new(0)).collect();
        BusyTime { word: AtomicU64::new(0), since: AtomicU64::new(0), calendar }
    }
}

impl BusyTime {
    /// A request is accounted that was issued at `start`, which may be a stamp from before the last period's end.
    #[inline(always)]
    pub(crate) fn begin(&self, edge: BusyEdge, start: CoarseTs) {
        self.begin_at(start.max(edge.ended)); // B1
    }

    /// A request is accounted that was issued at `start`, by a clock that was read for it.
    #[inline(always)]
    pub(crate) fn begin_at(&self, start: CoarseTs) {
        // Release: who sees the start sees the ticks of the periods before it; pairs with the load in `read`.
        self.since.store(start.0, Ordering::Release);
        self.add(start.0.wrapping_neg());
    }

    /// No request is accounted any more, since `now`.
    #[inline(always)]
    pub(crate) fn end(&self, edge: &mut BusyEdge, now: CoarseTs) {
        self.mark_until(edge, now);
        // Relaxed: single writer. A clock that is a little behind the start's must not make it negative (B2).
        let busy_ns = self.word.load(Ordering::Relaxed).wrapping_add(now.0);
        // Release: see `add`.
        self.word.store(if is_negative(busy_ns) { 0 } else { busy_ns }, Ordering::Release);
    }

    /// As [`BusyTime::end`], for a time that surely is not before the period's start.
    #[inline(always)]
    pub(crate) fn end_at(&self, edge: &mut BusyEdge, now: CoarseTs) {
        self.mark_until(edge, now);
        self.add(now.0);
    }

    /// Adds a whole period, outside of any other.
    #[inline(always)]
    pub(crate) fn add_period(&self, edge: &mut BusyEdge, start: CoarseTs, now: CoarseTs) {
        if tick(now) != edge.tick {
            self.mark(start, now);
            edge.tick = tick(now);
        }
        self.add(now.ns_since(start));
    }

    /// The period that is open ends now (B4).
    #[inline(always)]
    fn mark_until(&self, edge: &mut BusyEdge, now: CoarseTs) {
        if tick(now) != edge.tick {
            // Relaxed: single writer.
            self.mark(CoarseTs(self.since.load(Ordering::Relaxed)), now);
            edge.tick = tick(now);
        }
        edge.ended = now;
    }

    #[cold]
    #[inline(never)]
    fn mark(&self, start: CoarseTs, now: CoarseTs) {
        for page in pages(start, now) {
            // Relaxed, both: single writer; shown by the store of the word (B4).
            let cell = &self.calendar[page.at()];
            cell.store(page.add_to(cell.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn add(&self, ns: u64) {
        // Relaxed, the load: single writer. Release, the store: a reader that sees the period open sees its start, and
        // one that sees it ended sees its ticks; pairs with the load in `read`.
        self.word.store(self.word.load(Ordering::Relaxed).wrapping_add(ns), Ordering::Release);
    }

    /// The busy time until now, and the moment of that; the ticks go to `calendar`.
    pub(super) fn read(&self, clock: &Clock, calendar: &mut Calendar) -> (u64, CoarseTs) {
        // Acquire: pairs with the stores of `add` and `end`.
        let word = self.word.load(Ordering::Acquire);
        // Acquire: it may be the start of a later period; pairs with the store of `begin_at`.
        let since = CoarseTs(self.since.load(Ordering::Acquire));
        let now = clock.coarse();
        let pages = calendar.pages();
        for (mine, theirs) in pages.iter_mut().zip(&self.calendar) {
            // Relaxed: ordered by the loads before it.
            Calendar::add_page(mine, theirs.load(Ordering::Relaxed));
        }
        if !is_negative(word) {
            return (word, now);
        }
        calendar.mark(since, now);
        let busy_ns = word.wrapping_add(now.0);
        // The reader's clock may be a little behind the owner's.
        (if is_negative(busy_ns) { 0 } else { busy_ns }, now)
    }
}

fn is_negative(word: u64) -> bool {
    word.cast_signed() < 0
}
