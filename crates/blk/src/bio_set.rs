//! The bio set: storage of a ring's bios, and the owner's cache that recycles them.
//!
//! Owns the memory of the bios and the three places of free ones: the owner's **cache** (a LIFO list, so that the next
//! bio taken has the warmest cache lines), the **pool** behind it, and the **reserve** that guarantees progress. Also
//! owns the lists of bios ([`BioList`]), which are linked through the bios. Does not depend on the purpose of a bio. In
//! builds for the lab (`--cfg sheave_lab`) the cache can be made smaller, and a `BioStore` can stand behind it.
//!
//! Invariants:
//! - I1: a bio is live, or in exactly one of cache, pool, reserve.
//! - I2: at most `max_cached + CACHE_SLACK` bios are cached; above that [`CACHE_SLACK`] of them move to the pool. With
//!   `max_cached` 0 there is no cache: no bio is marked as cacheable.
//! - I3: a bio from the reserve returns to the reserve and never enters the cache.
//! - I4: a bio with a vector table is never cached with it. When the bio is put, its table joins the spare tables, of
//!   which there are at most [`SPARE_TABLES`], or is dropped.
//! - I5: a bio is put once for each time that it was taken; bios are not shared.
//! - I6: only the owner's thread accesses the bios. A driver that completes on another thread accesses only requests
//!   there.
//! - I7: a [`BioId`] that is not `NONE` is below the number of bios of the set it came from. Only this module makes
//!   them, and a ring has one set.
//! - I8: `BioStore::get` is called for each bio that leaves the pool for another place than the reserve, and `put` for
//!   each that returns to the pool. Data that a store keeps for a bio stays with it while it is live or cached.
//! - I9: for each plain record in flight one free bio is *promised*: the record gets it if it needs a bio after all
//!   (its queue is frozen, a neighbour merges with it). Other I/O leaves that number of bios free. While the lab
//!   observes bios (a cache limit, a store), none is promised, and each I/O takes a bio at once.
//!
//! Called by [`ctx`](crate::ctx).
#![allow(unsafe_code)] // The bio arena: a bounds check at every hop of every list costs more than the hops.

#[cfg(sheave_lab)]
use std::fmt::Debug;
use std::ops::{Index, IndexMut};

use crate::bio::{
    BIO_CACHEABLE, BIO_INLINE_VECS, BIO_PLAIN, BIO_RESERVE, BVec, Bio, BioAttrs, BioId, NO_FIXED_BUF, VecTable,
};
use crate::stack::MAX_LEVELS;

/// Default size of the owner's cache.
pub const CACHE_MAX: u32 = 512;
/// Number of bios that leave an overfull cache at once.
pub const CACHE_SLACK: u32 = 64;
/// Number of bios that move from the pool to the cache at once.
const REFILL: usize = 32;
/// Number of bios in the reserve, for I/O that cannot go on without a bio while no other is free.
pub const RESERVE: u32 = 4;

/// Number of bios per level of stacked devices that only I/O to the devices below can take.
const STACK_BIOS: u32 = 8;
/// Number of these bios that are left for pieces, into which such I/O may have to be cut.
const STACK_PIECES: usize = 4;

/// Vector tables kept for the next bio that needs one, so that long vectors do not allocate each time.
pub const SPARE_TABLES: usize = 64;
/// Largest capacity of a table that is kept, in vectors.
const SPARE_TABLE_VECS: usize = 1024;

/// Bios of one ring.
#[derive(Debug)]
pub struct BioSet {
    bios: Box<[Bio]>,
    tables: Vec<VecTable>,
    cache: Vec<u32>,
    pool: Vec<u32>,
    reserve: Vec<u32>,
    /// Reserve of each level of stacked devices. The bios of all levels follow each other from `stack_base` on.
    stacks: [Vec<u32>; MAX_LEVELS as usize],
    stack_base: u32,
    max_cached: u32,
    /// Number of bios promised to plain records (I9).
    promised: u32,
    /// False if no bios are promised at all (I9).
    #[cfg(sheave_lab)]
    promises: bool,
    #[cfg(sheave_lab)]
    store: Option<Box<dyn BioStore>>,
    /// Number of times that the cache was empty and was refilled from the pool.
    refills: u64,
}

impl BioSet {
    /// Makes a set of `capacity` bios, plus the reserves. At most `max_cached` stay in the owner's cache; with 0 every
    /// take and put uses the pool.
    pub fn new(capacity: u32, max_cached: u32) -> BioSet {
        let stack_base = capacity + RESERVE;
        let total = stack_base + u32::from(MAX_LEVELS) * STACK_BIOS;
        let first_of = |level: usize| stack_base + level as u32 * STACK_BIOS;
        let max_cached = max_cached.min(capacity);
        BioSet {
            bios: (0..total).map(|_| Bio::unused()).collect(),
            tables: Vec::with_capacity(SPARE_TABLES),
            cache: Vec::with_capacity((max_cached + CACHE_SLACK) as usize + 1),
            // Reversed, so that the lowest numbers are taken first.
            pool: (0..capacity).rev().collect(),
            reserve: (capacity..stack_base).collect(),
            stacks: std::array::from_fn(|level| (first_of(level)..first_of(level + 1)).collect()),
            stack_base,
            max_cached,
            promised: 0,
            #[cfg(sheave_lab)]
            promises: true,
            #[cfg(sheave_lab)]
            store: None,
            refills: 0,
        }
    }

    /// Returns the number of bios that may be promised to plain records (I9).
    #[inline(always)]
    pub(crate) fn promisable(&self) -> u32 {
        #[cfg(sheave_lab)]
        if !self.promises {
            return 0;
        }
        self.available()
    }

    /// Promises bios to `records` records, at most [`BioSet::promisable`].
    #[inline(always)]
    pub(crate) fn promise(&mut self, records: u32) {
        debug_assert!(records <= self.promisable(), "I9: a promise that cannot be kept");
        self.promised += records;
    }

    /// Withdraws the promises of `records` records, which have ended.
    #[inline(always)]
    pub(crate) fn release(&mut self, records: u32) {
        debug_assert!(records <= self.promised, "I9: what was not promised is not released");
        self.promised -= records;
    }

    /// Returns the number of bios promised to plain records in flight.
    pub fn promised(&self) -> u32 {
        self.promised
    }

    /// Takes the bio that was promised to a record, with one piece of memory. Flags of `attrs` include
    /// [`BioSet::cacheable`].
    pub(crate) fn take_promised(&mut self, attrs: &BioAttrs, owner: u32, sector: u64, bytes: u32, vec: BVec) -> BioId {
        self.release(1);
        self.take_plain(attrs, owner, sector, bytes, vec).expect("I9: a promised bio is there")
    }

    /// Takes a bio for up to [`BIO_INLINE_VECS`] vectors. Returns `None` if all outside of the reserve are live or
    /// promised.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<BioId> {
        if self.available() == 0 {
            return self.take_behind();
        }
        let Some(raw) = self.cache.pop() else { return self.take_behind() };
        self[BioId(raw)].init(&BioAttrs::new(BIO_CACHEABLE), 0, 0, 0);
        Some(BioId(raw))
    }

    /// Takes a bio for an I/O with one piece of memory and fills it. Flags of `attrs` include [`BioSet::cacheable`].
    #[inline(always)]
    pub(crate) fn take_plain(
        &mut self,
        attrs: &BioAttrs,
        owner: u32,
        sector: u64,
        bytes: u32,
        vec: BVec,
    ) -> Option<BioId> {
        if self.available() == 0 {
            return None;
        }
        let raw = match self.cache.pop() {
            Some(raw) => raw,
            None => self.refill()?,
        };
        let bio = &mut self[BioId(raw)];
        bio.init(attrs, owner, sector, bytes);
        bio.inline[0] = vec;
        Some(BioId(raw))
    }

    /// Takes a bio from the reserve, for a submitter that cannot go on otherwise. Returns `None` if all
    /// bios of the reserve are in use; the end of their I/O frees them.
    pub(crate) fn take_reserve(&mut self) -> Option<BioId> {
        let raw = self.reserve.pop()?;
        self[BioId(raw)].init(&BioAttrs::new(BIO_RESERVE), 0, 0, 0);
        Some(BioId(raw))
    }

    /// Takes a bio for I/O of a stacked driver on `level`, or (`piece`) for a piece cut from such I/O: an ordinary one
    /// if available, else one of the level's reserve. Returns `None` if all bios of that reserve are in use; the end
    /// of their I/O frees them.
    #[cold]
    pub(crate) fn take_stacked(&mut self, level: u8, piece: bool) -> Option<BioId> {
        if let Some(id) = self.take() {
            return Some(id);
        }
        let stack = &mut self.stacks[usize::from(level.min(MAX_LEVELS - 1))];
        if !piece && stack.len() <= STACK_PIECES {
            return None;
        }
        let id = BioId(stack.pop()?);
        self[id].init(&BioAttrs::new(0), 0, 0, 0);
        Some(id)
    }

    /// Returns the flag of bios that may be cached, or 0 if there is no cache (I2). Callers of [`BioSet::take_plain`]
    /// put it in the attributes.
    pub(crate) fn cacheable(&self) -> u16 {
        if self.max_cached == 0 { 0 } else { BIO_CACHEABLE }
    }

    /// Takes a bio when the cache is empty, from the pool. Returns `None` if there is none.
    #[cold]
    fn take_behind(&mut self) -> Option<BioId> {
        let id = BioId(self.refill()?);
        let attrs = BioAttrs::new(self.cacheable());
        self[id].init(&attrs, 0, 0, 0);
        Some(id)
    }

    #[cold]
    fn refill(&mut self) -> Option<u32> {
        if self.available() == 0 {
            return None;
        }
        if let Some(raw) = self.cache.pop() {
            return Some(raw);
        }
        self.refills += 1;
        if self.max_cached == 0 {
            return self.take_one();
        }
        #[cfg(sheave_lab)]
        if self.store.is_some() {
            return self.take_one();
        }
        let from = self.pool.len().saturating_sub(REFILL);
        self.cache.extend(self.pool.drain(from..));
        self.cache.pop()
    }

    /// Takes one bio from the pool. Returns `None` if the pool is empty, or if the store has nothing for the bio (I8).
    fn take_one(&mut self) -> Option<u32> {
        let raw = self.pool.pop()?;
        #[cfg(sheave_lab)]
        if let Some(store) = &mut self.store
            && !store.get(raw)
        {
            self.pool.push(raw);
            return None;
        }
        Some(raw)
    }

    /// Returns a bio to the pool (I8).
    fn put_one(&mut self, raw: u32) {
        #[cfg(sheave_lab)]
        if let Some(store) = &mut self.store {
            store.put(raw);
        }
        self.pool.push(raw);
    }

    /// Sets the bio's vectors, in a table if they do not fit inline.
    #[inline]
    pub fn set_vecs(&mut self, id: BioId, vecs: &[BVec]) {
        let bio = &mut self[id];
        bio.nr_vecs = vecs.len() as u16;
        if vecs.len() <= BIO_INLINE_VECS {
            bio.inline[..vecs.len()].copy_from_slice(vecs);
        } else {
            bio.flags &= !BIO_CACHEABLE;
            let mut table = self.take_table();
            table.extend_from_slice(vecs);
            self[id].table = Some(table);
        }
    }

    /// Returns an empty table, a spare one if possible.
    #[cold]
    pub(crate) fn take_table(&mut self) -> VecTable {
        self.tables.pop().unwrap_or_default()
    }

    /// Keeps the table for the next bio that needs one (I4).
    pub(crate) fn put_table(&mut self, mut table: VecTable) {
        if self.tables.len() < SPARE_TABLES && table.capacity() <= SPARE_TABLE_VECS {
            table.clear();
            self.tables.push(table);
        }
    }

    /// Recycles a bio that has ended (I5).
    #[inline(always)]
    pub fn put(&mut self, id: BioId) {
        let bio = &mut self[id];
        debug_assert!(bio.live, "put of a bio that is not live");
        bio.live = false;
        if bio.flags & BIO_CACHEABLE != 0 {
            // Never reallocates: `new` reserves the room, and `prune` keeps the length below it.
            self.cache.push(id.0);
            if self.cache.len() > (self.max_cached + CACHE_SLACK) as usize {
                self.prune(CACHE_SLACK as usize);
            }
        } else {
            self.put_slow(id);
        }
    }

    #[cold]
    fn put_slow(&mut self, id: BioId) {
        let bio = &mut self[id];
        let reserved = bio.flags & BIO_RESERVE != 0;
        if let Some(table) = bio.table.take() {
            self.put_table(table);
        }
        if reserved {
            self.reserve.push(id.0);
        } else if id.0 >= self.stack_base {
            self.stacks[((id.0 - self.stack_base) / STACK_BIOS) as usize].push(id.0);
        } else {
            self.put_one(id.0);
        }
    }

    /// Moves to the pool the `count` bios that have been in the cache longest.
    #[cold]
    fn prune(&mut self, count: usize) {
        let count = count.min(self.cache.len());
        #[cfg(sheave_lab)]
        if let Some(store) = &mut self.store {
            self.cache[..count].iter().for_each(|&raw| store.put(raw));
        }
        self.pool.extend(self.cache.drain(..count));
    }

    /// Returns the number of bios in use.
    pub fn live(&self) -> u32 {
        let stacks: usize = self.stacks.iter().map(Vec::len).sum();
        (self.bios.len() - self.cache.len() - self.pool.len() - self.reserve.len() - stacks) as u32
    }

    /// Returns the number of bios that can be taken without the reserve and without breaking a promise.
    #[inline]
    pub fn available(&self) -> u32 {
        (self.cache.len() + self.pool.len()) as u32 - self.promised
    }

    /// Returns the bios in use that belong to plain records.
    pub(crate) fn iter_plain(&self) -> impl Iterator<Item = &Bio> {
        self.bios.iter().filter(|bio| bio.live && bio.flags & BIO_PLAIN != 0)
    }

    /// Removes the registered buffer `index` from all bios. Those not in use are changed too, which does no harm.
    pub(crate) fn forget_fixed_buf(&mut self, index: u16) {
        let of_it = |bio: &&mut Bio| bio.fixed_buf == index;
        self.bios.iter_mut().filter(of_it).for_each(|bio| bio.fixed_buf = NO_FIXED_BUF);
    }

    /// Returns the number of bios in the owner's cache.
    pub fn cached(&self) -> u32 {
        self.cache.len() as u32
    }

    /// Returns the number of bios in the reserve.
    pub fn reserved(&self) -> u32 {
        self.reserve.len() as u32
    }

    /// Returns the number of times that the cache was empty and was refilled from the pool.
    pub fn refills(&self) -> u64 {
        self.refills
    }
}

/// First-in first-out list of bios of one set, linked through the bios.
#[derive(Debug)]
pub(crate) struct BioList {
    head: BioId,
    tail: BioId,
}

impl Default for BioList {
    fn default() -> Self {
        BioList { head: BioId::NONE, tail: BioId::NONE }
    }
}

impl BioList {
    /// Moves all bios of `other` to the end of this list.
    pub(crate) fn append(&mut self, bios: &mut BioSet, other: &mut BioList) {
        while let Some(id) = other.pop(bios) {
            self.push_back(bios, id);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.head.is_some()
    }

    pub(crate) fn push_back(&mut self, bios: &mut BioSet, id: BioId) {
        bios[id].next = BioId::NONE;
        if self.tail.is_some() {
            bios[self.tail].next = id;
        } else {
            self.head = id;
        }
        self.tail = id;
    }

    pub(crate) fn push_front(&mut self, bios: &mut BioSet, id: BioId) {
        bios[id].next = self.head;
        if !self.head.is_some() {
            self.tail = id;
        }
        self.head = id;
    }

    pub(crate) fn pop(&mut self, bios: &mut BioSet) -> Option<BioId> {
        if !self.head.is_some() {
            return None;
        }
        let id = self.head;
        self.head = bios[id].next;
        if !self.head.is_some() {
            self.tail = BioId::NONE;
        }
        bios[id].next = BioId::NONE;
        Some(id)
    }

    pub(crate) fn take(&mut self) -> BioList {
        std::mem::take(self)
    }
}

/// Storage behind the cache of a ring's bios, beside the ring's own pool: an allocator, a pool that rings share, a
/// limit. Its methods receive numbers of bios below the set's capacity (I8). They are called only on the slow paths: a
/// few times in all with a large enough cache, twice per I/O without one. The store is dropped with the set, and then
/// frees all that it holds.
#[cfg(sheave_lab)]
pub trait BioStore: Debug + Send {
    /// Called when a bio leaves the pool. Returns false if there is nothing for it; the I/O then waits as if no bio
    /// were free.
    fn get(&mut self, bio: u32) -> bool;

    /// Called when a bio for which `get` returned true returns to the pool.
    fn put(&mut self, bio: u32);
}

/// Settings of the lab that show the effect of the cache: a smaller cache, and a store behind it.
#[cfg(sheave_lab)]
impl BioSet {
    /// Returns true if plain I/O may go without a bio, which is false while the lab observes bios (I9).
    pub fn promises(&self) -> bool {
        self.promises
    }

    /// Sets another cache size. No bio is promised from now on (I9). Returns false, without any effect, while a bio is
    /// live or promised.
    pub(crate) fn set_max_cached(&mut self, max_cached: u32) -> bool {
        if self.live() + self.promised != 0 {
            return false;
        }
        self.promises = false;
        self.prune(self.cache.len());
        self.max_cached = max_cached.min(self.pool.len() as u32);
        self.cache.reserve((self.max_cached + CACHE_SLACK) as usize + 1);
        true
    }

    /// Replaces the store behind the cache. No bio is promised from now on (I9). Returns false, without any effect,
    /// while a bio is live or promised.
    pub(crate) fn set_store(&mut self, store: Box<dyn BioStore>) -> bool {
        if self.live() + self.promised != 0 {
            return false;
        }
        self.promises = false;
        self.prune(self.cache.len());
        self.store = Some(store);
        true
    }
}

impl Index<BioId> for BioSet {
    type Output = Bio;

    #[inline(always)]
    fn index(&self, id: BioId) -> &Bio {
        debug_assert!((id.0 as usize) < self.bios.len(), "I7");
        // SAFETY: the number of a bio that is not NONE is below `bios.len()` (I7).
        unsafe { self.bios.get_unchecked(id.0 as usize) }
    }
}

impl IndexMut<BioId> for BioSet {
    #[inline(always)]
    fn index_mut(&mut self, id: BioId) -> &mut Bio {
        debug_assert!((id.0 as usize) < self.bios.len(), "I7");
        // SAFETY: the number of a bio that is not NONE is below `bios.len()` (I7).
        unsafe { self.bios.get_unchecked_mut(id.0 as usize) }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
