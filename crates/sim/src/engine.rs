//! Engines: what carries reads, writes and syncs between a volume and the simulated disk, step by step.
//!
//! | module | holds |
//! |---|---|
//! | [`direct`] | an engine that does by hand what a ring does with a file, in orders that no ring has |
//! | [`rings`] | a ring with workers that step when they are told to |
//!
//! Owns the [`Engine`] trait. Work that may block (`map_blocking`, `fallocate`, `sync`) is a call on a thread of
//! [`Threads`]: it goes on when it is stepped, and waits while I/O of this engine and of others is under way.

pub mod direct;
pub mod rings;

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_iomap::file::FallocateMode;

pub use direct::Direct;
pub use rings::Rings;

use crate::threads::Threads;

const ALIGN: usize = 4096;

/// What a request wants of a volume.
#[derive(Debug)]
pub enum Want {
    /// So many bytes.
    Read(usize),
    /// These bytes written; durable when it ends, if asked for.
    Write(Vec<u8>, bool),
    /// So many bytes to be zero.
    Zero(FallocateMode, u64),
    /// What ended before to be durable.
    Sync,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its number.
    pub op: u64,
    /// How it ended.
    pub status: Status,
    /// What was read.
    pub data: Vec<u8>,
}

/// Calls of engines that may wait for whatever there is: a grace, space, other writes.
const MAX_UNBOUND: usize = 5;
/// Calls of engines in all. What waits for nothing but the disk and a commit finds room when the others wait, so that
/// they do not wait for ever; and what [`Threads`] has room for beyond these is for calls on the pool.
const MAX_BOUND: usize = 9;

/// Whether an engine may start a call.
fn has_room(threads: &Threads, bound: bool) -> bool {
    threads.running().len() < if bound { MAX_BOUND } else { MAX_UNBOUND }
}

/// One ring's worth of requests.
pub trait Engine {
    /// Takes a request at a position of a volume.
    fn submit(&mut self, op: u64, file: &Arc<dyn File>, pos: u64, want: Want);

    /// Goes one step further, without blocking. Calls that it starts are stepped by whoever has the threads.
    fn turn(&mut self) -> Vec<Ended>;

    /// What its requests are at, in words.
    fn describe(&self) -> String;

    /// Requests that have not ended.
    fn busy(&self) -> usize;

    /// Forgets what it has of a file, which no request uses.
    fn detach(&mut self, file: &Arc<dyn File>);
}

fn buf(len: usize) -> Buf {
    Buf::zeroed(len, ALIGN).expect("the machine has memory for a buffer")
}

#[cfg(test)]
mod tests;
