//! Engines: what carries reads, writes and syncs between a volume and the simulated disk, on one thread.
//!
//! | module | holds |
//! |---|---|
//! | [`direct`] | an engine that does by hand what a ring does with a file, in orders that no ring has |
//! | [`rings`] | a ring with workers that step when they are told to |
//!
//! Owns the [`Engine`] trait. Work that may wait for a grace (`map_blocking`, `fallocate`) runs only when no engine has
//! I/O that is counted in it: there is nobody else who could end that.

pub mod direct;
pub mod rings;

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_iomap::file::FallocateMode;

pub use direct::Direct;
pub use rings::Rings;

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

/// One ring's worth of requests.
pub trait Engine {
    /// Takes a request at a position of a volume.
    fn submit(&mut self, op: u64, file: &Arc<dyn File>, pos: u64, want: Want);

    /// Goes one step further. `calm`: nothing anywhere is counted in the grace, so that waiting for one is safe.
    fn turn(&mut self, calm: bool) -> Vec<Ended>;

    /// Requests that have not ended.
    fn busy(&self) -> usize;

    /// I/Os that a grace would wait for.
    fn counted(&self) -> u64;

    /// Forgets what it has of a file, which no request uses.
    fn detach(&mut self, file: &Arc<dyn File>);
}

fn buf(len: usize) -> Buf {
    Buf::zeroed(len, ALIGN).expect("the machine has memory for a buffer")
}

#[cfg(test)]
mod tests;
