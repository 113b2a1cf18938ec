//! io-wq: work that must not run on the ring's thread.
//!
//! Queues are sharded, workers are not: a submitter pushes to its home shard. A running worker takes one client's batch
//! at a time, round-robin over the shards that a bitmap marks as non-empty, and sleeps only after it has found all
//! shards empty. `docs/internals/io-wq.md` follows one item through the pool.
//!
//! | module | holds |
//! |---|---|
//! | `work`, `item` | an item's properties and queue entry; its state word, which decides who owns it, and cancelling |
//! | `shard`, `hash` | queues and batches; hashed work, in order and never twice at once |
//! | `acct` | an account's shards and the counts of its workers: which are woken, created, put to sleep |
//! | `blocked` | share of items that block, measured by the workers when items end |
//! | `worker`, `thread_state` | a worker's loop and the items nested on its thread; affinity and state of a thread |
//! | `nap` | delayed wake-ups on a CPU that worker and ring share; items that the ring runs itself |
//! | `shared` | state shared by a pool's threads; creating and joining threads; the limit of a process's workers |
//! | `client`, `pool` | clients that queue work; limits and shutdown |
//! | `step` | a pool without threads, for simulators |
//! | `ring`, `ring_work` | a ring as a client, and the public handle; work that workers do for rings |
//! | `lock` | the mutex of shards and rosters |
//! | `measure` | for the lab, in place of `lock`: a mutex that measures, and times from queue to start |
//!
//! Invariants, each kept by the module named:
//! - I1: every queued item ends exactly once: either its result is delivered, or a cancel took it back (`item`,
//!   `pool`).
//! - I2: items of one hash run in queueing order and never two at once (`hash`).
//! - I3: while work is queued some worker will look for it, unless all workers up to the limit are blocked (`acct`).
//! - I4: the number of workers never exceeds the limit (`acct`).
//! - I5: queueing an item of a registered client allocates nothing (`shard`).

mod acct;
mod blocked;
mod client;
mod hash;
mod item;
#[cfg(not(sheave_lab))]
mod lock;
#[cfg(sheave_lab)]
mod measure;
mod nap;
mod pool;
mod ring;
mod ring_work;
mod shard;
mod shared;
mod step;
mod thread_state;
mod work;
mod worker;

pub use item::Cancelled;
#[cfg(sheave_lab)]
use measure as lock;
#[cfg(sheave_lab)]
pub use measure::LockStats;
pub use pool::{AcctCounts, Pool, Submitter};
pub(crate) use ring::RingWq;
pub use ring::{IoWq, IoWqBuilder};
pub(crate) use ring_work::{Issuer, Kind, Operation, Sum, Work};
pub use ring_work::{RingContext, RingSource};
pub use shared::{IDLE_TIMEOUT, PROCESS_WORKERS, PoolOptions, SPIN};
pub use step::Account;
pub use work::{CANCELLED, Ends, HASH_BUCKETS, MAX_CLIENTS, MAX_SLOTS, Section, Source, WorkFlags};

#[cfg(all(test, shuttle))]
mod model;
#[cfg(all(test, not(shuttle)))]
mod tests;
