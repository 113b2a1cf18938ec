//! What stands behind the cache of bios in the arms: the global allocator, a pool that rings share, nothing.
//!
//! A bio of Sheave lives in its ring's arena and keeps its number; an allocator would give it another place each time.
//! So the stores bring to each bio the memory that a kernel's bio is, initialise it as the kernel does, and take it
//! away again; what the I/O uses stays in the arena, where every arm initialises it too.
//!
//! * S1. `bios[n]` has memory from `get(n)` until `put(n)`.

use std::sync::{Arc, Mutex, PoisonError};

use sheave_blk::bio_set::BioStore;

/// As large as a bio with its inline vectors is, here and in the kernel without cgroups.
const WORDS: usize = 16;
/// What is written when a bio is initialised: its header, one cache line. The vectors are written when it is filled.
const HEADER: usize = 8;

/// The memory of a bio.
#[derive(Debug)]
struct Memory([u64; WORDS]);

impl Memory {
    /// Every field of the header, as `bio_init` does.
    fn init(&mut self, bio: u32) {
        self.0[..HEADER].fill(0);
        self.0[HEADER - 1] = u64::from(bio);
    }
}

/// Where the memory of each bio is that has some.
#[derive(Debug, Default)]
struct Bios(Vec<Option<Box<Memory>>>);

impl Bios {
    fn set(&mut self, bio: u32, memory: Box<Memory>) {
        let at = bio as usize;
        if at >= self.0.len() {
            self.0.resize_with((at + 1).next_power_of_two(), || None);
        }
        debug_assert!(self.0[at].is_none(), "S1");
        self.0[at] = Some(memory);
    }

    fn take(&mut self, bio: u32) -> Option<Box<Memory>> {
        self.0.get_mut(bio as usize)?.take()
    }
}

/// Each bio's memory comes from the global allocator and goes back to it.
#[derive(Debug, Default)]
pub struct Allocator(Bios);

impl BioStore for Allocator {
    fn get(&mut self, bio: u32) -> bool {
        let mut memory = Box::new(Memory([0; WORDS]));
        memory.init(bio);
        self.0.set(bio, memory);
        true
    }

    fn put(&mut self, bio: u32) {
        drop(self.0.take(bio));
    }
}

/// Free memory of bios, for all rings.
type Pool = Arc<Mutex<Vec<Box<Memory>>>>;

/// Each bio's memory comes from a pool that all rings of the arm share, under a lock.
#[derive(Debug, Default)]
pub struct SharedPool {
    pool: Pool,
    bios: Bios,
}

impl SharedPool {
    /// Another ring's end of the same pool.
    pub fn another(&self) -> SharedPool {
        SharedPool { pool: self.pool.clone(), bios: Bios::default() }
    }

    /// Free memory in the pool.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl BioStore for SharedPool {
    fn get(&mut self, bio: u32) -> bool {
        let free = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Only until there are as many as were ever in use at once.
        let mut memory = free.unwrap_or_else(|| Box::new(Memory([0; WORDS])));
        memory.init(bio);
        self.bios.set(bio, memory);
        true
    }

    fn put(&mut self, bio: u32) {
        if let Some(memory) = self.bios.take(bio) {
            self.pool.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        }
    }
}

/// Brings nothing: what the way to a store costs by itself.
#[derive(Debug)]
pub struct Nothing;

impl BioStore for Nothing {
    fn get(&mut self, _: u32) -> bool {
        true
    }

    fn put(&mut self, _: u32) {}
}
