//! What stands behind the cache of bios in the arms: a slab, the global allocator, a cache per CPU, nothing.
//!
//! A bio of Sheave lives in its ring's arena and keeps its number; an allocator would give it another place each time.
//! So a store brings to each bio the memory that a kernel's bio is, and takes it away again. It does not initialise
//! that memory: every arm initialises the bio in the arena, once, as every design in the thread does. What is left is
//! what an allocator costs, and the way to the store, which [`Nothing`] has by itself.
//!
//! * S1. `bios[n]` has memory from `get(n)` until `put(n)`.
//! * S2. An object of a slab is out, free in the slab, or in the reserve; never two of them.

use std::cell::RefCell;
use std::mem::MaybeUninit;

use sheave_blk::bio::Bio;
use sheave_blk::bio_set::BioStore;

/// As large as a bio with its inline vectors.
const WORDS: usize = size_of::<Bio>() / size_of::<u64>();
/// Objects of one page of a slab: 4 KiB, the smallest that SLUB takes for objects of this size.
const OBJECTS: u32 = 32;
/// The word of a free object that says which is free next: in the middle, as SLUB has it.
const NEXT: usize = WORDS / 2;
/// No object.
const NONE: u32 = u32::MAX;
/// What the mempool of a bio set keeps back (`BIO_POOL_SIZE` for file systems is 2, for block devices 4).
const RESERVE: u32 = 4;
/// Pages that a slab may take: 32 MiB, which is far more than the lab's deepest ring has bios for.
const PAGES: usize = 8192;

/// The bound of the review's cache, and how many leave an overfull one at once (`ALLOC_CACHE_MAX` and `_SLACK`).
pub const PER_CPU_MAX: usize = 512;
const PER_CPU_SLACK: usize = 64;

/// The memory of a bio.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Object([u64; WORDS]);

/// A thread's slab of objects of a bio's size: a list of free ones through the objects themselves, the one freed last
/// first. When it is empty another page is taken; when no page is to be had, the reserve of a mempool serves.
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
    /// One that takes at most so many pages.
    pub const fn bounded(most_pages: usize) -> Slab {
        Slab { pages: Vec::new(), most_pages, free: NONE, reserve: Vec::new() }
    }

    fn object(&mut self, object: u32) -> &mut Object {
        &mut self.pages[(object / OBJECTS) as usize][(object % OBJECTS) as usize]
    }

    /// Takes an object; `None` when page and reserve are out.
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
        // The first page fills the reserve, as `mempool_init` does.
        let kept = if first == 0 { RESERVE } else { 0 };
        (first + kept..first + OBJECTS).rev().for_each(|object| self.free_one(object));
        self.reserve.extend(first..first + kept);
        self.get()
    }

    /// Gives an object back: to the reserve first, if that lacks one.
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

    /// Objects that are not out.
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

/// Which object each bio has that has one.
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

/// Each bio's memory comes from a slab of the ring's thread, as a kernel's does that has no cache of bios.
#[derive(Debug, Default)]
pub struct ThreadSlab {
    slab: Slab,
    bios: Table,
}

impl ThreadSlab {
    /// One whose slab takes at most so many pages.
    #[cfg(test)]
    pub fn bounded(most_pages: usize) -> ThreadSlab {
        ThreadSlab { slab: Slab::bounded(most_pages), bios: Table::default() }
    }

    /// Objects that no bio has.
    #[cfg(test)]
    pub fn idle(&mut self) -> usize {
        self.slab.idle()
    }

    /// Those of them that the reserve has.
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

/// Memory that is not initialised and as aligned as any, so that the allocator is asked by `malloc`: not by `calloc` or
/// `posix_memalign`, which go past its cache of a thread.
type Memory = Box<MaybeUninit<[u64; WORDS]>>;

/// Each bio's memory comes from the global allocator and goes back to it.
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

/// What a CPU has of the bio set: its cache, and its slab behind that.
#[derive(Debug)]
struct Cpu {
    cache: Vec<u32>,
    slab: Slab,
    pruned: u64,
}

thread_local! {
    /// The variable of a CPU. The lab pins a ring's thread to its CPU, so the thread's own variable is the CPU's; that
    /// it is borrowed for the length of an access stands for the kernel's `get_cpu` and `put_cpu`.
    static CPU: RefCell<Cpu> =
        const { RefCell::new(Cpu { cache: Vec::new(), slab: Slab::bounded(PAGES), pruned: 0 }) };
}

/// A cache on the bio set for each CPU, which all rings there share: what the review proposed. Whoever may take from it
/// has opted in, which only polled I/O may: nothing then needs a lock or interrupts to be off.
#[derive(Debug)]
pub struct PerCpu {
    opted_in: bool,
    bios: Table,
}

impl PerCpu {
    /// A ring's way to it.
    pub fn new(opted_in: bool) -> PerCpu {
        PerCpu { opted_in, bios: Table::default() }
    }

    /// Objects that the calling thread's cache holds, and those that were pruned from it so far.
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
    /// The objects that were cached last go to the slab: the list has one end, and the kernel's is cut there too.
    #[cold]
    fn prune(&mut self) {
        for object in self.cache.split_off(self.cache.len() - PER_CPU_SLACK) {
            self.slab.put(object);
        }
        self.pruned += PER_CPU_SLACK as u64;
    }
}

/// Brings nothing, and notes that it did: what the way to a store costs by itself.
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
