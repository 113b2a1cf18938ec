//! io-wq: work that must not run on the ring's thread.
//!
//! Queues are sharded, workers are not: a submitter pushes to its home shard; a worker that is awake takes a batch of
//! one client at a time, going round the shards that a bitmap marks; it sleeps only after a full look at all of them.
//! `docs/io-wq.md` follows one item through it.
//!
//! | module | holds |
//! |---|---|
//! | `work`, `item` | what the pool knows of an item; the state word that decides who has it, and cancelling |
//! | `shard`, `hash` | queues, batches; hashed work in order and never twice at once |
//! | `acct` | an account's shards and the places of its workers: who is woken, made, sent to sleep |
//! | `blocked` | how often items block, as their workers learn when they end |
//! | `worker`, `thread_state` | a thread's life; whether it computes or sleeps, as the kernel knows |
//! | `nap`, `help` | wake-ups that are put off on a CPU that worker and ring share; items that the ring runs itself |
//! | `within` | items that run within items, on one thread |
//! | `shared` | what all threads of a pool share; how a thread is made and joined |
//! | `client`, `pool` | who queues work; limits and the end |
//! | `step` | a pool without threads, for simulators |
//! | `ring`, `ring_work` | a ring as a client, and the public handle; what workers do for rings |
//! | `census` | how many workers all pools of the process have |
//! | `lock`, `starts` | measuring |
//!
//! Invariants, each kept by the module named:
//! - I1: every queued item ends exactly once: its result comes back, or a cancel took it back (`item`, `pool`).
//! - I2: items of one hash run in the order of their queueing and never two at once (`hash`).
//! - I3: if work is queued somebody will look for it, unless all workers that may be are blocked (`acct`).
//! - I4: never more workers than the limit (`acct`).
//! - I5: nothing is allocated for an item once its client is registered (`shard`).

mod acct;
mod blocked;
mod census;
mod client;
mod hash;
mod help;
mod item;
mod lock;
mod nap;
mod pool;
mod ring;
mod ring_work;
mod shard;
mod shared;
mod starts;
mod step;
mod thread_state;
mod within;
mod work;
mod worker;

pub use census::PROCESS_WORKERS;
pub use item::Cancelled;
pub use lock::LockStats;
pub use pool::{AcctCounts, Pool, Submitter};
pub(crate) use ring::RingWq;
pub use ring::{IoWq, IoWqBuilder};
pub(crate) use ring_work::{Issuer, Kind, Operation, Sum, Work};
pub use ring_work::{RingContext, RingSource};
pub use shared::{IDLE_TIMEOUT, PoolOptions, SPIN};
pub use step::Account;
pub use work::{CANCELLED, Ends, HASH_BUCKETS, MAX_CLIENTS, MAX_SLOTS, Section, Source, WorkFlags};

#[cfg(all(test, shuttle))]
mod model;
#[cfg(all(test, not(shuttle)))]
mod tests;
