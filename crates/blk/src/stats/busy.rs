//! Busy time of one hardware context, or of one partition there: the time in which at least one of its requests was
//! accounted, and the ticks that this time touched.
//!
//! Owns two words and a calendar. While no request is accounted, `word` holds the busy time so far, in ns. A busy
//! period subtracts its start from the word when it begins, and adds its end when it ends. Within a period the word is
//! therefore negative, and word plus the present time is the busy time until now. An I/O or a batch within a period
//! costs nothing. `since` is the start of the last period.
//!
//! The [calendar](Calendar) is for readers that combine several contexts. It has a bit for each tick of about 0.5 ms of
//! the last 17 s, set if a period touched the tick. A period that ends in the same tick as the one before it has
//! nothing to mark, so a context writes the calendar at most once per tick, in memory that no other context writes.
//!
//! Invariants:
//! - B1: periods do not overlap. A period begins at the stamp of its first request, but not before the end of the last
//!   period (the request may have waited in the plug through that end), and ends at the stamp of the batch after which
//!   nothing is accounted.
//! - B2: the sign of the word distinguishes busy from idle. The clock's 0 is before the first request, so the busy time
//!   up to any moment is less than that moment's time.
//! - B3: callers know if a period is open: calls of begin and end alternate.
//! - B4: a period is in the calendar, from its first tick to its last, before the word shows that it has ended.

use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::sync::count;

/// A tick is 2^19 ns, about 0.5 ms.
const TICK_SHIFT: u32 = 19;
const PAGE_TICKS: u64 = 32;
const PAGES: usize = 1024;
/// Length of a calendar, 17.2 s.
const TICKS: u64 = PAGES as u64 * PAGE_TICKS;

fn tick(at: CoarseTs) -> u64 {
    at.0 >> TICK_SHIFT
}

/// Ticks within one page.
struct Page {
    number: u64,
    /// One bit per tick.
    bits: u64,
}

impl Page {
    /// Returns the page's index in a calendar.
    fn at(&self) -> usize {
        self.number as usize % PAGES
    }

    /// Returns the page's word in a calendar without any tick set.
    fn empty(&self) -> u64 {
        self.number << 32
    }

    /// Returns the calendar word `have` with this page's ticks added. Replaces it if it belongs to an older page.
    fn add_to(&self, have: u64) -> u64 {
        if have >> 32 == self.empty() >> 32 { have | self.bits } else { self.empty() | self.bits }
    }
}

/// Returns the ticks from `from` to `to`, without those too old for a calendar that ends at `to`.
fn pages(from: CoarseTs, to: CoarseTs) -> impl Iterator<Item = Page> {
    let last = tick(to);
    let first = tick(from).clamp((last + 1).saturating_sub(TICKS), last);
    (first / PAGE_TICKS..=last / PAGE_TICKS).map(move |number| {
        let low = first.max(number * PAGE_TICKS) % PAGE_TICKS;
        let high = last.min(number * PAGE_TICKS + PAGE_TICKS - 1) % PAGE_TICKS;
        Page { number, bits: (u64::from(u32::MAX) >> (PAGE_TICKS - 1 - high)) >> low << low }
    })
}

/// Busy ticks of one or several contexts, as part of a reading.
///
/// Each page is a word: the page number modulo 2^32, and a bit for each of its ticks. A page replaces the one that is
/// [`PAGES`] older; the number distinguishes them until a page is 2.3 years old.
#[derive(Clone, Debug, Default)]
pub(super) struct Calendar {
    /// Empty, or [`PAGES`] words.
    pages: Vec<u64>,
}

impl Calendar {
    fn pages(&mut self) -> &mut [u64] {
        self.pages.resize(PAGES, 0);
        &mut self.pages
    }

    pub(super) fn mark(&mut self, from: CoarseTs, to: CoarseTs) {
        let mine = self.pages();
        pages(from, to).for_each(|page| mine[page.at()] = page.add_to(mine[page.at()]));
    }

    /// Adds another calendar's page at the same index. The newer of two different pages remains.
    fn add_page(mine: &mut u64, other: u64) {
        let newer = ((other >> 32) as u32).wrapping_sub((*mine >> 32) as u32);
        if newer == 0 {
            *mine |= other;
        } else if newer < u32::MAX / 2 {
            *mine = other;
        }
    }

    pub(super) fn add(&mut self, other: &Calendar) {
        if !other.pages.is_empty() {
            self.pages().iter_mut().zip(&other.pages).for_each(|(mine, other)| Self::add_page(mine, *other));
        }
    }

    /// Returns the busy time between `from` and `to` by ticks, in ns. The time before the calendar is assumed to be
    /// like the rest. A `from` of 0 (no clock was read then) stands for the first busy tick.
    pub(super) fn busy_ns(&self, from: CoarseTs, to: CoarseTs) -> u64 {
        let from = if from == CoarseTs(0) { self.first(to) } else { from };
        let (mut busy, mut all) = (0_u64, 0_u64);
        for page in pages(from, to) {
            busy += u64::from(self.busy_ticks(&page).count_ones());
            all += u64::from(page.bits.count_ones());
        }
        (u128::from(to.ns_since(from)) * u128::from(busy) / u128::from(all.max(1))) as u64
    }

    /// Returns the start of the first busy tick in the calendar, or `to`.
    fn first(&self, to: CoarseTs) -> CoarseTs {
        let first = |page: Page| {
            let busy = self.busy_ticks(&page);
            (busy != 0).then(|| page.number * PAGE_TICKS + u64::from(busy.trailing_zeros()))
        };
        pages(CoarseTs(0), to).find_map(first).map_or(to, |tick| CoarseTs(tick << TICK_SHIFT))
    }

    fn busy_ticks(&self, page: &Page) -> u64 {
        let have = self.pages.get(page.at()).copied().unwrap_or(0);
        if have >> 32 == page.empty() >> 32 { have & page.bits } else { 0 }
    }
}

/// End of the last busy period, and the last tick marked in the calendar. The end of a period of `add_period` is not
/// recorded: no plug is open during it, so no gathered request has an older stamp. Used by the owner alone.
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

/// Busy time of one hardware context, or of one partition there.
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
    /// Begins a period with a request issued at `start`, which may be a shared stamp from before the last period's end.
    #[inline(always)]
    pub(crate) fn begin(&self, edge: BusyEdge, start: CoarseTs) {
        self.begin_at(start.max(edge.ended)); // B1
    }

    /// Begins a period with a request issued at `start`, for which the clock was read after the last period's end.
    #[inline(always)]
    pub(crate) fn begin_at(&self, start: CoarseTs) {
        // Release: a reader that sees the start sees the ticks of earlier periods; pairs with the load in `read`.
        self.since.store(start.0, Ordering::Release);
        self.add(start.0.wrapping_neg());
    }

    /// Ends the period at `now`.
    #[inline(always)]
    pub(crate) fn end(&self, edge: &mut BusyEdge, now: CoarseTs) {
        self.mark_until(edge, now);
        // Relaxed: single writer. A clock slightly behind that of the start must not make the word negative (B2).
        let busy_ns = self.word.load(Ordering::Relaxed).wrapping_add(now.0);
        // Release: see `add`.
        self.word.store(if is_negative(busy_ns) { 0 } else { busy_ns }, Ordering::Release);
    }

    /// [`BusyTime::end`] for a `now` that cannot be before the period's start.
    #[inline(always)]
    pub(crate) fn end_at(&self, edge: &mut BusyEdge, now: CoarseTs) {
        self.mark_until(edge, now);
        self.add(now.0);
    }

    /// Adds a whole period outside of any other.
    #[inline(always)]
    pub(crate) fn add_period(&self, edge: &mut BusyEdge, start: CoarseTs, now: CoarseTs) {
        if tick(now) != edge.tick {
            self.mark(start, now);
            edge.tick = tick(now);
        }
        self.add(now.ns_since(start));
    }

    /// Marks the open period, which ends at `now`, in the calendar (B4).
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

    /// Returns the busy time until now, and the time of the reading. Adds the ticks to `calendar`.
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
        // The reader's clock may be slightly behind the owner's.
        (if is_negative(busy_ns) { 0 } else { busy_ns }, now)
    }
}

fn is_negative(word: u64) -> bool {
    word.cast_signed() < 0
}
