//! Engines: they carry reads, writes and syncs between a volume and the simulated disk, step by step.
//!
//! | module | holds |
//! |---|---|
//! | [`direct`] | an engine that does by itself what a ring does with a file, in orders that no ring has |
//! | [`rings`] | a ring whose workers are stepped |
//!
//! Owns the [`Engine`] trait. Work that may block (`map_blocking`, `fallocate`, `sync`) is a call on a thread of
//! [`Threads`]. Such a call makes progress only when it is stepped, and it waits while I/O of this engine or of others
//! is under way.

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

/// An operation on a volume.
#[derive(Debug)]
pub enum Want {
    /// Number of bytes.
    Read(usize),
    /// The bytes; and true for a DSYNC write.
    Write(Vec<u8>, bool),
    /// The mode, and the number of bytes.
    Zero(FallocateMode, u64),
    /// Makes durable the writes that ended before the sync began.
    Sync,
}

#[derive(Debug)]
pub struct Ended {
    pub op: u64,
    pub status: Status,
    /// The bytes read.
    pub data: Vec<u8>,
}

/// A call that may wait for anything (a grace period, space, other writes) starts only while fewer calls of engines run
/// than this number.
const MAX_UNBOUND: usize = 5;
/// A call that waits only for the disk or for a commit starts only while fewer calls of engines run than this number.
/// It is larger than `MAX_UNBOUND`, because the other calls wait for such calls and would wait for ever if no thread
/// were left for them. The remaining threads of [`Threads`] are for calls on the pool.
const MAX_BOUND: usize = 9;

/// Returns true if an engine may start a call. `bound` is true for a call that waits only for the disk and for commits.
fn has_room(threads: &Threads, bound: bool) -> bool {
    threads.running().len() < if bound { MAX_BOUND } else { MAX_UNBOUND }
}

/// A source of requests, like one ring.
pub trait Engine {
    fn submit(&mut self, op: u64, file: &Arc<dyn File>, pos: u64, want: Want);

    /// Makes one step without blocking, and returns the requests that ended. It starts calls but does not step them;
    /// the owner of the threads does.
    fn turn(&mut self) -> Vec<Ended>;

    /// Returns the state of the requests in words.
    fn describe(&self) -> String;

    /// Returns the number of requests that have not ended.
    fn busy(&self) -> usize;

    /// Drops what the engine keeps for a file that no request uses any more.
    fn detach(&mut self, file: &Arc<dyn File>);
}

fn buf(len: usize) -> Buf {
    Buf::zeroed(len, ALIGN).expect("the machine has memory for a buffer")
}

#[cfg(test)]
mod tests;
