//! The stores behind the bio cache of the arms: a slab, the global allocator, a cache per CPU, and an empty one.
//!
//! A bio of Sheave lives in the arena of its ring and keeps its number, while an allocator returns other memory each
//! time. A store therefore attaches to each bio a piece of memory of a kernel bio's size, and takes it away again.
//! Stores do not initialise that memory: every arm initialises the bio in the arena once, like every design in the
//! mailing-list thread does. So the arms differ only in the time of the allocator and of the call of a store.
//! [`Nothing`] measures the call alone.
//!
//! * S1. `bios[n]` has memory from `get(n)` until `put(n)`.
//! * S2. An object of a slab is either in use, or free in the slab, or in the reserve.

use std::cell::RefCell;
use std::mem::MaybeUninit;

use sheave_blk::bio::Bio;
use sheave_blk::bio_set::BioStore;

/// Number of words in an object, which has the size of a bio with its inline vectors.
const WORDS: usize = size_of::<Bio>() / size_of::<u64>();
/// Number of objects in one page of a slab: 4 KiB, the smallest page that SLUB uses for objects of this size.
const OBJECTS: u32 = 32;
/// Index of the word in which a free object holds the number of the next free one. It is in the middle, like in SLUB.
const NEXT: usize = WORDS / 2;
const NONE: u32 = u32::MAX;
/// Number of objects that the mempool of a bio set keeps back (`BIO_POOL_SIZE` is 2 for file systems, 4 for block
/// devices).
const RESERVE: u32 = 4;
/// Largest number of pages of a slab: 32 MiB, far more than the bios of the lab's deepest ring need.
const PAGES: usize = 8192;

/// Bound of the proposed cache per CPU (`ALLOC_CACHE_MAX`), and below it the number of bios that leave an overfull one
/// at once (`_SLACK`).
pub const PER_CPU_MAX: usize = 512;
const PER_CPU_SLACK: usize = 64;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Object([u64; WORDS]);

/// A thread's slab of objects of a bio's size. The free list links the objects themselves, the one freed last first. If
/// the list is empty, the slab gets another page. If no page is left, objects come from the reserve, like in a mempool.
#[derive(Debug)]
pub struct Slab {
    pages: Vec<Box<[Object; OBJECTS as usize]>>,
    most_pages: usize,
    free: u32,
    reserve: Vec<u32>,
}

impl Default for Slab {
    fn default() -> Self {
        Self::bounded(PAGES)
    }
}

impl Slab {
    /// Makes a slab of at most `most_pages` pages.
    pub const fn bounded(most_pages: usize) -> Slab {
        Slab { pages: Vec::new(), most_pages, free: NONE, reserve: Vec::new() }
    }

    fn object(&mut self, object: u32) -> &mut Object {
        &mut self.pages[(object / OBJECTS) as usize][(object % OBJECTS) as usize]
    }

    /// Takes an object. Returns `None` when pages and reserve are used up.
    #[inline]
    fn get(&mut self) -> Option<u32> {
        if self.free == NONE {
            return self.get_slow();
        }
        let object = self.free;
        self.free = self.object(object).0[NEXT] as u32;
        Some(object)
    }

    #[cold]
    fn get_slow(&mut self) -> Option<u32> {
        if self.pages.len() >= self.most_pages {
            return self.reserve.pop();
        }
        let first = self.pages.len() as u32 * OBJECTS;
        self.pages.push(Box::new([Object([0; WORDS]); OBJECTS as usize]));
        // The reserve is filled from the first page, because `mempool_init` also fills its reserve before the first
        // allocation.
        let kept = if first == 0 { RESERVE } else { 0 };
        (first + kept..first + OBJECTS).rev().for_each(|object| self.free_one(object));
        self.reserve.extend(first..first + kept);
        self.get()
    }

    /// Gives an object back: to the reserve if that is not full, otherwise to the free list.
    #[inline]
    fn put(&mut self, object: u32) {
        if self.reserve.len() < RESERVE as usize {
            self.reserve.push(object);
        } else {
            self.free_one(object);
        }
    }

    #[inline]
    fn free_one(&mut self, object: u32) {
        let free = self.free;
        self.object(object).0[NEXT] = u64::from(free);
        self.free = object;
    }

    /// Returns the number of objects in the free list and the reserve.
    #[cfg(test)]
    fn idle(&mut self) -> usize {
        let (mut count, mut at) = (self.reserve.len(), self.free);
        while at != NONE {
            count += 1;
            at = self.object(at).0[NEXT] as u32;
        }
        count
    }
}

/// The object of each bio, indexed by the bio's number; `NONE` for a bio without an object.
#[derive(Debug, Default)]
struct Table(Vec<u32>);

impl Table {
    #[inline]
    fn set(&mut self, bio: u32, object: u32) {
        let at = bio as usize;
        if at >= self.0.len() {
            self.0.resize((at + 1).next_power_of_two(), NONE);
        }
        debug_assert!(self.0[at] == NONE, "S1");
        self.0[at] = object;
    }

    #[inline]
    fn take(&mut self, bio: u32) -> Option<u32> {
        let object = std::mem::replace(self.0.get_mut(bio as usize)?, NONE);
        (object != NONE).then_some(object)
    }
}

/// Takes the memory of each bio from a slab of the ring's thread, like a kernel without a bio cache does.
#[derive(Debug, Default)]
pub struct ThreadSlab {
    slab: Slab,
    bios: Table,
}

impl ThreadSlab {
    /// Makes a store whose slab takes at most `most_pages` pages.
    #[cfg(test)]
    pub fn bounded(most_pages: usize) -> ThreadSlab {
        ThreadSlab { slab: Slab::bounded(most_pages), bios: Table::default() }
    }

    /// Returns the number of objects that are not attached to a bio.
    #[cfg(test)]
    pub fn idle(&mut self) -> usize {
        self.slab.idle()
    }

    /// Returns the number of idle objects that are in the reserve.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.slab.reserve.len()
    }
}

impl BioStore for ThreadSlab {
    fn get(&mut self, bio: u32) -> bool {
        let Some(object) = self.slab.get() else { return false };
        self.bios.set(bio, object);
        true
    }

    fn put(&mut self, bio: u32) {
        if let Some(object) = self.bios.take(bio) {
            self.slab.put(object);
        }
    }
}

/// Memory of a bio. It is uninitialised and has ordinary alignment, so that the allocator is called through `malloc`;
/// `calloc` and `posix_memalign` bypass its cache per thread.
type Memory = Box<MaybeUninit<[u64; WORDS]>>;

/// Takes each bio's memory from the global allocator and returns it there.
#[derive(Debug, Default)]
pub struct Malloc(Vec<Option<Memory>>);

impl BioStore for Malloc {
    fn get(&mut self, bio: u32) -> bool {
        let at = bio as usize;
        if at >= self.0.len() {
            self.0.resize_with((at + 1).next_power_of_two(), || None);
        }
        debug_assert!(self.0[at].is_none(), "S1");
        self.0[at] = Some(Box::new_uninit());
        true
    }

    fn put(&mut self, bio: u32) {
        if let Some(memory) = self.0.get_mut(bio as usize) {
            drop(memory.take());
        }
    }
}

/// A CPU's part of the bio set: a cache, and the slab behind it.
#[derive(Debug)]
struct Cpu {
    cache: Vec<u32>,
    slab: Slab,
    pruned: u64,
}

thread_local! {
    /// The variable of a CPU. It can be a thread-local variable, because the lab pins a ring's thread to its CPU. The
    /// borrow during an access stands for the kernel's `get_cpu` and `put_cpu`.
    static CPU: RefCell<Cpu> =
        const { RefCell::new(Cpu { cache: Vec::new(), slab: Slab::bounded(PAGES), pruned: 0 }) };
}

/// A cache on the bio set for each CPU, shared by all rings on that CPU, which the review of the patches proposed. Only
/// a ring that has opted in uses it, and only for polled I/O; so the cache needs neither a lock nor disabled
/// interrupts.
#[derive(Debug)]
pub struct PerCpu {
    opted_in: bool,
    bios: Table,
}

impl PerCpu {
    /// Makes the store of one ring. If `opted_in` is false, it uses the CPU's slab alone.
    pub fn new(opted_in: bool) -> PerCpu {
        PerCpu { opted_in, bios: Table::default() }
    }

    /// Returns the number of objects in the calling thread's cache, and the number that were pruned from it so far.
    #[cfg(test)]
    pub fn cached_and_pruned() -> (usize, u64) {
        CPU.with_borrow(|cpu| (cpu.cache.len(), cpu.pruned))
    }
}

impl BioStore for PerCpu {
    fn get(&mut self, bio: u32) -> bool {
        let object = CPU.with_borrow_mut(|cpu| {
            let cached = if self.opted_in { cpu.cache.pop() } else { None };
            cached.or_else(|| cpu.slab.get())
        });
        let Some(object) = object else { return false };
        self.bios.set(bio, object);
        true
    }

    fn put(&mut self, bio: u32) {
        let Some(object) = self.bios.take(bio) else { return };
        CPU.with_borrow_mut(|cpu| {
            if !self.opted_in {
                return cpu.slab.put(object);
            }
            cpu.cache.push(object);
            if cpu.cache.len() > PER_CPU_MAX + PER_CPU_SLACK {
                cpu.prune();
            }
        });
    }
}

impl Cpu {
    /// Moves the objects that were cached last to the slab. The kernel cuts its list at the same end.
    #[cold]
    fn prune(&mut self) {
        for object in self.cache.split_off(self.cache.len() - PER_CPU_SLACK) {
            self.slab.put(object);
        }
        self.pruned += PER_CPU_SLACK as u64;
    }
}

/// Attaches no memory. It keeps the same table as the other stores, so that the time it takes is the time of calling a
/// store.
#[derive(Debug, Default)]
pub struct Nothing(Table);

impl BioStore for Nothing {
    fn get(&mut self, bio: u32) -> bool {
        self.0.set(bio, bio);
        true
    }

    fn put(&mut self, bio: u32) {
        self.0.take(bio);
    }
}
