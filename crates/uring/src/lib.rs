//! Sheave floor 6: rings with the kernel's SQEs and CQEs over the block layer.
//!
//! Not covered by the stability promise of the crate `sheave`: public items may change with any version.
//!
//! | module | holds |
//! |---|---|
//! | [`ring`], [`builder`] | the type that embedders hold, and its settings |
//! | [`prep`] | typed, safe operations |
//! | [`io_buf`], `owned` | memory that operations own, and the table that keeps it until they complete |
//! | [`sqe`], [`cqe`], [`queues`] | the UAPI layouts; ring memory with every acquire and release |
//! | [`req`], `core` | request slots; the state between submission and completion |
//! | [`opdef`], `op` | the table of operations, and each operation |
//! | `submit`, `complete` | from SQE to request, from request to CQE: chains, drains, overflow |
//! | `plain`, `plain_run` | the fast path of plain reads and writes, without a slot |
//! | `timers` | pending timeouts |
//! | `times` | statistics of I/O on files |
//! | `task_work`, [`io_wq`] | the path from other threads to a ring; work that may block |
//! | `blocking`, `file_work` | the parts of a request that need a worker, and their batches |
//! | `offload`, `held_file`, `worker_ring` | whole operations on a worker (`IOSQE_ASYNC`), and its ring |
//! | [`work_done`] | the result of a worker's work, and its encoding for the ring |
//! | [`sockets`] | a ring as the engine of a server |
//! | [`rsrc`] | file table, registered files and buffers |
//!
//! ```
//! use sheave_uring::{prep, Ring};
//!
//! let mut ring = Ring::builder().entries(8).build()?;
//! ring.push(prep::nop().user_data(42))?;
//! ring.submit_and_wait(1)?;
//! assert_eq!(ring.completions().map(|c| c.user_data).collect::<Vec<_>>(), [42]);
//! # Ok::<(), sheave_uring::RingError>(())
//! ```
//!
//! Types: a [`Ring`] belongs to the thread that made it. [`Ring::attach`] returns an [`Fd`] by which SQEs name a
//! device. [`Ring::push`] takes an [`Entry`](prep::Entry) with the memory that it owns, [`Ring::push_sqe`] a raw SQE.
//! Both become requests with [`Ring::submit`], and each gives one [`Completion`].
//!
//! Units: offsets and lengths are in bytes. On a raw device they are multiples of its logical block, and the address of
//! the memory is a multiple of its alignment.
//!
//! Errors: a failed call returns a [`RingError`], whose text names the cause and the fix. The result of an I/O is the
//! `res` of its completion, as in io_uring: bytes, or `-errno` ([`Completion::result`] converts that). No call blocks
//! unless its documentation says so.

mod blocking;
pub mod builder;
mod complete;
mod completion;
mod core;
pub mod cqe;
pub mod error;
mod file_work;
mod held_file;
pub mod io_buf;
pub mod io_wq;
mod offload;
mod op;
pub mod opdef;
mod owned;
mod plain;
mod plain_run;
pub mod prep;
pub mod queues;
pub mod req;
pub mod ring;
pub mod rsrc;
pub mod sockets;
pub mod sqe;
mod submit;
pub mod task_work;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod timers;
mod times;
mod user_memory;
pub mod work_done;
mod worker_ring;

pub use builder::RingBuilder;
pub use completion::{Completion, CompletionFlags, IoError, WaitOn, Waited};
#[cfg(sheave_lab)]
pub use cqe::LateCompletions;
pub use error::{RingError, SqFull};
pub use io_buf::{IoBuf, IoBufMut};
pub use io_wq::{Account, IoWq, IoWqBuilder};
pub use ring::{Completions, Ring};
pub use rsrc::{Fd, FixedFile};
pub use task_work::{RingHandle, SendError};
pub use work_done::WorkDone;
