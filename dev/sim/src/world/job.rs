//! A call on the pool, and the reasons that excuse its failure.

use std::fmt;

use sheave_base::status::Status;
use sheave_vol::{Pool, PoolError, PoolInfo};

use crate::model::Change;
use crate::threads::Call;

#[derive(Clone, Debug)]
pub(super) enum Job {
    Change(Change),
    Sync { op: u64 },
    Grow { before: Box<PoolInfo>, added: u64 },
    Scrub,
    Trim,
}

/// The reason for which a call failed.
#[derive(Debug)]
pub(super) enum Why {
    Pool(PoolError),
    Told(String),
}

impl From<PoolError> for Why {
    fn from(error: PoolError) -> Why {
        Why::Pool(error)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Pool(error) => write!(out, "{error}"),
            Why::Told(why) => write!(out, "{why}"),
        }
    }
}

/// The I/O and calls that were under way during a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    /// True if there was I/O to the volume that the call is about, or to the source of a copy.
    pub(super) own: bool,
    pub(super) any: bool,
    pub(super) calls: bool,
    /// Number of slow reads that were under way when the call began.
    pub(super) slow: usize,
}

/// A call that has not returned, or whose result has not been taken.
pub(super) struct PoolCall {
    pub(super) job: Job,
    pub(super) call: Call<Result<u64, Why>>,
    /// Number of the last operation that had begun before the call.
    pub(super) after: u64,
    pub(super) beside: Beside,
}

impl fmt::Debug for PoolCall {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", self.job)
    }
}

/// Returns true if the pool refused the call because a flush had failed before.
pub(super) fn is_degraded(result: &Result<u64, Why>) -> bool {
    matches!(result, Err(Why::Pool(PoolError::Degraded { .. })))
}

/// Returns true if the call failed because the file system that holds the disk was full.
pub(super) fn is_host_full(result: &Result<u64, Why>) -> bool {
    matches!(result, Err(Why::Pool(PoolError::HostFull { .. } | PoolError::Io { status: Status::NoSpc, .. })))
}

/// Returns true if the disk failed during the call.
pub(super) fn is_io_error(result: &Result<u64, Why>) -> bool {
    matches!(result, Err(Why::Pool(PoolError::Io { .. } | PoolError::NotDurable { .. })))
}

pub(super) fn call(pool: &Pool, change: &Change) -> Result<(), PoolError> {
    match change {
        Change::Create { name, size, max: None, .. } => pool.create_volume(name, *size).map(drop),
        Change::Create { name, size, max: Some(max), .. } => pool.create_growing_volume(name, *size, *max).map(drop),
        Change::Limit { name, max } => pool.set_max_size(name, *max),
        Change::Copy { source, name, snapshot: true, .. } => pool.snapshot(source, name),
        Change::Copy { source, name, .. } => pool.clone_volume(source, name),
        Change::Together { copies } => {
            let copies: Vec<_> = copies.iter().map(|(source, name, _)| (&**source, &**name)).collect();
            pool.snapshot_together(&copies)
        }
        Change::Rollback { name, snapshot } => pool.rollback(name, snapshot),
        Change::Rename { name, new } => pool.rename(name, new),
        Change::Resize { name, size } => pool.resize(name, *size),
        Change::Delete { name } => pool.delete(name),
    }
}
